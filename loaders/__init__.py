"""Bytes on disk -> a batch on the device.

    loader = Loader("D", batch_size=256, crop=224, device="cuda")
    for batch in loader:
        batch.inputs, batch.targets, batch.weight  # uint8 [256, 3, 224, 224], int64 [256], float32 [256]

`Loader` reads shards, .beton files and image folders; `ImageFolderLoader` takes the place of torchvision's ImageFolder
and torch's DataLoader, `FFCVLoader` that of FFCV's Loader, `create_loader` that of timm's; what a sample becomes is a
`Decoder`'s.

In: a dataset, a crop, settings. Out: uint8 batches in an order that resumes. Must not know: augment, the application.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastimg.loaders.containers.datasets import Dataset, list_splits, open_dataset
    from fastimg.loaders.folders.folder import FilesDataset

    from .batch import Batch, Field, FieldSelection
    from .crop import CenterCrop, Crop, Letterbox, LongestSide, RandomCrop, RandomResizedCrop, View
    from .decoder import Decoder
    from .decoders.fields import FieldsDecoder
    from .decoders.images import ImageDecoder
    from .decoders.views import ViewDecoder
    from .epochs.config import LoaderConfig
    from .epochs.source import BatchSource
    from .errors import DataError, ImageError, ShardError, UnavailableError, WorkerError
    from .loader import Loader
    from .migration.batches import Batches
    from .migration.ffcv_loader import FFCVLoader
    from .migration.image_folder import ImageFolderLoader
    from .migration.ray_data import ray_dataset
    from .migration.timm_loader import create_loader
    from .order import Sampling

__all__ = [
    "Batch",
    "BatchSource",
    "Batches",
    "CenterCrop",
    "Crop",
    "DataError",
    "Dataset",
    "Decoder",
    "FFCVLoader",
    "Field",
    "FieldSelection",
    "FieldsDecoder",
    "FilesDataset",
    "ImageDecoder",
    "ImageError",
    "ImageFolderLoader",
    "Letterbox",
    "Loader",
    "LoaderConfig",
    "LongestSide",
    "RandomCrop",
    "RandomResizedCrop",
    "Sampling",
    "ShardError",
    "UnavailableError",
    "View",
    "ViewDecoder",
    "WorkerError",
    "create_loader",
    "list_splits",
    "open_dataset",
    "ray_dataset",
]

# Public name -> the module that defines it, imported at first use: some import torch, which takes seconds.
_MODULES = {
    **dict.fromkeys(("Dataset", "list_splits", "open_dataset"), "containers.datasets"),
    **dict.fromkeys(("DataError", "ImageError", "ShardError", "UnavailableError", "WorkerError"), "errors"),
    **dict.fromkeys(
        ("CenterCrop", "Crop", "Letterbox", "LongestSide", "RandomCrop", "RandomResizedCrop", "View"), "crop"
    ),
    "BatchSource": "epochs.source",
    "Batches": "migration.batches",
    "LoaderConfig": "epochs.config",
    **dict.fromkeys(("Batch", "Field", "FieldSelection"), "batch"),
    "FFCVLoader": "migration.ffcv_loader",
    "FieldsDecoder": "decoders.fields",
    "Decoder": "decoder",
    "FilesDataset": "folders.folder",
    "ViewDecoder": "decoders.views",
    "ImageDecoder": "decoders.images",
    "ImageFolderLoader": "migration.image_folder",
    "Loader": "loader",
    "create_loader": "migration.timm_loader",
    "ray_dataset": "migration.ray_data",
    "Sampling": "order",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
