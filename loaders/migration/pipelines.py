"""FFCV's pipelines -> a crop, and what becomes of a batch of uint8 and its labels.

Operations are known by the names of their classes and their attributes: ffcv, whose import takes seconds, is not
imported.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from fastimg.loaders.batch import Batch
from fastimg.loaders.crop import CropRule, RandomResizedCrop, pair

from .crops import CenterSquare, Whole
from .finish import Finish, kept_rows
from .steps import CannotTakeOver, augmentation, is_given

Change = Callable[[torch.Tensor], torch.Tensor]

_LEVELS = ("RandomTranslate", "Cutout", "RandomBrightness", "RandomContrast", "RandomSaturation")
_APPLY = "leave it out, and apply it to the batches"
_NO_ARRAYS = "add ToTensor"
_MIXING = "give Policy(mixup=alpha) to Loader(...).tuples"
_WAYS_OUT = {
    **dict.fromkeys(("ImageMixup", "LabelMixup", "MixupToOneHot"), _MIXING),
    "RandomResizedCrop": "give RandomResizedCropRGBImageDecoder",
    "FloatDecoder": "read numbers with Loader(fields=...)",
}


@dataclass(frozen=True)
class Method:
    """A method of tensors, with its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = getattr(tensor, self.name)(*self.arguments)
        return changed


@dataclass(frozen=True)
class Table:
    """FFCV's NormalizeImage: what each level of each channel becomes."""

    values: bytes  # [3, 256]
    dtype: torch.dtype

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return augmentation().looked_up(images, _table(self.values, self.dtype, images.device))


@functools.lru_cache(maxsize=16)
def _table(values: bytes, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(values), dtype=dtype).view(3, 256).to(device)


