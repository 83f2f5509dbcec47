"""TurboLoader: its loader on a tar of the files, and on its own container of raw pixels, `.tbl`.

It gives floats from 0 to 1, where the others give bytes: normalising is part of its pass, and its users need no pass of
theirs. Crops are resized bilinearly without antialiasing, its default. It decodes a JPEG's rows and columns of the
crop. It has one pool of threads for a process, as many as there are cores: with fewer workers the process is bound to
that many cores, the one that takes the batches included. The wheel reads neither PNG nor WebP nor BMP: it serves zeros
for them, with a warning, which counts as a failure here. A `.tbl` has images of one size.
"""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fastimg.bench.peers.data import Sources
from fastimg.bench.peers.pipelines import Batches, Peer

from .format_work import FormatWork

INSTALL = "uv pip install --no-deps turboloader"


def make_tar(sources: Sources) -> None:
    """Write one tar of the files, with no labels: it has them beside the images."""
    with tarfile.open(_tar(sources), "w") as tar:
        for number, file in enumerate(sources.files):
            tar.add(file, arcname=f"{number:06d}{file.suffix}")


def _tar(sources: Sources) -> Path:
    sources.folder.mkdir(parents=True, exist_ok=True)
    return sources.folder / "turboloader.tar"


def make_tbl(sources: Sources) -> None:
    """Write raw pixels to its container. Raises ValueError if images have several sizes, for which it has no crops."""
    import turboloader as library

    writer: Any = library.TblWriterV2(str(_tbl(sources)), enable_compression=False)
    sizes = set()
    for file in sources.files:
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB"))
        sizes.add(pixels.shape)
        if len(sizes) > 1:
            raise ValueError("a .tbl of raw pixels has images of one size, and these have several")
        writer.add_sample(pixels.tobytes(), library.SampleFormat.RAW_U8, width=pixels.shape[1], height=pixels.shape[0])
    writer.finalize()


def _tbl(sources: Sources) -> Path:
    sources.folder.mkdir(parents=True, exist_ok=True)
    return sources.folder / "turboloader.tbl"


def of_files(work: FormatWork) -> Batches:
    """Its loader on the tar."""
    return _batches(work, _tar(work.sources))


def of_raw(work: FormatWork) -> Batches:
    """Its loader on raw pixels."""
    return _batches(work, _tbl(work.sources))


def _batches(work: FormatWork, source: Path) -> Batches:
    cores = sorted(os.sched_getaffinity(0))[: work.threads]
    os.sched_setaffinity(0, cores)  # before its pool is made
    import turboloader as library

    loader: Any = library.DataLoader(
        str(source),
        batch_size=work.batch_size,
        num_workers=work.threads,
        image_size=work.size,
        output_format="pytorch",
        shuffle=True,
        train_aug=not work.whole,
        hflip_prob=0.0,
    )
    epoch = 0

    def batches() -> Iterator[torch.Tensor]:
        nonlocal epoch
        epoch += 1
        loader.set_epoch(epoch)
        for images, about in loader:
            if about.get("decode_failures"):
                raise ValueError(f"it cannot decode {source.suffix} members, and serves zeros for them")
            yield torch.from_numpy(images)

    return batches


_ABOUT = "floats, bilinear without antialiasing; threads"

FILES = Peer(
    open=of_files,
    make=make_tar,
    about=f"a tar of the files; decodes a crop's window; {_ABOUT}",
    module="turboloader",
    install=INSTALL,
    dtype=torch.float32,
)
RAW = Peer(
    open=of_raw,
    make=make_tbl,
    about=f"its `.tbl` of raw pixels; {_ABOUT}",
    module="turboloader",
    install=INSTALL,
    dtype=torch.float32,
)
