"""The loaders that `loaders.py` measures: those of `fastimg bench --loaders`, and further ones.

To add a peer, write a function from a `Workload` to batches in a module of its own, and a line in PEERS.
"""

import contextlib
from dataclasses import replace
from functools import partial
from importlib import metadata

from fastimg.bench.peers.pipelines import PEERS as USUAL
from fastimg.bench.peers.pipelines import Peer

from . import decoders, litdata, spdl, tiled

INSTALL = "UV_PROJECT_ENVIRONMENT=build/peers uv sync --group peers"
INSTALL_LOADERS = f"{INSTALL} --group loaders"

# Distributions whose versions a record names, beside those of `measure.environment`.
DISTRIBUTIONS = (
    *("spdl-core", "spdl-io", "torchcodec", "litdata", "turboloader", "datago"),
    *("PyTurboJPEG", "jpeg4py", "opencv-python-headless", "imagecodecs", "kornia-rs", "pyvips", "imageio"),
)


def versions() -> dict[str, str]:
    """The versions of those distributions that are installed."""
    found = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _decoding(name: str) -> Peer:
    """torch's DataLoader with a decoder."""
    module, decode = decoders.DECODERS[name]
    about = f"DataLoader, {name}, torchvision v2 on tensors; persistent processes"
    open_with = partial(decoders.torch_decoding, decode=decode)
    return Peer(open=open_with, about=about, module=module, install=INSTALL_LOADERS)


PEERS: dict[str, Peer] = {  # the others are compared with the first
    "fastimg, tiled": Peer(
        open=tiled.native_tiled, make=tiled.make_tiled, about="tar shards by `fastimg convert`; threads"
    ),
    "fastimg": replace(USUAL["native"], about="files; threads"),
    "ffcv": USUAL["ffcv"],
    "ffcv, our tiled beton": replace(
        USUAL["ffcv"],
        open=tiled.ffcv_tiled,
        make=tiled.make_tiled_beton,
        about="`fastimg convert --format beton`; os_cache",
    ),
    "dali": USUAL["dali"],
    "spdl": Peer(
        open=spdl.filtered,
        about="Pipeline on the files: FFmpeg's decoder, its filters crop, scale and hflip; threads",
        module="spdl.io",
        install=f"{INSTALL_LOADERS}, and FFmpeg's libraries",
    ),
    "spdl, torchcodec": Peer(
        open=spdl.decoded,
        about="Pipeline on the files: TorchCodec, torchvision v2 on tensors; threads",
        module="spdl.pipeline",
        install=INSTALL_LOADERS,
    ),
    "litdata": Peer(
        open=litdata.streamed,
        make=litdata.make_chunks,
        about="chunks by its `optimize`, JPEGs unchanged; torchvision.io, v2 on tensors; persistent processes",
        module="litdata",
        install=INSTALL_LOADERS,
    ),
    "torch": USUAL["torch"],
    **{f"torch, {name}": _decoding(name) for name in ("torchvision.io", "torchcodec", "simplejpeg", "imagecodecs")},
    "webdataset": USUAL["webdataset"],
}
