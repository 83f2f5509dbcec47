"""fastimg's loader over what `fastimg convert` writes, tar shards and a `.beton`, and FFCV's loader over the latter."""

from pathlib import Path

from rich.console import Console

from fastimg.bench.peers.data import Sources
from fastimg.bench.peers.pipelines import Batches, Workload, batches_of, ffcv_batches
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import open_dataset
from fastimg.loaders.runtime.cpus import available_cpus


def tiled(sources: Sources) -> Path:
    """A dataset of tar shards, made by `fastimg convert`."""
    return sources.folder / "tiled"


def make_tiled(sources: Sources) -> None:
    """Convert the images."""
    settings = Convert(src=links(sources), dst=tiled(sources), no_shuffle=True, workers=str(available_cpus()))
    convert(settings, Console(quiet=True))


def make_tiled_beton(sources: Sources) -> None:
    """FFCV's container, made by `fastimg convert --format beton`."""
    dst = _tiled_beton(sources).parent
    workers = str(available_cpus())
    convert(Convert(src=links(sources), dst=dst, format="beton", no_shuffle=True, workers=workers), Console(quiet=True))


def _tiled_beton(sources: Sources) -> Path:
    return sources.folder / "tiled-beton" / "train.beton"


def links(sources: Sources) -> Path:
    """A class folder of links to the files, for conversion."""
    folder = sources.folder / "links"
    if not folder.exists():
        for index, file in enumerate(sources.files):
            link = folder / f"{sources.label(index)}" / f"{index:06d}{file.suffix.lower()}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
    return folder


def native_tiled(work: Workload) -> Batches:
    """fastimg's loader over tiled tar shards."""
    return batches_of(work, open_dataset(tiled(work.sources)))


def ffcv_tiled(work: Workload) -> Batches:
    """FFCV's loader over fastimg's .beton of tiled originals."""
    return ffcv_batches(work, _tiled_beton(work.sources))
