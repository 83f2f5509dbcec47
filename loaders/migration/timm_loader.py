"""What a script has of timm's `create_loader`, from this package's loader: for timm's train.py and validate.py."""

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from .batches import Batches, Sampler
from .finish import Finish
from .image_folder import ImageFolderLoader

_NOT_HERE = {  # of timm's arguments -> what to do
    "num_aug_repeats": "leave it out",
    "num_aug_splits": "leave it out, and AugMixDataset, too; augmix-m3 as auto_augment needs neither",
    "input_size_choices": "leave it out, and call loader.set_size(size) before an epoch",
    "batch_size_choices": "leave it out",
    "batch_choice_weights": "leave it out",
    "num_batches": "leave it out",
    "re_split": "leave it out",
    "tf_preprocessing": "leave it out; images are resized as torch does it",
    "crop_border_pixels": "leave it out",
}
_WITHOUT_EFFECT = (  # about processes, which there are none of, and about schedules that are refused
    *("pin_memory", "use_multi_epochs_loader", "persistent_workers", "worker_seeding", "batch_choice_seed"),
    *("batch_choice_schedule", "batch_schedule_epochs", "batch_schedule_spread", "batch_schedule_random_mix"),
)
_OWN = (
    *("dataset", "input_size", "batch_size", "is_training", "num_workers", "distributed", "collate_fn", "fp16"),
    *("img_dtype", "device", "use_prefetcher"),
)
_NAMED = (
    "create_loader: auto_augment rotates, shears and moves images to their nearest pixels; timm interpolates (see "
    "docs/migrate/timm.md)"
)


def create_loader(
    dataset: Any, input_size: Any, batch_size: int, is_training: bool = False, **arguments: Any
) -> "TimmLoader":
    """timm's `create_loader`, with its arguments and defaults: timm's train.py keeps all but one line.

        from fastimg.loaders import create_loader  # was: from timm.data import create_loader
        loader = create_loader(create_dataset("", "photos", split="train"), (3, 224, 224), 256, is_training=True)
        for images, targets in loader:
            ...

    Images are float32 [B, 3, H, W] (or `img_dtype`), normalised, on `device`, or on the host without `use_prefetcher`;
    targets are int64 [B], or float32 [B, num_classes] with `collate_fn=FastCollateMixup(...)`, whose settings are
    timm's in every mode, and which `loader.mixup_enabled = False` ends. Augmentation is what timm's `create_transform`
    makes of the arguments, with its distribution; only auto_augment moves pixels instead of interpolating between them,
    which a warning says. Erasing, mixup and cutmix are drawn by timm's rules on the device.

    dataset: of timm's `create_dataset`, with class folders, or one that `ImageFolderLoader` takes; its transform is
        set.
    distributed: this process's share of every batch, by torch.distributed; evaluation has each sample once, where timm
        repeats some. Without it, each process reads everything.
    num_workers: number of threads. Arguments about processes and pinned memory have no effect.

    The loader is an `ImageFolderLoader`: `state_dict()` continues within an epoch, `loader.sampler.set_epoch` begins
    one, and a file that cannot be decoded is an error that names it.

    Raises ValueError and TypeError for what it cannot take over, which is named, with what to do.
    """
    timm = importlib.import_module("timm.data")
    bound = inspect.signature(timm.create_loader).bind(dataset, input_size, batch_size, is_training, **arguments)
    bound.apply_defaults()
    given = bound.arguments
    _check(given, inspect.signature(timm.create_loader).parameters)
    of_transform = inspect.signature(timm.create_transform).parameters
    steps = {name: value for name, value in given.items() if name in of_transform and name != "use_prefetcher"}
    dataset.transform = timm.create_transform(**steps | {"use_prefetcher": False})
    loader = TimmLoader(
        dataset,
        batch_size=batch_size,
        training=is_training,
        mixup=_mixup_of(given["collate_fn"], given["use_prefetcher"], batch_size),
        dtype=_dtype_of(given),
        num_workers=given["num_workers"],
        device=given["device"] if given["use_prefetcher"] else "cpu",
        distributed=given["distributed"],
    )
    if given.get("auto_augment") and is_training and not given.get("no_aug"):
        warnings.warn(_NAMED, stacklevel=2)
    return loader


