"""The command line: one frozen dataclass per command, one place where errors become sentences and exit codes.

Exit codes: 0 done, 1 something is wrong with the world, 2 with the command line; 130 and 143 for Ctrl-C and SIGTERM.
"""

import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro
from rich.console import Console

from . import __version__, config, configfile
from .errors import UsageError, UserError, nearest, printable

_T = TypeVar("_T")

_COMMANDS: dict[str, type] = {
    "demo": config.Demo,
    "convert": config.Convert,
    "verify": config.Verify,
    "inspect": config.Inspect,
    "train": config.Train,
    "eval": config.Eval,
    "predict": config.Predict,
}


def main() -> None:
    """The `fastimg` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit code; prints a sentence, not a traceback, for what a person can mend."""
    console = Console(stderr=True)
    rank = os.environ.get("RANK")
    prefix = "fastimg: error: " if rank in (None, "0") else f"fastimg: rank {rank}: error: "
    try:
        return _dispatch(list(arguments), console)
    except UserError as error:
        _say(console, prefix + str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _say(console, "fastimg: interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output has gone: `fastimg ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as stop:  # tyro has printed help, or what is wrong with the flags
        return stop.code if isinstance(stop.code, int) else 2
    except Exception as error:  # noqa: BLE001 - a fault of fastimg: its traceback is what a report needs
        loaders = sys.modules.get("fastimg.loaders.errors")  # not imported above: it brings torch, which takes seconds
        if loaders is not None and isinstance(error, loaders.DataError):
            _say(console, prefix + str(error))
            return 1
        _say(
            console,
            traceback.format_exc() + "fastimg: this is a fault of fastimg; please report it with the lines above",
        )
        return 1


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
    # Imported when needed: torch takes seconds, and `--help` should not.
    if command == "convert":
        from .conversion import print_report
        from .convert import convert

        report = convert(settings, console)
        if settings.json:
            print(report.to_json())
        else:
            print_report(report, Console())
        return 0
    if command == "verify":
        from .verify import verify

        return verify(settings, Console(), console)
    if command == "inspect":
        from .inspect_data import inspect_data

        inspect_data(settings, Console(), console)
        return 0
    if command == "train":
        from .train import train

        return _signal_code(train(settings, Console(soft_wrap=False)).signal)
    if command == "eval":
        from .evaluate import evaluate_checkpoint

        evaluate_checkpoint(settings, Console(), console)
        return 0
    if command == "predict":
        from .predict import predict

        return predict(settings, Console(), console)
    from .demo import demo

    return _signal_code(demo(settings, Console()))


def _signal_code(signal: int) -> int:
    return 128 + signal if signal else 0


def _parse(command: str, arguments: list[str]) -> Any:
    kind = _COMMANDS[command]
    if any(argument == "--resume" for argument in arguments) and kind is config.Train:
        arguments = _with_resume_value(arguments)
    default = _from_file(arguments) if kind is config.Train else None
    options: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(kind, args=arguments, prog=f"fastimg {command}", description=kind.__doc__, **options)


def _with_resume_value(arguments: list[str]) -> list[str]:
    """`--resume` alone means `--resume auto`."""
    at = arguments.index("--resume") + 1
    if at == len(arguments) or arguments[at].startswith("-"):
        return [*arguments[:at], "auto", *arguments[at:]]
    return arguments


def _from_file(arguments: list[str]) -> config.Train | None:
    """Defaults from --config FILE, or from the run that --resume names."""
    given = {name: _value(arguments, name) for name in ("--config", "--resume")}
    if given["--config"] is not None:
        return _flags_win(configfile.load(Path(given["--config"]), config.Train), arguments)
    if given["--resume"] not in (None, "auto"):
        file = Path(str(given["--resume"])) / "config.yaml"
        if file.exists():
            return dataclasses.replace(configfile.load(file, config.Train), resume=given["--resume"])
    return None


def _flags_win(file: config.Train, arguments: list[str]) -> config.Train:
    """A file's settings without those that flags about augmentation contradict."""
    names = {field.name for field in dataclasses.fields(config.Augmenting)}
    given = names & {argument.partition("=")[0].lstrip("-").replace("-", "_") for argument in arguments}
    if _value(arguments, "--aa") == "none":
        given -= {"aa"}
    return configfile.without_contradicted(file, given)


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


def _say(console: Console, text: str) -> None:
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
