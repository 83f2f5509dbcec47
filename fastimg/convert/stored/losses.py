"""What ends a conversion that can go on: its source cannot be reached any more."""

import contextlib
from collections.abc import Iterator

from fastimg.loaders.errors import DataError, ImageError, ShardError


class SourceLostError(DataError):
    """The store does not give what it had when it was listed. What is finished stays."""


@contextlib.contextmanager
def losing() -> Iterator[None]:
    """Turn what a store refuses into a SourceLostError; a single file's fault, and what was replaced, stay."""
    try:
        yield
    except (ImageError, ShardError):
        raise
    except DataError as error:
        raise SourceLostError(f"{error}; what is finished stays: go on with resume=True") from error
