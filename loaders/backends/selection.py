"""Choosing a loader: the native one, or another library's behind the same interface."""

import importlib.util
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.crop import CropRule
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.errors import DataError
from fastimg.loaders.extras import install
from fastimg.loaders.jpeg.decoding.region import Scaling

from . import nvcodec
from .settings import RGB_ONLY, Backend

if TYPE_CHECKING:  # torch takes seconds to import; checking a flag does not need it
    import torch

    from fastimg.loaders.decoder import Decoder
    from fastimg.loaders.decoders.images import ImageDecoder
    from fastimg.loaders.epochs.config import LoaderConfig
    from fastimg.loaders.epochs.source import BatchSource

_MODULES = {"dali": "nvidia.dali", "ffcv": "ffcv"}
_INSTALLS = {
    "dali": f"`{install('dali')}`",
    "ffcv": f"`apt-get install libopencv-dev libturbojpeg0-dev pkg-config`, then `{install('ffcv')}`",
}


class MissingBackend(Exception):
    """A backend's library is not installed. The message says how to install it."""


def check_installed(backend: Backend) -> None:
    """Raises MissingBackend, with the command that installs the library, if it is missing."""
    name = _MODULES.get(backend)
    if name is None:
        return
    try:
        installed = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing
        installed = False
    if not installed:
        raise MissingBackend(f"{name} is not installed; {_INSTALLS[backend]}")


def reads(backend: Backend, dataset: Dataset) -> bool:
    """Whether a backend can read a dataset: FFCV reads only .beton files."""
    return backend != "ffcv" or isinstance(dataset, BetonDataset)


def _on_gpu(images: "ImageDecoder", device: "torch.device", threads: int | None) -> "Decoder":
    if not nvcodec.installed():
        raise MissingBackend(f"nvImageCodec is not installed: `{install('gpu')}`")
    from .gpu_decode import DeviceDecode  # it needs Triton

    return DeviceDecode.on(device, images, threads)


def open_source(
    backend: Backend,
    dataset: Dataset,
    crop: CropRule,
    config: "LoaderConfig",
    device: "torch.device | str" = "cpu",
    indices: npt.NDArray[np.int64] | None = None,
    max_pixels: int = MAX_PIXELS,
    decode: Literal["cpu", "gpu"] = "cpu",
    dct_scaling: Scaling = False,
    channels: int = 3,
    depth: int = 8,
) -> "BatchSource":
    """A loader of this backend for a dataset; `decode`, `dct_scaling` and `depth` apply only to the native one.

    Raises MissingBackend, DataError for data that the backend cannot read, and ValueError for one channel of a backend
    that makes only RGB.
    """
    import torch

    check_installed(backend)
    if channels != 3 and (decode == "gpu" or backend in RGB_ONLY):
        name = "the decoder of a GPU" if decode == "gpu" else f"the {backend} loader"
        raise ValueError(f"channels={channels}: {name} makes only RGB; use the native one, which decodes on the CPU")
    device = torch.device(device)
    match backend:
        case "native":
            from fastimg.loaders.decoders.images import ImageDecoder
            from fastimg.loaders.loader import Loader

            images = ImageDecoder(crop, max_pixels, dct_scaling, channels=channels, depth=depth)
            decoder = _on_gpu(images, device, config.workers) if decode == "gpu" else images
            return Loader(dataset, decoder, config, device, indices)
        case "torch":
            from .torch_loader import TorchLoader

            return TorchLoader(dataset, crop, config, device, indices, max_pixels, channels)
        case "dali":
            from .dali import DaliLoader

            return DaliLoader(dataset, crop, config, device, indices, max_pixels)
        case "ffcv":
            if not isinstance(dataset, BetonDataset):
                raise DataError(
                    f"{dataset.name}: FFCV reads only .beton files, and this is not one; convert the data to a .beton"
                )
            from .ffcv import FfcvLoader

            return FfcvLoader(dataset, crop, config, device, indices)
        case "resident":
            from .resident import ResidentImages, ResidentLoader

            held = ResidentImages(dataset, crop, device, indices, max_pixels, config.workers, config.on_error)
            return ResidentLoader(held, crop, config)
        case "synthetic":
            from .synthetic import SyntheticLoader

            return SyntheticLoader(dataset, crop, config, device, indices, channels)
