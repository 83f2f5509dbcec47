"""`convert --append` to a dataset in an object store, and what is kept there of its large photographs."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.delivery.shard_delivery import NotDelivered
from fastimg.convert.delivery.store_destination import StoreDestination
from fastimg.convert.journal import JOURNAL_FORMAT
from fastimg.convert.pipeline import convert
from fastimg.errors import UserError
from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.containers.derived import block_index, dc_images
from fastimg.loaders.remote import stores, writable
from fastimg.loaders.remote.trees import StoredFiles

from ...loaders.remote.object_server import ObjectServer
from .conversions import before_planning

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

URL = Path("s3://bucket/D")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    (tmp_path / "bucket").mkdir()
    monkeypatch.setattr(stores, "PAUSE", 0.0)
    monkeypatch.setattr(writable.WritableFolder, "retries", 0)
    monkeypatch.setattr(StoredFiles, "retries", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    served = ObjectServer(tmp_path / "bucket")
    yield served
    served.close()


@pytest.fixture
def run(server: ObjectServer, tmp_path: Path) -> Callable[..., Any]:
    """`run(src, **flags)`: into the URL and into the folder `here`, with the same files in both."""

    def run_(src: Path, **flags: Any) -> Any:
        config = Convert(src=src, dst=URL, shard_size="8KB", workers="1", cache_dir=tmp_path / "staging", **flags)
        options = tuple(f"{name}={value}" for name, value in server.options.items())
        report = convert(replace(config, storage_option=options), Console(quiet=True))
        convert(replace(config, dst=tmp_path / "here", cache_dir=None), Console(quiet=True))
        assert contents(server.folder / "D") == contents(tmp_path / "here")
        assert not any(path.is_file() for path in (tmp_path / "staging/staging").rglob("*"))
        return report

    return run_


@pytest.fixture
def parts(image_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two class folders, the second with a further class."""
    more = tmp_path / "more"
    for name in ("red", "green"):
        (more / name).mkdir(parents=True)
        for image in sorted((image_folder / name).iterdir())[8:]:
            image.rename(more / name / image.name)
    (more / "green").rename(more / "yellow")
    return image_folder, more


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


