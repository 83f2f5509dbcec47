"""What `bench` and `doctor` take. Nothing here imports torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from . import flag_types as flagtypes
from .training import Augmenting


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """What is measured: the first flags of `bench`."""

    data: Positional[Path]
    """Shards, .beton files, or a folder of images, with or without subfolders for classes."""
    split: str = "train"
    """The split to read."""
    arch: Annotated[str | None, arg(aliases=["-a", "--model"], metavar="NAME[,NAME...]", help_behavior_hint="")] = None
    """The models whose steps are measured, as `train` names them. Default: resnet50 on a GPU, resnet18 on a CPU."""
    loader: Annotated[Literal["auto", "native", "torch", "dali", "ffcv"], arg(aliases=["--data-backend"])] = "auto"
    """What would read and decode in training; see `train --help`."""
    loaders: flagtypes.Str = None
    """Compare loaders: any of native, torch, dali, ffcv, webdataset, synthetic, with commas between them, or all. Each
    works as its users set it up, in a process of its own, on the same images; what is not installed is named."""
    stages: Annotated[str, arg(metavar="all|none|NAME[,NAME...]")] = "all"
    """Which stages to measure: read, splice, decode, resize, copy, augment, step, with commas between them."""
    batch_size: Annotated[int, arg(aliases=["-b"])] = 64
    """Images per step."""
    img_size: Annotated[int, arg(aliases=["--imgsz"])] = 224
    """Side in pixels of the crops."""
    workers: Annotated[str, arg(aliases=["-j"])] = "auto"
    """Threads that decode images: a number, or auto, which is what `train` would take."""
    threads: Annotated[str | None, arg(metavar="N[,N...]", help_behavior_hint="")] = None
    """Measure the loader, and each of --loaders, with these numbers of threads: a scaling curve."""
    images: flagtypes.Int = None
    """Images per repeat. Default: what the loader decodes in a second, 4 batches at least and the dataset at most."""
    repeats: int = 3
    """How often everything is measured, in turn; the median counts."""
    decode: Literal["auto", "cpu", "gpu"] = "auto"
    """Where fastimg's own loader decodes JPEGs."""
    amp: bool = True
    """Mixed precision where the device gains by it."""
    channels_last: bool = True
    """Keep convolutional models in channels-last memory."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    no_advice: FlagCreatePairsOff[bool] = False
    """Do not try out what would be faster: less time, and the verdict has no measured advice."""
    tune: bool = False
    """Try numbers of workers and slots, where to decode, and batch sizes. Prints the fastest as flags and as YAML, and
    writes them to the profile of this machine that `train --profile` reads."""
    scratch: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Where converted copies of some of the images are put meanwhile. Default: the system's temporary folder."""
    seed: int = 0
    """Seed of order, crops and augmentation."""
    plot: flagtypes.File = None
    """Draw bars of --loaders, and curves over --threads, into this PNG file."""
    json: bool = False
    """Print the result as json."""


@dataclass(frozen=True, kw_only=True)
class Bench(Augmenting, Measuring):
    """Measure where the time goes: every stage from the disk to the step, what limits training, and what to change."""


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what is installed and in use, what the machine has, and what is wrong with it."""

    folder: Positional[Annotated[Path, arg(metavar="[FOLDER]", help_behavior_hint="")]] = Path()
    """Where to measure the disk: the folder of your data, say. Default: the current one."""
    json: bool = False
    """Print the result as json."""
