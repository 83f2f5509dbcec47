"""Where what is derived from a dataset is kept: digests, tokens and embeddings, addressed by content."""

import hashlib
import os
from pathlib import Path

from fastimg.loaders.runtime.cache import cache_folder

CACHE = ".fastimg"  # beside fastimg's own shards


def cache_root(data: Path, given: Path | None) -> Path:
    """The folder for data derived from a dataset: the `given` one, else next to fastimg's own shards, else the user's
    cache folder.
    """
    if given is not None:
        return given
    if (data / "dataset.json").exists() and os.access(data, os.W_OK):
        return data / CACHE
    key = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:16]
    return cache_folder() / key
