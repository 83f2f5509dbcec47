"""Commands on the URL of a class folder that nobody has converted: what they say of the folder that it is a copy of."""

import csv
import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from fastimg import cli
from fastimg.bench import dataset
from fastimg.bench.budget import QUICK, Effort, Timetable
from fastimg.bench.stage_table import measure
from fastimg.config.searching import Suggest
from fastimg.data.elsewhere import as_given, with_local_data
from fastimg.loaders.remote.mirrors import open_mirror
from fastimg.loaders.remote.plain import groups
from fastimg.suggest.survey import survey

from .answers import FLAGS, answer

pytest.importorskip("obstore", reason="the extra `remote` is not installed")


@pytest.fixture(scope="module")
def photos(tmp_path_factory, write_images) -> Path:
    """Class folders, in which a file is no image and another is damaged."""
    folder = write_images(tmp_path_factory.mktemp("store") / "photos")
    first = next(path for path in sorted(folder.iterdir()) if path.is_dir())
    (first / "notes.md").write_text("no image")
    (first / "damaged.jpg").write_bytes(b"\xff\xd8\xff no more of it")
    return folder


@pytest.fixture(scope="module")
def trained(photos: Path) -> Path:
    runs = photos.parent / "runs"
    assert cli.run(["train", str(photos), *FLAGS, "--order", "sequential", "--output", str(runs), "--name", "a"]) == 0
    return runs / "a"


