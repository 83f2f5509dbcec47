"""What `bench` and `doctor` take. Nothing here imports torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from .flag_types import Positional, Switch, arg
from .training import Augmenting, FromStore


@dataclass(frozen=True, kw_only=True)
class Measuring:  # more than 12 fields: a flag each
    """What to measure: the first flags of `bench`."""

    data: Positional[Path]
    """What to read: shards, .beton files, or a folder of images, with or without subfolders for classes; or the URL of
    shards or a folder in an object store."""
    quick: Switch[bool] = False
    """Answer in about 20 seconds: every stage, real/synthetic and the verdict, and what --loaders,
    --workers-curve and --tune add. This is the default."""
    full: Switch[bool] = False
    """Take minutes instead: measure longer, try what would be faster, and compare all installed loaders and several
    numbers of threads. The plan that is printed first says how long it takes."""
    split: str = "train"
    """Name of the split to read."""
    arch: Annotated[str | None, arg(aliases=("-a", "--model"), metavar="NAME[,NAME...]")] = None
    """Names of the models whose training steps are measured, separated by commas (default: that of the newest run in
    the folder runs, at its image size; without a run, resnet50 on a GPU and resnet18 on a CPU)."""
    loader: Annotated[Literal["auto", "native", "torch", "dali", "ffcv"], arg(aliases=("--data-backend",))] = "auto"
    """The loader to measure: fastimg's own loader (auto, native), PyTorch's DataLoader with Pillow and torchvision
    (torch), NVIDIA DALI (dali), or FFCV for .beton files (ffcv)."""
    loaders: str | None = None
    """Also measure these loaders, each in a process of its own on the same images: native, torch, dali, ffcv,
    webdataset and synthetic, separated by commas, or all (default: none; with --full, all that are installed)."""
    stages: Annotated[str, arg(metavar="all|none|NAME[,NAME...]")] = "all"
    """Stages to measure, separated by commas: network (for a URL), read, splice, decode, resize, copy, augment and
    step."""
    batch_size: Annotated[int | None, arg(aliases=("-b",))] = None
    """Images per step (default: 256 on a GPU, 64 on a CPU; fewer without --full where a step would take long)."""
    img_size: Annotated[int | None, arg(aliases=("--imgsz",))] = None
    """Side of the crops in pixels (default: that of the newest run, if its model is measured, else 224)."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that decode images; auto is the number that `train` would use."""
    workers_curve: Annotated[str | None, arg(metavar="N[,N...]", hidden=("--threads",))] = None
    """Measure the loader, and each of --loaders, with these numbers of threads, separated by commas (default: none;
    with --full 1, 2, 4 and so on)."""
    images: int | None = None
    """Number of images in each repeat (default: as many as the loader decodes in half a second, or in one second with
    --full, but at least 4 batches)."""
    repeats: int | None = None
    """Number of times to measure everything; the median counts (default: 3; without --full, 2 on a slow machine, or for
    what takes much longer than planned)."""
    decode: Literal["auto", "cpu", "gpu"] = "auto"
    """What decodes JPEGs in fastimg's own loader: the CPU (auto, cpu), or nvImageCodec on the GPU, whose pixels differ
    slightly (gpu; needs the extra `gpu`)."""
    amp: bool = True
    """Use mixed precision where it is faster."""
    channels_last: bool = True
    """Use the channels-last memory format for convolutional models."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N."""
    no_advice: Switch[bool] = False
    """With --full: do not try what would be faster. This saves time, but the verdict has no measured advice."""
    tune: bool = False
    """Try numbers of workers and slots, where to decode, and batch sizes, and print the fastest as flags and as YAML.
    They are also written to the profile of this machine that `train --profile` reads."""
    scratch: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Folder for temporary converted copies of some of the images (default: the system's temporary folder)."""
    seed: int = 0
    """Seed of the order, the crops and augmentation."""
    output: Annotated[Path | None, arg(aliases=("-o",), metavar="FILE", hidden=("--plot",))] = None
    """Picture (PNG) to draw of --loaders as bars, and over --workers-curve as curves, or its URL in an object store."""
    overwrite: Switch[bool] = False
    """Replace the file of --output."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True)
class Bench(FromStore, Augmenting, Measuring):
    """Measure where the time goes: every stage from the disk to the step, what limits training, and what to change."""


@dataclass(frozen=True, kw_only=True)
class Doctor(FromStore):
    """Report what is installed and in use, the machine's hardware, and what is wrong."""

    folder: Positional[Annotated[Path, arg(metavar="[FOLDER]")]] = Path()
    """Folder whose disk is measured, such as that of your data; or the URL of a dataset, whose store is queried, while
    the disk is that of the cache (default: the current folder)."""
    json: bool = False
    """Print the result as JSON."""
