"""Write fastimg/__init__.pyi, the signatures of fastimg's functions for type checkers and editors.

    uv run scripts/signatures.py

They are made from the commands' dataclasses; a test fails if the file is out of date.
"""

import inspect
import subprocess
from pathlib import Path

import fastimg
from fastimg.signatures import shown, written

STUB = Path(fastimg.__file__).with_suffix(".pyi")
HEAD = """\
# Written by scripts/signatures.py: do not edit.
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from fastimg import augment as augment
from fastimg import loaders as loaders
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

__version__: str
"""


def stub() -> str:
    """The contents of the file, before formatting."""
    parts = [HEAD, f"__all__ = {fastimg.__all__!r}\n"]
    for name in fastimg.__all__:
        if name in ("augment", "loaders"):
            continue
        signature = inspect.signature(getattr(fastimg, name))
        parameters = []
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
                parameters.append("*")
            default = "" if parameter.default is parameter.empty else f" = {shown(parameter.default)}"
            parameters.append(f"{parameter.name}: {written(parameter.annotation)}{default}")
        page = inspect.getdoc(getattr(fastimg, name)) or ""
        purpose = page.partition("\n\n")[0]
        doc = f'"""{purpose}\n\n    `help(fastimg.{name})` describes each setting.\n    """'
        parts.append(f"def {name}({', '.join(parameters)}) -> {signature.return_annotation}:\n    {doc}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    STUB.write_text(stub())
    subprocess.run(["ruff", "format", "-q", str(STUB)], check=True)