def test_a_run_is_that_of_the_folder_to_the_bit(photos, trained, cache, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(groups, "MOST", 5)
    url = f"file://{photos}"
    flags = [*FLAGS, "--order", "sequential", "--output", str(tmp_path / "runs"), "--name", "b"]
    assert cli.run(["train", url, *flags, *cache, "--cache-limit", "1GB"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"files come from {url} one by one, 32 at a time, into {cache[1]}, at most 1.0 GB of them" in said
    assert "is a plain folder: " in said and f"`fastimg convert {url} DST` checks every image once" in said
    assert "the first batch waits for about" in said and "group" in said
    here, there = (load_file(run / "last/model.safetensors") for run in (trained, tmp_path / "runs/b"))
    assert all(torch.equal(here[name], there[name]) for name in here)


def test_the_order_of_the_store_mixes_the_classes(photos, cache, tmp_path, capsys):
    flags = [*FLAGS, "--output", str(tmp_path / "runs"), "--name", "b"]
    assert cli.run(["train", f"file://{photos}", *flags, *cache]) == 0
    assert "order: quasi-random" in (tmp_path / "runs/b/config.yaml").read_text()
    capsys.readouterr()
    found = answer(capsys, "eval", str(tmp_path / "runs/b"), f"file://{photos}", "--workers", "1", *cache)
    assert found["data"] == f"file://{photos}"


def test_eval_inspect_and_verify(photos, trained, cache, capsys):
    url = f"file://{photos}"
    for command in (
        ("eval", str(trained), "DATA", "--workers", "1"),
        ("inspect", "DATA", "--no-pictures"),
        ("verify", "DATA", "--deep"),
    ):
        code = int(command[0] == "verify")
        here = answer(capsys, *[str(photos) if each == "DATA" else each for each in command], code=code)
        there = answer(capsys, *[url if each == "DATA" else each for each in command], *cache, code=code)
        said = json.loads(json.dumps(here).replace(str(photos), url))
        assert there == said | {"data": url}


def test_predict_reads_all_images_of_any_folder(photos, trained, cache, tmp_path, capsys):
    folder = next(path for path in sorted(photos.iterdir()) if path.is_dir())  # no class folders in it
    for name, data, more in (("here", str(folder), ()), ("there", f"file://{folder}", cache)):
        table = tmp_path / f"{name}.csv"
        assert (
            cli.run(["predict", str(trained), data, "--workers", "1", "--csv", str(table), *more]) == 1
        )  # one is damaged
    here, there = (list(csv.reader((tmp_path / f"{name}.csv").read_text().splitlines())) for name in ("here", "there"))
    assert [[f"file://{row[0]}", *row[1:]] for row in here[1:]] == there[1:] and len(there) > 3
    said = " ".join(capsys.readouterr().err.split())
    assert f"files come from file://{folder}" in said and "1 of 13 files could not be read" in said
    assert any(row[0] == f"file://{folder}/damaged.jpg" for row in there)


def test_predict_reads_single_files(photos, trained, server, tmp_path, capsys):
    one, two = sorted(photos.rglob("*.jpg"))[1:3]
    (server.folder / "x #1.jpg").write_bytes(one.read_bytes())
    (server.folder / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    options = [f"{name}={value}" for name, value in server.options.items()]
    urls = ("s3://bucket/x #1.jpg", f"file://{two}", "s3://bucket/broken.jpg")
    store = ("--storage-option", *options)

    def predicted(*files: str) -> list[dict[str, object]]:
        code = cli.run(["predict", str(trained), *files, "--workers", "1", "--json"])
        assert code == any("broken" in file for file in files)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    found, here = predicted(*urls, str(one), *store), predicted(str(one), str(two))
    for answered, file, same in ((found[0], urls[0], here[0]), (found[1], urls[1], here[1]), (found[3], one, here[0])):
        assert answered == same | {"file": str(file)}
    assert (found[2]["file"], found[2]["classes"]) == (urls[2], []) and found[2]["error"]
    server.faults = [("x #1.jpg", "flip")]
    assert predicted(urls[0], *store) == found[:1] and server.faults == []
    assert cli.run(["predict", str(trained), "s3://bucket/none.jpg", *store]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "s3://bucket/none.jpg: not found: no such file or bucket; check the URL and --storage-option" in said
    assert not list(tmp_path.rglob("fastimg-predict-*"))


def test_predict_of_a_url_that_is_given_twice(photos, trained, capsys):
    """Each row has the answer of its own file, as with files here."""
    one, two = sorted(photos.rglob("*.jpg"))[1:3]

    def predicted(*files: str) -> list[dict[str, object]]:
        assert cli.run(["predict", str(trained), *files, "--workers", "1", "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    files = [str(one), str(one), str(two)]
    here = predicted(*files)
    assert here[0] == here[1] and here[0]["probabilities"] != here[2]["probabilities"]
    there = predicted(*(f"file://{file}" for file in files))
    assert there == [answer | {"file": f"file://{answer['file']}"} for answer in here]


def test_embed(photos, trained, cache, tmp_path):
    flags = ("--weights", str(trained), "--format", "npy", "--workers", "1", "--no-amp")
    for name, data, more in (("here", str(photos), ()), ("there", f"file://{photos}", cache)):
        assert cli.run(["embed", data, str(tmp_path / name), *flags, *more]) == 0
    for file in ("train.npy", "train.keys.json", "train.labels.npy"):
        assert (tmp_path / "there" / file).read_bytes() == (tmp_path / "here" / file).read_bytes()


def test_bench_measures_with_the_first_groups_and_the_network(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "_FETCHED", 1)
    monkeypatch.setattr(groups, "MOST", 5)
    mirror = open_mirror(f"file://{photos}", tmp_path / "cache", "10MB")
    images = dataset.open_images(mirror.folder, "train", 0)
    assert 0 < len(images.ids) <= 5 and not images.local
    timetable = Timetable(expected={"the network": 0.0}, progress=Console(quiet=True))
    effort = Effort(repeats=1, budget=replace(QUICK, training=0.01), timetable=timetable, advice=False)
    (row,) = measure(images, None, None, ("network",), 1, 1, effort)
    assert row.rate.median == pytest.approx(row.bytes_rate / images.mean_bytes)
    assert [path.name for path in mirror.folder.glob("*.files")] == ["train-00000.files"]
    images.dataset.close()


def test_bench_of_a_folder_without_classes(photos, tmp_path):
    folder = next(path for path in sorted(photos.iterdir()) if path.is_dir())
    mirror = open_mirror(f"file://{folder}", tmp_path / "cache", None)
    images = dataset.open_images(mirror.folder, "train", 0)
    assert len(images.dataset) == len(list(folder.glob("*.*"))) - 1  # but for notes.md
    images.dataset.close()


def test_suggest_looks_at_it(photos, tmp_path):
    config = with_local_data(Suggest(data=Path(f"file://{photos}"), cache_dir=tmp_path / "cache", workers="1"))
    with ExitStack() as stack:
        found = survey(config, Console(quiet=True), stack).survey
    assert as_given(found.path) == f"file://{photos}" and found.folder and found.unreadable == 1


def test_doctor_counts_files(photos, cache, capsys, monkeypatch):
    found = [path for path in photos.rglob("*") if path.is_file()]
    stored = answer(capsys, "doctor", f"file://{photos}", *cache)["store"]
    assert (stored["files"], stored["shards"], stored["samples"]) == (len(found), 0, None)
    assert stored["bytes"] == sum(path.stat().st_size for path in found)


def test_what_is_said_of_an_empty_folder(tmp_path, cache, capsys):
    (tmp_path / "none").mkdir()
    assert cli.run(["train", f"file://{tmp_path}/none", *FLAGS, *cache]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "not found, nor any other file; the folder must be one that `fastimg convert` has written, or hold" in said
    (tmp_path / "none/a.jpg").write_bytes(b"x")
    assert cli.run(["train", f"file://{tmp_path}/none", *FLAGS, *cache]) == 1
    assert f"file://{tmp_path}/none: has no class folders; put the images" in " ".join(capsys.readouterr().err.split())


def test_other_loaders_read_only_what_is_here(photos, cache, capsys):
    assert cli.run(["train", f"file://{photos}", *FLAGS, "--loader", "torch", *cache]) == 2
    assert "reads only data on this machine" in " ".join(capsys.readouterr().err.split())
