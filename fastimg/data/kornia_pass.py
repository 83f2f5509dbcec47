"""Kornia's augmentations, by class name: what the fused pass does not have, run after it, for each image its own.

Kornia draws from torch's generators, so they are seeded for every call: the result depends on the seed and the batch,
not on what was drawn before. A few numbers per image are drawn on the CPU, whatever the device of the images: on a GPU
each draw would be several kernels, and most classes would copy it to the CPU, which waits for the GPU, and back. They
are copied to the GPU as plans are, beside what is enqueued there (`_Moving`). Noise and gradients as large as the
images are drawn where the images are, and so depend on the device, too.
"""

import importlib
import inspect
import warnings
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fastimg.augment.plan import to_device
from fastimg.errors import UsageError, nearest
from fastimg.loaders.extras import install

_TRIED_SEED = 0
_TRIED_IMAGES = 2


class KorniaPass:
    """Kornia's augmentations one after the other."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = modules

    def __call__(self, images: torch.Tensor, seed: int) -> torch.Tensor:
        """uint8 images [B, 3, H, W] -> the same, augmented as float32 in [0, 1], cut off there and rounded.

        It leaves torch's generators seeded, of the CPU and of the images' device.
        """
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed all devices
        if images.is_cuda:
            torch.cuda.default_generators[images.get_device()].manual_seed(seed)
        with torch.no_grad(), _Moving():
            values = images.to(torch.float32) / 255
            for module in self._modules:
                values = module(values)
            return (values.clamp(0, 1) * 255).round().to(torch.uint8).contiguous(memory_format=torch.channels_last)


class _Moving(TorchFunctionMode):
    """Within it, what Kornia moves from the CPU to a GPU is copied from pinned memory on a stream of its own.

    Kornia's own copies, from memory that is not pinned, would wait for all work that is enqueued on the GPU.
    """

    def __torch_function__(
        self, function: Any, types: Any, given: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        options = options or {}
        if function is torch.Tensor.to and given[0].device.type == "cpu" and not options.keys() - {"device", "dtype"}:
            device, dtype, *_ = torch._C._nn._parse_to(*given[1:], **options)
            if device is not None and device.type != "cpu":
                return to_device(given[0] if dtype is None else given[0].to(dtype), device)
        if function in (torch.tensor, torch.as_tensor) and options.get("device") is not None:
            device = torch.device(options["device"])
            if device.type != "cpu" and not isinstance(given[0], torch.Tensor):
                return to_device(function(*given, **{**options, "device": "cpu"}), device)
        return function(*given, **options)


def build(entries: list[dict[str, dict[str, Any]]], size: int, device: torch.device) -> KorniaPass:
    """The augmentations of a configuration, each tried once on two images of `size` pixels a side, with p = 1.

    Raises UsageError for a class or an argument that Kornia does not have, or that does not leave an image an image.
    """
    library = _library()
    modules = []
    for entry in entries:
        if len(entry) != 1:
            raise UsageError(f"kornia: {entry!r}: write one class name with its arguments, {{RandomGamma: {{p: 0.5}}}}")
        ((name, arguments),) = entry.items()
        kind = _kind(library, name)
        _check_arguments(kind, name, arguments)
        always = _made(kind, name, arguments | ({"p": 1.0} if _takes(kind, "p") else {}))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            _try(always, name, size, device)
        modules.append(_placed(_made(kind, name, arguments), device, draws_pixels=_draws_pixels(always, size)))
    return KorniaPass(modules)


def _library() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what it will drop one day
            return importlib.import_module("kornia.augmentation")
    except ImportError as error:
        raise UsageError(
            f"augmentation: Kornia's are used, and kornia cannot be imported ({error}); `{install('kornia')}`"
        ) from error


def _kind(library: Any, name: str) -> type[nn.Module]:
    base = library.AugmentationBase2D
    names = [
        found
        for found, kind in vars(library).items()
        if inspect.isclass(kind) and issubclass(kind, base) and not found.endswith("Base2D")
    ]
    if name not in names:
        what = "is not one of its augmentations of single images" if hasattr(library, name) else "is not there"
        raise UsageError(f"augmentation: kornia.augmentation.{name} {what}{nearest(name, names)}")
    kind: type[nn.Module] = getattr(library, name)
    return kind


def _takes(kind: type[nn.Module], argument: str) -> bool:
    return argument in inspect.signature(kind).parameters


def _check_arguments(kind: type[nn.Module], name: str, arguments: dict[str, Any]) -> None:
    known = [key for key, p in inspect.signature(kind).parameters.items() if p.kind is not p.VAR_KEYWORD]
    for key in arguments:
        if key not in known:
            raise UsageError(f"augmentation: {name} has no argument {key!r}{nearest(str(key), known)}")
    if arguments.get("same_on_batch") or arguments.get("p_batch", 1.0) != 1.0:
        raise UsageError(f"augmentation: {name}: every image draws its own; leave same_on_batch and p_batch out")
    p = arguments.get("p", 1.0)
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise UsageError(f"augmentation: {name}: p is a probability, from 0 to 1; it was {p!r}")


def _made(kind: type[nn.Module], name: str, arguments: dict[str, Any]) -> nn.Module:
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    try:
        return kind(**plain)
    except Exception as error:  # its checks raise what each of them likes
        raise UsageError(f"augmentation: {name} cannot be made: {_reason(error)}; see Kornia's manual") from error


def _try(module: nn.Module, name: str, size: int, device: torch.device) -> None:
    torch.manual_seed(_TRIED_SEED)
    images = torch.rand(_TRIED_IMAGES, 3, size, size, device=device)
    try:
        with torch.no_grad():
            augmented = module.to(device)(images)
    except Exception as error:
        raise UsageError(f"augmentation: {name} fails on {size} x {size} pixels: {_reason(error)}") from error
    if augmented.shape != images.shape:
        raise UsageError(
            f"augmentation: {name} makes {augmented.shape[-1]} x {augmented.shape[-2]} pixels of {size} x {size}: "
            "images keep their size; use --scale, --ratio and --img-size for crops"
        )
    if not torch.isfinite(augmented).all():
        raise UsageError(f"augmentation: {name} makes pixels that are NaN or infinite; change its arguments")


def _draws_pixels(tried: Any, size: int) -> bool:
    """Whether a module that has been called on `_TRIED_IMAGES` images drew at least one number for each pixel."""
    return any(
        drawn.numel() >= _TRIED_IMAGES * size * size for drawn in tried._params.values() if torch.is_tensor(drawn)
    )


def _placed(module: Any, device: torch.device, *, draws_pixels: bool) -> nn.Module:
    """The module on `device`, drawing on the CPU unless it draws for each pixel."""
    placed: nn.Module = module.to(device)  # moves the generator of its draws, too
    if not draws_pixels:
        module.set_rng_device_and_dtype(torch.device("cpu"), torch.float32)
    return placed


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__
