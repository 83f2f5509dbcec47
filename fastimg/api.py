"""The commands as functions, and `load`: their keywords are the names of the flags.

Their signatures and descriptions are those of the commands' dataclasses. Nothing imports torch before it is needed.
"""

import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fastimg.config import yaml_file
from fastimg.config.benchmarking import Bench
from fastimg.config.commands import Convert, Embed, Eval, Export, Inspect, Predict, Train
from fastimg.config.flag_types import aliases, as_arguments
from fastimg.config.rules import refuse
from fastimg.config.searching import Search, Suggest
from fastimg.config.url_arguments import refuse_urls
from fastimg.errors import UserError
from fastimg.signatures import takes_settings_of
from fastimg.system import terminal
from fastimg.torch_state import as_imported
from fastimg.wording import brief, for_terminal

if TYPE_CHECKING:
    from fastimg.bench.benchmark import Measurement
    from fastimg.convert.report import Report
    from fastimg.inspect.images import Inspection
    from fastimg.inspect.texts import TextInspection
    from fastimg.predict.answering.predictor import Predictor
    from fastimg.predict.answers import Answers
    from fastimg.predict.embedding import Embedded
    from fastimg.predict.ensemble import RunsEvaluation
    from fastimg.predict.evaluation import Evaluation
    from fastimg.predict.export import Exported
    from fastimg.predict.target_evaluation import TargetEvaluation
    from fastimg.search.leaderboard import Leaderboard
    from fastimg.suggest.document import Advised
    from fastimg.train.loop import Result

