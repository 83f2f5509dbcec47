"""Bytes on disk -> a batch on the device."""

from .batch import Batch
from .crop import CenterCrop, RandomResizedCrop
from .epochs import BatchSource, LoaderConfig
from .errors import DataError, ImageError, ShardError, WorkerError
from .folder import FilesDataset
from .loader import Loader
from .sample import ImageDecoder
from .shards import Dataset, list_splits, open_dataset

__all__ = [
    "Batch",
    "BatchSource",
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
