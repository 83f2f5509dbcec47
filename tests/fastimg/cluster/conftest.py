"""A cluster of Ray's own, on this machine, and an object store that its nodes reach."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fastimg.cluster.connection import namespace_of

from ...loaders.remote.object_server import ObjectServer
from ..convert.field_samples import png

_SMALL = {"object_store_memory": 100 << 20}
NODE = {"num_cpus": 1, "num_gpus": 1, **_SMALL}  # the GPU is one as Ray counts: nothing computes on it
FAULTS = dict.fromkeys(("busy", "cut", "flip"), 0.05)  # shares of a store's requests
SOON = {
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 5000,  # a node that is killed refuses at once; one that waits for a core is there
    "health_check_failure_threshold": 3,
    "worker_niceness": 0,  # else tasks get what other programs leave of the cores
}


@pytest.fixture(scope="package")
def start_cluster() -> Iterator[Callable[..., Any]]:
    """`start_cluster(2)`: a head without cores, from which commands start, and as many nodes with one core each.

    With `like`, the head has the address of that cluster's, which is lost.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # nodes start Python, not uv
        patched.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as will be the default: Ray warns of the other
        # Else a thread of Ray Data's looks for statistics every 10 seconds: without a cluster, that can end pytest.
        patched.setenv("RAY_DATA_USAGE_DISABLED", "1")
        from ray.cluster_utils import Cluster

        started = []

        def start(nodes: int, like: Any = None) -> Any:
            head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "_system_config": SOON, **_SMALL}
            if like is not None:
                head["gcs_server_port"] = int(like.address.rpartition(":")[2])
            cluster = Cluster(initialize_head=True, head_node_args=head)
            started.append(cluster)
            for _ in range(nodes):
                cluster.add_node(**NODE)
            return cluster

        yield start
        _disconnect()
        for cluster in started:
            cluster.shutdown()


@pytest.fixture(scope="package")
def cluster(start_cluster: Callable[..., Any]) -> Any:
    """Two nodes with a core each."""
    return start_cluster(2)


@pytest.fixture(autouse=True)
def cold(request: pytest.FixtureRequest) -> None:
    """Each command connects to its cluster, unless a test asks for `warm`."""
    if "warm" not in request.fixturenames:
        _disconnect()


@pytest.fixture
def warm(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands share a connection to `cluster`, so that processes on its nodes have imported what they need.

    Tests that ask for it stand one after the other.
    """
    import ray

    from fastimg.convert import pipeline
    from fastimg.predict import embedding

    if not ray.is_initialized():
        namespace = namespace_of("convert")
        ray.init(address=cluster.address, namespace=namespace, logging_level=logging.ERROR, log_to_driver=False)

    @contextmanager
    def joined(command: str, address: str | None) -> Iterator[Any]:
        assert address == cluster.address
        yield ray

    for module in (pipeline, embedding):
        monkeypatch.setattr(module, "joined", joined)


def _disconnect() -> None:
    if ray := sys.modules.get("ray"):
        ray.shutdown()


@pytest.fixture
def one_core() -> Iterator[None]:
    """As many threads as a task has."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """s3://bucket, which serves the folder `bucket`."""
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "bucket").mkdir()
    served = ObjectServer(tmp_path / "bucket")
    yield served
    served.close()


def options_of(server: ObjectServer) -> tuple[str, ...]:
    """What --storage-option gets for the store."""
    return tuple(f"{name}={value}" for name, value in server.options.items())


def read_once(images: Path, folder: Path) -> dict[str, Path]:
    """Sources that are read once, from front to back: parquet files with images and masks, texts, a named dataset."""
    rows = []
    for number, path in enumerate(sorted(images.rglob("*.jpg"))):
        width, height = Image.open(path).size
        mask = png(np.full((height, width), number % 5, np.uint8))
        rows.append({"image": path.read_bytes(), "label": path.parent.name, "mask": mask, "age": number})
    parquet = folder / "photos.parquet"
    pq.write_table(pa.Table.from_pylist(rows), parquet, row_group_size=7)
    texts = folder / "texts.csv"
    lines = [f"number {number},{'odd' if number % 2 else 'even'}" for number in range(300)]
    texts.write_text("\n".join(["text,label", *lines[:7], ",odd", *lines[7:]]))
    return {"images": parquet, "texts": texts, "named": Path("sklearn:digits")}


def once(condition: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    """Call `act` on a thread once the condition holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def press_ctrl_c() -> None:
    """What Ctrl-C does to this process alone."""
    os.kill(os.getpid(), signal.SIGINT)
