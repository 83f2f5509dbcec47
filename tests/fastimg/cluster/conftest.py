"""A cluster of Ray's own, on this machine."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CORES = len(os.sched_getaffinity(0))
SMALL = {"object_store_memory": 100 << 20, "num_gpus": 0}
SOON = {
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "worker_niceness": 0,  # else tasks get what other programs leave of the cores
}


@pytest.fixture(scope="package")
def start_cluster() -> Iterator[Callable[[int], Any]]:
    """`start_cluster(2)`: a head without cores, and as many nodes with one core each."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # nodes start Python, not uv
        patched.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as will be the default: Ray warns of the other
        from ray.cluster_utils import Cluster

        started = []

        def start(nodes: int) -> Any:
            head = {"num_cpus": 0, "include_dashboard": False, "_system_config": SOON, **SMALL}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            started.append(cluster)
            for _ in range(nodes):
                cluster.add_node(num_cpus=1, **SMALL)
            return cluster

        yield start
        for cluster in started:
            cluster.shutdown()


@pytest.fixture(scope="package")
def cluster(start_cluster: Callable[[int], Any]) -> Any:
    """Two nodes with a core each."""
    return start_cluster(2)
