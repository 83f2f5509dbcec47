"""A process that runs one trial after the other, so that importing torch, opening and compiling are paid once.

    pool  -- TrialWork, TrialVerdict -->  worker
    pool  <-- TrialProbed, Reported, Ended --  worker

It ends when the pool does, however that ends: a thread waits for the pool's end of the connection to close.
"""

import contextlib
import gc
import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fastimg.config import yaml_file
from fastimg.config.commands import Train
from fastimg.loaders.errors import DataError, ShardError, UnavailableError

from .messages import (
    TIME_OVER,
    Ended,
    HostFault,
    Message,
    Reported,
    TrialJob,
    TrialProbe,
    TrialProbed,
    TrialVerdict,
    TrialWork,
)
from .records import TrialRecord

if TYPE_CHECKING:
    from fastimg.train.loop import Result

Watch = Callable[[int, Mapping[str, float]], bool]
Training = Callable[[Train, Watch], "Result"]
_ALIKE = "no other trial could read the data, so the search ends here; the same command goes on with this trial"
_OURS = ("output", "name", "resume", "max_time")  # settings that say nothing about a trial


class TimeOver(KeyboardInterrupt):
    """The pool asked to end a trial that has not taken its first step."""


@dataclass(kw_only=True)
class _Ending:
    """SIGTERM ends a trial: one that is prepared is left, one that trains hears the signal itself."""

    working: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.working:
            self.working = False
            raise TimeOver


class PoolLine:
    """The connection to the pool: messages come by a thread, which ends the process where the pool is gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[bool] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="fastimg-pool", daemon=True).start()

    def asked(self) -> Message:
        """What the pool asks for next."""
        return self._asked.get()

    def judged(self, report: Reported) -> bool:
        """Report, and return whether the trial is to stop."""
        self.send(report)
        return self._verdicts.get()

    def send(self, message: Message) -> None:
        """Send a message."""
        try:
            self._connection.send(message)
        except OSError:
            os._exit(1)

    def _listen(self) -> None:
        try:
            while True:
                message: Message = self._connection.recv()
                if isinstance(message, TrialVerdict):
                    self._verdicts.put(message.stop)
                else:
                    self._asked.put(message)
        except (EOFError, OSError):
            os._exit(1)  # the search is gone: nobody would read what this process still did


def main() -> None:
    """Serve the pool that started this process. Arguments: the number of the connection, cores, a share of memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the search, which asks for the rest
    ending = _Ending()
    signal.signal(signal.SIGTERM, ending)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    line = PoolLine(Connection(int(sys.argv[1])))
    _bind(sys.argv[2])
    if sys.argv[3]:
        _limit_memory(float(sys.argv[3]))
    serve(line, ending)


def _bind(cores: str) -> None:
    """Use these cores alone, if some are named: beside other trials."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, map(int, cores.split(",")))


def _limit_memory(share: float) -> None:
    """Let trials take no more than a share of the GPU's memory, which they have beside others."""
    import torch

    if torch.cuda.is_available():  # where it is not, each trial says so
        torch.cuda.set_per_process_memory_fraction(share, 0)


def serve(line: PoolLine, ending: _Ending) -> None:
    """Answer one message after the other."""
    from fastimg.models.input_size import remember

    remember()
    speeds: dict[Any, float] = {}  # by what they depend on
    while True:
        message = line.asked()
        if isinstance(message, TrialProbe):
            line.send(_probed(message))
            gc.freeze()  # what was imported and found out stays: `release` after each trial does not look at it again
        elif isinstance(message, TrialWork):
            try:
                record = run_trial(message.job, message.metric, line.judged, _train, ending)
            except DataError as error:
                line.send(HostFault(words=f"trial {message.job.number}: {_reason(error)}; {_ALIKE}"))
                continue
            if message.speed_split is not None and record.state == "complete":
                record = _with_speed(record, message.job, message.speed_split, speeds)
            line.send(Ended(record=record))


def _probed(probe: TrialProbe) -> TrialProbed:
    """Whether trials can be run at all, and by which metric."""
    from fastimg.errors import UserError

    from .probing import metric_of

    try:
        return TrialProbed(metric=metric_of(_config(probe.settings)))
    except UserError as error:
        return TrialProbed(fault=str(error), exit_code=error.exit_code)
    except DataError as error:
        return TrialProbed(fault=str(error), exit_code=1)
    except Exception:  # noqa: BLE001 - the pool raises it: a bug report needs its traceback
        return TrialProbed(fault=traceback.format_exc(), exit_code=None)


