"""Searches on data in an object store that fails: the same trials as on a folder, or a sentence. Trials run here."""

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert

from .test_search import InThisProcess

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

URL = "s3://bucket/D"
SETTINGS = ("--img-size", 32, "-b", 8, "--workers", 1, "--no-amp", "--epochs", 2, "--order", "random")


@pytest.fixture
def server(named_server):
    return named_server


@pytest.fixture
def data(server, image_folder) -> Path:
    """The folder that the store serves as s3://bucket/D."""
    folder = server.folder / "D"
    convert(Convert(src=image_folder, dst=folder, val_fraction=0.25, shard_size="40KB"), Console(quiet=True))
    return folder


@pytest.fixture
def search(cli, tmp_path, monkeypatch):
    """`search(data, folder, *settings)`: two trials."""
    monkeypatch.setattr("fastimg.search.command.TrialPool", InThisProcess)
    monkeypatch.setattr("fastimg.search.param_search.prediction_speed", lambda *_: 100.0)
    monkeypatch.setattr("fastimg.train.reporting.summary.plot_curves", lambda *arguments: arguments[-1].touch())

    def call(given, folder, *settings):
        trials = ("--arch", "test_resnet", "--param", "lr=log:1e-4:1e-2", "--trials", 2, "--device", "cpu")
        return cli("search", given, *trials, "-o", tmp_path / folder, "--", *SETTINGS, *settings)

    return call


def trials(folder: Path):
    rows = json.loads((folder / "leaderboard.json").read_text())["trials"]
    for row in rows:
        for name in ("cache_dir", "cache_limit", "storage_option"):
            row["settings"].pop(name, None)
        for name in ("seconds", "images_per_second"):
            row.pop(name)
    return rows


def test_latencies_of_a_second_silence_and_a_deleted_cache_change_nothing(search, server, data, tmp_path):
    cache, deleted = tmp_path / "cache", []

    def delete(name: str) -> str:
        if name.endswith("train-00001.tar") and not deleted:
            deleted.append(name)
            shutil.rmtree(cache)
        return ""

    server.before, server.latency = delete, 1.0
    server.faults = [("train-00000.tar", "stall")]
    ran = search(URL, "there", "--cache-dir", cache, "--storage-option", "read_timeout=3s")
    assert ran.code == 0 and deleted and server.faults == [], ran.err
    assert search(data, "here").code == 0
    assert trials(tmp_path / "there") == trials(tmp_path / "here")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [("expired", "the credentials have expired"), ("bucket", "no such "), ("stall", "no answer in time")],
)
def test_what_fails_for_good_is_said_and_the_same_command_goes_on(search, server, data, tmp_path, fault, sentence):
    """After the first trial, whose samples were read by ranges."""
    there = ("--cache-dir", tmp_path / "cache", "--cache-limit", 0, "--storage-option", "read_timeout=300ms")
    runs = tmp_path / "there/runs"
    server.before = lambda name: fault if len(list(runs.glob("0*"))) > 1 and "train-0" in name else ""
    lost = search(URL, "there", *there)
    assert lost.code == 1 and sentence in lost.err and "Traceback" not in lost.err
    assert f"{URL}/train-0" in lost.err and len(trials(tmp_path / "there")) == 1
    server.before = lambda name: ""
    on = search(URL, "there", *there)
    assert on.code == 0, on.err
    assert search(data, "here").code == 0
    assert trials(tmp_path / "there") == trials(tmp_path / "here")


def test_a_shard_that_is_replaced_is_named(search, server, data, tmp_path):
    shard = data / "train-00001.tar"
    other = shard.read_bytes()[::-1]

    def replace_shard(name: str) -> str:
        if "train-0" in name and name.endswith(".tar"):
            shard.write_bytes(other)
        return ""

    server.before = replace_shard
    ran = search(URL, "there", "--cache-dir", tmp_path / "cache")
    said = " ".join(f"{ran.out} {ran.err}".split())
    assert ran.code == 1 and f"{URL}/train-00001.tar: " in said and "and its checksum is" in said
    assert "Traceback" not in said
