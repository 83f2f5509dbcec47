"""The loaders that are compared, each as its users write it when speed matters: a function of `Work` gives batches.

Nothing is imported before it is used: each loader runs in a process of its own (peer_processes.py).
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fastimg.augment import Policy, draw
from fastimg.loaders import CenterCrop, Dataset, FilesDataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop
from fastimg.loaders.batch import Field
from fastimg.loaders.containers.beton_dataset import BetonDataset
from fastimg.loaders.decoder import Decoder, Row
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.system.packages import OPTIONAL

from .data import Sources, write_ffcv_beton, write_tars

Batches = Callable[[], Iterator[torch.Tensor]]  # an epoch: uint8 [B, 3, S, S], each valid until the next

AHEAD = 2  # batches that DALI prepares ahead: its default
BASE = "native"  # the others are compared with it


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every loader does.

    random: RandomResizedCrop(0.08-1, 3/4-4/3) and a flip of every other image, in a new order each epoch. centre: the
    samples in their order, resized to 8/7 of `size` and cut.
    """

    sources: Sources
    crop: Literal["random", "centre"]
    batch_size: int
    size: int
    workers: int  # threads or processes

    @property
    def resize(self) -> int:
        """Length of the shorter side before the centre is cut."""
        return self.size * 8 // 7


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A loader of the comparison. Its functions are called in its own process, to which they go by their names."""

    open: Callable[[Work], Batches]
    about: str
    make: Callable[[Sources], None] | None = None  # what it reads; None: the files, or DATA
    decodes: bool = True  # False: its pixels are no images
    module: str | None = None  # that has to be installed
    install: str = ""  # the command that does it, in words where it needs some

    def installed(self) -> bool:
        """Whether the module is there, without importing it."""
        if self.module is None:
            return True
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # of the package that it would be in
            return False


def native(work: Work) -> Batches:
    """fastimg's loader over DATA as it is."""
    return batches_of(work, *work.sources.open())


def batches_of(work: Work, data: Dataset, ids: npt.NDArray[np.int64] | None = None) -> Batches:
    """fastimg's loader over those samples of a dataset."""
    random = work.crop == "random"
    crop = RandomResizedCrop(size=work.size) if random else CenterCrop(size=work.size, resize=work.resize)
    config = LoaderConfig(
        batch_size=work.batch_size,
        workers=work.workers,
        order="random" if random else "sequential",
        on_error="fail",
    )
    loader = Loader(data, ImageDecoder(crop), config, indices=ids)
    policy = Policy(hflip=0.5)
    torch.set_num_threads(1)  # what is asked for is what computes

    def batches() -> Iterator[torch.Tensor]:
        for batch in loader:
            images = batch.inputs[: batch.samples]
            if random:  # in training the flip is part of the augmentation's one pass; here it is made on the batch
                for i in draw(policy, batch.ids[: batch.samples], 0, loader.epoch).hflip.nonzero()[:, 0].tolist():
                    images[i].copy_(images[i].flip(2))
            yield images

    return batches


class _Nothing(FilesDataset):
    """Samples without bytes."""

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """Nothing."""
        return memoryview(b"")


class _Pixels(Decoder):
    """A decoder that copies random pixels from memory: what is left is the loader's own work."""

    def __init__(self, size: int) -> None:
        self._pixels = np.random.default_rng(0).integers(256, size=(size, size, 3), dtype=np.uint8)

    @property
    def fields(self) -> tuple[Field, ...]:
        """`inputs` alone."""
        return (Field("inputs", self._pixels.shape, self._pixels.dtype),)

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """Copy."""
        row["inputs"][:] = self._pixels


def synthetic(work: Work) -> Batches:
    """fastimg's loader without anything to read or to decode: threads, slots and batches as ever."""
    config = LoaderConfig(batch_size=work.batch_size, workers=work.workers)
    loader = Loader(_Nothing(Path("/"), [""] * len(work.sources.files)), _Pixels(work.size), config)
    torch.set_num_threads(1)
    return lambda: (batch.inputs[: batch.samples] for batch in loader)


def ffcv(work: Work) -> Batches:
    """FFCV's loader over DATA where that is a .beton, else over the one that its writer made of the files."""
    if work.sources.original is None:
        return ffcv_batches(work, work.sources.ffcv_beton)
    data, ids = work.sources.open()
    if not isinstance(data, BetonDataset):
        return ffcv_batches(work, work.sources.ffcv_beton)
    return ffcv_batches(work, data.reader.path, ids, data.image_field, data.label_field)


def make_for_ffcv(sources: Sources) -> None:
    """What `ffcv` reads."""
    if sources.original is not None and isinstance(sources.open()[0], BetonDataset):
        return
    write_ffcv_beton(sources)


def ffcv_batches(
    work: Work,
    beton: Path,
    ids: npt.NDArray[np.int64] | None = None,
    image: str = "image",
    label: str | None = "label",
) -> Batches:
    """FFCV's loader over those samples of a .beton, whose two fields of that name are read."""
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader as FFCVLoader
    from ffcv.loader import OrderOption
    from ffcv.reader import Reader
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    size = (work.size, work.size)
    if work.crop == "random":
        decode = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()]
    else:
        decode = [CenterCropRGBImageDecoder(size, ratio=work.size / work.resize)]
    fields: dict[str, Any] = dict.fromkeys(Reader(str(beton)).handlers)
    fields[image] = [*decode, ToTensor(), ToTorchImage()]
    if label is not None:
        fields[label] = [IntDecoder(), ToTensor(), Squeeze()]
    loader = FFCVLoader(
        str(beton),
        batch_size=work.batch_size,
        num_workers=work.workers,
        order=OrderOption.RANDOM if work.crop == "random" else OrderOption.SEQUENTIAL,
        indices=None if ids is None else ids.astype(np.uint64),
        os_cache=True,
        drop_last=False,
        pipelines=fields,
    )
    at = [name for name, pipeline in fields.items() if pipeline is not None].index(image)
    return lambda: (batch[at] for batch in loader)


