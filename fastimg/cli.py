"""The command line: one frozen dataclass per command, one place where errors become sentences and exit codes.

Exit codes: 0 for success, 1 for a failure, 2 for a wrong command line, 130 and 143 for Ctrl-C and SIGTERM.
"""

import contextlib
import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Column, Table

from fastimg.config.training import COMPILE_MODES

from . import __version__
from .config import benchmarking as benchconfig
from .config import commands as config
from .config import flags, recipes
from .config import yaml_file as configfile
from .config.rules import Excludes, Range, refuse
from .errors import UsageError, UserError, nearest
from .system import rank_failures as ending
from .system import terminal
from .wording import with_flags

_COMMANDS: dict[str, type] = {
    "demo": config.Demo,
    "convert": config.Convert,
    "verify": config.Verify,
    "inspect": config.Inspect,
    "train": config.Train,
    "eval": config.Eval,
    "predict": config.Predict,
    "embed": config.Embed,
    "export": config.Export,
    "bench": benchconfig.Bench,
    "doctor": benchconfig.Doctor,
    "recipe": config.Recipe,
}
# Flags of `train` that may stand alone: what they mean then, and the words that may follow, any where there is none.
_ALONE: dict[str, tuple[str, tuple[str, ...]]] = {
    "--resume": ("auto", ()),
    "--profile": ("auto", ()),
    "--compile": ("default", COMPILE_MODES),
}
# The same for numbers: whatever is none, and not `off`, is the next argument.
_NUMBERS = {"--cache-embeddings": "1", "--knn": "20"}
# Flags whose values add up where they are given several times.
_LISTS = ("--text", "--model-kwargs")


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
        return _dispatch(list(arguments), console)
    except UserError as error:
        return _end(console, error.exit_code, prefix + with_flags(str(error)))
    except KeyboardInterrupt:
        return _end(console, 130, "fastimg: interrupted")
    except BrokenPipeError:  # the reader of our output has gone: `fastimg ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as stop:  # tyro has printed help, or what is wrong with the flags
        code = stop.code if isinstance(stop.code, int) else 2
        return _after_usage(code) if code and ending.several() else code
    except Exception as error:  # noqa: BLE001 - an internal error: a bug report needs its traceback
        loaders = sys.modules.get("fastimg.loaders.errors")  # not imported above: it brings torch, which takes seconds
        if loaders is not None and isinstance(error, loaders.DataError):
            return _end(console, 1, prefix + with_flags(str(error)))
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
        return _end(console, 1, traceback.format_exc() + fault, f"internal error in fastimg: {cause}")


def _end(console: Console, code: int, text: str, cause: str | None = None) -> int:
    """Print why this process ends, unless another rank has failed before. Returns the exit code.

    `cause` is a line for torchrun's report, by default the text.
    """
    if not ending.several():
        terminal.say(console, text)
        return code
    return ending.end(code, lambda: terminal.say(console, text), text if cause is None else cause)


def _after_usage(code: int) -> int:
    """End after wrong flags: every rank found the same, and rank 0 has printed it. Returns the exit code."""
    return ending.end(code, lambda: None) if ending.first_rank() else ending.follow(code)


