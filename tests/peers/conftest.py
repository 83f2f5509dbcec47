"""Judges that we did not write. They need packages that build from source, so an environment of their own:

    apt-get install -y --no-install-recommends libopencv-dev libturbojpeg0-dev pkg-config
    UV_PROJECT_ENVIRONMENT=build/peers uv sync --group peers --group trackers
    build/peers/bin/python -m pytest -W ignore tests/peers

`-W ignore`: their warnings are not ours. The tests run when the command line names tests/peers, and a judge that is
missing is an error then; otherwise they are passed over, and the summary says so.
"""

from pathlib import Path

import hypothesis.internal.observability  # noqa: F401  see below
import pytest

# Hypothesis' plugin imports it at the very end, when FFCV has run and CPython 3.11 sometimes fails to compile anything
# (SystemError: AST constructor recursion depth mismatch).

HERE = Path(__file__).parent


def _asked_for(config: pytest.Config) -> bool:
    paths = [Path(config.invocation_params.dir, argument.split("::")[0]) for argument in config.args]
    return any(path.resolve() == HERE or HERE in path.resolve().parents for path in paths)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over what is in this folder unless it was asked for by name."""
    return True if HERE in collection_path.parents and not _asked_for(config) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say that there is more."""
    if not _asked_for(config):
        terminalreporter.write_line("tests/peers not run: other people's readers, see tests/peers/conftest.py")


@pytest.fixture(scope="session", autouse=True)
def numba_types_are_kept() -> None:
    """FFCV, used directly by some judges, would change one of numba's types for the whole process."""
    ffcv = pytest.importorskip("fastimg.loaders.backends.ffcv", exc_type=ImportError)
    ffcv.keep_numba_types()
