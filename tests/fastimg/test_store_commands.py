"""The commands that read, on the URL of a dataset: what they say of the folder that it is a copy of."""

import csv
import json
import shutil
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from fastimg import cli
from fastimg.bench import dataset
from fastimg.bench.budget import QUICK, Effort, Timetable
from fastimg.bench.stage_table import measure
from fastimg.bench.verdict import Measured, judge, together
from fastimg.config.commands import Convert
from fastimg.config.searching import Search, Suggest
from fastimg.convert.pipeline import convert
from fastimg.data.elsewhere import as_given, setting_of, with_local_data
from fastimg.doctor import diagnosis
from fastimg.loaders import open_dataset
from fastimg.loaders.captions.captions import captions_of
from fastimg.loaders.remote.mirrors import open_mirror
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.search.request import request
from fastimg.search.staged.encoders import facts
from fastimg.suggest.survey import survey
from fastimg.train.checkpoints.run_uploads import RunUploads

from .answers import FLAGS, answer
from .doctor.test_doctor import GOOD

pytest.importorskip("obstore", reason="the extra `remote` is not installed")


@pytest.fixture(scope="module")
def shards(tmp_path_factory, write_images) -> Path:
    folder = tmp_path_factory.mktemp("store") / "D"
    convert(
        Convert(src=write_images(folder.parent / "images"), dst=folder, val_fraction=0.25, shard_size="20KB"),
        Console(quiet=True),
    )
    return folder


@pytest.fixture(scope="module")
def trained(shards: Path) -> Path:
    runs = shards.parent / "runs"
    assert cli.run(["train", str(shards), *FLAGS, "--output", str(runs), "--name", "a"]) == 0
    return runs / "a"


def test_verify(shards, cache, tmp_path, capsys):
    url = f"file://{shards}"
    found = answer(capsys, "verify", url, "--deep", *cache)
    here = answer(capsys, "verify", str(shards), "--deep")
    assert found == here | {"data": url}
    shard = next(shards.glob("train-*.tar"))
    content = shard.read_bytes()
    shard.write_bytes(content[:600] + b"?" + content[601:])  # the cache holds it as it was
    try:
        found = answer(capsys, "verify", url, *cache, code=1)
    finally:
        shard.write_bytes(content)
    assert [fault["name"] for fault in found["faults"]] == [f"{url}/{shard.name}"]
    assert found["faults"][0]["fault"].startswith("fetched 2 times, and its checksum is")  # the file is named beside it