def _dispatch(arguments: list[str], console: Console) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"fastimg {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in _COMMANDS:
        raise UsageError(f"no command {command!r}{nearest(command, _COMMANDS) or ';'} `fastimg --help` lists them")
    settings: Any = _parse(command, rest)
    _refuse(command, settings)
    # Imported when needed: torch takes seconds, and `--help` should not.
    if command == "convert":
        from fastimg.convert.pipeline import convert
        from fastimg.convert.report import print_report

        report = convert(settings, console)
        if settings.json:
            print(report.to_json())
        else:
            print_report(report, terminal.console())
        return 0
    if command == "verify":
        from fastimg.convert.verify import verify

        return verify(settings, terminal.console(), console)
    if command == "inspect":
        from fastimg.inspect.images import inspect_data

        inspect_data(settings, terminal.console(), console)
        return 0
    if command == "train":
        if ending.first_rank():
            terminal.say(terminal.console(), f"starting    fastimg {__version__}; importing torch takes a few seconds")
        from fastimg.train.loop import train

        return _signal_code(train(settings, terminal.console()).signal)
    if command == "eval":
        from fastimg.predict.evaluation import evaluate_checkpoint

        evaluate_checkpoint(settings, terminal.console(), console)
        return 0
    if command == "predict":
        from fastimg.predict.prediction import predict

        return predict(settings, terminal.console(), console)
    if command == "export":
        from fastimg.predict.export import export

        return export(settings, terminal.console())
    if command == "embed":
        from fastimg.predict.embedding import embed

        embed(settings, terminal.console(), console)
        return 0
    if command == "bench":
        from fastimg.bench.benchmark import bench

        bench(settings, terminal.console(), console)
        return 0
    if command == "doctor":
        from fastimg.doctor.diagnosis import doctor

        return doctor(settings, terminal.console())
    if command == "recipe":
        _recipe(settings, terminal.console())
        return 0
    from .demo import demo

    return _signal_code(demo(settings, terminal.console()))


def _refuse(command: str, settings: Any) -> None:
    """Refuse what the settings alone show to be wrong, before torch is imported, which takes seconds.

    Raises UsageError, UserError and DataError.
    """
    from .config import rule_tables as tables

    rules = {
        "train": tables.TRAIN,
        "eval": tables.EVAL,
        "predict": tables.PREDICT,
        "embed": tables.EMBED,
        "bench": tables.BENCH,
    }
    if command in rules and getattr(settings, "weights", None) is None:
        refuse(settings, rules[command])
    elif command in rules:  # weights may state further settings, on which other rules depend
        refuse(settings, [rule for rule in rules[command] if isinstance(rule, Range | Excludes)])
    if command == "export":
        _ = settings.chosen_format  # refused where nothing names one
    if command in ("eval", "predict", "export"):
        from .train.checkpoints.model_files import find

        find(settings.checkpoint)
    if command in ("train", "eval", "embed", "bench") and settings.data is not None:
        from .loaders.containers.datasets import refuse_no_folder

        refuse_no_folder(settings.data)


def _signal_code(signal: int) -> int:
    return 128 + signal if signal else 0


def _parse(command: str, arguments: list[str]) -> Any:
    kind = _COMMANDS[command]
    options: dict[str, Any] = {"prog": f"fastimg {command}", "description": kind.__doc__}
    options["config"] = (tyro.conf.DisallowNone,)  # None is for a flag that was left out, not one of its values
    if not {"-h", "--help"}.isdisjoint(arguments):
        flags.fold_descriptions(kind)
    flags.check(command, kind, arguments, _COMMANDS)
    for flag, meaning in _NUMBERS.items():
        arguments = _with_number(arguments, flag, meaning)
    for flag in _LISTS:
        arguments = _together(arguments, flag)
    if kind is not config.Train:
        return _parsed(kind, arguments, **options)
    for flag, (meaning, words) in _ALONE.items():
        arguments = _with_value(arguments, flag, meaning, words)
    resumed, recipe = _value(arguments, "--resume"), _value(arguments, "--recipe")
    path, file = _value(arguments, "--config"), {}
    if path is not None:
        file = configfile.read(Path(path), config.Train)
    elif recipe is None and resumed not in (None, "auto") and (Path(str(resumed)) / "config.yaml").exists():
        file = configfile.read(Path(str(resumed)) / "config.yaml", config.Train)
    if recipe is not None:
        file = {**file, "recipe": recipe}
    default = configfile.combined(file)
    parsed = _parsed(config.Train, arguments, default=default, **options)
    given = {name: value for name, value in vars(parsed).items() if value != getattr(default, name)}
    return configfile.combined(file, given)


