"""What `search` takes. Nothing here imports torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from .flag_types import Positional, YamlOnly, arg

SAMPLERS = ("tpe", "random", "grid", "gp")
PRUNERS = ("hyperband", "median", "none")


@dataclass(frozen=True, kw_only=True)
class Search:  # more than 12 fields: a flag each
    """Find the best settings for a dataset: by trials, or within a time. Flags of `train` that all trials share stand
    behind `--`."""

    data: Positional[Path]
    """Shards made by `fastimg convert`, or an image folder."""
    param: Annotated[tuple[str, ...], arg(aliases=("-p",), metavar="FLAG=VALUES")] = ()
    """What to search: a flag of `train` and its values. lr=log:1e-4:1e-1 (by orders of magnitude), smoothing=0:0.2,
    smoothing=0:0.2:0.05 (in steps), epochs=int:5:20, or aa=none,trivial (one of these; none is the flag's default).
    Default: the encoders at hand and their settings, by stages, within --time."""
    trials: int | None = None
    """Number of trials. Default: until --time is over."""
    time: Annotated[str | None, arg(metavar="TIME")] = None
    """End after this long: 90s, 20m or 2h. What was found by then is kept."""
    arch: Annotated[str | None, arg(aliases=("-a", "--model"), metavar="NAME[,NAME...]")] = None
    """The encoders to compare, named as for `train`. With --param: the model of all trials."""
    weights: tuple[Path, ...] = ()
    """Files of weights, or runs, to start from; each states its encoder, or belongs to one of --arch. With --param:
    those of all trials."""
    sampler: Literal["tpe", "random", "grid", "gp"] = "tpe"
    """How the next values are chosen: near those that did well (tpe), by a Gaussian process (gp), at random, or all
    combinations (grid)."""
    pruner: Literal["hyperband", "median", "none"] | None = None
    """What ends trials that do worse than others at the same epoch. Default: median, none with several objectives."""
    metric: Annotated[str | None, arg(metavar="NAME")] = None
    """The metric of validation to search by, as for `train`. Default: that of `train`."""
    objective: Annotated[str, arg(metavar="NAME[,NAME...]")] = "accuracy"
    """What to search for: accuracy (which is --metric), or accuracy,speed, where speed is images per second at
    prediction."""
    storage: Annotated[str | None, arg(metavar="URL")] = None
    """Where Optuna keeps the study, as sqlite:///study.db. Default: study.db in --output."""
    output: Annotated[Path | None, arg(aliases=("-o",), metavar="FOLDER")] = None
    """Folder of the search; the same command goes on with one that was interrupted. Default: searches/NAME, after the
    data."""
    config: Path | None = None
    """Read the settings that all trials share from this YAML file, as for `train`; flags of `train` that stand behind
    `--` win over it."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N. auto: every GPU runs trials."""
    jobs: int | None = None
    """Number of trials at a time. Default: one for each GPU, one on a CPU."""
    seed: int = 0
    """Seed of what is drawn. With one trial at a time the same seed gives the same trials in the same order."""
    json: bool = False
    """Print the leaderboard as JSON."""
    shared: YamlOnly[tuple[str, ...]] = ()  # flags of `train`, those behind `--`
