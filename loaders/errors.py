"""What can go wrong with data, as sentences for the person who owns it."""


class DataError(Exception):
    """The data is not what it says it is, or cannot be read. The message names the file, the reason and the remedy."""


class ShardError(DataError):
    """A shard, an index or dataset.json is missing, cut short or altered: nothing in it can be trusted."""


class ImageError(DataError):
    """One image cannot be decoded. The message is the reason alone: who asked for the image knows its name."""


class WorkerError(RuntimeError):
    """A worker thread failed on a named sample for a reason that is not the data's; `__cause__` is its own error."""
