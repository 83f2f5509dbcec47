"""Shared by the tests of the application: the command line in this process, and one small trained run."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastimg.cli import run
from fastimg.loaders.remote import stores, writable

from ..loaders.remote.object_server import ObjectServer
from .hub_server import HubServer, Repository

TWO_RANKS = """
import json, os, sys
from fastimg import cli
from fastimg.config.rule_tables import conditions
from fastimg.train.reporting import summary
conditions.frozen_at_random = lambda _: False
summary.plot_curves = lambda *_: None
for number, arguments in enumerate(json.loads(sys.argv[1])):
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)  # torchrun keeps one store: the ranks meet anew
    if cli.run(arguments):
        sys.exit(1)
"""
FAST = ("--arch", "test_resnet", "--img-size", "32", "--batch-size", "8", "--workers", "1", "--no-amp")


@dataclass(frozen=True)
class Ran:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True, scope="session")
def freezing_at_random() -> Iterator[None]:
    """Let random weights be frozen, which is refused: tests of what else happens need no trained ones for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastimg.config.rule_tables.conditions.frozen_at_random", lambda _: False)
        yield


@pytest.fixture(autouse=True)
def curves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw curves only in tests marked with this name: they take longer than the training."""
    if not request.node.get_closest_marker("curves"):
        monkeypatch.setattr("fastimg.train.reporting.summary.plot_curves", lambda *_: None)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """`cli("train", folder, ...)`: run a command in this process, on a terminal that does not wrap lines."""
    monkeypatch.setenv("COLUMNS", "400")

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return call


@pytest.fixture
def two_ranks(tmp_path: Path, python: str) -> Callable[..., Ran]:
    """`two_ranks(arguments, ...)`: run commands one after the other on two ranks, which torchrun starts once."""

    def launch(*commands: Sequence[object]) -> Ran:
        script = tmp_path / "two_ranks.py"
        script.write_text(TWO_RANKS)
        launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        texts = json.dumps([[str(argument) for argument in arguments] for arguments in commands])
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [*launcher, str(script), texts]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return launch


@pytest.fixture
def slower() -> Callable[..., Callable[..., Any]]:
    """`slower(method, seconds)`: `method` with a sleep before it."""

    def slow(method: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            time.sleep(seconds)
            return method(*args, **kwargs)

        return wrapped

    return slow


@pytest.fixture
def fast() -> tuple[str, ...]:
    """Flags for a training that takes a moment."""
    return (*FAST, "--epochs", "1")


@dataclass(frozen=True)
class Trained:
    """A folder with train/ and val/ of three colours, its shards, and a run on it. Do not change it: copy it."""

    images: Path
    shards: Path
    run: Path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """24 images for training, 12 for validation, and one run of two epochs."""
    root = tmp_path_factory.mktemp("trained")
    drawn = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for channel, name in enumerate(("blue", "green", "red")):
            folder = root / "images" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = drawn.integers(60, 130, (36 + i, 48, 3), dtype=np.uint8)
                pixels[:, :, 2 - channel] += 100
                Image.fromarray(pixels).save(folder / f"{i}.{'png' if i % 2 else 'jpg'}")
    data, shards = root / "images", root / "shards"
    assert run(["convert", str(data), str(shards)]) == 0
    flags = (*FAST, "--epochs", "2", "--lr", "3e-3", "--no-aug", "--output", str(root / "runs"), "--name", "run")
    assert run(["train", str(data), *flags]) == 0
    return Trained(data, shards, root / "runs" / "run")


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of samples of each encoding pass, as they happen."""
    from fastimg.embeddings.encoder import Encoder

    counts: list[int] = []
    rows = Encoder.rows

    def counting(encoder: Encoder, loader: Any, samples: int, tick: Any) -> Any:
        counts.append(samples)
        return rows(encoder, loader, samples, tick)

    monkeypatch.setattr(Encoder, "rows", counting)
    return counts


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """An empty object store, asked without pauses and only once; nothing is written to the user's cache folder."""
    (tmp_path / "bucket").mkdir()
    monkeypatch.setattr(stores, "PAUSE", 0.0)
    monkeypatch.setattr(writable.WritableFolder, "retries", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    served = ObjectServer(tmp_path / "bucket")
    yield served
    served.close()


@pytest.fixture
def named_server(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """The same store, which the environment names, as users do."""
    for name, value in server.options.items():
        monkeypatch.setenv({"endpoint": "AWS_ENDPOINT_URL"}.get(name, f"AWS_{name.upper()}"), value)
    return server


@pytest.fixture
def cache(tmp_path: Path) -> tuple[str, ...]:
    """Flags of a cache that a test has to itself."""
    return "--cache-dir", str(tmp_path / "cache")


class Hub(HubServer):
    """The server, with repositories that are made where a test first names them."""

    def dataset(self, name: str) -> Repository:
        return self.datasets.setdefault(name, Repository())

    def model(self, name: str) -> Repository:
        return self.models.setdefault(name, Repository())


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that `huggingface_hub` asks in this process, without a token, with a cache of its own."""
    from huggingface_hub import close_session, constants

    from fastimg.convert.hub import ranges

    server = Hub()
    folder = tmp_path_factory.mktemp("hub")
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{server.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(ranges, "PAUSE", 0.0)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    close_session()
    yield server
    close_session()
    server.close()
