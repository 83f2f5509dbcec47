"""What commands print with --json, for tests of several kinds of data."""

import json
from typing import Any

from fastimg import cli

FLAGS = ("--arch", "test_resnet", "--img-size", "32", "-b", "8", "--workers", "1", "--no-amp", "--epochs", "1")


def answer(capsys: Any, *arguments: str, code: int = 0) -> Any:
    """What the command prints, which ends with this exit code."""
    assert cli.run([*arguments, "--json"]) == code, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)
