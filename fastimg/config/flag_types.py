"""Types of flags that may be left out: None means "chosen for you", and `--help` shows no default of its own.

Also tyro's marks, the default that several commands share, and how `--workers` is read.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastimg.errors import UsageError

if TYPE_CHECKING:
    from tyro.conf import Fixed as Fixed
    from tyro.conf import FlagCreatePairsOff as FlagCreatePairsOff
    from tyro.conf import Positional as Positional
    from tyro.conf import Suppress as Suppress
    from tyro.conf import arg as arg
else:
    try:
        from tyro.conf import Fixed, FlagCreatePairsOff, Positional, Suppress, arg
    except ModuleNotFoundError:  # a configuration that is made in Python needs no command line: its types, unmarked

        class _Unmarked:
            def __class_getitem__(cls, kind: Any) -> Any:
                return kind

        Fixed = FlagCreatePairsOff = Positional = Suppress = _Unmarked

        def arg(**_: Any) -> None:
            return None


MAX_PIXELS = 89_478_485  # `loaders.decode.MAX_PIXELS`, without importing the loaders: a test holds them equal

Int = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]
Float = Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")]
Str = Annotated[str | None, arg(metavar="STR", help_behavior_hint="")]
File = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
Pair = Annotated[tuple[float, float] | None, arg(metavar="FLOAT FLOAT", help_behavior_hint="")]
Triple = Annotated[tuple[float, float, float] | None, arg(metavar="FLOAT FLOAT FLOAT", help_behavior_hint="")]


def parse_workers(text: str, automatic: int) -> int:
    """The number of threads that `--workers` gives, `automatic` for `auto`. Raises UsageError."""
    if text == "auto":
        return automatic
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--workers {text}: give auto or a number of threads, 1 or more")
    return int(text)
