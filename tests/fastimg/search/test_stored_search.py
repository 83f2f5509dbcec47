"""The folder of a search in an object store: uploaded behind it, and gone on with where it is fetched. Trials run
here."""

import json
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from fastimg.errors import UserError
from fastimg.search.places import stored_search
from fastimg.search.places.folder import FREED, LOCK, RUNS, STUDY
from fastimg.search.places.stored_search import SearchStore, SearchUploads, folder_here
from fastimg.train.checkpoints.manifests import MANIFEST, OBJECTS
from fastimg.train.checkpoints.stored_runs import manifest_of

from .test_search import InThisProcess

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

URL = "s3://bucket/searches/S"
SETTINGS = ("--img-size", 32, "-b", 8, "--workers", 1, "--no-amp", "--epochs", 1)


@pytest.fixture
def server(named_server):
    return named_server


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home/fastimg"


@pytest.fixture
def search(cli, home, image_folder, monkeypatch):
    """`search(output, trials, *settings)`, of the learning rate."""
    monkeypatch.setattr("fastimg.search.command.TrialPool", InThisProcess)
    monkeypatch.setattr("fastimg.search.param_search.prediction_speed", lambda *_: 100.0)
    monkeypatch.setattr("fastimg.train.reporting.summary.plot_curves", lambda *arguments: arguments[-1].touch())

    def call(output, trials, *settings):
        asked = ("--arch", "test_resnet", "--param", "lr=log:1e-4:1e-2", "--trials", trials, "--device", "cpu")
        return cli("search", image_folder, *asked, "-o", output, "--", *SETTINGS, *settings)

    return call


def trials(folder: Path):
    rows = json.loads((folder / "leaderboard.json").read_text())["trials"]
    for row in rows:
        for name in ("seconds", "images_per_second"):
            row.pop(name)
    return rows


def in_store(server, tmp_path: Path) -> Path:
    """The folder as the manifest has it."""
    folder = tmp_path / "fetched"
    shutil.rmtree(folder, ignore_errors=True)
    manifest = manifest_of(URL, server.options, "search")
    for name, (size, sha256) in manifest.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((server.folder / "searches/S" / OBJECTS / sha256).read_bytes())
        assert (folder / name).stat().st_size == size
    for link, target in manifest.links.items():
        (folder / link).parent.mkdir(parents=True, exist_ok=True)
        (folder / link).symlink_to(target)
    return folder


