"""Errors of the loader. Their messages are written for the owner of the data."""


class DataError(Exception):
    """The data is invalid or cannot be read. The message names the file, the reason and the remedy."""


class UnavailableError(DataError):
    """The data cannot be had now: a store that refuses or is silent, or a cache that cannot be written."""


class ShardError(DataError):
    """A shard, an index or dataset.json is missing, cut short or altered: nothing in it can be trusted."""


class ImageError(DataError):
    """One image cannot be decoded. The message is only the reason: the caller knows the image's name."""


class WorkerError(RuntimeError):
    """A worker thread failed on a named sample for a reason other than the data; `__cause__` is the original error."""
