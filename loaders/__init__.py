"""Bytes on disk -> a batch on the device."""

from .batch import Batch
from .crop import CenterCrop, RandomResizedCrop
from .errors import DataError, ImageError, ShardError, WorkerError
from .folder import FilesDataset
from .loader import Loader, LoaderConfig
from .sample import ImageDecoder
from .shards import Dataset, list_splits, open_dataset

__all__ = [
    "Batch",
    "CenterCrop",
    "DataError",
    "Dataset",
    "FilesDataset",
    "ImageDecoder",
    "ImageError",
    "Loader",
    "LoaderConfig",
    "RandomResizedCrop",
    "ShardError",
    "WorkerError",
    "list_splits",
    "open_dataset",
]
