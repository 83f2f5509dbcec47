"""The loss of distillation (Hinton et al., 2015), whatever the teacher's logits come from."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fastimg.config.commands import Train
from fastimg.loaders import Batch
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Preprocessing
from fastimg.train.tasks.joint import Losses, Tasks
from fastimg.wording import plural

from .kept_logits import KeptLogits
from .teacher import Teacher, load

TEMPERATURE = 4.0
WEIGHT = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Distillation:
    """A teacher that runs in every step, or the logits that it once gave; and its share in the loss."""

    source: Teacher | KeptLogits
    temperature: float
    weight: float
    announced: int | None = None  # views that a dry run does not make

    def looked_up(self, batch: Batch, epoch: int, unreadable: Mapping[int, str]) -> torch.Tensor | None:
        """The kept logits of a batch [B, C] on its device; None for a teacher that runs. No sync."""
        return self.source.rows(batch, epoch, unreadable) if isinstance(self.source, KeptLogits) else None

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """What the teacher says of images that are normalised for the student. No sync."""
        assert isinstance(self.source, Teacher)
        return self.source.logits(images)

    def blended(self, losses: Losses, logits: torch.Tensor, theirs: torch.Tensor) -> Losses:
        """(1 - weight) loss + weight T^2 KL(teacher, student) of each sample [B], both softened by the temperature T.

        T^2 keeps the gradients' size whatever T is. A sample without a label, whose loss is 0, learns from the teacher.
        """
        t = self.temperature
        softened = F.log_softmax(theirs.float() / t, dim=1)
        ours = F.log_softmax(logits.float() / t, dim=1)
        divergence = F.kl_div(ours, softened, reduction="none", log_target=True).sum(dim=1)
        total = losses.total * (1.0 - self.weight) + divergence * (self.weight * t * t)
        return Losses(total, (total,))

    @property
    def words(self) -> str:
        """For the effective configuration."""
        first, *rest = self.source.words
        if self.announced is not None:
            rest.append(f"run once over {plural(self.announced, 'view')} of each image (not in a dry run)")
        return ", ".join((first, f"temperature {self.temperature:g}", f"weight {self.weight:g}", *rest))


def distillation(
    config: Train,
    tasks: Tasks,
    student: Preprocessing,
    precision: Precision,
    ranks: Ranks,
    kept: KeptLogits | None = None,
) -> Distillation | None:
    """What --teacher asks for, with the teacher on the device unless its logits are kept.

    Raises UsageError and UserError for a teacher that cannot teach.
    """
    source = kept or load(config, tasks, student, precision, ranks)
    if source is None:
        return None
    return Distillation(
        source=source,
        temperature=config.kd_temperature or TEMPERATURE,
        weight=WEIGHT if config.kd_weight is None else config.kd_weight,
        announced=None if kept else config.cache_teacher,
    )
