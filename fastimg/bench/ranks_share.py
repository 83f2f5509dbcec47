"""What a rank's share of the cores allows, where several GPUs train on one machine: arithmetic on measured rates."""

from dataclasses import dataclass
from typing import Any

from fastimg.wording import number, plural

from .training import Trained


@dataclass(frozen=True, kw_only=True)
class RanksShare:
    """Threads of each rank if all GPUs train, the rate that they allow, and the rate of a rank's training step."""

    cores: int
    gpus: int
    threads: int
    per_thread: float  # images per second, as the loader alone was measured here
    arch: str
    step: float  # images per second of one GPU, on synthetic data

    @property
    def rate(self) -> float:
        """Images per second of a rank's loader."""
        return self.threads * self.per_thread

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cores": self.cores,
            "gpus": self.gpus,
            "threads_per_rank": self.threads,
            "images_per_second_per_thread": round(self.per_thread, 1),
            "images_per_second_per_rank": round(self.rate, 1),
        }

    def text(self) -> str:
        """For people."""
        words = (
            f"{plural(self.cores, 'core')} over {plural(self.gpus, 'GPU')} are {plural(self.threads, 'thread')} a rank"
        )
        allows = f"about {number(self.rate)} img/s each, at the {number(self.per_thread)} of a thread measured here"
        enough = "which is enough" if self.rate >= self.step else "which decoding would limit"
        return f"{words}: {allows}; a step of {self.arch} takes {number(self.step)}, {enough} (an estimate)"


def ranks_share(cores: int, gpus: int, per_thread: float, trained: Trained) -> RanksShare:
    """The share of each of `gpus` ranks in `cores`."""
    return RanksShare(
        cores=cores,
        gpus=gpus,
        threads=max(1, cores // gpus),
        per_thread=per_thread,
        arch=trained.arch,
        step=trained.synthetic.median,
    )
