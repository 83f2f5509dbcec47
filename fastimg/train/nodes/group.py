"""A worker group of Ray Train, and the actor that starts it: the group ends with its actor."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastimg.errors import reason_of
from fastimg.train.loop import Result

from .rank import RankJob, train_rank

_SETTINGS = "RAY_TRAIN_"  # environment variables that Ray Train passes on to its workers


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """What ranks are started with.

    amounts: what one takes, by Ray's names. folder: for Ray Train's own files; its controller sees it.
    """

    job: RankJob
    count: int
    amounts: Mapping[str, float]
    folder: Path
    name: str


@dataclass(frozen=True, kw_only=True)
class GroupEnd:
    """How a group ended: with the result of rank 0, or for a reason, in a few words."""

    result: Result | None = None
    reason: str = ""


class RankGroup:
    """The actor that Ray Train runs in. Its owner may disconnect at any time; that ends the actor and its group."""

    def run(self, asked: GroupRequest) -> GroupEnd:
        """Train, and wait for the end."""
        from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        with_gpu = "GPU" in asked.amounts
        trainer = TorchTrainer(
            train_rank,
            train_loop_config={"job": asked.job},
            torch_config=TorchConfig(backend="nccl" if with_gpu else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=asked.count, use_gpu=with_gpu, resources_per_worker=dict(asked.amounts)
            ),
            run_config=RunConfig(
                name=asked.name,
                storage_path=str(asked.folder),
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
                logging_config=LoggingConfig(log_level="ERROR"),
            ),
        )
        try:
            return GroupEnd(result=trainer.fit().return_value)
        except Exception as error:  # noqa: BLE001 - errors of Ray Train are told, not carried to another process
            return GroupEnd(reason=reason_of_group(error))


def settings_of_ray_train() -> dict[str, str]:
    """Environment variables of this process that say how Ray Train works."""
    return {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}


def reason_of_group(error: Exception) -> str:
    """Why a worker group ended, in a few words."""
    failures = getattr(error, "worker_failures", None)
    if not failures:
        return f"its workers could not be started ({reason_of(getattr(error, 'controller_failure', error))})"
    ranks = ("ranks " if len(failures) > 1 else "rank ") + ", ".join(map(str, sorted(failures)))
    return f"{ranks} failed ({reason_of(failures[min(failures)])})"
