"""The context of a section of `gpu.py`: machine, sizes, images, time limit, and where the results go."""

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import measure
import torch
from images import dataset
from rich.console import Console

from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop
from fastimg.loaders.backends import nvcodec
from fastimg.loaders.decoder import Decoder
from fastimg.loaders.runtime.cpus import available_cpus

MADE = "made by images.py"  # `data` in records if no folder is given
if TYPE_CHECKING:
    from fastimg.models.ranks import Ranks

Mode = Literal["cpu", "gpu"]
MODES: dict[Mode, str] = {
    "cpu": "decode and resize on the CPU",
    "gpu": "decode and resize on the device",
}


class SkippedError(Exception):
    """The section, or one of its items, cannot run here. The message says what is missing."""


class DeviceLostError(Exception):
    """The device no longer responds to this process. The remaining work needs a new process."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    images: int  # number of generated JPEGs if no folder is given
    photograph: tuple[int, int]  # width, height
    crop: int
    batch: int
    step_batches: tuple[int, ...]  # of the grid of training steps
    augment_batch: int
    loader_batches: int  # of a loader epoch
    epoch_batches: int  # of an epoch of training, so long that its start does not count
    threads: tuple[int, ...]
    archs: tuple[str, ...]
    real_archs: tuple[str, ...]  # also trained from files
    check_archs: tuple[str, str]  # one convolutional, one not
    check_batch: int
    compile_archs: tuple[str, ...]
    compile_backend: str
    steps: int  # timed together
    warm_steps: int  # more than the loader's slots
    repeats: int
    seconds: float  # minimum duration of a training rate
    window: float  # the same, of training from data
    gate_steps: int  # after which weights are compared

    @classmethod
    def choose(cls, device: torch.device, quick: bool) -> "Sizes":
        """The sizes for a GPU, for a CPU, or, with `quick`, just large enough to run the code."""
        cores = available_cpus()
        threads = tuple(n for n in (8, 12, 16) if n <= cores) or (cores,)
        if quick:
            return replace(QUICK, threads=(1,))
        return replace(ON_GPU if device.type == "cuda" else ON_CPU, threads=threads)


ON_GPU = Sizes(
    images=2000,
    photograph=(500, 375),
    crop=224,
    batch=256,
    step_batches=(256, 1024),
    augment_batch=1024,
    loader_batches=128,
    epoch_batches=2048,
    threads=(1,),
    archs=("resnet50", "resnet18", "vit_small_patch16_224", "efficientnet_b0"),
    real_archs=("resnet18", "resnet50"),
    check_archs=("resnet18", "vit_tiny_patch16_224"),
    check_batch=64,
    compile_archs=("resnet18", "vit_tiny_patch16_224"),
    compile_backend="inductor",
    steps=30,
    warm_steps=6,
    repeats=3,
    seconds=1.5,
    window=3.0,
    gate_steps=12,
)
ON_CPU = replace(
    ON_GPU,
    images=64,
    batch=16,
    step_batches=(16,),
    augment_batch=64,
    loader_batches=8,
    epoch_batches=8,
    archs=("resnet18",),
    real_archs=("resnet18",),
    check_batch=16,
    steps=4,
    warm_steps=4,
    window=1.5,
    gate_steps=3,
)
QUICK = Sizes(
    images=24,
    photograph=(160, 120),
    crop=64,
    batch=8,
    step_batches=(8,),
    augment_batch=8,
    loader_batches=4,
    epoch_batches=16,
    threads=(1,),
    archs=("test_resnet", "test_vit"),
    real_archs=("test_resnet",),
    check_archs=("test_resnet", "test_vit"),
    check_batch=16,
    compile_archs=("test_vit",),
    compile_backend="aot_eager",  # inductor alone takes a minute
    steps=2,
    warm_steps=1,
    repeats=1,
    seconds=0.05,
    window=0.05,
    gate_steps=2,
)


@dataclass(kw_only=True)
class Bench:  # more than 12 fields: what the process was started with
    """One section of one run of the benchmark."""

    device: torch.device
    sizes: Sizes
    quick: bool
    folder: Path  # of images
    shards: Path  # of the same images; not there if they could not be written
    data_name: str  # in records, which contain no paths
    out: Path
    console: Console
    environment: dict[str, Any]
    section: str  # in records
    run: str  # identifies the records of one call
    status: Path  # lines about items that have begun
    deadline: float  # of time.monotonic()
    skip: frozenset[str] = frozenset()  # items that an earlier process has begun
    rows: tuple[str, ...] = ()  # of the training steps, instead of all
    cifar: Path | None = None  # folder of CIFAR-10
    torch_seconds: float = 0.0  # duration of its import
    failed: list[str] = field(default_factory=list)

    def need_cuda(self) -> None:
        """Raise SkippedError on a CPU."""
        if self.device.type != "cuda":
            raise SkippedError("needs CUDA")

    def left(self) -> float:
        """Seconds until the section is stopped."""
        return self.deadline - time.monotonic()

    def each(
        self,
        items: Mapping[str, Callable[[], None]],
        seconds: float,
        least: Callable[[str], float] = lambda name: 0.0,
        fields: Callable[[str], Mapping[str, Any]] = lambda name: {"item": name},
    ) -> None:
        """Run items one after the other. An error ends only its item; it is recorded with the item's `fields`.

        An item may take `seconds`, and does not start if less than `least` seconds of the section's time are left.
        Items that did not start are listed in one record, even if this process is stopped. Raises DeviceLostError.
        """
        waiting = [name for name in items if name not in self.skip]
        try:
            for name in list(waiting):
                if self.left() < least(name):
                    continue
                behind = len(waiting) - 1
                line = json.dumps({"item": name, "seconds": seconds, "behind": behind, "fields": fields(name)})
                with self.status.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
                began = time.monotonic()
                self._one(items[name], fields(name))
                self.console.print(f"{self.section}: {name}: {time.monotonic() - began:.1f} s", markup=False)
                waiting.remove(name)
        except DeviceLostError:
            waiting.clear()  # another process continues with them
            raise
        finally:
            if waiting:
                self.keep({"not_reached": waiting})

    def _one(self, work: Callable[[], None], fields: Mapping[str, Any]) -> None:
        try:
            work()
        except SkippedError as reason:
            self.console.print(f"{self.section}: skipped: {reason}", markup=False)
            self.keep({**fields, "skipped": str(reason)})
        except Exception as error:  # noqa: BLE001 - recorded, shown, and reflected in the exit status
            self.fail(error, fields)
        self.check_device()

    def fail(self, error: Exception, fields: Mapping[str, Any]) -> None:
        """Record and show an error."""
        self.failed.append(self.section)
        self.keep({**fields, "error": self.reason(error), "ok": False})
        self.console.print_exception(max_frames=20)

    def reason(self, error: Exception) -> str:
        """The first line of an error for a record, without paths of this machine."""
        first = (str(error).strip().splitlines() or [""])[0]
        return f"{type(error).__name__}: {self.without_paths(first)}"[:300]

    def without_paths(self, text: str) -> str:
        """A text for a record, with placeholders for the folders of this machine."""
        for path, name in ((self.folder, "DATA"), (self.shards, "SHARDS"), (measure.ROOT, "."), (Path.home(), "~")):
            if path != path.parent:  # the home folder may be /
                text = text.replace(str(path), name)
        return text

    def check_device(self) -> None:
        """Raise DeviceLostError if an error has left the device unusable for this process."""
        try:
            measure.synchronise(self.device)
        except Exception as error:
            raise DeviceLostError(str(error)) from error

    def report(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print rows and append them to the results. A row whose `ok` is False fails the section."""
        cells = [{k: v.text() if isinstance(v, measure.Spread) else v for k, v in row.items()} for row in rows]
        measure.show(self.console, f"{self.section}: {title}", cells)
        for row in rows:
            self.keep({"title": title, **measure.flat(row)})
            if row.get("ok") is False:
                self.failed.append(self.section)

    def keep(self, record: Mapping[str, Any]) -> None:
        """Append a record with the fields that all records share."""
        common = {"benchmark": "gpu", "run": self.run, "section": self.section, "device": self.device.type}
        common |= {"data": self.data_name}
        measure.append(self.out, {**common, **record, "environment": self.environment})

    @functools.cached_property
    def ranks(self) -> "Ranks":
        """A world of this process only."""
        from fastimg.models.ranks import Ranks  # slow to import

        return Ranks(0, 1, 1, self.device, None)

    def modes(self, device: torch.device) -> list[Mode]:
        """The ways in which the loader can make batches for a device here."""
        if device.type != "cuda":
            return ["cpu"]
        return ["cpu", "gpu"] if nvcodec.installed() else ["cpu"]

    def loader(
        self, count: int, batch: int, device: torch.device, workers: int | None = None, mode: Mode = "cpu"
    ) -> Loader:
        """The native loader on `count` samples (images repeat), with random crops."""
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
