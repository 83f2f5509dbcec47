"""Steps as CUDA graphs in the benchmark: the trainer's setting, and whether graphs were really replayed."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from bench import SkippedError

from fastimg.config.commands import Train

_SETTING = "cuda_graphs"
_replayed = 0  # graphs, in this process


def has_graphs() -> bool:
    """Whether the trainer has the setting."""
    return _SETTING in {field.name for field in fields(Train)}


def graphs_setting(graphs: bool, device: torch.device) -> dict[str, Any]:
    """The setting of `Train` with or without graphs. Raises SkippedError if they are asked for and cannot be."""
    if graphs and device.type != "cuda":
        raise SkippedError("CUDA graphs need CUDA")
    if graphs and not has_graphs():
        raise SkippedError("train has no --cuda-graphs")
    _count_replays()
    return {_SETTING: "auto" if graphs else "off"} if has_graphs() and device.type == "cuda" else {}


@functools.cache
def _count_replays() -> None:
    """Count what is replayed from now on, also of graphs whose `replay` is kept when they are recorded."""
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        global _replayed
        _replayed += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counted  # type: ignore[method-assign]


def replays() -> int:
    """How many graphs this process has replayed since it first asked for a setting."""
    return _replayed


@contextmanager
def replaying(expected: bool) -> Iterator[None]:
    """Raises SkippedError at the end if graphs were `expected` and none was replayed: the steps ran eagerly."""
    before = replays()
    yield
    if expected and replays() == before:
        raise SkippedError("these steps ran eagerly, not as CUDA graphs")
