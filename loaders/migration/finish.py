"""What becomes of a batch of uint8 before a script sees it: augmented, normalised, mixed."""

import functools
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.batch import Batch
from fastimg.loaders.random import uniforms
from fastimg.loaders.runtime.in_threads import in_threads

from .steps import augmentation

_FLIP_STAGE = 0x1F
_WHITE = np.float32(255)
# Bytes of images that are worked on in few calls, by one thread. Each call gives up Python's lock, which the loader's
# threads then take: of small images one by one that is most of the time.
_FEW = 1 << 20


class Finishes(Protocol):
    """Makes what a script sees of a batch."""

    @property
    def applied(self) -> tuple[Any, ...]:
        """The policies that are applied."""

    def __call__(self, batch: Batch, seed: int, epoch: int) -> tuple[Any, torch.Tensor]:
        """Images and targets."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Steps on the images of a batch, in this order. All that is drawn depends on the seed, the epoch and the sample.

    Rows of padding, and images that could not be decoded, are left out first; one row is kept if there is nothing else.
    """

    flip: float = 0.0  # the probability that an image is mirrored
    vertical: float = 0.0  # the same from top to bottom
    policies: tuple[Any, ...] = ()  # one after the other, on uint8
    mixup: Any = None  # timm's FastCollateMixup, which mixes uint8
    last: Any = None  # the policy that normalises, and may mix; None: as `scaled`, `mean` and `std` say
    scaled: bool = False  # float32 from 0 to 1; else uint8
    mean: tuple[float, ...] | None = None  # one per channel; None: not normalised
    std: tuple[float, ...] | None = None
    dtype: torch.dtype = torch.float32  # of images that are scaled or normalised
    channels_first: bool = False  # in memory, as torchvision's images; else channels-last where `last` made them
    num_classes: int | None = None  # targets float32 [B, num_classes]; None: int64 [B]
    smoothing: float = 0.0

    @property
    def applied(self) -> tuple[Any, ...]:
        """All policies, which are applied by compiled code, or more slowly without it."""
        return self.policies if self.last is None else (*self.policies, self.last)

    def __call__(self, batch: Batch, seed: int, epoch: int) -> tuple[Any, torch.Tensor]:
        """Images, a list of them if the batch has views, and targets, in memory of their own."""
        views, targets, ids = kept_rows(batch)
        if self.last is not None and self.last.mixes:
            assert self.num_classes is not None  # a policy that mixes is refused without
            images = self.early(views[0], ids, seed, epoch, 0)
            images, targets = augmentation().mixed(
                images, targets, self.last, self.num_classes, self.smoothing, self.dtype, ids, seed, epoch
            )
            return self._laid_out(images), targets
        if self.mixup is not None:
            images = self.early(views[0], ids, seed, epoch, 0)
            images, targets = augmentation().collated(images, targets, self.mixup, ids, seed, epoch)
            return self._late(images, ids[: len(images)], seed, epoch, 0), targets
        if self.num_classes is not None:
            targets = augmentation().softened(targets, self.num_classes, self.smoothing)
        stride = 1 + len(self.policies)
        done = [self.images(view, ids, seed, epoch, number * stride) for number, view in enumerate(views)]
        return (done if batch.by_view else done[0]), targets

    def images(
        self, images: torch.Tensor, ids: npt.NDArray[np.int64], seed: int, epoch: int, first: int
    ) -> torch.Tensor:
        """uint8 images after all steps but mixing; `first` is the first view of `augment.draw` that is drawn."""
        if images.device.type == "cpu" and self.channels_first and self.last is None and not self.policies:
            done = self._in_one_pass(images, self._drawn_flips(ids, seed, epoch, first))
            return done.to(self.dtype) if self.scaled else done
        early = self.early(images, ids, seed, epoch, first)
        late = self._late(early, ids, seed, epoch, first)
        return late.clone() if late is images else late

    def _late(
        self, images: torch.Tensor, ids: npt.NDArray[np.int64], seed: int, epoch: int, first: int
    ) -> torch.Tensor:
        """uint8 images, augmented, after scaling or normalising, and erasing."""
        if self.last is not None:
            images = augmentation().normalised(images, self.last, self.dtype, ids, seed, epoch, first)
            return self._laid_out(images)
        if not self.scaled:
            return self._laid_out(images)
        images = images.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        if self.mean is not None and self.std is not None:
            images.sub_(_column(self.mean, images.device)).div_(_column(self.std, images.device))
        return images.to(self.dtype)

    def early(
        self, images: torch.Tensor, ids: npt.NDArray[np.int64], seed: int, epoch: int, first: int
    ) -> torch.Tensor:
        """uint8 images, flipped, and after the policies before the last."""
        if self.flip or self.vertical:
            drawn = self._drawn_flips(ids, seed, epoch, first)
            flipped = torch.from_numpy(drawn).to(images.device, non_blocking=True)[:, :, None, None, None]
            for number, (chance, side) in enumerate(((self.flip, 3), (self.vertical, 2))):
                if chance:
                    images = torch.where(flipped[:, number], images.flip(side), images)
        if self.policies:
            images = augmentation().augmented(images, self.policies, ids, seed, epoch, first)
        return images

    def _drawn_flips(self, ids: npt.NDArray[np.int64], seed: int, epoch: int, first: int) -> npt.NDArray[np.bool_]:
        """Whether each image is mirrored, and turned upside down [B, 2]."""
        if not self.flip and not self.vertical:
            return np.zeros((len(ids), 2), np.bool_)
        return uniforms(seed, epoch, ids, _FLIP_STAGE + (first << 16), 2) < (self.flip, self.vertical)

    def _in_one_pass(self, images: torch.Tensor, flipped: npt.NDArray[np.bool_]) -> torch.Tensor:
        """uint8 images [B, C, H, W] on the CPU, mirrored and scaled one by one, while each is in the CPU's cache; small
        ones together."""
        done = torch.empty(images.shape, dtype=torch.float32 if self.scaled else torch.uint8)
        given, out, flips = images.numpy(), done.numpy(), flipped.tolist()
        mean, std = (None if each is None else _column(each, images.device).numpy() for each in (self.mean, self.std))

        def finish(begin: int, end: int) -> None:
            for row in range(begin, end):
                mirrored, upside_down = flips[row]
                taken = given[row, :, ::-1] if upside_down else given[row]
                np.copyto(out[row], taken[:, :, ::-1] if mirrored else taken)
                scale(out[row])

        def scale(part: npt.NDArray[Any]) -> None:
            if self.scaled:
                np.divide(part, _WHITE, out=part)
            if mean is not None and std is not None:
                np.subtract(part, mean, out=part)
                np.divide(part, std, out=part)

        if given.nbytes > _FEW:
            in_threads(finish, len(images))
            return done
        turned = given.copy("C")
        for number, axis in enumerate((3, 2)):
            rows = np.flatnonzero(flipped[:, number])
            turned[rows] = np.flip(turned[rows], axis)
        np.copyto(out, turned)
        scale(out)
        return done

    def _laid_out(self, images: torch.Tensor) -> torch.Tensor:
        return images.contiguous() if self.channels_first else images


