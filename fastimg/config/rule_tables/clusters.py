"""Rules of what runs on a Ray cluster."""

from typing import Any

from fastimg.config.rules import Check, Excludes, Needs, Range, Rule
from fastimg.config.training import Train
from fastimg.config.values import trial_resources

from .ranges import at_least


def on_ray(config: Any) -> bool:
    return bool(config.backend == "ray")


def _cluster_address(config: Any) -> str | None:
    if config.address is None or "://" not in config.address:
        return None
    return "start this command on a machine of the cluster, and give auto or HOST:PORT"


def check_cluster_device(config: Any) -> str | None:
    if not on_ray(config) or config.device in ("auto", "cpu", "cuda"):
        return None
    return "Ray chooses the GPU; give auto, cpu or cuda"


# Of every command with --backend and --address.
CLUSTER: tuple[Rule, ...] = (Needs("address", on_ray, "--backend ray"), Check("address", _cluster_address))


def _worker_resources(config: Train) -> str | None:
    if config.resources_per_worker is not None:
        trial_resources.parse(config.resources_per_worker, "--resources-per-worker", "rank")
    return None


def _elastic(config: Train) -> str | None:
    if config.elastic is not None:
        trial_resources.parse_range(config.elastic)
    return None


WORKERS: tuple[Rule, ...] = (
    *CLUSTER,
    *(Needs(name, on_ray, "--backend ray") for name in ("resources_per_worker", "elastic", "max_failures")),
    Needs("num_workers", on_ray, "--backend ray, where it is the number of ranks (threads are --workers)"),
    Excludes("num_workers", "elastic"),
    Range("num_workers", at_least(1), "1 or more"),
    Range("max_failures", at_least(0), "0 or more"),
    Check("resources_per_worker", _worker_resources),
    Check("elastic", _elastic),
    Check("device", check_cluster_device),
)
