"""The tested versions in pyproject.toml: complete, names and versions only, and within its ranges."""

import re
import runpy
import shutil
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KEPT = PROJECT["tool"]["uv"]["constraint-dependencies"]


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts/pins.py"))


def test_names_and_versions_alone():
    assert len(KEPT) > 50
    assert [
        pin for pin in KEPT if not re.fullmatch(r"[a-z0-9-]+==[0-9][a-z0-9.]*( ; python_full_version .*)?", pin)
    ] == []


def test_they_are_within_the_ranges():
    """Packages of the project, its development tools, the peers and the documentation tools."""
    kept = defaultdict(list)
    for pin in map(Requirement, KEPT):
        kept[pin.name] += [specifier.version for specifier in pin.specifier]
    groups = PROJECT["dependency-groups"]
    for asked in map(
        Requirement, [*PROJECT["project"]["dependencies"], *groups["dev"], *groups["peers"], *groups["docs"]]
    ):
        versions = kept[canonicalize_name(asked.name)]
        assert versions and all(asked.specifier.contains(version) for version in versions), asked


@pytest.mark.skipif(shutil.which("uv") is None or not (ROOT / "uv.lock").exists(), reason="no uv.lock, or no uv")
def test_they_are_what_is_installed(script):
    """`uv run scripts/pins.py` writes them again, `scripts/upgrade` looks for newer ones."""
    exported = subprocess.run(script["EXPORT"].split(), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert script["pins"](exported) == KEPT


def test_conditions_are_kept_where_versions_differ(script):
    exported = (
        "a==1 ; sys_platform == 'linux'\nb==2 ; python_full_version < '3.12'\nb==3 ; python_full_version >= '3.12'\n\n"
    )
    assert script["pins"](exported) == [
        "a==1",
        "b==2 ; python_full_version < '3.12'",
        "b==3 ; python_full_version >= '3.12'",
    ]


def test_the_file_is_written_in_place(script):
    text = (ROOT / "pyproject.toml").read_text()
    written = script["with_pins"](text, ["a==1"])
    assert tomllib.loads(written)["tool"]["uv"].pop("constraint-dependencies") == ["a==1"]
    assert script["with_pins"](written, KEPT) == text
    with pytest.raises(ValueError, match="restore the line"):
        script["with_pins"]("", [])
