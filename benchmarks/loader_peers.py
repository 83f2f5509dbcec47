"""The loaders that are compared, each as its users write it when speed matters: a function of `Work` gives batches.

Nothing is imported before it is used: each loader runs in a process of its own (loader_processes.py).
"""

import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from loader_data import Sources
from PIL import Image

from fastimg.augment import Policy, draw
from fastimg.loaders import CenterCrop, Dataset, FilesDataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop
from fastimg.loaders import open_dataset as open_split

Batches = Callable[[], Iterator[torch.Tensor]]  # an epoch: uint8 [B, 3, S, S], each valid until the next

AHEAD = 2  # batches that DALI prepares ahead: its default


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every loader does.

    random: RandomResizedCrop(0.08-1, 3/4-4/3) and a flip of every other image, in a new order each epoch. centre: the
    files in their order, resized to 8/7 of `size` and cut.
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
    """A loader of the comparison: how it is opened, what it reads, what installs it, and how it is set up."""

    open: Callable[[Work], Batches]
    reads: str  # an attribute of Sources
    about: str
    packages: tuple[str, ...] = ()
    install: str = "UV_PROJECT_ENVIRONMENT=build/peers uv sync --group peers"

    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.packages if _version(name) is None]


def native_tiled(work: Work) -> Batches:
    """fastimg's loader over tiled tar shards."""
    return _native(work, open_split(work.sources.tiled))


def native_files(work: Work) -> Batches:
    """fastimg's loader over the files as they are."""
    files = work.sources.files
    return _native(work, FilesDataset(Path("/"), [str(file) for file in files]))


def _native(work: Work, data: Dataset) -> Batches:
    random = work.crop == "random"
    crop = RandomResizedCrop(size=work.size) if random else CenterCrop(size=work.size, resize=work.resize)
    config = LoaderConfig(batch_size=work.batch_size, workers=work.workers, order="random" if random else "sequential")
    loader = Loader(data, ImageDecoder(crop), config)
    policy = Policy(hflip=0.5)
    torch.set_num_threads(1)  # what is asked for is what computes

    def batches() -> Iterator[torch.Tensor]:
        for batch in loader:
            images = batch.inputs[: batch.samples]
            if random:  # in training the flip is part of the augmentation's one pass; here it is made on the batch
                for i in draw(policy, batch.ids, 0, loader.epoch).hflip.nonzero()[:, 0].tolist():
                    images[i].copy_(images[i].flip(2))
            yield images

    return batches


def ffcv_own(work: Work) -> Batches:
    """FFCV's loader over the beton that its writer made of the files."""
    return _ffcv(work, work.sources.ffcv_beton)


def ffcv_tiled(work: Work) -> Batches:
    """FFCV's loader over our beton of tiled originals."""
    return _ffcv(work, work.sources.tiled_beton)


def _ffcv(work: Work, beton: Path) -> Batches:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader as FFCVLoader
    from ffcv.loader import OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    size = (work.size, work.size)
    if work.crop == "random":
        image = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()]
    else:
        image = [CenterCropRGBImageDecoder(size, ratio=work.size / work.resize)]
    fields: dict[str, Any] = dict.fromkeys(_beton_fields(beton))
    fields["image"] = [*image, ToTensor(), ToTorchImage()]
    fields["label"] = [IntDecoder(), ToTensor(), Squeeze()]
    loader = FFCVLoader(
        str(beton),
        batch_size=work.batch_size,
        num_workers=work.workers,
        order=OrderOption.RANDOM if work.crop == "random" else OrderOption.SEQUENTIAL,
        os_cache=True,
        drop_last=False,
        pipelines=fields,
    )
    at = [name for name, pipeline in fields.items() if pipeline is not None].index("image")
    return lambda: (batch[at] for batch in loader)


def _beton_fields(beton: Path) -> list[str]:
    from ffcv.reader import Reader

    return list(Reader(str(beton)).handlers)


