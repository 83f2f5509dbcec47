"""The loaders that `format_peers.py` measures, for images of any format: crops without flips, or whole images.

torch, webdataset and datago resize as Pillow does, with antialiasing, and so does fastimg; DALI with antialiasing of
its own, FFCV by areas, and TurboLoader, which gives floats, without. All but fastimg decode whole PNGs and WebPs. Of a
JPEG fastimg decodes the tiles, or the rows, of a crop, TurboLoader its window and DALI its part; the others all of it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fastimg.bench.peers.data import Sources, write_ffcv_beton, write_tars
from fastimg.bench.peers.pipelines import (
    AHEAD,
    Batches,
    Peer,
    PillowFiles,
    dali_batches,
    data_loader,
    first_of,
)
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import (
    CenterCrop,
    Dataset,
    FilesDataset,
    ImageDecoder,
    Loader,
    LoaderConfig,
    RandomResizedCrop,
    open_dataset,
)
from fastimg.loaders.runtime.cpus import available_cpus

from . import datago, tiled, turboloader
from .format_work import FormatWork, Steps


def _native(work: FormatWork, data: Dataset) -> Batches:
    crop = CenterCrop(size=work.size, resize=work.size) if work.whole else RandomResizedCrop(size=work.size)
    config = LoaderConfig(batch_size=work.batch_size, workers=work.threads, order="random", on_error="fail")
    loader = Loader(data, ImageDecoder(crop), config)
    loader.compile()
    torch.set_num_threads(1)
    return lambda: (batch.inputs[: batch.samples] for batch in loader)


def native_files(work: FormatWork) -> Batches:
    """fastimg's loader on the files."""
    return _native(work, FilesDataset(Path("/"), [str(file) for file in work.sources.files]))


def native_shards(work: FormatWork) -> Batches:
    """fastimg's loader on what `fastimg convert` makes of them."""
    return _native(work, open_dataset(tiled.tiled(work.sources)))


def make_raw(sources: Sources) -> None:
    """Convert the images to a `.beton` of raw pixels."""
    settings = Convert(
        src=tiled.links(sources),
        dst=_raw(sources),
        format="beton",
        raw_fraction=1.0,
        originals="drop",
        workers=str(available_cpus()),
    )
    convert(settings, Console(quiet=True))


def _raw(sources: Sources) -> Path:
    return sources.folder / "raw"


def native_raw(work: FormatWork) -> Batches:
    """fastimg's loader on raw pixels."""
    return _native(work, open_dataset(_raw(work.sources)))


def torch_files(work: FormatWork) -> Batches:
    """torch's DataLoader on the files."""
    files = PillowFiles(work)
    files.transform = Steps(work)  # type: ignore[assignment]
    return first_of(data_loader(work, files))


def webdataset(work: FormatWork) -> Batches:
    """webdataset on tars of the files."""
    import webdataset as wds  # type: ignore[import-not-found, import-untyped, unused-ignore]

    tars = [str(tar) for tar in work.sources.tars]
    data = wds.WebDataset(tars, shardshuffle=len(tars), empty_check=False).shuffle(1000)
    data = data.decode("pilrgb").to_tuple("jpg", "cls").map_tuple(Steps(work), int).batched(work.batch_size)
    return first_of(wds.WebLoader(data, batch_size=None, num_workers=work.workers, persistent_workers=True))


def dali_files(work: FormatWork) -> Batches:
    """DALI's CPU pipeline on the files."""
    return _dali(work, tars=False)


def dali_tars(work: FormatWork) -> Batches:
    """DALI's CPU pipeline on webdataset's tars of the files."""
    return _dali(work, tars=True)


def _dali(work: FormatWork, tars: bool) -> Batches:
    from nvidia.dali import fn, pipeline_def, types

    names = [str(file) for file in work.sources.files]
    labels = [work.sources.label(i) for i in range(len(names))]

    @pipeline_def(  # type: ignore[untyped-decorator, unused-ignore]
        batch_size=work.batch_size, num_threads=work.threads, device_id=None, prefetch_queue_depth=AHEAD, seed=1
    )
    def pipeline() -> Any:
        if tars:
            paths = [str(tar) for tar in work.sources.tars]
            data, targets = fn.readers.webdataset(paths=paths, ext=["jpg", "cls"], random_shuffle=True, name="files")
        else:
            data, targets = fn.readers.file(files=names, labels=labels, shuffle_after_epoch=True, name="files")
        if work.whole:
            return fn.decoders.image(data, device="cpu", output_type=types.RGB), targets
        images = fn.decoders.image_random_crop(
            data, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        return fn.resize(images, size=[work.size, work.size]), targets

    return dali_batches(work, pipeline())


def _for_raw(sources: Sources) -> Sources:
    """The same with a folder of its own, as FFCV's containers have one name."""
    return replace(sources, folder=sources.folder / "ffcv-raw")


def make_ffcv_raw(sources: Sources) -> None:
    """Write FFCV's container of raw pixels by FFCV's writer."""
    write_ffcv_beton(_for_raw(sources), "raw")


def ffcv_raw(work: FormatWork) -> Batches:
    """FFCV's loader on raw pixels."""
    return _ffcv(work, _for_raw(work.sources).ffcv_beton)


def ffcv_jpg(work: FormatWork) -> Batches:
    """FFCV's loader on JPEGs that its writer encoded."""
    return _ffcv(work, work.sources.ffcv_beton)


def _ffcv(work: FormatWork, beton: Path) -> Batches:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader as FfcvLoader
    from ffcv.loader import OrderOption
    from ffcv.transforms import ToTensor, ToTorchImage

    size = (work.size, work.size)
    decode = SimpleRGBImageDecoder() if work.whole else RandomResizedCropRGBImageDecoder(size)
    loader = FfcvLoader(
        str(beton),
        batch_size=work.batch_size,
        num_workers=work.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": [decode, ToTensor(), ToTorchImage()], "label": [IntDecoder(), ToTensor()]},
    )
    return lambda: (batch[0] for batch in loader)


_FILES, _TARS = "the files", "tars of the files"

PEERS: dict[str, Peer] = {
    "fastimg, shards": Peer(open=native_shards, make=tiled.make_tiled, about="what `fastimg convert` makes; threads"),
    "fastimg, files": Peer(open=native_files, about=f"{_FILES}; threads"),
    "fastimg, raw": Peer(open=native_raw, make=make_raw, about="`fastimg convert --format beton --raw-fraction 1`"),
    "torch": Peer(open=torch_files, about=f"{_FILES}; Pillow, torchvision v2; persistent processes"),
    "dali": Peer(open=dali_files, about=f"{_FILES}; antialiasing of its own; threads", module="nvidia.dali"),
    "dali, tars": Peer(
        open=dali_tars, make=write_tars, about=f"{_TARS}; antialiasing of its own; threads", module="nvidia.dali"
    ),
    "webdataset": Peer(
        open=webdataset,
        make=write_tars,
        about=f"{_TARS}; Pillow, torchvision v2; persistent processes",
        module="webdataset",
    ),
    "ffcv, raw": Peer(
        open=ffcv_raw, make=make_ffcv_raw, about="its `.beton` of raw pixels; averages areas; threads", module="ffcv"
    ),
    "ffcv, jpg": Peer(
        open=ffcv_jpg,
        make=write_ffcv_beton,
        about="its `.beton` of JPEGs, quality 90; decodes whole images, averages areas; threads",
        module="ffcv",
    ),
    "turboloader": turboloader.FILES,
    "turboloader, raw": turboloader.RAW,
    "datago": datago.FILES,
}