@dataclass(frozen=True)
class ViewFinishes:
    """A `Finish` for each view of the images."""

    each: tuple[Finish, ...]

    @property
    def applied(self) -> tuple[Any, ...]:
        """See `Finish`."""
        return tuple(policy for finish in self.each for policy in finish.applied)

    def __call__(self, batch: Batch, seed: int, epoch: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        """See `Finish`."""
        views, targets, ids = kept_rows(batch)
        stride = 1 + max(len(finish.policies) for finish in self.each)
        pairs = enumerate(zip(self.each, views, strict=True))
        return [finish.images(view, ids, seed, epoch, number * stride) for number, (finish, view) in pairs], targets


def kept_rows(batch: Batch) -> tuple[list[torch.Tensor], torch.Tensor, npt.NDArray[np.int64]]:
    """The views, targets (in memory of their own) and keys of the rows of weight 1; of the first where there are none,
    which is where fewer samples than ranks are left: no rank's batch is empty."""
    views, keys = batch.views or [batch.inputs], batch.keys
    if batch.samples == len(keys):
        return views, batch.targets.clone(), keys.numpy()
    kept = batch.weight > 0
    if not batch.samples:
        kept[0] = True
    return [view[kept] for view in views], batch.targets[kept], keys[kept.cpu()].numpy()


@functools.lru_cache(maxsize=16)
def _column(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """float32 [C, 1, 1] on the device, made once: a copy for each batch would wait for it."""
    return torch.tensor(values, device=device)[:, None, None]
