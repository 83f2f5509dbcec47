"""Tests with other projects' readers. They need packages that build from source, so they have a separate environment:

    apt-get install -y --no-install-recommends libopencv-dev libturbojpeg0-dev pkg-config
    UV_PROJECT_ENVIRONMENT=build/peers uv sync --group peers --group trackers
    build/peers/bin/python -m pytest -W ignore tests/peers

`-W ignore`: ignore the warnings of other projects. The tests run only if the command line names tests/peers; a missing
package is then an error, except those of the group `loaders`, whose tests are skipped without them. Otherwise they are
skipped, and the summary says so.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.internal.observability  # noqa: F401  see below
import pytest

from .clients import run, write_coloured

# Hypothesis' plugin imports it at the very end, when FFCV has run and CPython 3.11 sometimes fails to compile anything
# (SystemError: AST constructor recursion depth mismatch).

HERE = Path(__file__).parent
FRAMEWORKS = ("accelerate", "lightning", "transformers.trainer")


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


@pytest.fixture(scope="session")
def python(request: pytest.FixtureRequest) -> Iterator[str]:
    """As everywhere, for clients: a server that has imported their frameworks."""
    imported = [name for name in FRAMEWORKS if importlib.util.find_spec(name.split(".")[0])]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FORKSERVER_IMPORTS", " ".join(imported))
        yield request.getfixturevalue("python")


@pytest.fixture(scope="session")
def run_client(python: str) -> Callable[..., list[dict[str, Any]]]:
    """Run a script of benchmarks/clients: see `run` in clients.py."""
    return functools.partial(run, python)
