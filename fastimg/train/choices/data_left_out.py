"""What `train` does where DATA is left out: it reads the dataset of this folder, or goes on with a run, or asks.

The embedded digits stand in where nothing else can be meant. Imports nothing that takes time.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.config.training import NEWEST_RUN
from fastimg.config.yaml_file import layered, load
from fastimg.data.candidates import candidates, subfolders
from fastimg.data.digits import COUNT, digits_folder
from fastimg.errors import UsageError
from fastimg.loaders.remote.stores import shown, url_of
from fastimg.train.checkpoints.stored_runs import resumed
from fastimg.wording import plural

_NAMED = 5  # candidates that a sentence names
_RUN_FILES = ("config.yaml", "metrics.jsonl")

Tell = Callable[[str], None]


def train_settings(given: Mapping[str, Any], tell: Tell | None = None) -> Train:
    """What `train` is given, over its files; with --resume and without DATA, over those of the run that it means.

    A run in an object store is fetched. Raises UsageError, UserError and DataError.
    """
    config = layered(resumed(given, tell))
    if config.data is not None or config.resume not in NEWEST_RUN or _has_dataset(Path()):
        return config
    run = _newest(config)
    config = layered(resumed({**given, "resume": run}, tell))
    if config.data is None:  # a recipe, or another file, is in the place of the run's own settings
        config = replace(config, data=load(Path(config.resume or "") / _RUN_FILES[0], Train).data)
    if tell is not None:
        tell(f"no DATA given: --resume goes on with {run}, on {shown(config.data or Path())}")
    return config


def with_data(config: Train, tell: Tell | None = None) -> Train:
    """`config` with DATA; `tell` is told what is taken where it was left out. Raises UsageError if that is open."""
    if config.data is not None or config.resume not in (None, *NEWEST_RUN):
        return config
    here = Path().resolve()
    if _has_dataset(here):
        words = f"the dataset in the current directory, {here}"
        config = replace(config, data=here)
    else:
        _ask(config, here)
        words = f"{COUNT:,} handwritten digits that come with scikit-learn; for your images, `fastimg train FOLDER`"
        config = replace(config, data=digits_folder())
    if tell is not None:
        tell(f"no DATA given: training on {words}")
    return config


def _has_dataset(folder: Path) -> bool:
    return (folder / "dataset.json").exists()


def _newest(config: Train) -> str:
    """The run that is continued where neither DATA nor a run is named. Raises UsageError if there is none."""
    if (url := url_of(config.output)) is not None:
        if config.name is None:
            raise UsageError(f"--resume without DATA: which run in {url}? Give its URL, as --resume {url}/NAME")
        return f"{url}/{config.name}"
    if config.name is not None:
        run = config.output / config.name
        if not _is_run(run):
            raise UsageError(f"--resume without DATA: {run} is no run; give DATA, or another --name or --output")
        return str(run)
    if runs := _runs(config.output):
        return str(max(runs, key=lambda run: (run / _RUN_FILES[0]).stat().st_mtime_ns))
    raise UsageError(
        f"--resume without DATA: there is no run in {config.output} or here; give DATA, or the run's directory, as "
        "--resume RUN"
    )


def _runs(output: Path) -> list[Path]:
    """The runs in the folder of runs and in the current directory, and this one if it is a run."""
    here = Path()
    found = {run.resolve(): run for folder in (here, output) for run in subfolders(folder) if _is_run(run)}
    return [*found.values(), *([here.resolve()] if _is_run(here) else [])]


def _is_run(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _RUN_FILES)


def _ask(config: Train, here: Path) -> None:
    """Raises UsageError where something else than the digits can be meant by DATA that is left out."""
    if intent.reads_text(config) or config.text_arch is not None:
        raise UsageError("no DATA given: a model of texts needs some; give a dataset, or a folder of class folders")
    found = {} if here == here.parent else candidates(here)
    runs = [] if url_of(config.output) is not None else _runs(config.output)
    if not found and not runs:
        return
    named = [what if folder == here else f"{_relative(folder, here)} ({what})" for folder, what in found.items()]
    named += [f"{_relative(run, here)} (a run)" for run in runs]
    more = f" and {plural(len(named) - _NAMED, 'other')}" if len(named) > _NAMED else ""
    remedies = [f"`fastimg train {_relative(next(iter(found)), here)}`"] if found else ["`fastimg train FOLDER`"]
    remedies += [f"`fastimg train --resume {_relative(runs[-1], here)}`"] if runs else []
    raise UsageError(
        f"no DATA given, and this folder holds {', '.join(named[:_NAMED])}{more}; say which, as in "
        f"{' or '.join(remedies)}"
    )


def _relative(folder: Path, here: Path) -> str:
    """A folder as it is typed in the current directory."""
    whole = folder.resolve()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(folder)
