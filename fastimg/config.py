"""One frozen dataclass per command: the single source of flags, `--help`, the YAML under `--config` and `config.yaml`.

None means "chosen for you"; what was chosen is printed and written down. Nothing here imports torch: `--help` is
instant.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Turn a folder or a manifest of images into tar shards that DALI and WebDataset read too."""

    src: Positional[Path]
    """A folder with one subfolder per class (with or without train/ val/ test/ above), or a csv, tsv, jsonl or parquet
    manifest with a path and a label column."""
    dst: Positional[Path]
    """The dataset directory to make."""
    shard_size: str = "256MB"
    """Source bytes per shard: a number with KB, MB or GB."""
    val_fraction: float = 0.0
    """Hold out this share of the training split, stratified by class and seeded."""
    shuffle: bool = True
    """Shuffle the training split once, seeded; class-sorted shards ruin windowed shuffling."""
    seed: int = 0
    """Seed of the shuffle and of --val-fraction."""
    path_column: str | None = None
    """Manifest column with image paths, relative to the manifest. Default: path, file, filename or image."""
    label_column: str | None = None
    """Manifest column with labels. Default: label, class or target."""
    split_column: str | None = None
    """Manifest column with split names. Default: split, where there is one."""
    workers: Annotated[str, arg(aliases=["-j"])] = "auto"
    """Threads that read and check images: a number, or auto for one per core."""
    max_pixels: int = 89_478_485
    """Refuse images with more pixels than this, from their header, before anything is decoded."""
    on_error: Literal["skip", "fail"] = "skip"
    """What to do with an image that cannot be decoded: leave it out, counted and named, or stop."""
    resume: bool = False
    """Go on with a conversion into DST that was interrupted."""
    overwrite: bool = False
    """Replace the dataset in DST."""
    json: bool = False
    """Print the report as json."""
