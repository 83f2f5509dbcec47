"""Steps as CUDA graphs in the benchmark: the trainer's setting, and whether graphs were really replayed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from bench import SkippedError

from fastimg.config.commands import Train

_SETTING = "cuda_graphs"


def has_graphs() -> bool:
    """Whether the trainer has the setting."""
    return _SETTING in {field.name for field in fields(Train)}


def graphs_setting(graphs: bool) -> dict[str, Any]:
    """The setting of `Train` with or without graphs. Raises SkippedError if it has none, and graphs are asked for."""
    if has_graphs():
        return {_SETTING: "auto" if graphs else "off"}
    if graphs:
        raise SkippedError("train has no --cuda-graphs")
    return {}


@contextmanager
def replays(expected: bool) -> Iterator[list[int]]:
    """Count the replays of CUDA graphs within: one entry for each.

    Raises SkippedError at the end if some were `expected` and there were none: the steps ran eagerly.
    """
    counted: list[int] = []
    kept = torch.cuda.CUDAGraph.replay

    def replay(graph: torch.cuda.CUDAGraph) -> None:
        counted.append(1)
        kept(graph)

    torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]
    try:
        yield counted
    finally:
        torch.cuda.CUDAGraph.replay = kept  # type: ignore[method-assign]
    if expected and not counted:
        raise SkippedError("these steps ran eagerly, not as CUDA graphs")