def dali(work: Work) -> Batches:
    """DALI's CPU pipeline over the files. Epochs are scheduled by hand: nothing is prepared beyond their end."""
    from nvidia.dali import fn, pipeline_def, types

    files = [str(file) for file in work.sources.files]
    random = work.crop == "random"

    @pipeline_def(
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
            yield torch.from_dlpack(images.as_tensor())[:left].permute(0, 3, 1, 2)  # no copy
            pipe.release_outputs()
            left -= work.batch_size
            if step + AHEAD < steps:
                pipe.schedule_run()
        if work.crop == "centre":
            pipe.reset()

    return batches


class _Transform:
    """torchvision's v2 transforms on a Pillow image: pixels [S, S, 3], which collate faster than planes do."""

    def __init__(self, work: Work) -> None:
        from torchvision.transforms import v2

        crops: list[Any] = [v2.RandomResizedCrop(work.size, antialias=True), v2.RandomHorizontalFlip(0.5)]
        if work.crop == "centre":
            crops = [v2.Resize(work.resize, antialias=True), v2.CenterCrop(work.size)]
        self.transform = v2.Compose(crops)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(self.transform(image)))


class _PillowFiles(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """torchvision's ImageFolder as its users write it: Pillow, then v2 transforms on the image."""

    def __init__(self, work: Work) -> None:
        self.sources, self.transform = work.sources, _Transform(work)

    def __len__(self) -> int:
        return len(self.sources.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.sources.files[index]) as image:
            return self.transform(image.convert("RGB")), self.sources.label(index)


class _TensorFiles(_PillowFiles):
    """torchvision's own decoder, and the same transforms on tensors."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from torchvision.io import ImageReadMode, decode_image, read_file

        image = decode_image(read_file(str(self.sources.files[index])), ImageReadMode.RGB)  # a channels-last view
        return self.transform.transform(image).permute(1, 2, 0), self.sources.label(index)


def torch_pillow(work: Work) -> Batches:
    """torch's DataLoader with Pillow and torchvision v2: processes that live for all epochs."""
    return _data_loader(work, _PillowFiles(work))


def torch_tensors(work: Work) -> Batches:
    """torch's DataLoader with torchvision.io and torchvision v2."""
    return _data_loader(work, _TensorFiles(work))


def _data_loader(work: Work, files: _PillowFiles) -> Batches:
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
    import webdataset as wds

    random = work.crop == "random"
    tars = [str(tar) for tar in work.sources.tars]
    data = wds.WebDataset(tars, shardshuffle=len(tars) if random else False)
    if random:
        data = data.shuffle(1000)
    data = data.decode("pilrgb").to_tuple("jpg", "cls").map_tuple(_Transform(work), _same)
    data = data.batched(work.batch_size, partial=True)
    workers = work.workers if random else 1  # one worker keeps the order
    loader = wds.WebLoader(data, batch_size=None, num_workers=workers, persistent_workers=True)
    return lambda: (torch.as_tensor(images).permute(0, 3, 1, 2) for images, _ in loader)


def _same(label: int) -> int:
    return label


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


_DALI = ("nvidia-dali-cuda130",)
# The first is what the others are compared with. A new peer is a function above and a line here.
PEERS: dict[str, Peer] = {
    "fastimg, tiled": Peer(open=native_tiled, reads="tiled", about="tar shards by `fastimg convert`; threads"),
    "fastimg": Peer(open=native_files, reads="files", about="files; threads"),
    "ffcv": Peer(
        open=ffcv_own,
        reads="ffcv_beton",
        about="its own beton, jpg at quality 90; os_cache, threads",
        packages=("ffcv",),
    ),
    "ffcv, our tiled beton": Peer(
        open=ffcv_tiled, reads="tiled_beton", about="`fastimg convert --format beton`; os_cache", packages=("ffcv",)
    ),
    "dali": Peer(
        open=dali, reads="files", about=f"CPU: image_random_crop, resize, flip; {AHEAD} batches ahead", packages=_DALI
    ),
    "torch": Peer(open=torch_pillow, reads="files", about="DataLoader, Pillow, torchvision v2; persistent processes"),
    "torch, torchvision.io": Peer(open=torch_tensors, reads="files", about="DataLoader, decode_image, v2 on tensors"),
    "webdataset": Peer(
        open=webdataset,
        reads="tars",
        about="tars; Pillow, torchvision v2; persistent processes",
        packages=("webdataset",),
    ),
}
