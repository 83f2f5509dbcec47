"""The beginnings of arrays of a source, for its listing: their shapes and types. Those in a store are fetched ahead."""

import io
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from fastimg.convert.hub.ranges import BlockFile
from fastimg.loaders.errors import DataError, ImageError
from fastimg.loaders.remote.stores import DeniedError, NotThereError
from fastimg.loaders.remote.trees import StoredTree, tree_of

from .files import REQUESTS
from .losses import SourceLostError

_BLOCK = 16 << 10  # bytes of a request: the head of an array, or the directory of a TIFF
_Head = TypeVar("_Head")
Parse = Callable[[Path | BinaryIO, str], _Head]  # of a file and its name


class _StoredFile(BlockFile):
    """A file of a tree, whose blocks stay in memory."""

    def __init__(self, tree: StoredTree, path: Path) -> None:
        super().__init__(path.stat().st_size, _BLOCK)
        self._tree = tree
        self._name = tree.name_of(path)
        self._blocks: dict[int, bytes] = {}

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            start = number * _BLOCK
            stop = min(start + _BLOCK, self._size)
            self._blocks[number] = bytes(self._tree.files.read_range(self._name, start, stop))
        return self._blocks[number]


def head_of(file: Path, name: str, parse: Parse[_Head]) -> _Head:
    """What `parse` finds in a file, here or in a store. Raises what it raises, ImageError and SourceLostError."""
    tree = tree_of(file)
    if tree is None or not tree.holds(file):
        return parse(file, name)
    try:
        with io.BufferedReader(_StoredFile(tree, file), _BLOCK) as opened:
            return parse(cast("BinaryIO", opened), name)
    except DeniedError as error:
        raise SourceLostError(str(error)) from error
    except (NotThereError, FileNotFoundError) as error:
        raise ImageError("no such file") from error
    except ImageError:
        raise
    except DataError as error:
        raise SourceLostError(str(error)) from error


class AnnouncedHeads:
    """What a parser finds in files of a store, which are fetched when they are announced."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(REQUESTS, "fastimg-heads")
        self._coming: dict[Path, Future[Any]] = {}

    def announce(self, file: Path, name: str, parse: Parse[Any]) -> None:
        """Begin to fetch the head of a file."""
        if file not in self._coming:
            self._coming[file] = self._pool.submit(head_of, file, name, parse)

    def head(self, file: Path, name: str, parse: Parse[_Head]) -> _Head:
        """See `head_of`."""
        coming: Future[_Head] | None = self._coming.pop(file, None)
        return head_of(file, name, parse) if coming is None else coming.result()

    def close(self) -> None:
        """End the threads; what was announced is dropped."""
        self._pool.shutdown(cancel_futures=True)
        self._coming = {}