@dataclass(frozen=True)
class PipelineFinish:
    """What FFCV's pipelines do to a batch, in their order."""

    early: Finish  # what is drawn for each image, on uint8
    images: tuple[Change, ...]
    labels: tuple[Change, ...]

    @property
    def applied(self) -> tuple[Any, ...]:
        """See `Finish`."""
        return self.early.applied

    def __call__(self, batch: Batch, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels, in memory of their own."""
        (given,), labels, ids = kept_rows(batch)
        images = self.early.early(given, ids, seed, epoch, 0)
        for change in self.images:
            images = change(images)
        labels = labels[:, None]
        for change in self.labels:
            labels = change(labels)
        return images.clone() if _same_memory(images, given) else images, labels


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


@dataclass(frozen=True)
class Pipelines:
    """What the pipelines of an image and of its label are, as a value."""

    crop: CropRule
    finish: PipelineFinish
    device: torch.device

    @classmethod
    def of(cls, image: Sequence[Any], label: Sequence[Any] | None, whole: tuple[int, int] | None) -> "Pipelines":
        """Those of FFCV's operations; `whole` is the (height, width) of all images, if they have one.

        Raises ValueError, with the way out, for an operation that it does not know.
        """
        crop, flip, policies, changes, device = _image(image, whole)
        early = Finish(flip=flip, policies=policies)
        return cls(crop, PipelineFinish(early, changes, () if label is None else _label(label, device)), device)


def _image(
    operations: Sequence[Any], whole: tuple[int, int] | None
) -> tuple[CropRule, float, tuple[Any, ...], tuple[Change, ...], torch.device]:
    flip, device = 0.0, torch.device("cpu")
    policies: list[Any] = []
    changes: list[Change] = []  # once there are some, images are no uint8 any more
    tensors, channels_first = False, False
    crop: CropRule | None = None
    for name, step in _named(operations or [_TO_TENSOR]):
        if name.endswith("Decoder"):
            if crop is not None or tensors or flip or policies or changes:
                _refuse(f"{name} that is not the first operation", "put it first, and give one decoder")
            crop = _crop(name, step, whole)
            continue
        if name in ("RandomHorizontalFlip", *_LEVELS) and changes:
            _refuse(f"{name} after images were normalised or converted", "put it before that")
        match name:
            case "RandomHorizontalFlip":
                p = float(step.flip_prob)
                flip += p - 2 * flip * p  # of one or several: an odd number of them
            case "NormalizeImage":
                if any(not _is_layout(change) for change in changes):
                    _refuse("NormalizeImage of images that are no uint8 any more", "put it before what converts them")
                changes.append(_normalising(step))
            case "ToTensor":
                tensors = True
            case "ToDevice":
                device = torch.device(step.device)
            case "ToTorchImage":
                channels_first = True
                if not step.channels_last:
                    changes.append(Method("contiguous"))
            case "Convert":
                changes.append(Method("to", (_dtype(step.target_dtype),)))
            case "View":
                changes.append(Method("view", (_dtype(step.target_dtype),)))
            case "module":
                if not channels_first:
                    _refuse(f"{type(step).__name__} before ToTorchImage", "put it after that")
                changes.append(step)
            case _ if name in _LEVELS:
                policies.append(_policy(step))
            case _:
                _refuse(name, _WAYS_OUT.get(name, _APPLY))
    if not tensors and operations:
        _refuse("a pipeline of images that stay arrays", _NO_ARRAYS)
    if not channels_first:
        changes.append(Method("permute", (0, 2, 3, 1)))
    return crop or _whole(whole), flip, tuple(policies), tuple(changes), device


def _label(operations: Sequence[Any], images_on: torch.device) -> tuple[Change, ...]:
    changes: list[Change] = []
    tensors, device = not operations, torch.device("cpu")
    for place, (name, step) in enumerate(_named(operations)):
        match name:
            case "IntDecoder" if not place:
                pass
            case "ToTensor":
                tensors = True
            case "ToDevice":
                device = torch.device(step.device)
            case "Squeeze":
                changes.append(Method("squeeze", tuple(step.dims) or (1,)))
            case "Convert":
                changes.append(Method("to", (_dtype(step.target_dtype),)))
            case "View":
                changes.append(Method("view", (_dtype(step.target_dtype),)))
            case "module":
                changes.append(step)
            case _:
                _refuse(f"{name} of labels", _WAYS_OUT.get(name, _APPLY))
    if not tensors:
        _refuse("a pipeline of labels that stay arrays", _NO_ARRAYS)
    if device != images_on:  # after what modules do on the images' device
        changes.append(Method("to", (device,)))
    return tuple(changes)


def _named(operations: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The name of FFCV's class, or `module`, and the operation or module."""
    for step in operations:
        kind = type(step)
        if isinstance(step, torch.nn.Module):
            yield "module", step
        elif step is not _TO_TENSOR and not kind.__module__.startswith("ffcv."):
            _refuse(f"{kind.__module__}.{kind.__name__}", "give a torch.nn.Module after ToTorchImage")
        elif kind.__name__ == "ModuleWrapper":
            yield "module", step.module
        else:
            yield kind.__name__.lstrip("_"), step


class _ToTensor:
    """What the pipeline of a field is that none was given for."""


_TO_TENSOR = _ToTensor()


def _crop(name: str, step: Any, whole: tuple[int, int] | None) -> CropRule:
    match name:
        case "RandomResizedCropRGBImageDecoder":
            return RandomResizedCrop(
                size=_size(step),
                scale=(float(step.scale[0]), float(step.scale[1])),
                ratio=(float(step.ratio[0]), float(step.ratio[1])),
            )
        case "CenterCropRGBImageDecoder":
            return CenterSquare(size=_size(step), ratio=float(step.ratio))
        case "SimpleRGBImageDecoder":
            return _whole(whole)
    return _refuse(name, "give RandomResizedCropRGBImageDecoder, CenterCropRGBImageDecoder or SimpleRGBImageDecoder")


def _whole(size: tuple[int, int] | None) -> Whole:
    if size is None:
        _refuse(
            "images of several sizes as they are", "give RandomResizedCropRGBImageDecoder or CenterCropRGBImageDecoder"
        )
    return Whole(size=size)


def _size(step: Any) -> tuple[int, int]:
    return pair(tuple(step.output_size), "output_size")


def _normalising(step: Any) -> Table:
    table = step.lookup_table
    values = table.cpu().numpy() if isinstance(table, torch.Tensor) else np.asarray(table)
    values = values.view(step.original_dtype).reshape(256, 3)
    return Table(np.ascontiguousarray(values.T).tobytes(), _dtype(step.original_dtype))


def _dtype(given: Any) -> torch.dtype:
    return given if isinstance(given, torch.dtype) else torch.from_numpy(np.empty(0, given)).dtype


def _is_layout(change: Change) -> bool:
    return isinstance(change, Method) and change.name == "contiguous"


def _policy(step: Any) -> Any:
    if not is_given():
        _refuse(type(step).__name__)
    try:
        return augmentation().policy_of(step)
    except CannotTakeOver as error:
        _refuse(error.what, error.remedy or _APPLY)
    except ValueError as error:
        _refuse(f"{type(step).__name__} ({error})")


def _refuse(what: str, remedy: str = _APPLY) -> NoReturn:
    raise ValueError(
        f"FFCVLoader cannot take over {what}: {remedy}. docs/migrate/ffcv.md lists what it takes over"
    ) from None