def dali(work: Work) -> Batches:
    """DALI's CPU pipeline over the files. Epochs are scheduled by hand: nothing is prepared beyond their end."""
    from nvidia.dali import fn, pipeline_def, types

    files = [str(file) for file in work.sources.files]
    random = work.crop == "random"

    @pipeline_def(  # type: ignore[untyped-decorator, unused-ignore]
        batch_size=work.batch_size, num_threads=work.workers, device_id=None, prefetch_queue_depth=AHEAD, seed=1
    )
    def pipeline() -> Any:
        labels = [work.sources.label(i) for i in range(len(files))]
        data, targets = fn.readers.file(files=files, labels=labels, shuffle_after_epoch=random, name="files")
        if random:
            images = fn.decoders.image_random_crop(
                data, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
            )
            images = fn.resize(images, size=[work.size, work.size])
            return fn.flip(images, horizontal=fn.random.coin_flip(probability=0.5)), targets
        images = fn.resize(fn.decoders.image(data, device="cpu", output_type=types.RGB), resize_shorter=work.resize)
        return fn.crop(images, crop=(work.size, work.size), rounding="truncate"), targets  # as torchvision mostly does

    pipe = pipeline()
    pipe.build()

    def batches() -> Iterator[torch.Tensor]:
        left = len(files)
        steps = -(-left // work.batch_size)
        for _ in range(min(AHEAD, steps)):
            pipe.schedule_run()
        for step in range(steps):
            images, _ = pipe.share_outputs()
            yield torch.utils.dlpack.from_dlpack(images.as_tensor())[:left].permute(0, 3, 1, 2)  # no copy
            pipe.release_outputs()
            left -= work.batch_size
            if step + AHEAD < steps:
                pipe.schedule_run()
        if work.crop == "centre":
            pipe.reset()

    return batches


class Transform:
    """torchvision's v2 transforms on a Pillow image: pixels [S, S, 3], which collate faster than planes do."""

    def __init__(self, work: Work) -> None:
        from torchvision.transforms import v2

        crops: list[Any] = [v2.RandomResizedCrop(work.size, antialias=True), v2.RandomHorizontalFlip(0.5)]
        if work.crop == "centre":
            crops = [v2.Resize(work.resize, antialias=True), v2.CenterCrop(work.size)]
        self.transform = v2.Compose(crops)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(self.transform(image)))


class PillowFiles(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """torchvision's ImageFolder as its users write it: Pillow, then v2 transforms on the image."""

    def __init__(self, work: Work) -> None:
        self.sources, self.transform = work.sources, Transform(work)

    def __len__(self) -> int:
        return len(self.sources.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.sources.files[index]) as image:
            return self.transform(image.convert("RGB")), self.sources.label(index)


def torch_pillow(work: Work) -> Batches:
    """torch's DataLoader with Pillow and torchvision v2: processes that live for all epochs."""
    return data_loader(work, PillowFiles(work))


def data_loader(work: Work, files: PillowFiles) -> Batches:
    """torch's DataLoader."""
    loader = torch.utils.data.DataLoader(
        files,
        batch_size=work.batch_size,
        shuffle=work.crop == "random",
        num_workers=work.workers,
        persistent_workers=True,
    )
    return lambda: (images.permute(0, 3, 1, 2) for images, _ in loader)


def webdataset(work: Work) -> Batches:
    """webdataset over tars of the files, dealt to worker processes that live for all epochs."""
    import webdataset as wds  # type: ignore[import-not-found, import-untyped, unused-ignore]

    random = work.crop == "random"
    tars = [str(tar) for tar in work.sources.tars]
    data = wds.WebDataset(tars, shardshuffle=len(tars) if random else False, empty_check=False)  # fewer than workers
    if random:
        data = data.shuffle(1000)
    data = data.decode("pilrgb").to_tuple("jpg", "cls").map_tuple(Transform(work), _same)
    data = data.batched(work.batch_size, partial=True)
    workers = work.workers if random else 1  # one worker keeps the order
    loader = wds.WebLoader(data, batch_size=None, num_workers=workers, persistent_workers=True)
    return lambda: (torch.as_tensor(images).permute(0, 3, 1, 2) for images, _ in loader)


def _same(label: int) -> int:
    return label


def _install(name: str) -> str:
    command = OPTIONAL[name][2]
    return f"{command}, in a clone of fastimg" if "'.[" in command else command


# A new peer is a function above and an entry here. The first is what the others are compared with.
PEERS: dict[str, Peer] = {
    BASE: Peer(open=native, about="fastimg's loader, threads"),
    "torch": Peer(open=torch_pillow, about="DataLoader, Pillow, torchvision v2 on the files; persistent processes"),
    "dali": Peer(
        open=dali,
        about=f"CPU pipeline on the files: image_random_crop, resize, flip; threads, {AHEAD} batches ahead",
        module="nvidia.dali",
        install=_install("nvidia-dali"),
    ),
    "ffcv": Peer(
        open=ffcv,
        make=make_for_ffcv,
        about="a .beton by its own writer, jpg at quality 90; os_cache, threads",
        module="ffcv",
        install=_install("ffcv"),
    ),
    "webdataset": Peer(
        open=webdataset,
        make=write_tars,
        about="tars of the files; Pillow, torchvision v2; persistent processes",
        module="webdataset",
        install=_install("webdataset"),
    ),
    "synthetic": Peer(
        open=synthetic,
        about="random pixels from memory through fastimg's own threads and slots: its ceiling, no images",
        decodes=False,
    ),
}
