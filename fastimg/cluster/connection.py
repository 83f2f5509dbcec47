"""Joins a Ray cluster. Ray is imported by `joined` alone."""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from fastimg.errors import UserError, reason_of
from fastimg.loaders.extras import install
from fastimg.wording import plural

_ANSWER = 5.0  # seconds in which a cluster answers
_GONE = 60.0  # seconds in which actors of a command that was killed end


def check_installed(command: str) -> None:
    """Raise UserError where Ray is not installed. `command` names what needs it, as in "search"."""
    if find_spec("ray") is None:
        raise UserError(f"{command} --backend ray: Ray is not installed; `{install('ray')}`")


@contextlib.contextmanager
def joined(command: str, address: str | None) -> Iterator[Any]:
    """The module `ray`, connected to a cluster until the block ends. Actors have the namespace `namespace_of(command)`.

    address: HOST:PORT, auto, or None for RAY_ADDRESS, else auto. Raises UserError where it cannot be reached.
    """
    ray = _ray()
    _connect(ray, command, address or os.environ.get("RAY_ADDRESS") or "auto")
    try:
        yield ray
    finally:
        ray.shutdown()


def namespace_of(command: str) -> str:
    """The namespace in which a command's actors have their names."""
    return f"fastimg-{command}"


def alive(ray: Any) -> list[dict[str, float]]:
    """What each node of the cluster has, by Ray's names: CPU, GPU, memory and custom resources."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def room(nodes: Sequence[Mapping[str, float]], amounts: Mapping[str, float]) -> int:
    """How many processes that take these amounts run at a time on these nodes, if nothing else does."""

    def fitting(node: Mapping[str, float]) -> int:
        return min(int(node.get(name, 0) / amount + 1e-6) for name, amount in amounts.items())

    return sum(map(fitting, nodes))


def usual(nodes: Sequence[Mapping[str, float]], device: str) -> dict[str, float]:
    """What a trial or a rank takes if nothing is said: a GPU with its share of the cores; else the cores of a node."""
    with_gpus = [node for node in nodes if node.get("GPU", 0) >= 1] if device != "cpu" else []
    if with_gpus:
        cores = min(node.get("CPU", 0) // node["GPU"] for node in with_gpus)
        return {"GPU": 1, "CPU": max(1, int(cores))}
    counts = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    return {"CPU": min(counts, default=1)}


def node_name() -> str:
    """How people and Ray call the node that this actor or task is on."""
    import ray

    return f"{socket.gethostname()} (node {ray.get_runtime_context().get_node_id()[:8]})"


def end_earlier(ray: Any, command: str, prefix: str) -> None:
    """End the actors, named by this prefix, of a command that was killed: Ray ends them, too, but not at once.

    Raises UserError if they do not end.
    """
    end = time.monotonic() + _GONE
    while True:
        found = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
        left = [name for name in found if name.startswith(prefix)]
        if not left:
            return
        if time.monotonic() >= end:
            raise UserError(f"{command}: {plural(len(left), 'process')} of an earlier {command} do not end")
        for name in left:
            with contextlib.suppress(ValueError):  # it has ended
                ray.kill(ray.get_actor(name, namespace=namespace_of(command)))
        time.sleep(0.1)


def _ray() -> Any:
    # Otherwise Ray copies the folder from which `uv run` started a command to every node, and starts processes by uv.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    import ray

    return ray


def _connect(ray: Any, command: str, address: str) -> None:
    remedy = 'start one with "ray start --head", or give --address HOST:6379'
    if address == "auto":
        nothing = f"{command} --backend ray: no Ray cluster runs on this machine; {remedy}"
    else:
        nothing = f"--address {address}: no Ray cluster can be reached there"
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _ANSWER).close()
        except (OSError, ValueError) as error:
            raise UserError(f"{nothing} ({reason_of(error)}); {remedy}") from error
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, namespace=namespace_of(command), logging_level=logging.ERROR, log_to_driver=False)
    except ConnectionError as error:
        raise UserError(nothing) from error
    except (RuntimeError, ValueError, ray.exceptions.RayError) as error:  # another version of Ray or of Python
        raise UserError(f"--address {address}: {reason_of(error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own would end a command without its checkpoints
