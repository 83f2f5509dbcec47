"""Tests with other projects' readers. They need packages that build from source, so they have a separate environment:

    apt-get install -y --no-install-recommends libopencv-dev libturbojpeg0-dev pkg-config
    UV_PROJECT_ENVIRONMENT=build/peers uv sync --group peers --group trackers
    build/peers/bin/python -m pytest -W ignore tests/peers

`-W ignore`: ignore the warnings of other projects. The tests run only if the command line names tests/peers; a missing
package is then an error, except those of the group `loaders`, whose tests are skipped without them. Otherwise they are
skipped, and the summary says so.
"""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.internal.observability  # noqa: F401  see below
import pytest

from .clients import CLIENTS, write_coloured

# Hypothesis' plugin imports it at the very end, when FFCV has run and CPython 3.11 sometimes fails to compile anything
# (SystemError: AST constructor recursion depth mismatch).

HERE = Path(__file__).parent


def _asked_for(config: pytest.Config) -> bool:
    paths = [Path(config.invocation_params.dir, argument.split("::")[0]) for argument in config.args]
    return any(path.resolve() == HERE or HERE in path.resolve().parents for path in paths)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip this folder unless it was requested by name."""
    return True if HERE in collection_path.parents and not _asked_for(config) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Mention the skipped folder."""
    if not _asked_for(config):
        terminalreporter.write_line("tests/peers not run: other people's readers, see tests/peers/conftest.py")


@pytest.fixture(scope="session", autouse=True)
def numba_types_are_kept() -> None:
    """FFCV, which some tests use directly, would change one of numba's types for the whole process."""
    ffcv = pytest.importorskip("fastimg.loaders.backends.ffcv", exc_type=ImportError)
    ffcv.keep_numba_types()


@pytest.fixture(scope="session")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train and val, 45 and 23 images of one colour each: see clients.py."""
    return write_coloured(tmp_path_factory.mktemp("coloured"))


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run a client in this process, which has imported its libraries: (client, data, options) -> what it wrote."""

    def run(client: str, data: Path, *options: object) -> dict[str, Any]:
        out = tmp_path / f"{client}.json"
        monkeypatch.setattr(sys, "argv", [client, *map(str, (data, "--out", out, *options))])
        monkeypatch.syspath_prepend(str(CLIENTS))
        runpy.run_path(str(CLIENTS / f"{client}.py"), run_name="__main__")
        written: dict[str, Any] = json.loads(out.read_text())
        return written

    return run
