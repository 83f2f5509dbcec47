"""The loaders that `loaders.py` measures: those of `fastimg bench --loaders`, and further ones on converted images."""

from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from fastimg.bench.peers.data import Sources
from fastimg.bench.peers.pipelines import PEERS as USUAL
from fastimg.bench.peers.pipelines import Batches, Peer, PillowFiles, Workload, batches_of, data_loader, ffcv_batches
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import open_dataset
from fastimg.loaders.runtime.cpus import available_cpus

INSTALL = "UV_PROJECT_ENVIRONMENT=build/peers uv sync --group peers"


def tiled(sources: Sources) -> Path:
    """A dataset of tar shards, made by `fastimg convert`."""
    return sources.folder / "tiled"


def make_tiled(sources: Sources) -> None:
    """Convert the images."""
    settings = Convert(src=_links(sources), dst=tiled(sources), no_shuffle=True, workers=str(available_cpus()))
    convert(settings, Console(quiet=True))


def make_tiled_beton(sources: Sources) -> None:
    """FFCV's container, made by `fastimg convert --format beton`."""
    dst = _tiled_beton(sources).parent
    workers = str(available_cpus())
    convert(
        Convert(src=_links(sources), dst=dst, format="beton", no_shuffle=True, workers=workers), Console(quiet=True)
    )


def _tiled_beton(sources: Sources) -> Path:
    return sources.folder / "tiled-beton" / "train.beton"


def _links(sources: Sources) -> Path:
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


class TensorFiles(PillowFiles):
    """torchvision's decoder, and the same transforms on tensors."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from torchvision.io import ImageReadMode, decode_image, read_file

        image = decode_image(read_file(str(self.sources.files[index])), ImageReadMode.RGB)  # a channels-last view
        return self.transform.transform(image).permute(1, 2, 0), self.sources.label(index)


def torch_tensors(work: Workload) -> Batches:
    """torch's DataLoader with torchvision.io and torchvision v2."""
    return data_loader(work, TensorFiles(work))


# The other loaders are compared with the first. To add a peer, write a function above and a line here.
PEERS: dict[str, Peer] = {
    "fastimg, tiled": Peer(open=native_tiled, make=make_tiled, about="tar shards by `fastimg convert`; threads"),
    "fastimg": replace(USUAL["native"], about="files; threads"),
    "ffcv": USUAL["ffcv"],
    "ffcv, our tiled beton": replace(
        USUAL["ffcv"],
        open=ffcv_tiled,
        make=make_tiled_beton,
        about="`fastimg convert --format beton`; os_cache",
    ),
    "dali": USUAL["dali"],
    "torch": USUAL["torch"],
    "torch, torchvision.io": replace(
        USUAL["torch"], open=torch_tensors, about="DataLoader, decode_image, v2 on tensors"
    ),
    "webdataset": USUAL["webdataset"],
}
