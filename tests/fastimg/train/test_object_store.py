"""`train` and `eval` on the URL of a dataset, and what the other commands say of one."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from fastimg import cli
from fastimg.config.commands import Convert, Train
from fastimg.convert.pipeline import convert
from fastimg.loaders import open_dataset
from fastimg.loaders.remote import present_shards
from fastimg.loaders.remote.cache.sizes import in_words
from fastimg.loaders.remote.mirrors import open_mirror
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.reporting import first_shards as reporting

from ..answers import FLAGS


@pytest.fixture
def shards(image_folder: Path, tmp_path: Path, console) -> Path:
    convert(Convert(src=image_folder, dst=tmp_path / "D", val_fraction=0.25, shard_size="20KB"), console)
    return tmp_path / "D"


@pytest.fixture
def console():
    from rich.console import Console

    return Console(quiet=True)


def test_a_run_is_that_of_the_folder_to_the_bit(shards, tmp_path, capsys):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    runs = tmp_path / "runs"
    url, cache = f"file://{shards}", ("--cache-dir", str(tmp_path / "cache"), "--cache-limit", "1GB")
    for name, data, more in (("here", str(shards), ()), ("there", url, cache)):
        flags = [*FLAGS, "--order", "sequential", "--output", str(runs), "--name", name, *more]
        assert cli.run(["train", data, *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"shards come from {url} into {tmp_path}/cache, at most 1.0 GB of them" in said
    tars = [tar.stat().st_size for tar in sorted(shards.glob("train-*.tar"))]
    assert "of the loader's reading was waiting for them" in said
    here, there = (load_file(runs / name / "last/model.safetensors") for name in ("here", "there"))
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert "order: sequential" in (runs / "there/config.yaml").read_text()
    log = rundir.read_log(runs / "there")
    records = [record for record in log if record["kind"] == "train"]
    assert all(record["loader_network_share"] >= 0 for record in records)
    assert sum(record["fetched_bytes"] for record in records) >= sum(tars)
    (epoch,) = (record for record in log if record["kind"] == "epoch")
    assert epoch["fetched_bytes"] >= sum(tar.stat().st_size for tar in shards.glob("val-*.tar")) > 0
    assert all(record["fetched_again_bytes"] == 0 for record in [*records, epoch])
    fetched = in_words(sum(record["fetched_bytes"] for record in [*records, epoch]))
    assert f"{fetched} fetched; " in said
    assert not any("fetched_bytes" in record for record in rundir.read_log(runs / "here"))
    results = []
    for data, more in ((str(shards), ()), (url, cache)):
        assert cli.run(["eval", str(runs / "there"), data, "--workers", "1", "--json", *more]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[1]["data"] == url
    assert [results[1][name] for name in ("top1", "loss", "part")] == [
        results[0][name] for name in ("top1", "loss", "part")
    ]


def test_a_run_that_resumes_with_another_cache_is_the_same_to_the_bit(shards, tmp_path):
    """Not how much may be kept, nor whether anything is, decides which samples come when."""
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    flags = (*FLAGS[:-2], "--sched", "constant", "--warmup", "0ep", "--output", str(tmp_path))

    def trained(name, epochs, limit, *more):
        cache = ("--cache-dir", str(tmp_path / f"cache-{limit}"), "--cache-limit", limit)
        own = ("--name", name, "--epochs", epochs, *cache, *more)
        assert cli.run(["train", f"file://{shards}", *flags, *own]) == 0
        return load_file(tmp_path / name / "last/model.safetensors")

    whole = trained("whole", "2", "1GB")
    trained("parts", "1", "1GB")
    parts = trained("parts", "2", "0", "--resume", "auto")
    assert rundir.load(tmp_path / "parts/config.yaml", Train).order == "quasi-random"
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "D", "--cache-limit", "1GB"), "--cache-limit has no effect without a URL as DATA"),
        (("train", "D", "--storage-option", "region=x"), "--storage-option has no effect without a URL as DATA"),
        (("eval", "runs/a", "D", "--cache-limit", "1GB"), "--cache-limit has no effect without a URL as DATA"),
        (("train", "s3://b/D", "--cache-limit", "much"), "--cache-limit much: give bytes, or a number with KB, MB, GB"),
        (("train", "s3://b/D", "--storage-option", "region"), "--storage-option: give NAME=VALUE, as in region=eu-"),
        (
            ("train", "s3://b/D", "--storage-option", "secret_access_key=x"),
            "--storage-option secret_access_key: is written down with the run",
        ),
        (
            ("train", "s3://b/D", "--loader", "torch"),
            "--loader torch: reads only data on this machine, and DATA is a URL",
        ),
        (("verify", "D", "--cache-dir", "C"), "--cache-dir has no effect without a URL as DATA"),
        (("predict", "runs/a", "x.jpg", "--cache-limit", "0"), "--cache-limit has no effect without a URL as DATA"),
        (("bench", "s3://b/D", "--loaders", "torch"), "--loaders torch: loaders are compared on data of this machine"),
    ],
)
def test_what_is_refused(arguments, sentence, capsys):
    assert cli.run(arguments) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_bucket_of_tars_is_announced_before_it_is_read(shards, tmp_path, monkeypatch, capsys):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    monkeypatch.setattr(present_shards, "_TOLD", 0.0)  # a line for each tar
    tars = tmp_path / "tars"
    tars.mkdir()
    for tar in shards.glob("train-*.tar"):
        (tars / tar.name).hardlink_to(tar)
    files, url = sorted(tars.iterdir()), f"file://{tars}"
    flags = [*FLAGS, "--val-fraction", "0.25", "--output", str(tmp_path / "runs"), "--cache-dir", str(tmp_path / "c")]
    for again in (False, True):
        assert cli.run(["train", url, *flags, "--dry-run"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        told = said.find(f"{url}: {len(files)} files (")
        assert (told < 0) == again  # its index is kept
        assert again or told > said.find(f"shards come from {url}") >= 0
        assert (f"{url}: {len(files) - 1} of {len(files)} files read (" in said) != again


def test_the_first_batch_is_waited_for_aloud(shards, tmp_path, monkeypatch):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    monkeypatch.setattr(reporting, "INTERVAL", 0.001)
    data = open_dataset(open_mirror(f"file://{shards}", tmp_path / "cache").folder)
    run = SimpleNamespace(
        setup=SimpleNamespace(
            data=SimpleNamespace(loader=SimpleNamespace(dataset=data)),
            config=SimpleNamespace(order="quasi-random", order_window=2 * len(data)),
        ),
        progress=SimpleNamespace(step=0),
    )
    said, told = [], threading.Event()

    def say(words):
        said.append(words)
        if len(said) == 2:
            told.set()

    count = len(list(shards.glob("train-*.tar")))
    with reporting.first_shards(run, say):
        assert told.wait(60)
        for index in range(len(data)):
            data.read(index, Scratch())
    assert f"0 of {count} shards in the cache; the first batch waits for about {count} shards" in said[0]
    assert "fetched of about" in said[1] and not any(t.name == "fastimg-first" for t in threading.enumerate())
    said.clear()
    with reporting.first_shards(run, say):  # all of it is here by now
        pass
    assert said == []
    data.close()
