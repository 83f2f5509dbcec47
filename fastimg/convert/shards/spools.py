"""Temporary files of a source that is read from front to back, once: how the nodes of a cluster read them.

In a folder that all nodes share, the file gets a name. In an object store its records lie in the order of the plan, so
that those of a shard follow one another, and a node reads them by few requests.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.convert.delivery.temporary_objects import TemporaryObjects
from fastimg.convert.plan import Shard
from fastimg.convert.sources.samples import Source, SourceReader, WrappingReader
from fastimg.convert.sources.spools import Spool, SpoolReader
from fastimg.convert.stored.spools import StoredSpool
from fastimg.loaders.remote.cache.sizes import in_words

Placed = Callable[[Shard], Shard]  # a shard whose entries say where the nodes find them


def share_spools(source: Source, folder: Path, say: Callable[[str], object]) -> None:
    """Let the nodes read them in a folder that all share. Raises OSError if one has to be copied, and it is full."""
    for number, spool in enumerate(_spools(source)):
        path = folder / f"source-{number}"
        if spool.share(path):
            say(f"ray         copied the temporary file of {source.src} to {path}, where nodes read it")


def upload_spools(
    source: Source, shards: Sequence[Shard], objects: TemporaryObjects, say: Callable[[str], object]
) -> Placed:
    """Let the nodes read the records of these shards in the store. This process can read them no longer.

    Raises OSError if the disk is full, and NotDelivered.
    """
    moved: dict[int, _Moved] = {}  # by the reader's number
    for number, spool in enumerate(_spools(source)):
        readers = [at for at, each in enumerate(map(_spooled, source.readers)) if each and each.spool is spool]
        path = objects.folder / f"source-{number}.spool"
        try:
            moved |= dict.fromkeys(readers, _Moved(spool, shards, readers, path))
            spool.close()
            size = in_words(path.stat().st_size)
            say(f"ray         uploading the temporary file of {source.src} ({size}), which nodes read in the store")
            stored = StoredSpool(objects.add_spool(path))
        finally:
            path.unlink(missing_ok=True)
        for reader in filter(None, map(_spooled, source.readers)):
            if reader.spool is spool:
                reader.spool = stored
    return lambda shard: _placed(shard, moved)


class _Moved:
    """The records of these readers in a new file, in the order of the shards, and where they were before."""

    def __init__(self, spool: Spool, shards: Sequence[Shard], readers: Sequence[int], path: Path) -> None:
        self._starts, sizes = spool.extents()
        self._places = np.zeros(len(self._starts), np.int64)
        end = 0
        with path.open("wb") as out:
            for shard in shards:
                entries = shard.entries
                read = np.isin(entries.readers, readers) & (entries.sizes >= 0)
                for row in self._rows(entries.places[read]).tolist():
                    self._places[row] = end
                    end += out.write(spool.read(int(self._starts[row]), int(sizes[row])))

    def now(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where records [N] are that began at these places."""
        return self._places[self._rows(places)]

    def _rows(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self._starts, places)


def _placed(shard: Shard, moved: dict[int, _Moved]) -> Shard:
    entries = shard.entries.compact()
    places, readers = entries.places, entries.readers
    for reader, each in moved.items():
        read = (readers == reader) & (entries.sizes >= 0)
        places[read] = each.now(places[read])
    entries.move(places)
    return replace(shard, entries=entries)


def _spools(source: Source) -> list[Spool]:
    readers = filter(None, map(_spooled, source.readers))
    return list({id(each.spool): each.spool for each in readers if isinstance(each.spool, Spool)}.values())


def _spooled(reader: SourceReader) -> SpoolReader | None:
    """The reader of a temporary file, which another reader may wrap."""
    if isinstance(reader, WrappingReader):
        return _spooled(reader.reader)
    return reader if isinstance(reader, SpoolReader) else None