class TimmLoader(ImageFolderLoader):
    """What `create_loader` returns."""

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int,
        training: bool,
        mixup: Any,
        dtype: torch.dtype,
        num_workers: int,
        device: torch.device | str,
        distributed: bool,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__(
            data,
            batch_size=batch_size,
            shuffle=training,
            drop_last=training,
            num_workers=num_workers,
            device=device,
            rank=None if distributed else 0,
            world_size=None if distributed else 1,
        )
        self._arguments = arguments
        assert isinstance(self._finish, Finish)
        self._finish = replace(self._finish, mixup=mixup, dtype=dtype)
        self._mixup = mixup

    @property
    def mixup_enabled(self) -> bool:
        """Whether batches are mixed; scripts set it to False after some epochs. Targets stay float32."""
        return self._mixup is not None and bool(self._mixup.mixup_enabled)

    @mixup_enabled.setter
    def mixup_enabled(self, enabled: bool) -> None:
        if self._mixup is not None:
            self._mixup.mixup_enabled = enabled

    @property
    def loader(self) -> "TimmLoader":
        """Itself: timm's prefetcher has a loader."""
        return self

    @property
    def sampler(self) -> Sampler:
        """As of `Batches`; for timm's evaluators it knows how many samples of this rank no other has."""
        loader = self._loader
        return RealSampler(self, lambda: -(-self._samples // loader.config.world_size), lambda: loader.share)


class RealSampler(Sampler):
    """A `Sampler` of which timm's `evaluation_sample_limit` asks the number of samples without padding."""

    def __init__(self, batches: Batches, length: Callable[[], int], real: Callable[[], int]) -> None:
        super().__init__(batches, length)
        self._real = real

    @property
    def num_valid_samples(self) -> int:
        """Of this rank."""
        return self._real()


def _check(given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    """Raises ValueError for an argument that nothing is done about."""
    of_transform = inspect.signature(importlib.import_module("timm.data").create_transform).parameters
    for name, value in given.items():
        if value == parameters[name].default or name in _WITHOUT_EFFECT or name in _OWN:
            continue
        if name in _NOT_HERE:
            raise ValueError(f"create_loader cannot do {name}={value!r}: {_NOT_HERE[name]}")
        if name not in of_transform:
            raise ValueError(f"create_loader does not know timm's {name}={value!r}: leave it out")
    size = given["input_size"]
    if isinstance(size, tuple | list) and len(size) == 3 and size[0] != 3:
        raise ValueError(f"create_loader makes RGB images, of 3 channels; input_size={size} has {size[0]}")


def _mixup_of(collate: Any, prefetches: bool, batch_size: int) -> Any:
    """FastCollateMixup, or None for timm's and torch's own functions."""
    if collate is None or getattr(collate, "__name__", "") in ("fast_collate", "default_collate"):
        return None
    if (type(collate).__module__, type(collate).__name__) != ("timm.data.mixup", "FastCollateMixup"):
        raise ValueError(
            "create_loader takes timm's FastCollateMixup as collate_fn; do what another one does with the batches"
        )
    if not prefetches:
        raise ValueError("create_loader: FastCollateMixup needs use_prefetcher=True; otherwise apply timm's Mixup")
    if batch_size % 2:
        raise ValueError(f"create_loader: FastCollateMixup needs an even batch_size, not {batch_size}")
    if getattr(collate, "multi_label", False):
        raise ValueError("create_loader: images have one class each; leave multi_label out of FastCollateMixup")
    return collate


def _dtype_of(given: Mapping[str, Any]) -> torch.dtype:
    if not given["use_prefetcher"]:
        return torch.float32
    dtype = torch.float16 if given.get("fp16") else given["img_dtype"] or torch.float32
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"create_loader makes images of float32, bfloat16 or float16, not img_dtype={dtype}")
    assert isinstance(dtype, torch.dtype)
    return dtype
