"""Single images and texts at URLs, which `predict` takes beside files and folders: they are fetched first."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fastimg.loaders.containers.content import TEXT_EXTENSIONS
from fastimg.loaders.folders.bands import is_bands
from fastimg.loaders.folders.formats import image_extensions, undecodable_extensions
from fastimg.loaders.folders.ignored import extension_of
from fastimg.loaders.remote.stores import url_of
from fastimg.loaders.remote.trees import StoredFiles


def url_of_file(source: Path) -> str | None:
    """The URL of an image, a text or an array, by its extension; None of anything else."""
    url = url_of(source)
    if url is None:
        return None
    extension = extension_of(url)
    known = {*image_extensions(), *undecodable_extensions(), *TEXT_EXTENSIONS}
    return url if extension in known or is_bands(url) else None


@contextmanager
def files_at_urls(sources: Sequence[Path], options: Sequence[str]) -> Iterator[dict[Path, Path]]:
    """Those of the sources that are files at URLs -> where they are in the block. `options`: of --storage-option.

    One that is given several times is fetched once. Each is verified as it arrives, by its ETag where that is a
    checksum. Raises DataError for one that cannot be had.
    """
    stated = dict(option.split("=", 1) for option in options)
    with tempfile.TemporaryDirectory(prefix="fastimg-predict-") as name:
        found: dict[Path, Path] = {}
        for number, source in enumerate(dict.fromkeys(sources)):
            if (url := url_of_file(source)) is not None:
                place, _, file = url.rpartition("/")
                found[source] = Path(name) / f"{number:06d}{Path(file).suffix}"
                found[source].write_bytes(StoredFiles(place, stated).content(file))
        yield found
