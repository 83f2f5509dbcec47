"""Counts the files in a folder of shards or parquet files that are neither; they are left where they are."""

import os
from collections.abc import Iterable
from pathlib import Path

from fastimg.data.derived import CACHE
from fastimg.loaders.containers.content import TEXT_EXTENSIONS
from fastimg.loaders.folders.formats import image_extensions, undecodable_extensions
from fastimg.loaders.folders.ignored import Ignored, extension_of
from fastimg.loaders.folders.walk import relative, walk

_OWN = frozenset({"dataset.json", "convert.json", ".convert.json.part"})  # beside the shards of a conversion
_INDEXES = (".idx", ".fidx", ".fcol", ".ffld", ".ftil", ".fdci")


def strays(src: Path, used: Iterable[Path], what: str = "shards") -> Ignored:
    """Every file under `src` that is not among the `used` ones, and not their index, description or cache."""
    ignored = Ignored()
    files = {os.path.normpath(path) for path in used}
    suffixes = {extension_of(path) for path in files}
    images = image_extensions()
    for path, why in walk(src):
        name, extension = relative(path, src), extension_of(path)
        if os.path.normpath(path) in files or name in _OWN or name.startswith(os.path.join(CACHE, "")):
            continue
        if extension in _INDEXES and os.path.dirname(name) == "":
            continue
        if extension in suffixes:
            reason = f"a {extension} file in an unexpected place"
        elif extension in images or extension in TEXT_EXTENSIONS or extension in undecodable_extensions():
            reason = f"outside the {what}"
        else:
            reason = f"not among the {what}"
        ignored.add(name, why or reason)
    return ignored
