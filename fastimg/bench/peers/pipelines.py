"""The loaders to compare, each as its users write it when speed matters: functions from a `Workload` to batches.

Libraries are imported only when used, as each loader runs in its own process (processes.py).
"""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.decoder import Decoder, Row
from fastimg.loaders.opening import open_image
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.system.packages import OPTIONAL

from .data import Sources, write_ffcv_beton, write_tars

Batches = Callable[[], Iterator[torch.Tensor]]  # an epoch: [B, 3, S, S], each valid until the next

AHEAD = 2  # batches that DALI prepares ahead: its default
BASE = "native"  # the loader that the others are compared with


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What every loader has to do.

    random: RandomResizedCrop(0.08-1, 3/4-4/3) and a flip with probability 1/2, in a new order each epoch. centre: the
    samples in order, resized to 8/7 of `size` and centre-cropped.
    """

    sources: Sources
    crop: Literal["random", "centre"]
    batch_size: int
    size: int
    workers: int  # threads or processes; 0: torch's DataLoader works in the calling process, others have one thread

    @property
    def threads(self) -> int:
        """The number of threads of a loader that has threads."""
        return max(1, self.workers)

    @property
    def resize(self) -> int:
        """The length of the shorter side before the centre crop."""
        return self.size * 8 // 7


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A loader to compare. Its functions run in a child process and are pickled by name."""

    open: Callable[[Workload], Batches]
    about: str
    make: Callable[[Sources], None] | None = None  # writes its input; None: it reads the files, or DATA
    decodes: bool = True  # False: its pixels are not images
    dtype: torch.dtype = torch.uint8  # of its batches; floats go from 0 to 1
    module: str | None = None  # the module that must be installed
    install: str = ""  # how to install it

    def installed(self) -> bool:
        """Whether the module is installed, without importing it."""
        if self.module is None:
            return True
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # its parent package is missing
            return False


def native(work: Workload) -> Batches:
    """fastimg's loader on DATA itself."""
    return batches_of(work, *work.sources.open())


def batches_of(
    work: Workload, data: Dataset | Path, ids: npt.NDArray[np.int64] | None = None, compiled: bool = True
) -> Batches:
    """fastimg's loader on samples of a dataset, or of the one at a path; None: all.

    Before it reads it is compiled; with `compiled` False in the background, as loaders of users are.
    """
    random = work.crop == "random"
    crop = RandomResizedCrop(size=work.size) if random else CenterCrop(size=work.size, resize=work.resize)
    config = LoaderConfig(
        batch_size=work.batch_size,
        workers=work.threads,
        order="random" if random else "sequential",
        on_error="fail",
    )
    loader = Loader(data, ImageDecoder(crop), config, indices=ids)
    if compiled:
        loader.compile()
    policy = Policy(hflip=0.5)
    torch.set_num_threads(1)  # so that only the requested threads compute

    def batches() -> Iterator[torch.Tensor]:
        for batch in loader:
            images = batch.inputs[: batch.samples]
            if random:  # in training, flips are part of the augmentation's single pass; here they are done on the batch
                for i in draw(policy, batch.ids[: batch.samples], 0, loader.epoch).hflip.nonzero()[:, 0].tolist():
                    images[i].copy_(images[i].flip(2))
            yield images

    return batches


class _EmptySamples(FilesDataset):
    """Samples without bytes."""

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """No bytes."""
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


def synthetic(work: Workload) -> Batches:
    """fastimg's loader with nothing to read or decode, but with its usual threads, slots and batches."""
    config = LoaderConfig(batch_size=work.batch_size, workers=work.threads)
    loader = Loader(_EmptySamples(Path("/"), [""] * len(work.sources.files)), _Pixels(work.size), config)
    torch.set_num_threads(1)
    return lambda: (batch.inputs[: batch.samples] for batch in loader)


def ffcv(work: Workload) -> Batches:
    """FFCV's loader on DATA if it is a .beton, else on one written by FFCV from the files."""
    if work.sources.original is None:
        return ffcv_batches(work, work.sources.ffcv_beton)
    data, ids = work.sources.open()
    if not isinstance(data, BetonDataset):
        return ffcv_batches(work, work.sources.ffcv_beton)
    return ffcv_batches(work, data.reader.path, ids, data.image_field, data.label_field)


def make_for_ffcv(sources: Sources) -> None:
    """Write the input of `ffcv`."""
    if sources.original is not None and isinstance(sources.open()[0], BetonDataset):
        return
    write_ffcv_beton(sources)


def ffcv_batches(
    work: Workload,
    beton: Path,
    ids: npt.NDArray[np.int64] | None = None,
    image: str = "image",
    label: str | None = "label",
) -> Batches:
    """FFCV's loader on samples of a .beton, None for all; reads the fields `image` and `label`."""
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
        num_workers=work.threads,
        order=OrderOption.RANDOM if work.crop == "random" else OrderOption.SEQUENTIAL,
        indices=None if ids is None else ids.astype(np.uint64),
        os_cache=True,
        drop_last=False,
        pipelines=fields,
    )
    position = [name for name, pipeline in fields.items() if pipeline is not None].index(image)
    return lambda: (batch[position] for batch in loader)


