"""Parse a Dockerfile, without Docker: `uv run scripts/dockerfile.py [FILE]`. Exit code 1 if it could not be built.

Instructions must exist and begin with FROM, what COPY names must be in the folder, lists must be JSON, bash must read
what RUN runs, and extras of `uv sync` must be those of pyproject.toml.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_KNOWN = {
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "LABEL",
    "RUN",
    "SHELL",
    "USER",
    "VOLUME",
    "WORKDIR",
}


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile and their arguments, without comments, continued lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n", "", lines).splitlines():
        if line.strip():
            name, _, arguments = line.strip().partition(" ")
            yield name, arguments.strip()


def faults(text: str, folder: Path) -> Iterator[str]:
    """What is wrong with a Dockerfile that is built in a folder, in words."""
    parts = list(instructions(text))
    if not parts or parts[0][0] not in ("FROM", "ARG"):
        yield "does not begin with FROM"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name, arguments in parts:
        if name not in _KNOWN:
            yield f"{name}: no such instruction"
        elif not arguments:
            yield f"{name}: nothing follows"
        elif name == "FROM" and not re.fullmatch(r"[\w./-]+:[\w.-]+( AS \w+)?", arguments):
            yield f"FROM {arguments}: name an image with its tag"
        elif name == "COPY":
            sources = [word for word in arguments.split()[:-1] if not word.startswith("--")]
            yield from (f"COPY: {each} does not exist" for each in sources or [""] if not (folder / each).exists())
        elif name in ("CMD", "ENTRYPOINT") and arguments.startswith("["):
            try:
                json.loads(arguments)
            except ValueError:
                yield f"{name} {arguments}: not a list in JSON"
        elif name == "RUN":
            if said := subprocess.run(["bash", "-n"], input=arguments, capture_output=True, text=True).stderr:
                yield f"RUN: {said.strip()}"
            yield from (
                f"RUN: no extra {each}" for each in re.findall(r"--extra (\S+)", arguments) if each not in extras
            )


def main(file: Path) -> int:
    """Print what is wrong. Returns the exit code."""
    found = list(faults(file.read_text(encoding="utf-8"), file.parent))
    print(*(f"{file.name}: {fault}" for fault in found) if found else [f"{file.name}: can be parsed"], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "Dockerfile"))