class TestAppend:
    def test_gives_the_bytes_of_a_folder(self, run, parts, server):
        run(parts[0], val_fraction=0.25)
        before = contents(server.folder / "D")
        server.requests.clear()
        report = run(parts[1], append=True)
        assert report.added == 8 and report.dst == "s3://bucket/D"
        after = contents(server.folder / "D")
        assert all(after[name] == before[name] for name in before if name.endswith((".tar", ".idx", "val.fidx")))
        assert not any(
            name.endswith(".tar") and not name.startswith("PUT") for name in server.requests if "00000" in name
        )
        assert server.writes.written[-1] == "D/dataset.json"
        with pytest.raises(UserError, match=r"^s3://bucket/D: the same samples were already converted or appended"):
            run(parts[1], append=True)

    def test_with_targets_and_fields(self, run, parts, tmp_path):
        for name, folder in zip("ab", parts, strict=True):
            rows = [f"{path},{place},{path.parent.name}" for place, path in enumerate(sorted(folder.rglob("*.jpg")))]
            (tmp_path / f"{name}.csv").write_text("\n".join(["path,weight,kind", *rows[:6]]))
        flags = {"target": ("kind:class",), "field": ("weight:number",)}
        run(tmp_path / "a.csv", **flags)
        run(tmp_path / "b.csv", append=True, **flags)

    def test_goes_on_after_a_refusal(self, run, parts, server):
        run(parts[0])
        before = contents(server.folder / "D")
        server.faults = [("PUT D/dataset.json", "denied")]
        with pytest.raises(NotDelivered, match="go on with resume=True"):
            run(parts[1], append=True)
        assert contents(server.folder / "D")["dataset.json"] == before["dataset.json"]
        with pytest.raises(
            UserError, match="holds an unfinished append; continue it with its own source, --append and"
        ):
            run(parts[1], append=True)
        run(parts[1], append=True, resume=True)

    def test_is_not_deleted_where_the_first_source_goes_on(self, run, parts, server):
        run(parts[0])
        server.faults = [("PUT D/dataset.json", "denied")]
        with pytest.raises(NotDelivered):
            run(parts[1], append=True)
        before = contents(server.folder / "D")
        sentence = r"^s3://bucket/D: holds an unfinished append; .*--resume$|: an append was started with something"
        for flags in ({}, {"append": True}):
            with pytest.raises(UserError, match=sentence):
                run(parts[0], resume=True, **flags)
        assert contents(server.folder / "D") == before
        run(parts[1], append=True, resume=True)

    def test_that_is_complete_but_for_its_mark_is_added_to(self, run, parts, server, tmp_path, encode):
        run(parts[0])
        run(parts[1], append=True)
        options = json.loads((server.folder / "D/dataset.json").read_text())["appended"][-1]
        mark = json.dumps({"format": JOURNAL_FORMAT, "options": options}) + "\n"
        (server.folder / "D/convert.json").write_text(mark)
        (server.folder / "D/train-00099.tar").write_bytes(b"replaced")
        (tmp_path / "third/red").mkdir(parents=True)
        (tmp_path / "third/red/1.jpg").write_bytes(encode(seed=77))
        run(tmp_path / "third", append=True)

    @pytest.mark.parametrize("moment", ["before it begins", "before it ends"])
    def test_leaves_what_another_machine_has_changed_meanwhile(self, run, parts, server, tmp_path, monkeypatch, moment):
        run(parts[0])
        described = server.folder / "D/dataset.json"

        def meanwhile() -> None:
            described.write_text(described.read_text() + " ")

        finish = StoreDestination.finish

        def finish_later(*arguments: Any) -> None:
            meanwhile()
            finish(*arguments)

        if moment == "before it begins":
            before_planning(monkeypatch, meanwhile)
        else:
            monkeypatch.setattr(StoreDestination, "finish", finish_later)
        sentence = r"^s3://bucket/D: was changed by another conversion meanwhile; (run this|what is finished stays)"
        with pytest.raises((UserError, NotDelivered), match=sentence):
            run(parts[1], append=True)
        assert described.read_text().endswith(" ")

    @pytest.mark.parametrize("container", ["tar", "beton"])
    def test_loses_nothing_by_an_error_once_dataset_json_is_there(self, run, parts, server, monkeypatch, container):
        run(parts[0], format=container)

        def fail(*_: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as patched, pytest.raises(MemoryError):
            patched.setattr(StoreDestination, "tidy", fail)
            run(parts[1], append=True)
        there = contents(server.folder / "D")
        assert f"train-00001.{container}" in there and b"train-00001" in there["dataset.json"]
        run(parts[1], append=True, resume=True)

    @pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
    def test_survives_faults_that_pass(self, run, parts, server, fault):
        run(parts[0])
        server.faults = [("PUT D/dataset.json", fault), ("D/train.fidx", fault), ("D/dataset.json", fault)]
        if fault == "flip":
            server.faults.pop()
        run(parts[1], append=True)
        assert server.faults == []

    def test_a_source_that_fails_leaves_the_dataset(self, run, parts, server, tmp_path):
        run(parts[0])
        before = contents(server.folder / "D")
        (parts[1] / "red/broken.jpg").write_bytes(b"\xff\xd8 no image")
        with pytest.raises(stores.DataError, match=r"broken\.jpg"):
            run(parts[1], append=True, on_error="fail")
        assert contents(server.folder / "D") == before

    def test_needs_a_dataset(self, run, parts):
        with pytest.raises(UserError, match=r"^s3://bucket/D: no dataset to append to; leave out --append"):
            run(parts[0], append=True)


class TestAppendToBetons:
    @pytest.fixture(autouse=True)
    def first(self, request: pytest.FixtureRequest, run: Any, parts: Any, server: ObjectServer) -> None:
        if "table" not in request.fixturenames:
            run(parts[0], format="beton", val_fraction=0.25)
        server.requests.clear()

    def test_gives_the_bytes_of_a_folder_and_fetches_what_grows(self, run, parts, server):
        report = run(parts[1], append=True)
        assert report.added == 8 and server.writes.written[-1] == "D/dataset.json"
        assert sorted(contents(server.folder / "D")) == ["dataset.json", "train-00001.beton", "val.beton"]
        assert not any("val.beton" in name for name in server.requests)
        with pytest.raises(UserError, match=r"^s3://bucket/D: the same samples were already converted or appended"):
            run(parts[1], append=True)

    def test_of_a_new_split_alone_looks_at_the_smallest(self, run, parts, server, tmp_path):
        source = tmp_path / "T"
        convert(Convert(src=parts[1], dst=source), Console(quiet=True))
        described = json.loads((source / "dataset.json").read_text().replace("train", "test"))
        (source / "dataset.json").write_text(json.dumps(described))
        for name in ("train-00000.tar", "train-00000.idx"):
            (source / name).rename(source / name.replace("train", "test"))
        run(source, append=True)
        assert sorted(contents(server.folder / "D")) == ["dataset.json", "test.beton", "train.beton", "val.beton"]
        fetched = {name for name in server.requests if name in ("D/train.beton", "D/val.beton")}
        assert fetched == {"D/val.beton"}

    def test_again_and_again(self, run, parts, server, tmp_path, encode):
        run(parts[1], append=True)
        (tmp_path / "third/red").mkdir(parents=True)
        (tmp_path / "third/red/1.jpg").write_bytes(encode(seed=77))
        run(tmp_path / "third", append=True)
        assert sorted(contents(server.folder / "D")) == ["dataset.json", "train-00002.beton", "val.beton"]

    def test_with_targets_and_fields_of_splits_that_stay(self, run, table, server):
        flags = {"target": ("kind:class", "weight:number"), "field": ("size:number",)}
        run(table(0), format="beton", **flags)
        run(table(1), append=True, **flags)
        assert {"val.fcol", "val.ffld", "val.beton", "train-00001.beton"} <= contents(server.folder / "D").keys()

    @pytest.fixture
    def table(self, parts: Any, tmp_path: Path) -> Callable[[int], Path]:
        """A manifest of a folder of `parts`; the first has a validation split, the second a further kind."""

        def write(number: int) -> Path:
            rows = ["path,split,kind,weight,size"]
            for place, path in enumerate(sorted(parts[number].rglob("*.jpg"))):
                split = "val" if place % 4 == 0 and number == 0 else "train"
                rows.append(f"{path},{split},{path.parent.name},{place},{2 * place}")
            (tmp_path / f"{number}.csv").write_text("\n".join(rows))
            return tmp_path / f"{number}.csv"

        return write

    @pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
    def test_survives_faults_that_pass(self, run, parts, server, fault):
        names = ("PUT D/train-00001.beton", "PUT D/dataset.json", "D/train.beton")
        server.faults = [(name, fault) for name in names]
        run(parts[1], append=True)
        assert server.faults == []

    def test_of_which_nothing_can_be_fetched_leaves_the_dataset(self, run, parts, server):
        before = contents(server.folder / "D")
        server.faults = [("D/train.beton", "denied")]
        with pytest.raises(stores.DataError, match=r"s3://bucket/D/train.beton: access denied"):
            run(parts[1], append=True)
        assert contents(server.folder / "D") == before
        with pytest.raises(
            stores.DataError, match=r"train\.beton: .* and the cache .* may hold 2\.0 KB; give a larger cache_limit="
        ):
            run(parts[1], append=True, cache_limit="2KB")
        assert contents(server.folder / "D") == before
        run(parts[1], append=True)

    @pytest.mark.parametrize("refused", ["PUT D/train-00001.beton", "PUT D/dataset.json"])
    def test_goes_on_after_a_refusal(self, run, parts, server, refused):
        before = contents(server.folder / "D")
        server.faults = [(refused, "denied")]
        with pytest.raises(NotDelivered, match="go on with resume=True"):
            run(parts[1], append=True)
        now = contents(server.folder / "D")
        assert {name: now[name] for name in before} == before
        with pytest.raises(
            UserError, match="holds an unfinished append; continue it with its own source, --append and"
        ):
            run(parts[1], append=True)
        run(parts[1], append=True, resume=True)
        assert server.writes.written.count("D/train-00001.beton") == 1

    def test_that_cannot_delete_what_it_replaced_deletes_it_later(self, run, parts, server):
        server.faults = [("POST /bucket?delete", "denied")]
        with pytest.raises(NotDelivered, match="go on with resume=True"):
            run(parts[1], append=True)
        assert server.writes.written[-1] == "D/dataset.json"
        assert {"train.beton", "train-00001.beton", "convert.json"} <= contents(server.folder / "D").keys()
        run(parts[1], append=True, resume=True)

    def test_that_is_killed_leaves_the_dataset(self, run, parts, server, tmp_path):
        before = contents(server.folder / "D")
        server.faults = [("PUT D/train-00001.beton", "stall")]
        options = [word for name, value in server.options.items() for word in ("--storage-option", f"{name}={value}")]
        command = ["convert", str(parts[1]), str(URL), "--append", "--shard-size", "8KB", "--workers", "1", *options]
        process = subprocess.Popen(
            [sys.executable, "-m", "fastimg", *command, "--cache-dir", str(tmp_path / "staging")],
            stderr=subprocess.DEVNULL,
        )
        assert server.writes.stalled.wait(120)
        process.kill()
        process.wait()
        server.writes.release.set()
        now = contents(server.folder / "D")
        assert now.keys() - before.keys() == {"convert.json"} and {name: now[name] for name in before} == before
        with closing(open_dataset(str(URL), cache_dir=tmp_path / "c", storage_options=server.options)) as dataset:
            assert len(dataset) == 21
        run(parts[1], append=True, resume=True)


SIDE = 200
KEPT = ("train.ftil", "train.fdci")


class TestLargePhotographs:
    @pytest.fixture
    def photographs(self, tmp_path: Path, encode: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
        for module in (block_index, dc_images):
            monkeypatch.setattr(module, "MIN_PIXELS", SIDE * SIDE)
        for i in range(6):
            file = tmp_path / "photographs" / "ab"[i % 2] / f"{i}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode((10 * i, 90, 40), (SIDE + 40 * i if i else 90, SIDE), seed=i))
        return tmp_path / "photographs"

    @pytest.fixture
    def opened(self, server: ObjectServer, tmp_path: Path) -> Callable[..., Any]:
        return lambda **more: open_dataset(
            str(URL), cache_dir=tmp_path / "cache", storage_options=server.options, **more
        )

    @pytest.mark.parametrize("container", ["tar", "beton"])
    def test_are_indexed_in_the_store(self, run, photographs, server, opened, tmp_path, container):
        run(photographs, format=container)
        assert set(KEPT) <= contents(server.folder / "D").keys()
        if container == "tar":
            dataset = opened()
            assert dataset.blocks is not None and dataset.blocks.dc_images is not None and not dataset.notes
            for scaling in (True, "low"):
                assert np.array_equal(pixels_of(dataset, scaling), pixels_of(open_dataset(tmp_path / "here"), scaling))
            dataset.close()

    @pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
    def test_survive_faults_that_pass(self, run, photographs, server, opened, fault):
        run(photographs)
        server.faults = [(name, fault) for name in KEPT for _ in range(2)]
        dataset = opened()
        assert server.faults == [] or fault == "flip"
        assert dataset.blocks is not None and dataset.blocks.dc_images is not None
        dataset.close()

    def test_are_read_whole_without_an_index(self, run, photographs, server, opened, tmp_path):
        run(photographs)
        for name in KEPT:
            (server.folder / "D" / name).unlink()
        dataset = opened()
        assert dataset.blocks is None and not dataset.notes
        assert np.array_equal(pixels_of(dataset, True), pixels_of(open_dataset(tmp_path / "here"), True))
        dataset.close()

    def test_are_read_whole_with_an_index_of_others(self, run, photographs, server, opened):
        run(photographs)
        (server.folder / "D/train.ftil").write_bytes((server.folder / "D/train.fdci").read_bytes())
        dataset = opened()
        assert dataset.blocks is None and not dataset.notes
        dataset.close()

    def test_have_no_index_that_fills_the_cache(self, run, photographs, opened):
        run(photographs)
        dataset = opened(cache_limit="60KB")
        (note,) = dataset.notes
        assert "what is kept of them" in note and "takes more than a quarter of the cache" in note
        dataset.close()
        assert opened(cache_limit=0).blocks is None

    def test_are_not_indexed_in_a_split_that_has_grown(self, run, photographs, server, parts, tmp_path, opened):
        options = tuple(f"{name}={value}" for name, value in server.options.items())
        config = Convert(src=photographs, dst=URL, workers="1", cache_dir=tmp_path / "s", storage_option=options)
        convert(config, Console(quiet=True))
        convert(replace(config, src=parts[1], append=True), Console(quiet=True))
        assert not set(KEPT) & contents(server.folder / "D").keys()
        assert len(opened()) == 14


def pixels_of(dataset: Any, scaling: bool | str) -> list[Any]:
    decoder = ImageDecoder(RandomResizedCrop(size=12, scale=(0.1, 0.5)), dct_scaling=scaling)
    settings = LoaderConfig(batch_size=6, workers=1, order="sequential", on_error="fail")
    with Loader(dataset, decoder, settings) as loader:
        return [batch.inputs.numpy().copy() for _ in range(2) for batch in loader]
