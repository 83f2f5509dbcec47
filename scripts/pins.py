"""Write the tested versions, those in uv.lock, to pyproject.toml as constraints.

    uv run scripts/pins.py            # the versions that are in use now
    uv run scripts/pins.py --none     # none: only the ranges

They apply to `uv run` and `uv sync`. Other installations of fastimg use the ranges. Only names and versions are
written; uv.lock also contains addresses, and stays out of the repository.
"""

import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
BLOCK = re.compile(r"constraint-dependencies = \[\n.*?\]\n", re.DOTALL)
# Packages that CI installs, the project, its development tools, the peers, and the documentation tools; and `loaders`.
EXPORT = (
    "uv export --quiet --frozen --no-hashes --no-annotate --no-header --no-emit-project "
    "--group peers --group loaders --group trackers --group cluster --group docs"
)


def pins(exported: str) -> list[str]:
    """`name==version` for each package of a `uv export`; with a condition if the version depends on one."""
    lines = [[part.strip() for part in line.partition(";")[::2]] for line in exported.splitlines() if line.strip()]
    names = [requirement.partition("==")[0] for requirement, _ in lines]
    return [
        f"{requirement} ; {condition}" if names.count(name) > 1 else requirement
        for name, (requirement, condition) in zip(names, lines, strict=True)
    ]


def with_pins(project: str, pins: list[str]) -> str:
    """The text of pyproject.toml with these constraints."""
    lines = "".join(f'    "{pin}",\n' for pin in pins)
    text, count = BLOCK.subn(lambda _: f"constraint-dependencies = [\n{lines}]\n", project)
    if count != 1:
        raise ValueError(f"{PROJECT}: no constraint-dependencies = [ ... ] in it; restore the line")
    return text


if __name__ == "__main__":
    exported = "" if "--none" in sys.argv else subprocess.check_output(EXPORT.split(), cwd=PROJECT.parent, text=True)
    PROJECT.write_text(with_pins(PROJECT.read_text(encoding="utf-8"), pins(exported)), encoding="utf-8")
