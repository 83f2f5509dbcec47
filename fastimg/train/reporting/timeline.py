"""A timeline of a few steps, recorded with torch's profiler: the host, the loader's threads and the GPU. --trace"""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, schedule

from fastimg.wording import plural

BEFORE = 10  # steps that are not recorded: kernels are compiled, memory is allocated, and the loader's slots are filled
_WARM = 2  # of these, how many the profiler takes to start: what it records at first includes its own costs


class Timeline:
    """Records `steps` optimiser steps after the first ten of this process, and writes them to `file`.

    Within its context, `step` is called after each step. A run that is stopped while it records writes what there is.
    """

    def __init__(self, file: Path, steps: int, device: torch.device) -> None:
        self.file = file
        self._steps = steps
        self._done = 0  # in this process
        self._recorded = 0
        self._failure: str | None = None
        # Without it, torch prints on stderr that it found no GPU, and when it starts and stops.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
        self._profiler: profile | None = profile(
            activities=activities,
            schedule=schedule(wait=BEFORE - _WARM, warmup=_WARM, active=steps, repeat=1),
            on_trace_ready=self._write,
            acc_events=True,  # there is one cycle; without it torch 2.11 warns that others are dropped
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )

    def __enter__(self) -> Self:
        if self._profiler is not None:
            self._profiler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def step(self) -> None:
        """Note that a step has ended. After the last one that is recorded, the file is written."""
        if self._profiler is None:
            return
        self._done += 1
        self._profiler.step()
        if self._done == BEFORE + self._steps:
            self._stop()

    @property
    def words(self) -> str:
        """What came of it, for the summary."""
        if self._failure is not None:
            return f"{self.file.name}: not written ({self._failure})"
        if not self._recorded:
            return f"none: recording begins after {plural(BEFORE, 'step')}, and the run had {self._done}"
        return f"{self.file}: {plural(self._recorded, 'step')} after the first {BEFORE}; open it in ui.perfetto.dev"

    def _stop(self) -> None:
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()

    def _write(self, profiler: profile) -> None:
        """Write the file; it appears once it is complete."""
        part = self.file.with_name(f".part-{self.file.name}")  # torch compresses what ends in .gz
        try:
            profiler.export_chrome_trace(str(part))
            part.replace(self.file)
        except OSError as error:
            part.unlink(missing_ok=True)
            self._failure = error.strerror or str(error)
        else:
            self._recorded = min(self._done - BEFORE, self._steps)