def dali(work: Workload) -> Batches:
    """DALI's CPU pipeline on the files. Epochs are scheduled by hand, so nothing is prepared beyond their end."""
    from nvidia.dali import fn, pipeline_def, types

    files = [str(file) for file in work.sources.files]
    random = work.crop == "random"

    @pipeline_def(  # type: ignore[untyped-decorator, unused-ignore]
        batch_size=work.batch_size, num_threads=work.threads, device_id=None, prefetch_queue_depth=AHEAD, seed=1
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
        return fn.crop(images, crop=(work.size, work.size), rounding="truncate"), targets  # mostly torchvision's rule

    return dali_batches(work, pipeline())


def dali_batches(work: Workload, pipe: Any) -> Batches:
    """Epochs of a DALI pipeline on the files: its first output, channels last, as batches."""
    pipe.build()

    def batches() -> Iterator[torch.Tensor]:
        remaining = len(work.sources.files)
        steps = -(-remaining // work.batch_size)
        for _ in range(min(AHEAD, steps)):
            pipe.schedule_run()
        for step in range(steps):
            images = pipe.share_outputs()[0]
            yield torch.utils.dlpack.from_dlpack(images.as_tensor())[:remaining].permute(0, 3, 1, 2)  # no copy
            pipe.release_outputs()
            remaining -= work.batch_size
            if step + AHEAD < steps:
                pipe.schedule_run()
        if work.crop == "centre":
            pipe.reset()

    return batches


class Transform:
    """torchvision's v2 transforms on a Pillow image. Returns pixels [S, S, 3], which collate faster than planes."""

    def __init__(self, work: Workload) -> None:
        from torchvision.transforms import v2

        crops: list[Any] = [v2.RandomResizedCrop(work.size, antialias=True), v2.RandomHorizontalFlip(0.5)]
        if work.crop == "centre":
            crops = [v2.Resize(work.resize, antialias=True), v2.CenterCrop(work.size)]
        self.transform = v2.Compose(crops)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(self.transform(image)))


class PillowFiles(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """The equivalent of torchvision's ImageFolder: Pillow, then v2 transforms on the image."""

    def __init__(self, work: Workload) -> None:
        self.sources = work.sources
        self.transform = Transform(work)

    def __len__(self) -> int:
        return len(self.sources.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open_image(Path(self.sources.files[index])) as image:
            return self.transform(image.convert("RGB")), self.sources.label(index)


def torch_pillow(work: Workload) -> Batches:
    """torch's DataLoader with Pillow and torchvision v2, and persistent workers."""
    return first_of(data_loader(work, PillowFiles(work)))


def data_loader(work: Workload, samples: torch.utils.data.Dataset[Any]) -> Iterable[Any]:
    """torch's DataLoader on samples. Without workers, the calling process has one thread, as each worker has."""
    if work.workers == 0:
        torch.set_num_threads(1)
    return torch.utils.data.DataLoader(
        samples,
        batch_size=work.batch_size,
        shuffle=work.crop == "random",
        num_workers=work.workers,
        persistent_workers=work.workers > 0,
    )


def first_of(loader: Iterable[Any]) -> Batches:
    """Epochs of a loader whose batches are sequences that begin with images, channels last."""
    return lambda: (torch.as_tensor(batch[0]).permute(0, 3, 1, 2) for batch in loader)


def webdataset(work: Workload) -> Batches:
    """webdataset on tars of the files, with persistent workers."""
    import webdataset as wds  # type: ignore[import-not-found, import-untyped, unused-ignore]

    random = work.crop == "random"
    tars = [str(tar) for tar in work.sources.tars]
    data = wds.WebDataset(tars, shardshuffle=len(tars) if random else False, empty_check=False)  # fewer than workers
    if random:
        data = data.shuffle(1000)
    data = data.decode("pilrgb").to_tuple("jpg", "cls").map_tuple(Transform(work), _same)
    data = data.batched(work.batch_size, partial=True)
    workers = work.workers if random else min(1, work.workers)  # one worker keeps the order
    if workers == 0:
        torch.set_num_threads(1)
    return first_of(wds.WebLoader(data, batch_size=None, num_workers=workers, persistent_workers=workers > 0))


def _same(label: int) -> int:
    return label


# A new peer takes a function above and an entry here. The others are compared with the first one.
PEERS: dict[str, Peer] = {
    BASE: Peer(open=native, about="fastimg's loader, threads"),
    "torch": Peer(open=torch_pillow, about="DataLoader, Pillow, torchvision v2 on the files; persistent processes"),
    "dali": Peer(
        open=dali,
        about=f"CPU pipeline on the files: image_random_crop, resize, flip; threads, {AHEAD} batches ahead",
        module="nvidia.dali",
        install=OPTIONAL["nvidia-dali"][2],
    ),
    "ffcv": Peer(
        open=ffcv,
        make=make_for_ffcv,
        about="a .beton from its own writer, jpg at quality 90; os_cache, threads",
        module="ffcv",
        install=OPTIONAL["ffcv"][2],
    ),
    "webdataset": Peer(
        open=webdataset,
        make=write_tars,
        about="tars of the files; Pillow, torchvision v2; persistent processes",
        module="webdataset",
        install=OPTIONAL["webdataset"][2],
    ),
    "synthetic": Peer(
        open=synthetic,
        about="random pixels from memory through fastimg's threads and slots: its upper limit, without images",
        decodes=False,
    ),
}
