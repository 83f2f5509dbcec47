"""Bytes on disk -> a batch on the device."""

from fastimg.loaders.containers.datasets import Dataset, list_splits, open_dataset
from fastimg.loaders.folders.folder import FilesDataset

from .batch import Batch
from .crop import CenterCrop, RandomResizedCrop
from .decoder import ImageDecoder
from .epochs import BatchSource, LoaderConfig
from .errors import DataError, ImageError, ShardError, WorkerError
from .loader import Loader

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
