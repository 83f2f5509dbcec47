"""How an optional part of fastimg is installed here: packages that a command needs are listed as its extras."""

import functools
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any


def install(extra: str) -> str:
    """The command that adds an extra: by uv in a clone, else by pip from where this fastimg was installed from.

    It never names an index: there, another package may have the name.
    """
    clone = _clone()
    if clone is None:
        return f"pip install 'fastimg[{extra}] @ {_origin() or 'URL-OF-FASTIMG'}'"
    if Path(sys.prefix).resolve() == clone / ".venv":
        return f"uv sync --inexact --extra {extra}"  # without --inexact, extras that are there already are removed
    return f"pip install -e '{clone}[{extra}]'"  # into another environment than uv's


def _clone() -> Path | None:
    """The clone that this code is imported from, or None where it was copied into an environment."""
    root = Path(__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() else None


@functools.cache
def _origin() -> str | None:
    """The URL that the installed package came from (PEP 610), or None where nobody wrote it down."""
    try:
        text = importlib.metadata.distribution("fastimg").read_text("direct_url.json")
        stated: dict[str, Any] = json.loads(text or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    url, vcs = stated.get("url"), stated.get("vcs_info")
    if not url or vcs is None:
        return url
    return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
