"""The command line: one frozen dataclass per command, one place where errors become sentences and exit codes.

Exit codes: 0 for success, 1 for a failure, 2 for a wrong command line, 130 and 143 for Ctrl-C and SIGTERM.
"""

import contextlib
import errno
import gc
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from . import __version__
from .config import benchmarking as benchconfig
from .config import commands as config
from .config import recipes, searching
from .config.command_line.parsing import parse
from .config.rules import Excludes, Range, refuse
from .config.url_arguments import refuse_urls
from .errors import UsageError, UserError, nearest
from .loaders.remote.urls import BadURLError, without_secrets
from .system import rank_failures as ending
from .system import terminal
from .torch_state import as_imported
from .wording import brief, with_flags

_COMMANDS: dict[str, type] = {
    "demo": config.Demo,
    "convert": config.Convert,
    "verify": config.Verify,
    "inspect": config.Inspect,
    "suggest": searching.Suggest,
    "train": config.Train,
    "eval": config.Eval,
    "predict": config.Predict,
    "embed": config.Embed,
    "export": config.Export,
    "push": config.Push,
    "search": searching.Search,
    "bench": benchconfig.Bench,
    "doctor": benchconfig.Doctor,
    "recipe": config.Recipe,
    "cluster": config.Cluster,
}
_START = (
    ("fastimg demo", "try everything on images that come with it"),
    ("fastimg train PHOTOS --arch resnet18 --pretrained", "fine-tune on a folder with one subfolder per class"),
    ("fastimg bench PHOTOS", "see what limits training on this machine"),
)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
_HELP = {"-h", "--help", "--help-all"}


def main() -> None:
    """The `fastimg` command."""
    ending.leave(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. What a user can fix is printed as a sentence, not a traceback.

    Of several ranks, the first one that fails prints its message, and its exit code is that of all of them.
    """
    # Pillow's of many pixels: --max-pixels is checked before anything is decoded.
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
    console = terminal.console(stderr=True)
    rank = os.environ.get("RANK")
    prefix = "fastimg: error: " if rank in (None, "0") else f"fastimg: rank {rank}: error: "
    try:
        with as_imported():
            code = _dispatch(list(arguments), console)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _end(console, error.exit_code, prefix + _sentence(error))
    except SystemExit as stop:  # SIGTERM during `bench`
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return _end(console, 130, "fastimg: interrupted")
    except BrokenPipeError:  # the reader of our output has gone: `fastimg ... | head`
        _discard_output()
        return 1
    except Exception as error:  # noqa: BLE001 - an internal error: a bug report needs its traceback
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:  # stdout, say, to a file
            _discard_output()
            remedy = "raise the limit of `ulimit -f`" if error.errno == errno.EFBIG else "make room"
            sentence = f"what is written here does not fit ({error.strerror}); {remedy}, and start again"
            return _end(console, 1, prefix + sentence)
        loaders = sys.modules.get("fastimg.loaders.errors")  # not imported above: it brings torch, which takes seconds
        if loaders is not None and isinstance(error, loaders.DataError):
            return _end(console, 2 if isinstance(error, BadURLError) else 1, prefix + _sentence(error))
        reason = ending.lost_contact(error) if ending.several() else None
        if reason is not None:
            return _end(
                console,
                1,
                f"{prefix}lost contact with another rank ({reason}): it was killed, or its machine cannot be reached; "
                "see torchrun's report for what ended it, then start again (train: with --resume auto)",
            )
        fault = "fastimg: internal error in fastimg; please report it with the lines above"
        cause = traceback.format_exception_only(error)[-1].strip()
        lines = without_secrets(traceback.format_exc())
        return _end(console, 1, lines + fault, without_secrets(f"internal error in fastimg: {cause}"))


def _discard_output() -> None:
    """Let what is still buffered go nowhere: Python would fail to write it as it ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor, in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(error: Exception) -> str:
    """What an error says, with flags instead of the loaders' settings, and URLs instead of folders of the cache."""
    sentence = brief(without_secrets(with_flags(str(error))))
    origins = sys.modules.get("fastimg.loaders.remote.origins")
    sentence = sentence if origins is None else str(origins.named_by_origins(sentence))
    mirrors = sys.modules.get("fastimg.loaders.remote.mirrors")
    return sentence if mirrors is None else str(mirrors.with_urls(sentence))


def _end(console: Console, code: int, text: str, cause: str | None = None) -> int:
    """Print why this process ends, unless another rank has failed before. Returns the exit code.

    `cause` is a line for torchrun's report, by default the text.
    """
    if not ending.several():
        terminal.say(console, text)
        return code
    return ending.end(code, lambda: terminal.say(console, text), text if cause is None else cause)


def _dispatch(arguments: list[str], console: Console) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"fastimg {__version__}")
        return 0
    if arguments[0].partition("=")[0] == "--print-completion":
        return _print_completion(arguments)
    if arguments[0] == "help":  # as git and ultralytics have it
        return _dispatch([*arguments[1:2], "--help"], console)
    command, rest = arguments[0], arguments[1:]
    if command not in _COMMANDS:
        raise UsageError(f"no command {command!r}{nearest(command, _COMMANDS) or ';'} `fastimg --help` lists them")
    before = rest[: rest.index("--")] if "--" in rest else rest
    if not _HELP.isdisjoint(before):
        if ending.first_rank():  # it is the same on every rank
            from .config.command_line.help import help_page

            print(help_page(command, _COMMANDS[command], "--help-all" in before), end="")
        return 0
    tell = partial(terminal.say, console) if ending.first_rank() else None
    settings: Any = _parse(command, rest, fetch=True, tell=tell)
    _refuse(command, settings)
    return _RUN[command](_with_runs(command, settings, tell), console)


