"""The context of a section of `gpu.py`: the machine, the sizes, the images, and where its results go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import measure
import torch
from images import dataset
from rich.console import Console

from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop
from fastimg.loaders.backends import nvcodec
from fastimg.loaders.decoder import Decoder
from fastimg.loaders.runtime.cpus import available_cpus

Mode = Literal["cpu", "gpu"]
MODES: dict[Mode, str] = {
    "cpu": "decode and resize on the CPU",
    "gpu": "decode and resize on the device",
}


class SkippedError(Exception):
    """The section cannot run here; the message says what it needs."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    images: int  # number of generated JPEGs if no folder is given
    photograph: tuple[int, int]  # width, height
    crop: int
    batch: int
    augment_batch: int
    images_per_thread: int  # of an epoch of the loader section
    threads: tuple[int, ...]
    archs: tuple[str, ...]
    check_archs: tuple[str, str]  # one with convolutions, one without
    check_batch: int
    compile_archs: tuple[str, ...]
    compile_backend: str
    steps: int  # timed together
    warm_steps: int  # more than the loader's slots
    repeats: int

    @classmethod
    def choose(cls, device: torch.device, quick: bool) -> "Sizes":
        """The sizes for a GPU, for a CPU, or, with `quick`, just large enough to try the code."""
        threads = tuple(n for n in (1, 2, 4, 8, 16) if n <= available_cpus())
        if quick:
            return replace(QUICK, threads=threads[:2])
        return replace(ON_GPU if device.type == "cuda" else ON_CPU, threads=threads)


ON_GPU = Sizes(
    images=2000,
    photograph=(500, 375),
    crop=224,
    batch=256,
    augment_batch=1024,
    images_per_thread=400,
    threads=(1,),
    archs=("resnet50", "resnet18", "vit_small_patch16_224"),
    check_archs=("resnet18", "vit_tiny_patch16_224"),
    check_batch=64,
    compile_archs=("resnet18", "vit_tiny_patch16_224"),
    compile_backend="inductor",
    steps=30,
    warm_steps=6,
    repeats=3,
)
ON_CPU = replace(ON_GPU, batch=16, augment_batch=64, archs=("resnet18",), check_batch=16, steps=4, warm_steps=4)
QUICK = Sizes(
    images=24,
    photograph=(160, 120),
    crop=64,
    batch=8,
    augment_batch=8,
    images_per_thread=16,
    threads=(1,),
    archs=("test_resnet", "test_vit"),
    check_archs=("test_resnet", "test_vit"),
    check_batch=16,
    compile_archs=("test_vit",),
    compile_backend="aot_eager",  # inductor alone would take a minute
    steps=2,
    warm_steps=1,
    repeats=1,
)


@dataclass(kw_only=True)
class Bench:
    """One run of the benchmark."""

    device: torch.device
    sizes: Sizes
    folder: Path  # of images
    data_name: str  # in records, which hold no paths
    out: Path
    console: Console
    environment: dict[str, Any]
    section: str = ""
    failed: list[str] = field(default_factory=list)

    def need_cuda(self) -> None:
        """Raise SkippedError on a CPU."""
        if self.device.type != "cuda":
            raise SkippedError("needs CUDA")

    def report(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print rows and append them to the results. A row whose `ok` is False fails the section."""
        cells = [{k: v.text() if isinstance(v, measure.Spread) else v for k, v in row.items()} for row in rows]
        measure.show(self.console, f"{self.section}: {title}", cells)
        for row in rows:
            self.keep({"title": title, **measure.flat(row)})
            if row.get("ok") is False:
                self.failed.append(self.section)

    def keep(self, record: Mapping[str, Any]) -> None:
        """Append a record, with the fields that all records share."""
        common = {"benchmark": "gpu", "section": self.section, "device": self.device.type, "data": self.data_name}
        measure.append(self.out, {**common, **record, "environment": self.environment})

    def modes(self, device: torch.device) -> list[Mode]:
        """The ways in which the loader can make batches for a device here."""
        if device.type != "cuda":
            return ["cpu"]
        return ["cpu", "gpu"] if nvcodec.installed() else ["cpu"]

    def loader(
        self, count: int, batch: int, device: torch.device, workers: int | None = None, mode: Mode = "cpu"
    ) -> Loader:
        """The native loader on `count` samples (repeating the images), with random crops."""
        data = dataset(self.folder, count)
        images = ImageDecoder(RandomResizedCrop(size=self.sizes.crop))
        decoder: Decoder = images
        if mode == "gpu":
            from fastimg.loaders.backends.gpu_decode import DeviceDecode  # it needs Triton

            decoder = DeviceDecode.on(device, images)
        return Loader(data, decoder, LoaderConfig(batch_size=batch, workers=workers), device)

    def random_batch(self, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """uint8 images [count, 3, S, S], channels-last, and targets [count], on the device."""
        generator = torch.Generator().manual_seed(seed)
        shape = (count, self.sizes.crop, self.sizes.crop, 3)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).permute(0, 3, 1, 2)
        return images.to(self.device), (torch.arange(count) % 1000).to(self.device)
