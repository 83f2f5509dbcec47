"""An extra is advised by a command that works where fastimg was installed from."""

import json
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from fastimg.loaders import extras

ROOT = Path(extras.__file__).resolve().parents[1]


@pytest.fixture
def copied(monkeypatch):
    """`copied(stated)`: as if the package was not a clone's, and its installer wrote that down."""

    class Distribution:
        def __init__(self, stated):
            self.stated = stated

        def read_text(self, name):
            return self.stated if name == "direct_url.json" else None

    def become(stated):
        monkeypatch.setattr(extras, "_clone", lambda: None)
        monkeypatch.setattr(metadata, "distribution", lambda _name: Distribution(stated))
        extras._origin.cache_clear()

    yield become
    extras._origin.cache_clear()


def test_a_clone_is_synchronised_by_uv_and_any_other_environment_by_pip(monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    assert extras.install("tune") == "uv sync --inexact --extra tune"
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert extras.install("tune") == f"pip install -e '{ROOT}[tune]'"


@pytest.mark.parametrize(
    ("stated", "origin"),
    [
        ({"url": "file:///src/fastimg", "dir_info": {}}, "file:///src/fastimg"),
        ({"url": "file:///w/fastimg-0.1.0.whl", "archive_info": {}}, "file:///w/fastimg-0.1.0.whl"),
        ({"url": "https://h/f.git", "vcs_info": {"vcs": "git", "commit_id": "0a1"}}, "git+https://h/f.git@0a1"),
        (None, "URL-OF-FASTIMG"),
    ],
)
def test_elsewhere_pip_installs_it_from_where_it_came(stated, origin, copied):
    copied(None if stated is None else json.dumps(stated))
    assert extras.install("tune") == f"pip install 'fastimg[tune] @ {origin}'"


def test_no_message_and_no_page_advises_an_extra_from_an_index():
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    files += [file for part in ("fastimg", "loaders", "augment") for file in (ROOT / part).rglob("*.py")]
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"""install ["']fastimg\[[^\]]*\]["']""", line)
    ]
    assert len(files) > 100 and found == []