def run_trial(
    job: TrialJob,
    metric: str,
    judged: Callable[[Reported], bool],
    train: Training,
    ending: _Ending | None = None,
) -> TrialRecord:
    """Run a trial, and say how it ended. `train` returns how a run ended; `judged` says whether to stop it.

    What goes wrong is a reason: the next trial may do better. Raises DataError where it could not: shards that are
    damaged or were replaced, and a store or a cache that fails.
    """
    ending = ending or _Ending()
    began = time.perf_counter()
    settings = dict(job.settings)
    folder, name = Path(settings["output"]), settings["name"]
    if settings.get("resume") == "auto":
        if (folder / name / "config.yaml").exists():
            _name_damaged_lines(folder / name)
        else:
            del settings["resume"]  # a run is not to state that it goes on with itself
    validations: dict[int, Mapping[str, float]] = {}
    unpromising = False

    def watch(epoch: int, values: Mapping[str, float]) -> bool:
        nonlocal unpromising
        validations[epoch] = values
        value = values.get(metric, math.nan)
        unpromising = math.isfinite(value) and judged(Reported(number=job.number, epoch=epoch, value=value))
        return unpromising

    reason: str | None = None
    result = None
    ending.working = True
    try:
        result = train(_config(settings), watch)
    except TimeOver:
        reason = f"{TIME_OVER} before its first step"
    except (ShardError, UnavailableError):
        raise
    except Exception as error:  # noqa: BLE001 - told as the reason
        reason = _reason(error)
    finally:
        ending.working = False
    if result is not None:
        validations = dict(_validations(folder / name)) or validations
        epochs = f"{result.epochs} epoch{'' if result.epochs == 1 else 's'}"
        if result.signal:
            reason = f"{TIME_OVER} after {epochs}"
        elif unpromising:
            reason = f"not promising after {epochs}"
    best = best_of(validations, metric)
    if best is None and reason is None:
        reason = f"no validation had a finite {metric}"
    return TrialRecord(
        number=job.number,
        stage=job.stage,
        state="complete" if reason is None else "pruned",
        reason=reason,
        parameters=job.parameters,
        settings={name: value for name, value in job.settings.items() if name not in _OURS},
        values=() if best is None else (best[metric],),
        metrics=best or {},
        reported={epoch: values[metric] for epoch, values in validations.items() if metric in values},
        seconds=time.perf_counter() - began,
        epochs=max(validations, default=0) if result is None else result.epochs,
        run=Path(folder.name) / name if (folder / name).exists() else None,
    )


def _with_speed(record: TrialRecord, job: TrialJob, split: str, speeds: dict[Any, float]) -> TrialRecord:
    """With samples per second at prediction as the second objective; models of one kind are measured once."""
    from fastimg.train.checkpoints.format import MODEL, read_card

    from .speed import prediction_speed

    run = Path(job.settings["output"]) / job.settings["name"]
    card = read_card(run / "best" / MODEL)
    kind = (card.arch, repr(card.kwargs), card.preprocessing.val_size)
    if kind not in speeds:
        speeds[kind] = round(prediction_speed(run, Path(job.settings["data"]), split, job.settings["device"]), 1)
    return replace(record, values=(*record.values, speeds[kind]))


def best_of(validations: Mapping[int, Mapping[str, float]], metric: str) -> Mapping[str, float] | None:
    """The best validation, as a run chooses its best checkpoint; None where none has a finite value."""
    from fastimg.train.tasks.score import lower_is_better

    sign = -1 if lower_is_better(metric) else 1
    finite = [values for values in validations.values() if math.isfinite(values.get(metric, math.nan))]
    return max(finite, key=lambda values: (sign * values[metric], -values["loss"]), default=None)


def _train(config: Train, watch: Watch) -> "Result":
    """Train in this process, and print nothing."""
    from rich.console import Console

    from fastimg.train.loop import train

    try:
        return train(config, Console(quiet=True, force_terminal=False), watch=watch, summary=False)
    finally:
        _tidy()


def _tidy() -> None:
    """Free what the trial held, for the next one."""
    import torch

    from fastimg.system.memory import release

    release(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"))  # type: ignore[no-untyped-call]


def _config(settings: Mapping[str, Any]) -> Train:
    """Settings as YAML has them, as a configuration. Raises UsageError."""
    return Train(**yaml_file.fitted(settings, Train))


def _reason(error: Exception) -> str:
    """Why a trial ended, in one sentence."""
    from fastimg.errors import UserError
    from fastimg.system.memory import ran_out

    if isinstance(error, UserError | DataError):
        return " ".join(str(error).split())
    if ran_out(error):
        return "out of memory"
    traceback.print_exception(error)
    return f"internal error: {traceback.format_exception_only(error)[-1].strip()}"


def _name_damaged_lines(run: Path) -> None:
    """Say on stderr which lines of a run's metrics.jsonl are left out: training, which prints nothing, removes them."""
    from fastimg.train.checkpoints.run_directory import read_log

    with contextlib.suppress(OSError):  # which is the trial's reason
        read_log(run, lambda words: print(words, file=sys.stderr))


def _validations(run: Path) -> Iterator[tuple[int, Mapping[str, float]]]:
    """The validations of a run, those before an interruption too, by epoch."""
    from fastimg.train.checkpoints.run_directory import read_log

    with contextlib.suppress(OSError):
        for record in read_log(run):
            if record["kind"] == "val":
                yield record["epoch"], {k: v for k, v in record.items() if k not in ("kind", "epoch", "step")}


if __name__ == "__main__":
    main()