def test_verify_compares_sha256_and_the_quick_sum(shards, cache, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(shards, copy)
    text = (copy / "dataset.json").read_text()
    for key, stated, fault in (
        ("sha256", "0" * 64, "fetched 2 times"),
        ("xxh3", "0" * 32, "xxh3 in dataset.json is of"),
    ):
        description = json.loads(text)
        shard = description["splits"]["train"]["shards"][0]
        shard[key] = stated
        (copy / "dataset.json").write_text(json.dumps(description))
        found = answer(capsys, "verify", f"file://{copy}", *cache, code=1)["faults"]
        assert found[0]["name"].endswith(shard["name"]) and fault in found[0]["fault"]


def test_inspect(shards, cache, capsys):
    url = f"file://{shards}"
    found = answer(capsys, "inspect", url, "--no-pictures", *cache)
    assert found == answer(capsys, "inspect", str(shards), "--no-pictures") | {"data": url}
    assert cli.run(["inspect", url, "--no-pictures", "--split", "tset", *cache]) == 2
    assert f"--split tset: {url} has no such split" in " ".join(capsys.readouterr().err.split())


def test_inspect_of_tars_without_a_description(shards, cache, tmp_path, capsys):
    tars = tmp_path / "tars"
    tars.mkdir()
    for tar in shards.glob("train-*.tar"):
        (tars / tar.name).hardlink_to(tar)
    here = answer(capsys, "inspect", str(tars), "--no-pictures")
    for url in (f"file://{tars}", f"file://{tars}/train-{{00000..{len(list(tars.glob('*.tar'))) - 1:05d}}}.tar"):
        assert answer(capsys, "inspect", url, "--no-pictures", *cache) == here | {"data": url}
    assert answer(capsys, "verify", f"file://{tars}", *cache)["faults"] == []


def test_embed_and_embeddings_that_are_kept(shards, trained, cache, tmp_path, capsys):
    url, flags = f"file://{shards}", ("--weights", str(trained), "--format", "npy", "--workers", "1", "--no-amp")
    for name, data, more in (("here", str(shards), ()), ("there", url, cache)):
        assert cli.run(["embed", data, str(tmp_path / name), *flags, *more]) == 0
    assert json.loads((tmp_path / "there/embeddings.json").read_text())["data"] == url
    for file in ("train.npy", "train.keys.json", "val.labels.npy"):
        assert (tmp_path / "there" / file).read_bytes() == (tmp_path / "here" / file).read_bytes()
    capsys.readouterr()
    frozen = (
        "--weights",
        str(trained),
        "--freeze",
        "backbone",
        "--epochs",
        "1",
        "-b",
        "8",
        "--workers",
        "1",
        "--no-amp",
    )
    runs = ("--output", str(tmp_path / "runs"), "--name", "b")
    assert cli.run(["train", url, *frozen, *runs, *cache]) == 0
    assert f"data: {url}" in (tmp_path / "runs/b/config.yaml").read_text()


def test_predict_and_several_runs_in_one_eval(shards, trained, cache, tmp_path, capsys):
    url = f"file://{shards}"
    table = tmp_path / "classes.csv"
    assert cli.run(["predict", str(trained), url, "--workers", "1", "--csv", str(table), *cache]) == 0
    rows = list(csv.reader(table.read_text().splitlines()))
    described = json.loads((shards / "dataset.json").read_text())
    assert len(rows) - 1 == sum(split["samples"] for split in described["splits"].values())
    assert rows[1][0].endswith((".jpg", ".png", ".jpeg"))
    capsys.readouterr()
    other = trained.parent / "b"
    if not other.exists():
        other.symlink_to(trained)
    there = answer(capsys, "eval", str(trained), str(other), url, "--workers", "1", *cache)
    here = answer(capsys, "eval", str(trained), str(other), str(shards), "--workers", "1")
    assert there == here | {"data": url}


def test_texts_beside_images(shards, tmp_path):
    images = sorted((shards.parent / "images").rglob("*.*"))
    lines = [f"{image},{'' if n % 5 == 0 else f'text {n}'},{image.parent.name}" for n, image in enumerate(images)]
    table = tmp_path / "pairs.csv"
    table.write_text("\n".join(["path,text,label", *lines]))
    texts = {"path_column": "path", "text_column": "text", "val_fraction": 0.0, "shard_size": "20KB"}
    convert(Convert(src=table, dst=tmp_path / "P", **texts), Console(quiet=True))
    found = []
    for path in (tmp_path / "P", open_mirror(f"file://{tmp_path}/P", tmp_path / "cache", None).folder):
        with closing(open_dataset(path)) as data:
            captions = captions_of(path, data)
            there = captions.has_text.nonzero()[0].tolist()
            found.append([(i, bytes(captions.read(i, Scratch()))) for i in there])
            captions.close()
    assert found[0] == found[1] and len(found[0]) == sum(n % 5 != 0 for n in range(len(images)))


def test_suggest_looks_at_it(shards, tmp_path):
    config = with_local_data(Suggest(data=Path(f"file://{shards}"), cache_dir=tmp_path / "cache", workers="1"))
    with ExitStack() as stack:
        found = survey(config, Console(quiet=True), stack).survey
    assert as_given(found.path) == f"file://{shards}" and found.classes == ("blue", "green", "red")


class TestBench:
    def test_measures_with_the_first_shards_and_the_network(self, shards, tmp_path, monkeypatch):
        monkeypatch.setattr(dataset, "_FETCHED", 1)
        mirror = open_mirror(f"file://{shards}", tmp_path / "cache", "60KB")
        images = dataset.open_images(mirror.folder, "train", 0)
        held = [path.name for path in mirror.folder.glob("*.tar")]
        assert held == ["train-00000.tar"] and 0 < len(images.ids) < len(images.dataset)
        timetable = Timetable(expected={"the network": 0.0}, progress=Console(quiet=True))
        effort = Effort(repeats=1, budget=replace(QUICK, training=0.01), timetable=timetable, advice=False)
        (row,) = measure(images, None, None, ("network",), 1, 1, effort)
        assert row.rate.median == pytest.approx(row.bytes_rate / images.mean_bytes) and row.note == "in every epoch"
        assert [path.name for path in mirror.folder.glob("*.tar")] == held  # nothing more was kept
        images.dataset.close()

    def test_says_that_the_network_limits(self):
        rates = {
            "storage": 4000.0,
            "decode": 2000.0,
            "copy": None,
            "augment": None,
            "step": 3000.0,
            "synthetic": 2500.0,
        }
        slow = Measured(**rates, real=480.0, network=500.0)
        assert (
            judge(slow).sentence().startswith("network-bound at 0.19: the network allows 500 img/s, the loader, the ")
        )
        assert judge(replace(slow, network=9000.0, real=1900.0)).kind == "decode-bound"
        assert together(slow) == 500.0


def test_trials_of_a_search_open_the_url(shards, tmp_path):
    url = f"file://{shards}"
    shared = ("--img-size", "32", "--cache-dir", str(tmp_path / "cache"), "--cache-limit", "1GB")
    asked = request(Search(data=Path(url), param=("smoothing=0:0.2",), trials=1, shared=shared))
    assert asked.folder == Path("searches/D") and as_given(asked.data) == url
    assert asked.remembered["data"] == setting_of(asked.data) == url
    assert asked.shared["cache_limit"] == "1GB" and facts(asked.data, asked.shared, 0).train > 0


class TestDoctor:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch):
        monkeypatch.setattr(diagnosis, "look", lambda folder, err: looked.append(folder) or GOOD)
        monkeypatch.setattr(diagnosis, "as_json", lambda facts: {} if facts is GOOD else asdict(facts))
        looked: list[Path] = []
        self.looked = looked

    def test_asks_the_store(self, shards, cache, capsys):
        url = f"file://{shards}"
        found = answer(capsys, "doctor", url, *cache, "--cache-limit", "10MB")["store"]
        tars = list(shards.glob("*.tar"))
        assert found.pop("request_seconds") > 0
        described = json.loads((shards / "dataset.json").read_text())["splits"].values()
        assert found == {
            "url": url,
            "shards": len(tars),
            "bytes": sum(tar.stat().st_size for tar in tars),
            "samples": sum(split["samples"] for split in described),
            "cache": cache[1],
            "cache_limit": 10_000_000,
            "files": None,
        }
        assert self.looked == [Path(cache[1])]  # the disk that is measured is the cache's
        assert cli.run(["doctor", url, *cache, "--cache-limit", "10MB"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert f"`fastimg bench {url}` measures rates" in said and "at most 10.0 MB: all of it" in said

    def test_says_why_it_cannot_be_read(self, tmp_path, capsys):
        assert cli.run(["doctor", f"file://{tmp_path}/none"]) == 1
        assert f"file://{tmp_path}/none: no such folder; check the URL" in " ".join(capsys.readouterr().err.split())
        assert cli.run(["doctor", str(tmp_path), "--cache-limit", "1GB"]) == 2
        assert "--cache-limit" in capsys.readouterr().err


def test_export_checks_with_data_at_a_url(shards, trained, cache, tmp_path, capsys):
    asked = ("export", str(trained), "--format", "safetensors", "--check", "--overwrite", "-o", str(tmp_path))
    there = answer(capsys, *asked, "--check-data", f"file://{shards}", *cache)["check"]
    here = answer(capsys, *asked, "--check-data", str(shards))["check"]
    assert there == here | {"origin": f"images from file://{shards} (val)"}
    assert cli.run([*asked, *cache]) == 2  # nothing is at a URL
    assert "--cache-dir" in capsys.readouterr().err


def test_export_and_push_take_options_of_the_store(server, trained, tmp_path, capsys, monkeypatch):
    url = "s3://bucket/runs/x"
    RunUploads(url, trained, server.options, print).finish(lambda words: None)
    options = [f"{name}={value}" for name, value in server.options.items()]
    store = ("--cache-dir", str(tmp_path / "cache"), "--storage-option", *options)
    capsys.readouterr()
    made = answer(capsys, "export", url, "--format", "safetensors", "-o", str(tmp_path), *store)
    assert made["checkpoint"].startswith(str(tmp_path / "cache/models"))
    assert cli.run(["push", url, "hub://me/x", "--dry-run", *store]) == 0
    assert "dry run" in capsys.readouterr().out
    assert cli.run(["push", str(trained), "hub://me/x", "--dry-run", *store]) == 2
    assert "a URL as DATA, run or result" in " ".join(capsys.readouterr().err.split())
