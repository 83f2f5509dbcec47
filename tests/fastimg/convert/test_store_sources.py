"""Conversion of what lies in an object store: the files of a conversion of a copy of it on disk."""

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.config.rule_tables.reading import CONVERT
from fastimg.config.rules import refuse
from fastimg.convert import pipeline
from fastimg.convert.pipeline import convert
from fastimg.convert.report import Report
from fastimg.convert.sources.folders import read_folder
from fastimg.convert.sources.samples import ANNOUNCED, Entries, Source, SourceEntry
from fastimg.convert.stored.losses import SourceLostError
from fastimg.errors import UsageError
from fastimg.loaders import DataError
from fastimg.loaders.remote import stores
from fastimg.loaders.remote.trees import StoredFiles, StoredTree

from ...loaders.remote.object_server import LASTING, ObjectServer

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

NAMES = ("a b+c.jpg", "50%25#.jpg", "später~[1].jpg")


@pytest.fixture
def bucket(image_folder: Path, tmp_path: Path) -> Path:
    """A bucket of class folders `photos`, with names that URLs must escape, and files that are no images."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    photos = image_folder.rename(bucket / "photos")
    for folder in sorted(photos.iterdir()):
        for image, name in zip(
            sorted(folder.glob("*.jpg")), ("a b+c.jpg", "50%25#.jpg", "später~[1].jpg"), strict=False
        ):
            image.rename(folder / name)
    (photos / "blue/notes.md").write_text("none")
    (photos / "blue/.hidden.jpg").write_bytes(b"x")
    (photos / "red/broken.jpg").write_bytes(b"\xff\xd8 no image")
    (photos / "red/empty.jpg").touch()
    return bucket


@pytest.fixture
def server(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    monkeypatch.setattr(stores, "PAUSE", 0.0)
    monkeypatch.setattr(StoredFiles, "retries", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    served = ObjectServer(bucket)
    yield served
    served.close()


@pytest.fixture
def run(server: ObjectServer, tmp_path: Path) -> Callable[..., Report]:
    """`run(url, dst, **flags)`."""

    def run_(src: object, dst: object = tmp_path / "D", **flags: Any) -> Report:
        given = {
            "shard_size": "20KB",
            "workers": "1",
            "cache_dir": tmp_path / "cache",
            "storage_option": options(server),
        }
        config = Convert(src=Path(str(src)), dst=Path(str(dst)), **(given | flags))
        return convert(config, Console(file=io.StringIO(), width=400))

    return run_


@pytest.fixture
def here(tmp_path: Path) -> Callable[..., dict[str, bytes]]:
    """`here(path, **flags)`: what a conversion of a path on disk writes."""

    def here_(src: Path, **flags: Any) -> dict[str, bytes]:
        given = {"dst": tmp_path / "here", "shard_size": "20KB", "workers": "1"}
        config = Convert(src=src, **(given | flags))
        convert(config, Console(quiet=True))
        return contents(tmp_path / "here")

    return here_


def options(server: ObjectServer) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in server.options.items())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def without_lasting(folder: Path) -> bool:
    """Whether no tree of names is left."""
    return not any(folder.glob("listings/*"))


class TestClassFolders:
    @pytest.mark.parametrize("container", ["tar", "beton"])
    def test_give_the_bytes_of_a_copy_on_disk(self, run, here, bucket, tmp_path, container):
        report = run("s3://bucket/photos", format=container, val_fraction=0.25)
        assert contents(tmp_path / "D") == here(bucket / "photos", format=container, val_fraction=0.25)
        assert len(report.skipped) == 2 and report.ignored == 2
        assert without_lasting(tmp_path / "cache")

    def test_with_splits_and_marks_of_folders(self, run, here, bucket, server, tmp_path):
        (bucket / "in/train").mkdir(parents=True)
        (bucket / "in/val").mkdir()
        for split in ("train", "val"):
            for name in ("blue", "red"):
                (bucket / f"in/{split}/{name}").mkdir()
                os.link(next((bucket / f"photos/{name}").glob("*c.jpg")), bucket / f"in/{split}/{name}/1.jpg")
        listing = server._listing
        mark = b"<Contents><Key>in/train/</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
        mark += b"<Size>0</Size></Contents>"
        server._listing = lambda path: listing(path).replace(b"<Contents>", mark + b"<Contents>", 1)
        report = run("s3://bucket/in")
        assert report.splits == {"train": 2, "val": 2}
        assert contents(tmp_path / "D") == here(bucket / "in")

    def test_survive_faults_that_pass(self, run, here, bucket, server, tmp_path):
        server.rates = {"busy": 0.1, "cut": 0.1, "flip": 0.1}
        run("s3://bucket/photos", workers="2")
        assert {"busy", "cut", "flip"} == set(server.met)
        assert contents(tmp_path / "D") == here(bucket / "photos")

    def test_count_what_vanishes_and_what_changes_as_on_disk(self, run, here, bucket, tmp_path, monkeypatch):
        plan = pipeline.plan_shards
        gone, grown = sorted((bucket / "photos/blue").glob("[!.]*.jpg"))[:2]
        before = gone.read_bytes(), grown.read_bytes()

        def spoil(*args: Any, **kwargs: Any) -> Any:
            gone.unlink()
            grown.write_bytes(before[1] + b"more")
            return plan(*args, **kwargs)

        monkeypatch.setattr(pipeline, "plan_shards", spoil)
        report = run("s3://bucket/photos")
        gone.write_bytes(before[0])
        grown.write_bytes(before[1])
        assert contents(tmp_path / "D") == here(bucket / "photos")
        reasons = {reason for _, reason in report.skipped}
        assert {"No such file or directory", "changed after the source was listed"} < reasons

    @pytest.mark.parametrize(("fault", "reason"), LASTING)
    def test_that_are_lost_can_go_on(self, run, here, bucket, server, tmp_path, fault, reason):
        server.faults = [("photos/red/50", fault)]
        with pytest.raises(SourceLostError, match=rf"s3://bucket/photos/red/50.*{reason}.*go on with resume=True$"):
            run("s3://bucket/photos", no_shuffle=True)
        assert contents(tmp_path / "D").keys() >= {"convert.json", "train-00000.tar"}
        first = (tmp_path / "D/train-00000.tar").stat().st_mtime_ns
        run("s3://bucket/photos", no_shuffle=True, resume=True)
        assert (tmp_path / "D/train-00000.tar").stat().st_mtime_ns == first
        assert contents(tmp_path / "D") == here(bucket / "photos", no_shuffle=True)

    @pytest.mark.slow
    def test_go_on_after_a_kill(self, run, here, bucket, server, tmp_path):
        server.faults = [("photos/red/50", "stall")]
        flags = ["--no-shuffle", "--shard-size", "20KB", "--workers", "1", "--cache-dir", str(tmp_path / "cache")]
        for option in options(server):
            flags += ["--storage-option", option]
        process = subprocess.Popen(
            [sys.executable, "-m", "fastimg", "convert", "s3://bucket/photos", str(tmp_path / "D"), *flags],
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
        )
        assert server.writes.stalled.wait(120)
        while not (tmp_path / "D/train-00000.tar").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        server.writes.release.set()
        assert not without_lasting(tmp_path / "cache")
        run("s3://bucket/photos", no_shuffle=True, resume=True)
        assert without_lasting(tmp_path / "cache")
        assert contents(tmp_path / "D") == here(bucket / "photos", no_shuffle=True)

    def test_to_another_url(self, run, here, bucket, tmp_path):
        run("s3://bucket/photos", dst="s3://bucket/D")
        assert contents(bucket / "D") == here(bucket / "photos")


class TestReaders:
    def test_open_the_store_anew_in_another_process(self, server, bucket, tmp_path):
        tree = StoredTree("s3://bucket/photos", server.options, tmp_path / "listings")
        source = read_folder(tree.root)
        entry = next(entry for entry in source.splits["train"] if entry.path.endswith("c.jpg"))
        packed = pickle.dumps(source.readers[0])
        source.close()
        tree.close()
        assert pickle.loads(packed).read(entry).image == (bucket / "photos" / entry.path).read_bytes()

    def test_are_told_of_a_bounded_number_of_samples(self):
        told: list[str] = []

        class Reader:
            fetches = True

            def announce(self, entry: SourceEntry) -> int:
                told.append(entry.path)
                return entry.size

            read = name = problem = parts = close = lambda *_: None

        entries = Entries(SourceEntry(str(number), 0, 1) for number in range(3 * ANNOUNCED))
        source = Source(Path("x"), "folder", (), {}, (Reader(),))
        ahead = [len(told) - number for number, _ in enumerate(source.announced(entries))]
        assert max(ahead) == ANNOUNCED and ahead[-1] == 1
        assert told == [entry.path for entry in entries]
        told.clear()
        large = Entries(SourceEntry(str(number), 0, 1 << 28) for number in range(4))
        assert [len(told) for _ in source.announced(large)] == [1, 2, 3, 4]


def write_tar(path: Path, images: list[Path]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, image in enumerate(images):
            for name, content in (
                (f"{number:03d}.jpg", image.read_bytes()),
                (f"{number:03d}.cls", str(number % 3).encode()),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def tars(bucket: Path) -> Path:
    """Three tars of another writer."""
    (bucket / "tars").mkdir()
    images = sorted((bucket / "photos/green").glob("*.jpg")) + sorted((bucket / "photos/blue").glob("[!.]*.jpg"))
    for number in range(3):
        write_tar(bucket / f"tars/train-{number:04d}.tar", images[number::3])
    return bucket / "tars"


class TestShards:
    @pytest.mark.parametrize("name", ["tars", "tars/train-{0000..0002}.tar"])
    def test_tars_of_other_writers(self, run, here, tars, tmp_path, name):
        run(f"s3://bucket/{name}")
        assert contents(tmp_path / "D") == here(tars)

    def test_tars_on_a_web_server(self, run, here, server, tars, tmp_path):
        run(f"{server.endpoint}/bucket/tars/train-{{0000..0002}}.tar", storage_option=())
        assert contents(tmp_path / "D") == here(tars)

    def test_tars_through_a_cache_that_holds_one(self, run, here, server, tars, tmp_path):
        limit = str(max(tar.stat().st_size for tar in tars.iterdir()) * 3 // 2)
        server.rates = {"busy": 0.05, "cut": 0.05, "flip": 0.05}
        run("s3://bucket/tars", cache_limit=limit)
        assert contents(tmp_path / "D") == here(tars)
        with pytest.raises(DataError, match="shuffled, they would be fetched again and again"):
            run("s3://bucket/tars", cache_limit=limit, shuffle=True, overwrite=True)

    @pytest.mark.parametrize("container", ["tar", "beton"])
    def test_a_converted_dataset(self, run, here, bucket, tmp_path, container):
        made = bucket / "made"
        config = Convert(src=bucket / "photos", dst=made, format=container, shard_size="20KB", workers="1")
        convert(config, Console(quiet=True))
        run("s3://bucket/made", format="tar")
        assert contents(tmp_path / "D") == here(made, format="tar")

    def test_merged_with_a_folder_here(self, run, here, bucket, tars, tmp_path):
        run("s3://bucket/tars", dst=tars, more=(tmp_path / "D",), merge=True)
        assert contents(tmp_path / "D") == here(tars, dst=tars, more=(tmp_path / "here",), merge=True)


class TestTables:
    def test_a_manifest(self, run, here, bucket, tmp_path):
        rows = [
            f"photos/{path.parent.name}/{path.name},{path.parent.name}" for path in (bucket / "photos").rglob("*.jpg")
        ]
        (bucket / "t.csv").write_text(
            "\n".join(["path,label", *sorted(rows), "photos/none.jpg,red", "../../x.jpg,red"])
        )
        report = run("s3://bucket/t.csv")
        assert contents(tmp_path / "D") == here(bucket / "t.csv")
        assert "no such file" in {reason for _, reason in report.skipped}
        assert report.columns[0].startswith("s3://bucket/t.csv: path from column 'path'")

    @pytest.mark.parametrize("way", ["csv", "coco", "yolo", "voc"])
    def test_what_names_a_path_of_this_machine_is_refused(self, run, bucket, tmp_path, monkeypatch, way):
        secret = tmp_path / "secret.jpg"
        secret.write_bytes((next((bucket / "photos/blue").glob("[!.]*.jpg"))).read_bytes())
        looked = []
        stat = os.stat
        monkeypatch.setattr(
            os, "stat", lambda path, *args, **more: looked.append(str(path)) or stat(path, *args, **more)
        )
        url = "s3://bucket/t.csv"
        if way == "csv":
            (bucket / "t.csv").write_text(f"path,label\n{secret},red\nphotos/none.jpg,red\n")
        elif way == "coco":
            url = "s3://bucket/c.json"
            listed = {"images": [{"id": 1, "file_name": str(secret)}], "annotations": [], "categories": []}
            (bucket / "c.json").write_text(json.dumps(listed | {"categories": [{"id": 1, "name": "a"}]}))
        elif way == "voc":
            url = "s3://bucket/v"
            for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
                (bucket / "v" / name).mkdir(parents=True)
            (bucket / "v/JPEGImages/a.jpg").write_bytes(secret.read_bytes())
            (bucket / "v/Annotations/a.xml").write_text("<annotation></annotation>")
            (bucket / "v/ImageSets/Main/train.txt").write_text("a\n")
            (bucket / "v/ImageSets/Main/test.txt").write_text(f"{tmp_path}/../{tmp_path.name}/secret\n")
        else:
            url = "s3://bucket/y"
            (bucket / "y").mkdir()
            (bucket / "y/data.yaml").write_text(f"train: {tmp_path}\nnames: [a]\n")
        with pytest.raises(DataError, match=r"s3://bucket.*: '.*', which is named there, is a path of this machine"):
            run(url)
        assert not [path for path in looked if "secret" in path]

    @pytest.mark.parametrize(
        "rows",
        [
            "{secret}.jpg,red\nphotos/none.jpg,red\n",
            "id,breed\n{secret},dog\n{secret},dog\n",
            "path,label\n{up}{secret}.jpg,red\n",
            "path,label\n{up}{secret}.jpg,red\nphotos/blue/a.jpg,red\n",
        ],
        ids=["no header", "ids", "climbing", "one climbs"],
    )
    def test_nothing_is_looked_for_outside_of_the_store(self, run, bucket, tmp_path, monkeypatch, rows):
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets/secret.jpg").write_bytes(next((bucket / "photos/blue").glob("[!.]*.jpg")).read_bytes())
        (bucket / "photos/blue/a.jpg").write_bytes((tmp_path / "secrets/secret.jpg").read_bytes())
        looked = []
        for name in ("stat", "scandir"):
            call = getattr(os, name)
            monkeypatch.setattr(
                os, name, lambda path, *args, call=call, **more: looked.append(str(path)) or call(path, *args, **more)
            )
        (bucket / "t.csv").write_text(rows.format(secret=tmp_path / "secrets/secret", up="../" * 30))
        if "blue" in rows:
            assert [reason for _, reason in run("s3://bucket/t.csv").skipped] == ["no such file"]
        else:
            with pytest.raises((DataError, UsageError)):
                run("s3://bucket/t.csv")
        assert not [path for path in looked if "secrets/secret" in path or path.endswith("secrets")]

    @pytest.mark.parametrize("lone", [True, False])
    def test_parquet_files(self, run, here, bucket, server, tmp_path, lone):
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        images = [path.read_bytes() for path in sorted((bucket / "photos/blue").glob("[!.]*.jpg"))]
        labels = [number % 2 for number in range(len(images))]
        (bucket / "p").mkdir()
        pq.write_table(pa.table({"image": images, "label": labels}), bucket / "p/train-00000-of-00001.parquet")
        server.rates = {"busy": 0.1, "cut": 0.1}
        name = "p/train-00000-of-00001.parquet" if lone else "p"
        run(f"s3://bucket/{name}")
        assert contents(tmp_path / "D") == here(bucket / name)

    def test_texts(self, run, here, bucket, tmp_path):
        lines = [json.dumps({"text": f"text {number}", "label": "ab"[number % 2]}) for number in range(8)]
        (bucket / "t.jsonl").write_text("\n".join(lines))
        run("s3://bucket/t.jsonl")
        assert contents(tmp_path / "D") == here(bucket / "t.jsonl")


class TestRefusals:
    @pytest.mark.parametrize(
        ("src", "sentence"),
        [
            ("s3://bucket/none", r"^s3://bucket/none: no files there; check the URL$"),
            ("s3://bucket/none.csv", r"^s3://bucket/none.csv: not found: no such file or bucket"),
            ("s3://bucket/x.beton", "a .beton is not read from an object store by itself"),
            ("http://127.0.0.1:9/photos.csv", "a web server lists no files"),
            ("s3://bucket/photos/blue", r"^s3://bucket/photos/blue: has no class folders"),
            ("s3://bucket/{a,b}/photos", "braces stand in the names of tars alone"),
        ],
    )
    def test_of_what_is_no_source(self, run, tmp_path, src, sentence):
        with pytest.raises((DataError, UsageError), match=sentence):
            run(src)
        assert not (tmp_path / "D").exists() and without_lasting(tmp_path / "cache")

    def test_of_a_web_server_without_names(self, run, server):
        with pytest.raises(DataError, match=r"or name tars, as in http://.*, as a web server lists none"):
            run(f"{server.endpoint}/bucket/photos", storage_option=())

    @pytest.mark.parametrize(
        ("fault", "sentence"),
        [("bucket", "s3://bucket/photos.*no such bucket"), ("denied", "access denied; give credentials")],
    )
    def test_of_buckets_that_refuse(self, run, server, fault, sentence):
        server.faults = [("", fault)]
        with pytest.raises(DataError, match=sentence):
            run("s3://bucket/photos")

    def test_of_a_limit_without_a_cache(self, run):
        with pytest.raises(UsageError, match="--cache-limit has no effect: no source has shards"):
            run("s3://bucket/photos", cache_limit="1GB")

    def test_of_a_destination_in_the_source(self, run, tmp_path):
        config = Convert(src=Path("s3://bucket/photos"), dst=Path("s3://bucket/photos/D"), cache_dir=tmp_path)
        with pytest.raises(UsageError, match="the destination lies in the source s3://bucket/photos"):
            convert(config, Console(quiet=True))

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"cache_limit": "many"}, "--cache-limit many"),
            ({"src": Path("x"), "cache_limit": "1GB"}, "--cache-limit has no effect without a URL as SRC, or"),
            ({"src": Path("x"), "cache_dir": Path("c")}, "--cache-dir has no effect without a URL as SRC or DST"),
        ],
    )
    def test_of_flags(self, change, sentence):
        with pytest.raises(UsageError, match=sentence):
            refuse(replace(Convert(src=Path("s3://bucket/photos"), dst=Path("D")), **change), CONVERT)
