"""Images from disk to a training GPU at full speed, and the trainer around it.

`train`, `convert`, `predict`, `eval`, `export`, `embed`, `inspect`, `search`, `suggest` and `bench` are the commands as
functions; `load` keeps a model in memory. The libraries `fastimg.loaders` and `fastimg.augment` are for your own
training loop. `help` of each of them is a page.
"""

import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _Module
from typing import Any as _Any

__all__ = [
    "augment",
    "bench",
    "convert",
    "embed",
    "eval",
    "export",
    "inspect",
    "load",
    "loaders",
    "predict",
    "search",
    "suggest",
    "train",
]
__version__ = "0.1.0"

_LIBRARIES = ("augment", "loaders")
_PACKAGES = ("bench", "convert", "inspect", "predict", "search", "suggest", "train")  # functions that are packages, too


class _Package(_Module):
    """`fastimg.train` is a function, whatever was imported before, and has the attributes of the package `train`.

    Importing a package sets it as an attribute of the one that it is in, which would replace the function. The function
    has the package's namespace instead, so that `import fastimg.train.loop as loop` and `fastimg.train.loop` work.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _PACKAGES or not isinstance(value, _Module):
            super().__setattr__(name, value)
        if name == "loaders":  # it has just been imported, and does not know augment: it is given what it needs of it
            steps = _import_module(f"{self.__name__}.loaders.migration.steps")
            steps.give(lambda: _import_module(f"{self.__name__}.data.torchvision_steps"))

    def __getattr__(self, name: str) -> _Any:
        if name not in __all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name in _LIBRARIES:
            return _import_module(f"{self.__name__}.{name}")
        function = getattr(_import_module(f"{self.__name__}.api"), name)
        if name not in _PACKAGES:
            return function
        package = _import_module(f"{self.__name__}.{name}")
        vars(package).update(vars(function))  # its signature
        function.__dict__ = vars(package)
        return function

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


_sys.modules[__name__].__class__ = _Package