def _parsed(kind: type, arguments: list[str], **options: Any) -> Any:
    """Parse the arguments with tyro. Only rank 0 prints help and errors, which are the same on every rank."""
    if ending.first_rank():
        return tyro.cli(kind, args=arguments, **options)
    nowhere = io.StringIO()  # tyro's own switch lets some faults through
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        return tyro.cli(kind, args=arguments, **options)


def _with_value(arguments: list[str], flag: str, meaning: str, words: Collection[str]) -> list[str]:
    """Give `flag` the value `meaning` if it has none. Raises UsageError if it has one that is not among `words`."""
    if flag not in arguments:
        return arguments
    at = arguments.index(flag) + 1
    if at == len(arguments) or arguments[at].startswith("-"):
        return [*arguments[:at], meaning, *arguments[at:]]
    if words and arguments[at] not in words:
        raise UsageError(
            f"{flag} {arguments[at]}: give {', '.join(words)}, or nothing, which is {meaning}"
            f"{nearest(arguments[at], words) or f'; where DATA follows, write {flag}={meaning}'}"
        )
    return arguments


def _together(arguments: list[str], flag: str) -> list[str]:
    """Give `flag` once, last, with the values of every time it was given: tyro would take the last ones alone."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if sum(argument.partition("=")[0] == flag for argument in arguments[:end]) < 2:
        return arguments
    rest: list[str] = []
    values: list[str] = []
    follows = False  # whether the argument belongs to the flag
    for argument in arguments[:end]:
        name, equals, value = argument.partition("=")
        if name == flag:
            values += [value] if equals else []
            follows = not equals
        elif follows and not argument.startswith("-"):
            values.append(argument)
        else:
            follows = False
            rest.append(argument)
    return [*rest, flag, *values, *arguments[end:]]


def _with_number(arguments: list[str], flag: str, meaning: str) -> list[str]:
    """Give `flag` the value `meaning` if no number follows it."""
    if flag not in arguments:
        return arguments
    at = arguments.index(flag) + 1
    if at < len(arguments) and (arguments[at].lstrip("-").isdecimal() or arguments[at] == "off"):
        return arguments
    return [*arguments[:at], meaning, *arguments[at:]]


def _recipe(settings: config.Recipe, console: Console) -> None:
    """`fastimg recipe list`, `fastimg recipe show NAME`."""
    if settings.action == "list":
        if settings.name is not None:
            raise UsageError(f"recipe list {settings.name}: give no name, or `fastimg recipe show {settings.name}`")
        purposes = {name: recipes.purpose(name) for name in recipes.RECIPES}
        if settings.json:
            print(json.dumps([{"name": name, "for": purpose} for name, purpose in purposes.items()]))
            return
        table = Table("recipe", Column("for", overflow="fold"), box=None, pad_edge=False)
        for name, purpose in purposes.items():
            table.add_row(name, purpose)
        console.print(table, highlight=False)
        return
    if settings.name is None:
        raise UsageError("recipe show: which? `fastimg recipe list` shows all of them")
    values, about = recipes.settings(settings.name), recipes.about(settings.name)
    if settings.json:
        print(json.dumps({"name": settings.name, "about": about, "settings": values}))
        return
    print("\n".join(f"# {line}".rstrip() for line in [f"recipe {settings.name}", "", *about.splitlines()]))
    print(configfile.dump(values), end="")


def _value(arguments: list[str], name: str) -> str | None:
    for at, argument in enumerate(arguments):
        if argument == name and at + 1 < len(arguments):
            return arguments[at + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return None


def _overview() -> str:
    lines = [
        "usage: fastimg COMMAND ...",
        "",
        "Images from disk to a training GPU at full speed, and the trainer around it.",
        "",
        "commands:",
        *(
            f"  {name:<9} {str(kind.__doc__).split('. ')[0].splitlines()[0].rstrip('.')}"
            for name, kind in _COMMANDS.items()
        ),
        "",
        "`fastimg COMMAND --help` shows a command's flags. Begin with `fastimg demo`.",
    ]
    return "\n".join(lines)
