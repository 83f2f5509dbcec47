"""What `search` and `suggest` take. Nothing here imports torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fastimg.errors import UsageError
from fastimg.loaders.remote.urls import shown, url_of

from .flag_types import Positional, Switch, YamlOnly, arg
from .training import FromStore
from .values.durations import limit

SAMPLERS = ("tpe", "random", "grid", "gp")
PRUNERS = ("hyperband", "median", "none")


@dataclass(frozen=True, kw_only=True)
class Search:  # more than 12 fields: a flag each
    """Find the best settings for a dataset: by trials, or within a time. Flags of `train` that all trials share stand
    behind `--`."""

    data: Positional[Path]
    """What to train on: shards made by `fastimg convert`, or an image folder; or the URL of shards or a folder in an
    object store."""
    param: Annotated[tuple[str, ...], arg(aliases=("-p",), metavar="FLAG=VALUES")] = ()
    """A flag of `train` to search, and its values: lr=log:1e-4:1e-1 (by orders of magnitude), smoothing=0:0.2,
    smoothing=0:0.2:0.05 (in steps), epochs=int:5:20, or aa=none,trivial (one of these) (default: the encoders at hand
    and their settings, in stages, within --max-time)."""
    trials: int | None = None
    """Number of trials (default: until --max-time is over)."""
    max_time: Annotated[str | None, arg(metavar="TIME", hidden=("--time",))] = None
    """End the search after this long, as in 90s, 20m or 2h; results found by then are kept."""
    arch: Annotated[str | None, arg(aliases=("-a", "--model"), metavar="NAME[,NAME...]")] = None
    """Names of the encoders to compare, as for `train`, separated by commas; with --param, the model of all trials."""
    weights: tuple[Path, ...] = ()
    """Weights to start from: files, runs, or their URLs, each for the encoder that it names, or for one of --arch. With
    --param: the weights of all trials."""
    algorithm: Annotated[Literal["tpe", "random", "grid", "gp"], arg(hidden=("--sampler",))] = "tpe"
    """How the next values are chosen: near those that did well (tpe), by a Gaussian process (gp), at random, or all
    combinations (grid)."""
    pruner: Literal["hyperband", "median", "none"] | None = None
    """How to end trials early that do worse than others at the same epoch (default: median; none with several
    objectives)."""
    metric: Annotated[str | None, arg(metavar="NAME")] = None
    """What to search by, measured in validation: loss, top1, top5, balanced_accuracy, or that of a target, as in
    tags.map (default: that of `train`)."""
    objective: Annotated[str, arg(metavar="NAME[,NAME...]")] = "accuracy"
    """What to search for: accuracy, which stands for --metric, or accuracy,speed, where speed is images per second at
    prediction."""
    storage: Annotated[str | None, arg(metavar="URL")] = None
    """Where Optuna keeps the study, as in sqlite:///study.db (default: study.db in --output)."""
    output: Annotated[Path | None, arg(aliases=("-o",), metavar="FOLDER")] = None
    """Folder of the search, or its URL in an object store; the same command continues an interrupted search (default:
    searches/NAME, named after the data)."""
    keep: Literal["best", "all"] = "best"
    """Which checkpoints to keep: best, those of the best model and, during the search, those that it may continue from,
    or all."""
    config: Path | None = None
    """Read the settings that all trials share from this YAML file, or from its URL; flags of `train` after `--`
    override it."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N; with auto, every GPU runs trials."""
    jobs: int | None = None
    """Number of trials at a time (default: one for each GPU, one on a CPU; with --backend ray, as many as the cluster
    has room for)."""
    backend: Literal["local", "ray"] = "local"
    """Where trials run: on this machine, or on a Ray cluster whose nodes share a folder."""
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None
    """Address of the Ray cluster; auto is the one that this machine belongs to (default: RAY_ADDRESS, else auto)."""
    resources_per_trial: Annotated[str | None, arg(metavar="NAME=AMOUNT[,...]")] = None
    """With --backend ray: what a trial takes of the cluster, where gpu=0.5,cpu=2 lets two trials share a GPU (default:
    a GPU with its share of the node's cores; without GPUs, the cores of a node)."""
    limit_gpu_memory: Switch[bool] = False
    """Let a trial that takes half of a GPU by --resources-per-trial gpu=0.5 use only half of its memory, and so for any
    share."""
    seed: int = 0
    """Seed of all draws. With one trial at a time, the same seed gives the same trials in the same order."""
    json: bool = False
    """Print the leaderboard as JSON."""
    shared: YamlOnly[tuple[str, ...]] = ()  # flags of `train`, those behind `--`


@dataclass(frozen=True, kw_only=True)
class Suggest(FromStore):  # more than 12 fields: a flag each
    """Look at a dataset and this machine, and write a configuration for `train` with a reason for every choice."""

    data: Positional[Path]
    """What to train on: shards made by `fastimg convert`, or a folder of images or texts; or the URL of shards or a
    folder in an object store."""
    max_time: Annotated[str | None, arg(metavar="TIME", hidden=("--time",))] = None
    """How long training may take: 90s, 20m or 2h (default: a usual number of epochs, and the file says how long they
    take)."""
    arch: Annotated[str | None, arg(aliases=("-a", "--model"), metavar="NAME")] = None
    """Name of the model, as for `train` (default: what --weights name; else the largest whose published weights are at
    hand and that is fast enough here; else a small one from random weights)."""
    weights: Path | None = None
    """Start from these weights: a file, a run or its URL, or one of its checkpoints."""
    model_kwargs: tuple[str, ...] = ()
    """Further arguments of the model, as name=value, such as drop_rate=0.1."""
    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file where class folders have subfolders: top, the topmost one, or leaf, the
    one that holds the file (default: top, with a message where the two differ)."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that look at the data; auto is one for each core."""
    output: Annotated[Path, arg(aliases=("-o",), metavar="FILE")] = Path("suggested.yaml")
    """The file to write, or its URL in an object store."""
    overwrite: Switch[bool] = False
    """Replace the file if it exists."""
    json: bool = False
    """Print what was found, measured and chosen as JSON."""


def check(config: Suggest) -> float | None:
    """Refuse what the flags alone show to be wrong; returns the seconds of --max-time. Raises UsageError."""
    seconds = None if config.max_time is None else limit(config.max_time, "--max-time")
    if config.output.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--output {shown(config.output)}: give a .yaml file, which train --config reads")
    if url_of(config.output) is None and config.output.exists() and not config.overwrite:
        raise UsageError(f"--output {config.output}: exists already; add --overwrite, or give another file")
    if config.model_kwargs and config.arch is None and config.weights is None:
        raise UsageError("--model-kwargs: for which model? add --arch or --weights")
    return seconds
