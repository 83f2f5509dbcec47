"""The cache folder for everything that is derived from data."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """fastimg's folder in the user's cache directory: $XDG_CACHE_HOME, else ~/.cache. It may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastimg"