# One function per command: what it needs is imported when it runs, since torch takes seconds, and `--help` should not.


def _demo(settings: config.Demo, _console: Console) -> int:
    from .demo import demo

    _imported()
    return _signal_code(demo(settings, terminal.console()))


def _convert(settings: config.Convert, console: Console) -> int:
    from fastimg.convert.pipeline import convert
    from fastimg.convert.report import print_report

    _imported()
    report = convert(settings, console)
    if settings.json:
        print(report.to_json())
    else:
        print_report(report, terminal.console())
    return 0


def _verify(settings: config.Verify, console: Console) -> int:
    from fastimg.convert.verify import verify

    _imported()
    return verify(settings, terminal.console(), console)


def _inspect(settings: config.Inspect, console: Console) -> int:
    from fastimg.inspect.images import inspect_data

    _imported()
    inspect_data(settings, terminal.console(), console)
    return 0


def _suggest(settings: searching.Suggest, console: Console) -> int:
    from fastimg.suggest.command import suggest

    _imported()
    suggest(settings, terminal.console(), console)
    return 0


def _train(settings: config.Train, _console: Console) -> int:
    from .train.choices.data_left_out import with_data

    tell = partial(terminal.say, terminal.console(), style="bold yellow") if ending.first_rank() else None
    settings = with_data(settings, tell)
    if ending.first_rank():
        terminal.say(terminal.console(), f"starting    fastimg {__version__}; importing torch takes a few seconds")
    if settings.backend == "ray":
        from fastimg.train.nodes.launch import train_on_cluster

        _imported()
        return _signal_code(train_on_cluster(settings, terminal.console()).signal)
    from fastimg.train.loop import train

    _imported()
    return _signal_code(train(settings, terminal.console()).signal)


def _eval(settings: config.Eval, console: Console) -> int:
    if settings.more:
        from fastimg.predict.ensemble import evaluate_runs

        _imported()
        evaluate_runs(settings, terminal.console(), console)
        return 0
    from fastimg.predict.evaluation import evaluate_checkpoint

    _imported()
    evaluate_checkpoint(settings, terminal.console(), console)
    return 0


def _predict(settings: config.Predict, console: Console) -> int:
    from fastimg.predict.prediction import predict

    _imported()
    return predict(settings, terminal.console(), console)


def _embed(settings: config.Embed, console: Console) -> int:
    from fastimg.predict.embedding import embed

    _imported()
    embed(settings, terminal.console(), console)
    return 0


def _export(settings: config.Export, _console: Console) -> int:
    from fastimg.predict.export import export

    _imported()
    return 1 if export(settings, terminal.console()).differs else 0