def test_it_is_the_folder_of_a_search_here(search, cli, server, home, image_folder, tmp_path):
    there = search(URL, 2)
    assert there.code == 0, there.err
    said = " ".join(there.out.split())
    assert f"fastimg search in {URL}" in said and f"uploaded {URL}" in said and f"the best is {URL}/best" in said
    assert str(home) not in said
    assert search(tmp_path / "here", 2).code == 0
    fetched = in_store(server, tmp_path)
    assert trials(fetched) == trials(tmp_path / "here")
    assert os.readlink(fetched / "best") == os.readlink(tmp_path / "here/best")
    assert (fetched / "best/best").is_dir() and {"search.json", "leaderboard.json", STUDY} <= set(os.listdir(fetched))
    assert not {LOCK, ".uploaded", ".uploading"} & set(os.listdir(fetched))

    ran = cli("eval", f"{URL}/best", image_folder, "--workers", 1, "--no-amp", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["top1"] == max(row["value"] for row in trials(fetched))
    ran = cli("eval", URL, image_folder)
    assert ran.code == 1 and f"{URL}: is the folder of a search; give its best run, {URL}/best" in ran.err


def test_another_machine_goes_on_and_the_first_one_after_it(search, server, home, tmp_path):
    assert search(URL, 1).code == 0
    home.rename(tmp_path / "first")
    on = search(URL, 2)  # on a machine that has nothing
    assert on.code == 0, on.err
    assert f"fetching the search at {URL}" in " ".join(on.out.split())
    shutil.rmtree(home)
    (tmp_path / "first").rename(home)
    stale = folder_here(SearchStore(URL, None, {})) / RUNS / "left"
    stale.mkdir()
    on = search(URL, 3)
    said = " ".join(on.out.split())
    assert on.code == 0 and "fetching the search" in said and "the search went on elsewhere" in said
    assert not stale.exists() and len(list(stale.parents[2].glob(f"S-before-*/{RUNS}/left"))) == 1
    again = search(URL, 3)
    assert again.code == 0 and "fetching the search" not in " ".join(again.out.split())
    assert search(tmp_path / "here", 3).code == 0
    assert trials(in_store(server, tmp_path)) == trials(tmp_path / "here")


def test_what_ends_early_is_uploaded(search, server, home, tmp_path, monkeypatch):
    run = InThisProcess.run

    def interrupted(self, jobs, report):
        for number, record in enumerate(run(self, jobs, report)):
            yield record
            if number == 0:
                raise KeyboardInterrupt

    monkeypatch.setattr(InThisProcess, "run", interrupted)
    assert search(URL, 2).code == 130
    monkeypatch.setattr(InThisProcess, "run", run)
    shutil.rmtree(home)
    on = search(URL, 2)
    assert on.code == 0, on.err
    assert "fetching the search" in " ".join(on.out.split())
    assert search(tmp_path / "here", 2).code == 0
    assert trials(in_store(server, tmp_path)) == trials(tmp_path / "here")


def test_an_interrupted_search_that_cannot_be_uploaded_says_so(search, server, home, monkeypatch):
    def interrupted(self, jobs, report):
        (folder_here(SearchStore(URL, None, {})) / RUNS).mkdir()
        server.before = lambda name: "expired"
        raise KeyboardInterrupt

    monkeypatch.setattr(InThisProcess, "run", interrupted)
    ran = search(URL, 1)
    assert ran.code == 130 and "the end of the search could not be uploaded: " in " ".join(ran.out.split())


def test_what_cannot_be_uploaded_is_here_and_the_same_command_uploads_it(search, server, home, tmp_path):
    server.before = lambda name: "expired" if name.startswith("searches/S/objects") else ""
    lost = search(URL, 1)
    said = " ".join(lost.err.split())
    assert lost.code == 1 and "the end of the search could not be uploaded: " in said, lost.err
    assert f"the search is in {folder_here(SearchStore(URL, None, {}))}, and the same command uploads it" in said
    assert "Traceback" not in lost.err and not (server.folder / "searches/S" / MANIFEST).exists()
    server.before = lambda name: ""
    assert search(URL, 1).code == 0
    assert len(trials(in_store(server, tmp_path))) == 1


def test_a_store_that_refuses_says_so_at_once(search, server, home):
    server.before = lambda name: "denied"
    ran = search(URL, 1)
    assert ran.code == 1 and "bucket/searches/S" in ran.err and not list(home.glob("runs/*/S/runs"))


def test_another_cache_is_refused(search, server, home, tmp_path):
    assert search(URL, 1).code == 0
    ran = search(URL, 2, "--cache-dir", tmp_path / "other")
    said = " ".join(ran.err.split())
    assert "uploading" not in ran.out
    assert ran.code == 2 and f"began with cache_dir {home}, and this one has {tmp_path / 'other'}" in said


def test_what_an_interrupted_fetch_has_left_is_fetched_anew(search, server, home, tmp_path):
    assert search(URL, 1).code == 0
    shutil.rmtree(home)
    server.before = lambda name: "expired" if name.startswith("searches/S/objects/") else ""
    lost = search(URL, 1)
    assert lost.code == 1 and "Traceback" not in lost.err
    server.before = lambda name: ""
    on = search(URL, 1)
    assert on.code == 0 and "went on elsewhere" not in on.out
    assert not list(home.glob("runs/*/S-before-*")) and len(trials(in_store(server, tmp_path))) == 1


def test_a_best_run_that_cannot_be_uploaded_says_what_to_do(search, server, home):
    server.before = lambda name: "expired" if name.startswith("searches/S/best/objects/") else ""
    lost = search(URL, 1)
    said = " ".join(lost.err.split())
    assert lost.code == 1 and said.endswith("and the same command uploads it") and "--resume auto" not in said


def test_nothing_is_uploaded_of_a_search_that_is_refused(search, server, home):
    ran = search(URL, 1, "--hflip", "0", "--no-aug")
    assert ran.code == 2
    assert not (server.folder / "searches").exists()


def test_two_at_once_are_told_apart(server, tmp_path):
    folders = [tmp_path / "a/S", tmp_path / "b/S"]
    both = []
    for folder in folders:
        (folder / RUNS).mkdir(parents=True)
        both.append(SearchUploads(SearchStore(URL, None, server.options), folder, lambda words: None))
    both[0].finish(lambda words: None)
    with pytest.raises(UserError, match="another process has written to this search meanwhile; end one of the two"):
        both[1].finish(lambda words: None)


def test_it_is_uploaded_from_time_to_time_while_it_changes(server, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_search, "PERIOD", 0.01)
    folder = tmp_path / "S"
    folder.mkdir()
    uploads = SearchUploads(SearchStore(URL, None, server.options), folder, print)
    arrived, uploaded = threading.Semaphore(0), uploads.uploaded
    monkeypatch.setattr(uploads, "uploaded", lambda: (uploaded(), arrived.release()))
    uploads.begin()
    for number in range(3):
        run = folder / RUNS / f"{number:04d}"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text("{}\n")
        while f"{RUNS}/{number:04d}/metrics.jsonl" not in getattr(
            manifest_of(URL, server.options, "search"), "files", {}
        ):
            assert arrived.acquire(timeout=30)
    uploads.end()


def test_files_that_come_and_go_are_uploaded_as_after_a_kill(server, tmp_path):
    """The study as it is between two writes; runs whose checkpoints are deleted meanwhile; what is freed at last."""
    folder = tmp_path / "S"
    checkpoint = folder / RUNS / "0000/checkpoints/0000001-0"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"model")
    (folder / RUNS / "0000/last").symlink_to("checkpoints/0000001-0")
    (folder / "best").symlink_to(f"{RUNS}/0000")
    (folder / LOCK).write_text("1")
    study = sqlite3.connect(folder / STUDY)
    study.execute("create table trials (number)")
    study.commit()
    study.execute("insert into trials values (1)")  # and not committed
    uploads = SearchUploads(SearchStore(URL, None, server.options), folder, print)

    def collected(name: str) -> Path:
        (tmp_path / name).mkdir()
        uploads.collect(tmp_path / name)
        return tmp_path / name

    found = collected("first")
    assert (found / RUNS / "0000/last/model.safetensors").read_bytes() == b"model"
    assert sqlite3.connect(found / STUDY).execute("select * from trials").fetchall() == []
    assert sorted(os.listdir(found)) == ["best", RUNS, STUDY]
    study.commit()

    (folder / FREED).write_text("{}\n")
    shutil.rmtree(checkpoint)
    found = collected("second")
    assert sqlite3.connect(found / STUDY).execute("select * from trials").fetchall() == [(1,)]
    assert not (found / RUNS / "0000/last").exists() and (found / FREED).exists()
    study.close()
    uploads.finish(print)
    manifest = manifest_of(URL, server.options, "search")
    assert manifest.step == 1 and manifest.kind == "search" and set(manifest.files) == {STUDY, FREED}
