"""Who does the steps of a transform that change colours or shapes: reading has no such operations, and is told.

`fastimg`, which has both libraries, gives `fastimg.data.torchvision_steps`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    Ids = npt.NDArray[np.int64]


class CannotTakeOver(ValueError):
    """A step that nobody does in the same way: `what` it is, and the `remedy`, both parts of a sentence.

    Without a remedy the loader names its own: to do the step after loading.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what, self.remedy = what, remedy


def owned(step: Any) -> str:
    """How a step that is of no library is named: a script's own GaussianBlur is not torchvision's."""
    named = step if hasattr(step, "__name__") else type(step)
    return f"{named.__name__} of {getattr(named, '__module__', None) or type(step).__module__}"


class Augmentation(Protocol):
    """What a step becomes, a policy, and how policies change a batch."""

    def policy_of(self, step: Any) -> Any:
        """The policy of a step on uint8 images, before they are scaled. Raises CannotTakeOver and ValueError."""

    def erasing_of(self, step: Any, mean: Sequence[float] | None, std: Sequence[float] | None, normalised: bool) -> Any:
        """The policy that normalises and erases. `normalised`: Normalize comes before RandomErasing."""

    def augmented(
        self, images: "torch.Tensor", policies: Sequence[Any], ids: "Ids", seed: int, epoch: int, first: int
    ) -> "torch.Tensor":
        """uint8 images [B, 3, H, W] after one policy after the other, with the draws of views from `first` on."""

    def normalised(
        self, images: "torch.Tensor", policy: Any, dtype: "torch.dtype", ids: "Ids", seed: int, epoch: int, view: int
    ) -> "torch.Tensor":
        """uint8 images [B, C, H, W] after a policy that normalises, channels-last."""

    def mixed(
        self,
        images: "torch.Tensor",
        targets: "torch.Tensor",
        policy: Any,
        num_classes: int,
        smoothing: float,
        dtype: "torch.dtype",
        ids: "Ids",
        seed: int,
        epoch: int,
    ) -> tuple["torch.Tensor", "torch.Tensor"]:
        """uint8 images after a policy that normalises and mixes, and targets float32 [B, num_classes]."""

    def looked_up(self, images: "torch.Tensor", table: "torch.Tensor") -> "torch.Tensor":
        """uint8 images [B, 3, H, W] -> what a table [3, 256] has for each channel and level, channels-last."""

    def collated(
        self, images: "torch.Tensor", targets: "torch.Tensor", mixup: Any, ids: "Ids", seed: int, epoch: int
    ) -> tuple["torch.Tensor", "torch.Tensor"]:
        """uint8 images and classes as timm's FastCollateMixup makes them: uint8, and float32 [B, num_classes]."""

    def seconds_to_compile(self, policies: Sequence[Any]) -> float:
        """About how long the code that applies these policies on a CPU takes to compile; 0 if that was done before, on
        this machine."""

    def compiling_nothing(self) -> AbstractContextManager[None]:
        """Inside the block policies are applied on a CPU without compiled code, to the same bits."""

    def softened(self, targets: "torch.Tensor", num_classes: int, smoothing: float) -> "torch.Tensor":
        """Classes int64 [B] as float32 [B, num_classes]."""


_given: list[Callable[[], Augmentation]] = []  # at most one


def give(find: Callable[[], Augmentation]) -> None:
    """Let `find` be asked for the operations once a transform needs some."""
    _given[:] = [find]


def is_given() -> bool:
    """Whether there are operations; without them, a transform that needs some is refused."""
    return bool(_given)


def augmentation() -> Augmentation:
    """The operations that were given."""
    return _given[0]()
