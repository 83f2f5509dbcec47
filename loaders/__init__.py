"""Bytes on disk -> a batch on the device.

In: a dataset, a crop, settings. Out: uint8 batches in an order that resumes. Must not know: augment, the application.
"""

from fastimg.loaders.containers.datasets import Dataset, list_splits, open_dataset
from fastimg.loaders.folders.folder import FilesDataset

from .batch import Batch
from .crop import CenterCrop, RandomResizedCrop
from .decoders.images import ImageDecoder
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