_Path = str | os.PathLike[str]
_PAIRS = ("model_kwargs", "opt_kwargs")  # settings that may be dictionaries
_ON_A_COMMAND_LINE = ("more", "json", "csv")  # where else a function takes a list, or returns a value


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Errors as the command line prints them: names are printable, and cells of tables are short."""
    try:
        yield
    except Exception as error:
        loaders = sys.modules.get("fastimg.loaders.errors")  # it brings torch
        if isinstance(error, UserError) or (loaders is not None and isinstance(error, loaders.DataError)):
            error.args = (for_terminal(brief(str(error))),)
        raise


@takes_settings_of(
    Train,
    ["data"],
    accepts={
        **dict.fromkeys(("compile", "resume"), bool | str | None),
        **dict.fromkeys(_PAIRS, Mapping[str, Any] | Sequence[str]),
    },
)
@_readable_errors()
def train(data: _Path | None = None, *, progress: bool = False, **settings: Any) -> "Result":
    """Train a classifier, as `fastimg train` does.

        result = fastimg.train("D", arch="resnet18", epochs=3)
        print(result.best.top1, result.checkpoint)

    The settings are the flags of the command, with their names and defaults; a recipe and a file lie below what is
    given here. A value may be what YAML has for it: a number for `lr`, a list for `scale`, True for `compile`; and
    `model_kwargs` and `opt_kwargs` may be dictionaries. None is as good as leaving a setting out.

    Returns a `Result`: the directory of the run, the best validation, the checkpoint.

    Raises `fastimg.errors.UsageError` for settings that cannot be or have no effect, `fastimg.errors.UserError` for
    what cannot be done here, `fastimg.loaders.DataError` for data that cannot be used, and TypeError for a setting that
    does not exist. The messages call a setting by its flag.

    With `progress` the run prints what the command prints; without, nothing. Unlike the command, it leaves signals
    alone: Ctrl-C raises KeyboardInterrupt, and `resume="auto"` goes on from the last checkpoint (`save_interval`).
    torch's random state, its number of threads and its switches are the same afterwards as before; on a CPU glibc's
    allocator keeps more freed memory from then on. Several processes train together when torchrun has started them.
    """
    from fastimg.train.choices.data_left_out import train_settings, with_data
    from fastimg.train.loop import train as run

    console = terminal.console() if progress else _nowhere()
    tell = partial(terminal.say, console)
    config = with_data(train_settings(_of_train({"data": data, **settings}), tell), tell)
    if config.backend == "ray":
        from fastimg.train.nodes.launch import train_on_cluster

        return train_on_cluster(config, console, signals=False)
    with _library():
        return run(config, console, signals=False)


@takes_settings_of(Convert, ["src", "dst"], without=_ON_A_COMMAND_LINE, accepts={"src": _Path | Sequence[_Path]})
@_readable_errors()
def convert(src: _Path | Sequence[_Path], dst: _Path, *, progress: bool = False, **settings: Any) -> "Report":
    """Turn images or texts into shards, as `fastimg convert` does.

        report = fastimg.convert("photos", "D", val_fraction=0.1)
        print(report.images, report.splits, report.skipped)

    The settings are the flags of the command, with their names and defaults. `src` may be several sources, to be
    combined with `merge=True`.

    Returns a `Report`: what the dataset contains, and what was skipped, ignored and rewritten.

    Raises `fastimg.errors.UsageError` for settings that cannot be, `fastimg.errors.UserError` for what cannot be done
    here, `fastimg.loaders.DataError` for a source that cannot be used, and TypeError for a setting that does not exist.
    The messages call a setting by its flag. After KeyboardInterrupt, `resume=True` goes on.

    With `progress` a bar and remarks are printed on standard error; without, nothing.
    """
    from fastimg.convert.pipeline import convert as run

    sources = [src] if isinstance(src, str | os.PathLike) else list(src)
    if not sources:
        raise TypeError("convert(): src is empty; give a source, or several and merge=True")
    first, *others = map(Path, [*sources, dst])
    refuse_urls({"src": first, "more": tuple(others)})
    given = _given("convert", Convert, settings, _ON_A_COMMAND_LINE)
    config = Convert(src=first, dst=others[0], more=tuple(others[1:]), **given)
    with _library():
        return run(config, _told(progress))


@takes_settings_of(
    Predict, ["checkpoint", "sources"], without=_ON_A_COMMAND_LINE, accepts={"sources": _Path | Sequence[_Path]}
)
@_readable_errors()
def predict(
    checkpoint: _Path, sources: _Path | Sequence[_Path] = (), *, progress: bool = False, **settings: Any
) -> "Answers":
    """Classify images, or texts, with a checkpoint, as `fastimg predict` does.

        for answer in fastimg.predict("runs/D-resnet18", ["a.jpg", "b.jpg"], topk=3):
            print(answer.file, answer.classes, answer.probabilities)

    The settings are the flags of the command, with their names and defaults. `sources` may be one path.

    Returns an `Answer` for each file, in order, then for each text: `file`, `classes` and `probabilities`, the
    likeliest first; of one that could not be read, `error` says why, and the lists are empty.

    Raises `fastimg.errors.UsageError` for settings that cannot be, `fastimg.errors.UserError` for a checkpoint or
    folder that cannot be used, and TypeError for a setting that does not exist. The messages call a setting by its
    flag.

    With `progress` a bar and remarks are printed on standard error; without, nothing.
    """
    from fastimg.predict.answering.files import path_of
    from fastimg.predict.answers import Answers
    from fastimg.predict.prediction import classify
    from fastimg.train.checkpoints.model_files import refuse_swapped
    from fastimg.train.checkpoints.stored_models import local_model

    files = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    paths = tuple(path_of(file, place) for place, file in enumerate(files))
    refuse_urls({"checkpoint": Path(checkpoint), "sources": paths})
    given = _given("predict", Predict, settings, _ON_A_COMMAND_LINE)
    config = Predict(checkpoint=Path(checkpoint), sources=paths, **given)
    refuse_swapped("predict", [config.checkpoint], config.sources)
    config = replace(config, checkpoint=local_model(config.checkpoint, config))
    with _library():
        return Answers(classify(config, _told(progress)))


@takes_settings_of(
    Eval, ["checkpoint", "data"], without=_ON_A_COMMAND_LINE, accepts={"checkpoint": _Path | Sequence[_Path]}
)
@_readable_errors()
def eval(
    checkpoint: _Path | Sequence[_Path], data: _Path, *, progress: bool = False, **settings: Any
) -> "Evaluation | TargetEvaluation | RunsEvaluation":
    """Evaluate a checkpoint, or several, as `fastimg eval` does.

        result = fastimg.eval("runs/D-resnet18", "D")
        print(result.top1, result.classes[0].recall, result.mistakes)

    The settings are the flags of the command, with their names and defaults. `checkpoint` may be several runs, which
    are evaluated one by one and together.

    Returns an `Evaluation`: accuracies, the scores of each class, the confusion matrix, and where it was drawn; of a
    model of several targets a `TargetEvaluation`, of several runs a `RunsEvaluation`.

    Raises `fastimg.errors.UsageError` for settings that cannot be, `fastimg.errors.UserError` for a checkpoint that
    cannot be used, `fastimg.loaders.DataError` for data that cannot, and TypeError for a setting that does not exist.
    The messages call a setting by its flag.

    With `progress` a bar and remarks are printed on standard error; without, nothing.
    """
    from fastimg.predict.ensemble import evaluate_runs
    from fastimg.predict.evaluation import evaluate_checkpoint
    from fastimg.train.checkpoints.stored_models import local_model

    given = _given("eval", Eval, settings, _ON_A_COMMAND_LINE)
    runs = [Path(run) for run in ([checkpoint] if isinstance(checkpoint, str | os.PathLike) else checkpoint)]
    if not runs:
        raise TypeError("eval(): checkpoint is empty; give a run, or several")
    refuse_urls({"checkpoint": tuple(runs), "data": Path(data)})
    config = Eval(checkpoint=runs[0], data=Path(data), **given)
    first, *rest = (*(local_model(run, config) for run in runs), Path(data))
    config = replace(config, checkpoint=first, data=rest[0], more=tuple(rest[1:]))
    with _library():
        return (evaluate_runs if config.more else evaluate_checkpoint)(config, _nowhere(), _told(progress))


@takes_settings_of(Export, ["checkpoint"], without=_ON_A_COMMAND_LINE)
@_readable_errors()
def export(checkpoint: _Path, **settings: Any) -> "Exported":
    """Write a checkpoint as one file for other programs, as `fastimg export` does.

        print(fastimg.export("runs/D-resnet18", format="onnx", check=True).file)

    The settings are the flags of the command, with their names and defaults.

    Returns an `Exported`: the file, its inputs, the preprocessing, and what the check found.

    Raises `fastimg.errors.UsageError` for settings that cannot be, `fastimg.errors.UserError` for what cannot be
    exported, and with `check` where the file does not agree with the checkpoint, `fastimg.loaders.DataError` for
    `check_data` that cannot be used, and TypeError for a setting that does not exist. The messages call a setting by
    its flag.
    """
    from fastimg.config.rule_tables.reading import EXPORT
    from fastimg.predict.export import check_row
    from fastimg.predict.export import export as run
    from fastimg.train.checkpoints.stored_models import local_model

    refuse_urls({"checkpoint": Path(checkpoint)})
    config = Export(checkpoint=Path(checkpoint), **_given("export", Export, settings, _ON_A_COMMAND_LINE))
    refuse(config, EXPORT)
    config = replace(config, checkpoint=local_model(config.checkpoint, config))
    with _library():
        result = run(config, _nowhere())
    if result.check is not None and result.differs:
        kept = "; the file that was there stays" if result.stays else "; do not use it"
        raise UserError(f"{result.file}: {check_row(result.check, result.kinds)}{kept}")
    return result


@takes_settings_of(Embed, ["data", "dst"], without=_ON_A_COMMAND_LINE)
@_readable_errors()
def embed(data: _Path, dst: _Path, *, progress: bool = False, **settings: Any) -> "Embedded | None":
    """Write the embedding of every image or text, as `fastimg embed` does.

        result = fastimg.embed("D", "E", weights="runs/D-resnet18", format="npy")
        print(result.folder, result.splits)

    The settings are the flags of the command, with their names and defaults.

    Returns an `Embedded`: the folder, and of each split what was written; under torchrun None but on the first rank.

    Raises `fastimg.errors.UsageError` for settings that cannot be, `fastimg.errors.UserError` for what cannot be done
    here, `fastimg.loaders.DataError` for data that cannot be used, and TypeError for a setting that does not exist.
    The messages call a setting by its flag.

    With `progress` a bar and remarks are printed on standard error; without, nothing.
    """
    from fastimg.predict.embedding import embed as run

    refuse_urls({"data": Path(data), "dst": Path(dst)})
    config = Embed(data=Path(data), dst=Path(dst), **_given("embed", Embed, settings, _ON_A_COMMAND_LINE))
    with _library():
        return run(config, _nowhere(), _told(progress))


@takes_settings_of(Inspect, ["data"], without=_ON_A_COMMAND_LINE)
@_readable_errors()
def inspect(data: _Path, *, progress: bool = False, **settings: Any) -> "Inspection | TextInspection":
    """Look at a dataset, as `fastimg inspect` does.

        result = fastimg.inspect("D")
        print(result.images, result.duplicates.leaked, result.pictures)

    The settings are the flags of the command, with their names and defaults.

    Returns an `Inspection`: counts, sizes, formats, copies, leaks, and the pictures that were drawn; of texts a
    `TextInspection`.

    Raises `fastimg.errors.UsageError` for settings that cannot be, `fastimg.errors.UserError` for what cannot be done
    here, `fastimg.loaders.DataError` for data that cannot be used, and TypeError for a setting that does not exist.
    The messages call a setting by its flag.

    With `progress` a bar and remarks are printed on standard error; without, nothing.
    """
    from fastimg.inspect.images import inspect_data

    refuse_urls({"data": Path(data)})
    config = Inspect(data=Path(data), **_given("inspect", Inspect, settings, _ON_A_COMMAND_LINE))
    with _library():
        return inspect_data(config, _nowhere(), _told(progress))


@takes_settings_of(Search, ["data"], without=(*_ON_A_COMMAND_LINE, "shared"))
@_readable_errors()
def search(
    data: _Path, *, train: Mapping[str, Any] | None = None, progress: bool = False, **settings: Any
) -> "Leaderboard":
    """Find the best settings for a dataset, as `fastimg search` does.

        board = fastimg.search("D", max_time="20m", train={"img_size": 64})
        print(board.winner.arch, board.winner.value, board.folder)

    The settings are the flags of the command, with their names and defaults. `train` holds those of `fastimg.train`
    that all trials share, which the command takes behind `--`.

    Returns a `Leaderboard`: the models in order, best first, and the folder with their runs.

    Raises `fastimg.errors.UsageError` for settings that cannot be, `fastimg.errors.UserError` for what cannot be done
    here, `fastimg.loaders.DataError` for data that cannot be used, and TypeError for a setting that does not exist.
    The messages call a setting by its flag. After KeyboardInterrupt, the same call goes on.

    With `progress` lines are printed on standard error; without, nothing.
    """
    from fastimg.search.command import search as run

    refuse_urls({"data": Path(data)})
    for name in settings:
        if aliases(Search).get(name, name) not in _names(Search) and aliases(Train).get(name, name) in _names(Train):
            raise TypeError(f"search() has no setting {name!r}; all trials share it as train={{{name!r}: ...}}")
    given = _given("search", Search, settings, (*_ON_A_COMMAND_LINE, "shared"))
    config = Search(data=Path(data), shared=as_arguments(_of_train(train or {}), Train), **given)
    with _library():
        return run(config, _told(progress), _told(progress))


@takes_settings_of(Suggest, ["data"], without=_ON_A_COMMAND_LINE)
@_readable_errors()
def suggest(data: _Path, *, progress: bool = False, **settings: Any) -> "Advised":
    """Look at a dataset and this machine, and write a configuration for `train`, as `fastimg suggest` does.

        advised = fastimg.suggest("D", max_time="20m")
        fastimg.train("D", config="suggested.yaml")

    The settings are the flags of the command, with their names and defaults.

    Returns an `Advised`: `settings()` are those of the file, and `suggestions` have a reason for each.

    Raises `fastimg.errors.UsageError` for settings that cannot be, `fastimg.errors.UserError` for what cannot be done
    here, `fastimg.loaders.DataError` for data that cannot be used, and TypeError for a setting that does not exist.
    The messages call a setting by its flag.

    With `progress` remarks are printed on standard error; without, nothing.
    """
    from fastimg.suggest.command import suggest as run

    refuse_urls({"data": Path(data)})
    config = Suggest(data=Path(data), **_given("suggest", Suggest, settings, _ON_A_COMMAND_LINE))
    with _library():
        return run(config, _nowhere(), _told(progress))


@takes_settings_of(Bench, ["data"], without=_ON_A_COMMAND_LINE)
@_readable_errors()
def bench(data: _Path, *, progress: bool = False, **settings: Any) -> "Measurement":
    """Measure where the time goes, as `fastimg bench` does.

        measured = fastimg.bench("D", arch="resnet18")
        print(measured.verdict, measured.real_over_synthetic)

    The settings are the flags of the command, with their names and defaults.

    Returns a `Measurement`: `verdict` says what limits training, and `record` has every number.

    Raises `fastimg.errors.UsageError` for settings that cannot be, `fastimg.errors.UserError` for what cannot be done
    here, `fastimg.loaders.DataError` for data that cannot be used, and TypeError for a setting that does not exist.
    The messages call a setting by its flag.

    With `progress` remarks are printed on standard error; without, nothing.
    """
    from fastimg.bench.benchmark import bench as run

    refuse_urls({"data": Path(data)})
    config = Bench(data=Path(data), **_given("bench", Bench, settings, _ON_A_COMMAND_LINE))
    with _library():
        return run(config, _nowhere(), _told(progress))


_LOADING = threading.Lock()  # torch has one random state, which building a model draws from, and is put back
_LATER = (
    *_ON_A_COMMAND_LINE,
    "sources",
    "text",
    "topk",
    "threshold",
    "sheet",
    "overwrite",
)  # what a Predictor is asked each time


@takes_settings_of(Predict, ["checkpoint"], without=_LATER)
@_readable_errors()
def load(checkpoint: _Path, **settings: Any) -> "Predictor":
    """Load a checkpoint's model once, for a program that predicts again and again.

        model = fastimg.load("runs/D-resnet18")
        for answer in model.predict([Image.open("a.jpg"), "b.jpg"]):
            print(answer.classes, answer.probabilities)

    The settings are those of `predict` that concern the model and how images are read.

    Returns a `Predictor`, whose `predict` takes files, Pillow's images, encoded bytes, arrays and tensors, and gives
    the answers of `fastimg.predict`. Its `module` is the torch module, and `inputs` makes its input of images.

    Raises `fastimg.errors.UsageError` for settings that cannot be, `fastimg.errors.UserError` for a checkpoint that
    cannot be used, and TypeError for a setting that does not exist. The messages call a setting by its flag.

    torch's random state is the same afterwards as before; it is one for all threads, so none should draw meanwhile.
    """
    import torch

    from fastimg.predict.answering.predictor import Predictor
    from fastimg.train.checkpoints.stored_models import local_model

    if later := settings.keys() & set(_LATER):
        raise TypeError(f"load() has no setting {min(later)!r}: give it to the predict() of what load() returns")
    refuse_urls({"checkpoint": Path(checkpoint)})
    if not isinstance(settings.get("device"), str | None):
        settings["device"] = str(settings["device"])  # a torch.device
    config = Predict(checkpoint=Path(checkpoint), **_given("load", Predict, settings, _LATER))
    config = replace(config, checkpoint=local_model(config.checkpoint, config))
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with _LOADING, torch.random.fork_rng(gpus), as_imported():
        return Predictor(config)


def _given(function: str, kind: type[Any], settings: Mapping[str, Any], without: Sequence[str] = ()) -> dict[str, Any]:
    """Keywords as the types of the fields, without those that are None. Raises TypeError and UsageError."""
    known = [field.name for field in fields(kind) if field.name not in without]
    given: dict[str, Any] = {}
    for called, value in settings.items():
        name = aliases(kind).get(called, called)
        if name not in known:
            raise TypeError(f"{function}() has no setting {called!r}{yaml_file.meant(called, known)}")
        if value is None:
            continue
        if name in given:
            raise TypeError(f"{function}() got {name} under two names; give it once")
        given[name] = _plain(value)
    return yaml_file.fitted(given, kind)


def _names(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind)}


def _of_train(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that all trials of a search share, in which pairs may be dictionaries."""
    pairs = {name: _pairs(value) if name in _PAIRS else value for name, value in settings.items()}
    return _given("train", Train, pairs)


def _pairs(value: Any) -> Any:
    """A dictionary as the list of NAME=VALUE that a flag takes."""
    return [f"{name}={each}" for name, each in value.items()] if isinstance(value, Mapping) else value


def _plain(value: Any) -> Any:
    """A value as YAML would have it: paths as text, tuples as lists, NumPy's numbers as Python's."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


@contextmanager
def _library() -> Iterator[None]:
    """What a caller has set stays: torch's random state, GPU, threads and switches, and the filters of warnings.

    What the caller has switched on for its own tensors, such as no_grad, has no effect within.
    """
    import torch

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(gpus), warnings.catch_warnings(), as_imported():
            # Pillow's of many pixels: max_pixels is checked before anything is decoded.
            warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = benchmark
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # As `torch.cuda.device` does it: a GPU that has no context yet gets none.
            torch.cuda._maybe_exchange_device(gpus[0] if gpus else 0)


def _told(progress: bool) -> Console:
    """Where a function prints how far it is."""
    return terminal.console(stderr=True) if progress else _nowhere()


def _nowhere() -> Console:
    return Console(quiet=True, force_terminal=False, force_jupyter=False)
