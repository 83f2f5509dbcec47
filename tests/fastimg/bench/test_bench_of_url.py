"""`fastimg bench` on the URL of a slow store, from end to end: the network limits."""

import dataclasses
import json
from pathlib import Path

import pytest
from rich.console import Console

from fastimg.bench import budget, request, training
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert

from ...loaders.remote.object_server import ObjectServer

pytest.importorskip("obstore", reason="the extra `remote` is not installed")
pytestmark = pytest.mark.slow

URL = "s3://bucket/D"
MODEL = ("--arch", "test_resnet", "--img-size", 32, "-b", 4, "-j", 1, "--no-amp")


@pytest.fixture
def server(named_server: ObjectServer, write_images, tmp_path: Path, monkeypatch) -> ObjectServer:
    """A dataset of many small shards, in a store that answers after a fifth of a second."""
    short = {"epoch": 0.01, "training": 0.01, "stage": 0.01, "nbytes": 1 << 16}
    monkeypatch.setattr(request, "QUICK", dataclasses.replace(budget.QUICK, **short))
    monkeypatch.chdir(tmp_path)
    images = write_images(tmp_path / "images")
    convert(Convert(src=images, dst=named_server.folder / "D", val_fraction=0, shard_size="6KB"), Console(quiet=True))
    named_server.latency = 0.2
    return named_server


def limit(server: ObjectServer) -> int:
    """Bytes of a cache that holds half of the shards."""
    return sum(path.stat().st_size for path in (server.folder / "D").glob("*.tar")) // 2


def test_bench(cli, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of training is made up, as a busy machine may let it disagree with itself; that of the store is not."""
    monkeypatch.setattr(training, "synthetic_rate", lambda rig, budget: 2000.0)
    monkeypatch.setattr(training, "real_rate", lambda rig, warm, **_: 40.0)
    monkeypatch.setattr(training, "doubts", lambda *_: ())
    cache = ("--cache-dir", tmp_path / "cache", "--cache-limit", limit(server))
    ran = cli("bench", URL, *MODEL, "--images", 16, "--repeats", 1, "--json", *cache)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    (network,) = (stage for stage in found["stages"] if stage["stage"] == "network")
    assert 0 < network["images_per_second"] < 100  # eight shards in a fifth of a second
    assert found["verdict"].startswith("network-bound"), found["verdict"]
