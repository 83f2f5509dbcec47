"""Descriptions of flags for `--help`, from the strings below the fields of a command's dataclass."""

import ast
import inspect
import itertools
from types import MappingProxyType
from typing import Any, cast


def fold(kind: type[Any]) -> None:
    """Give tyro each description as one line, which it breaks where the terminal ends: it would keep the source's."""
    for base in kind.__mro__[:-1]:
        body = cast(ast.ClassDef, ast.parse(inspect.getsource(base)).body[0]).body
        for field, below in itertools.pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    kind.__dataclass_fields__[name].metadata = MappingProxyType({"help": " ".join(text.split())})