def _push(settings: config.Push, _console: Console) -> int:
    from fastimg.publish.command import push

    _imported()
    push(settings, terminal.console())
    return 0


def _search(settings: searching.Search, console: Console) -> int:
    from fastimg.search.command import search

    _imported()
    search(settings, terminal.console(), console)
    return 0


def _bench(settings: benchconfig.Bench, console: Console) -> int:
    from fastimg.bench.benchmark import bench

    _imported()
    bench(settings, terminal.console(), console)
    return 0


def _doctor(settings: benchconfig.Doctor, _console: Console) -> int:
    from fastimg.doctor.diagnosis import doctor

    _imported()
    return doctor(settings, terminal.console())


def _imported() -> None:
    """Collect garbage from here on, if `__main__` has put it off, and never look at what was imported until now."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _refuse(command: str, settings: Any) -> None:
    """Refuse what the settings alone show to be wrong, before torch is imported, which takes seconds.

    Raises UsageError, UserError and DataError.
    """
    from .config.rule_tables import reading, training

    rules = {
        "demo": reading.DEMO,
        "train": training.TRAIN,
        "eval": reading.EVAL,
        "predict": reading.PREDICT,
        "embed": reading.EMBED,
        "bench": reading.BENCH,
        "export": reading.EXPORT,
        "push": reading.PUSH,
        "doctor": reading.DOCTOR,
        "inspect": reading.INSPECT,
        "verify": reading.VERIFY,
        "suggest": reading.SUGGEST,
        "convert": reading.CONVERT,
    }
    if command in rules and getattr(settings, "weights", None) is None:
        refuse(settings, rules[command])
    elif command in rules:  # weights may state further settings, on which other rules depend
        refuse(settings, [rule for rule in rules[command] if isinstance(rule, Range | Excludes)])
    if command == "export":
        _ = settings.chosen_format  # refused where nothing names one
    if command in ("eval", "predict", "export", "push"):
        from .loaders.remote.stores import url_of
        from .train.checkpoints.model_files import find, refuse_swapped

        runs = settings.runs if command == "eval" else (settings.checkpoint,)
        if command in ("eval", "predict"):
            refuse_swapped(command, runs, [settings.dataset] if command == "eval" else settings.sources)
        for run in runs:
            if url_of(run) is None:
                find(run)
    if command in ("convert", "embed") and not getattr(settings, "more", ()):
        from .train.checkpoints.model_files import refuse_swapped_data

        own = "dataset.json" if command == "convert" else "embeddings.json"
        refuse_swapped_data(command, settings.src if command == "convert" else settings.data, settings.dst, own)
    if command == "suggest":
        searching.check(settings)
    if command not in ("convert", "embed"):  # which check what they take themselves
        _refuse_url(command, [getattr(settings, name, None) for name in ("src", "dst")])
    if command in ("suggest", "train", "eval", "embed", "bench") and settings.data is not None:
        from .loaders.containers.datasets import refuse_no_folder
        from .loaders.remote.stores import url_of

        data = settings.dataset if command == "eval" else settings.data
        if url_of(data) is None:
            refuse_no_folder(data)


def _with_runs(command: str, settings: Any, tell: Callable[[str], None] | None) -> Any:
    """The settings with runs of an object store as directories here, into which they are fetched."""
    if command not in ("eval", "predict", "export", "push"):
        return settings
    from .train.checkpoints.stored_models import local_model

    if command != "eval":
        return replace(settings, checkpoint=local_model(settings.checkpoint, settings, tell))
    first, *more, data = (*(local_model(run, settings, tell) for run in settings.runs), settings.dataset)
    paths = [*more, data]
    return replace(settings, checkpoint=first, data=paths[0], more=tuple(paths[1:]))


def _refuse_url(command: str, paths: Sequence[Path | None]) -> None:
    """Raises UsageError for a URL where a command reads or writes only what is on this machine."""
    from .loaders.remote.stores import url_of

    for path in paths:
        if isinstance(path, Path) and (url := url_of(path)) is not None:  # not push's hub://
            raise UsageError(
                f"{command} {url}: a URL is read as DATA alone, by train, eval, verify, inspect, embed, bench, "
                "suggest, search and predict; use a folder here"
            )


def _signal_code(signal: int) -> int:
    return 128 + signal if signal else 0


def _parse(command: str, arguments: list[str], fetch: bool = False, tell: Callable[[str], None] | None = None) -> Any:
    """The settings that the arguments of a command ask for; `fetch` a run of an object store that is resumed, for those
    that it states, which `tell` is told. Raises UsageError.
    """
    kind = _COMMANDS[command]
    if command == "search" and "--" in arguments:  # what stands behind is train's
        place = arguments.index("--")
        given = parse(command, kind, arguments[:place], _COMMANDS)
        refuse_urls(given)
        return kind(**given, shared=tuple(arguments[place + 1 :]))
    given = parse(command, kind, arguments, _COMMANDS)
    if command == "push" and str(given["checkpoint"]).startswith("hub:"):
        from .train.checkpoints.model_files import refuse_swapped

        refuse_swapped(command, [given["checkpoint"]], [Path(given["dst"])])
    refuse_urls(given)
    if kind is not config.Train:
        return kind(**given)
    if not fetch:
        from .config import yaml_file as configfile

        return configfile.layered(given)
    from .train.choices import data_left_out

    return data_left_out.train_settings(given, tell)


def _recipe(settings: config.Recipe, _console: Console) -> int:
    """`fastimg recipe list`, `fastimg recipe show NAME`."""
    from .config import yaml_file as configfile

    if settings.action == "list":
        if settings.name is not None:
            raise UsageError(f"recipe list {settings.name}: give no name, or `fastimg recipe show {settings.name}`")
        purposes = {name: recipes.purpose(name) for name in recipes.RECIPES}
        if settings.json:
            print(json.dumps([{"name": name, "for": purpose} for name, purpose in purposes.items()]))
            return 0
        table = Table("recipe", Column("for", overflow="fold"), box=None, pad_edge=False)
        for name, purpose in purposes.items():
            table.add_row(name, purpose)
        terminal.console().print(table, highlight=False)
        return 0
    if settings.name is None:
        raise UsageError("recipe show: which? `fastimg recipe list` shows all of them")
    values, about = recipes.settings(settings.name), recipes.about(settings.name)
    if settings.json:
        print(json.dumps({"name": settings.name, "about": about, "settings": values}))
        return 0
    print("\n".join(f"# {line}".rstrip() for line in [f"recipe {settings.name}", "", *about.splitlines()]))
    print(configfile.dump(values), end="")
    return 0


def _cluster(_settings: config.Cluster, _console: Console) -> int:
    """`fastimg cluster example`."""
    from .cluster.example import EXAMPLE

    print(EXAMPLE, end="")
    return 0


_RUN: Mapping[str, Callable[[Any, Console], int]] = {
    "demo": _demo,
    "convert": _convert,
    "verify": _verify,
    "inspect": _inspect,
    "suggest": _suggest,
    "train": _train,
    "eval": _eval,
    "predict": _predict,
    "embed": _embed,
    "export": _export,
    "push": _push,
    "search": _search,
    "bench": _bench,
    "doctor": _doctor,
    "recipe": _recipe,
    "cluster": _cluster,
}


def _print_completion(arguments: list[str]) -> int:
    """`fastimg --print-completion SHELL`."""
    from .config.command_line.help import SHELLS, completion

    shell = arguments[0].partition("=")[2] or "".join(arguments[1:2])
    if shell not in SHELLS:
        raise UsageError(f"--print-completion {shell}: give {', '.join(SHELLS)}{nearest(shell, SHELLS)}")
    print(completion(_COMMANDS, shell))
    return 0


def _overview() -> str:
    """What `fastimg --help` prints, and `fastimg` alone: what to do first, and every command."""
    lines = [
        "usage: fastimg COMMAND ...",
        "",
        "Images from disk to a training GPU at full speed, and the trainer around it.",
        "",
        "start here:",
        *(f"  {line:<50} {about}" for line, about in _START),
        "",
        "commands:",
        *(
            f"  {name:<9} {str(kind.__doc__).split('. ')[0].splitlines()[0].rstrip('.')}"
            for name, kind in _COMMANDS.items()
        ),
        "",
        "`fastimg COMMAND --help` shows a command's flags; `fastimg --print-completion bash|zsh|fish` completes them.",
    ]
    return "\n".join(lines)
