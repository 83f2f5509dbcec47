"""Datasets of the Hugging Face hub, read by its own client from a server that answers as the hub does."""

import contextlib
import gc
import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastimg.config.commands import Convert
from fastimg.convert.hub import ranges
from fastimg.convert.hub.ranges import RangeFile
from fastimg.convert.hub.reference import HubReference, as_begun, parse_reference
from fastimg.convert.hub.repository import open_repository
from fastimg.convert.hub.sources import read_hub
from fastimg.convert.sources.columns import AskedTarget, Columns
from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.errors import DataError

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
PETS = ["cat", "dog"]


def parquet(rows: dict[str, list[Any]], types: dict[str, Any] | None = None, features: Any = None) -> bytes:
    types = {"image": IMAGE} | (types or {})
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in rows.items()})
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=2)
    return buffer.getvalue()


def pictures(images: list[bytes]) -> list[dict[str, Any]]:
    return [{"bytes": data, "path": None} for data in images]


@pytest.fixture
def jpegs(encode: Callable[..., bytes]) -> list[bytes]:
    return [encode(seed=i) for i in range(4)]


@pytest.fixture
def pets(hub: Any, jpegs: list[bytes]) -> Any:
    """me/pets: two files of training images and one of validation; the card names the classes."""
    repository = hub.dataset("me/pets")
    names = {"class_label": {"names": {"0": "cat", "1": "dog"}}}
    label = {"name": "label", "dtype": names}
    repository.card = {"dataset_info": {"features": [{"name": "image", "dtype": "image"}, label]}}
    files = {
        "data/train-00000-of-00002.parquet": parquet({"image": pictures(jpegs[:2]), "label": [0, 1]}),
        "data/train-00001-of-00002.parquet": parquet({"image": pictures(jpegs[2:3]), "label": [1]}),
        "data/validation-00000-of-00001.parquet": parquet({"image": pictures(jpegs[3:]), "label": [0]}),
        "README.md": b"---\n---\n",
    }
    repository.commit(files)
    return repository


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    opened = []

    def call(reference: str, **columns: Any) -> Any:
        opened.append(read_hub(Path(reference), Columns(**columns), tmp_path))
        return opened[-1]

    yield call
    for source in opened:
        source.close()


def listed(source: Any) -> dict[str, list[tuple[str, int]]]:
    return {split: [(entry.path, entry.label) for entry in entries] for split, entries in source.splits.items()}


def contents(source: Any, split: str = "train") -> list[bytes]:
    return [source.read(entry).image for entry in source.splits[split]]


def test_references() -> None:
    assert parse_reference(Path("hf://datasets/me/pets")) == HubReference("me/pets")
    assert parse_reference("hf://datasets/mnist/") == HubReference("mnist")
    full = parse_reference("hf://datasets/me/pets:small@refs/pr/1")
    assert full == HubReference("me/pets", "small", "refs/pr/1")
    assert str(full) == "hf://datasets/me/pets:small@refs/pr/1"
    for wrong in ("hf://me/pets", "hf://datasets/", "hf://datasets/a/b/c", "hf://datasets/a/b@", "hf://datasets/a/b:"):
        with pytest.raises(UsageError, match="give hf://datasets/USER/NAME"):
            parse_reference(wrong)


def test_a_resumed_reference_keeps_its_commit() -> None:
    src = Path("hf://datasets/me/pets")
    assert as_begun(src, "parquet, hf://datasets/me/pets:big@abc") == Path("hf://datasets/me/pets@abc")
    assert as_begun(Path("hf://datasets/me/pets:big@main"), "hf://datasets/me/pets:big@abc").name == "pets:big@abc"
    for other in ("hf://datasets/me/cats@abc", "folder", None):
        assert as_begun(src, other) is src


def test_images_with_the_names_of_the_card(pets: Any, jpegs: list[bytes], read: Callable[..., Any]) -> None:
    source = read("hf://datasets/me/pets")
    assert source.classes == tuple(PETS) and source.named
    assert source.kind == f"hf://datasets/me/pets@{pets.refs['main']}"
    train = "data/train-00000-of-00002.parquet"
    assert listed(source) == {
        "train": [(f"{train}/000000", 0), (f"{train}/000001", 1), ("data/train-00001-of-00002.parquet/000000", 1)],
        "val": [("data/validation-00000-of-00001.parquet/000000", 0)],
    }
    assert contents(source) == jpegs[:3] and contents(source, "val") == jpegs[3:]
    assert source.name(source.splits["val"][0]).startswith("hf://datasets/me/pets/data/validation-00000")


def test_the_card_decides_about_files(hub: Any, jpegs: list[bytes], read: Callable[..., Any]) -> None:
    repository = hub.dataset("me/pets")
    one = parquet({"image": pictures(jpegs[:1]), "label": ["cat"]})
    two = parquet({"image": pictures(jpegs[:2]), "label": ["cat", "dog"]})
    repository.commit({"a/x.parquet": two, "a/deep/y.parquet": one, "b/z.parquet": one, "b/odd.parquet": one})
    splits = [{"split": "train", "path": "a/*.parquet"}, {"split": "test", "path": ["a/**/y.parquet"]}]
    small = {"config_name": "small", "data_files": "b/z.parquet"}
    repository.card = {"configs": [{"config_name": "big", "default": True, "data_files": splits}, small]}
    source = read("hf://datasets/me/pets")
    assert {split: len(entries) for split, entries in source.splits.items()} == {"train": 2, "test": 1}
    assert ":big@" in source.kind
    assert len(read("hf://datasets/me/pets:small").splits["train"]) == 1
    with pytest.raises(UsageError, match="no configuration 'smal'; it has big, small; did you mean small"):
        read("hf://datasets/me/pets:smal")
    del repository.card["configs"][0]["default"]
    with pytest.raises(UsageError, match=r"several configurations \(big, small\); choose one, as in hf://.*:big"):
        read("hf://datasets/me/pets")


def test_files_of_folders_and_the_branch_that_the_hub_makes(hub: Any, jpegs: list[bytes]) -> None:
    repository = hub.dataset("me/pets")
    repository.commit({"images.zip": b""})
    with pytest.raises(UserError, match="no such revision"):
        open_repository(HubReference("me/pets"))
    one = parquet({"image": pictures(jpegs[:1])})
    made = {f"default/{split}/0000.parquet": one for split in ("partial-train", "validation", "unsupervised")}
    repository.commit(made | {"other/test/0000.parquet": one}, ref="refs/convert/parquet")
    dataset = open_repository(HubReference("me/pets"))
    assert dataset.reference == HubReference("me/pets", "default", repository.refs["refs/convert/parquet"])
    paths = {split: [file.path for file in files] for split, files in dataset.splits.items()}
    assert paths == {
        "train": ["default/partial-train/0000.parquet", "default/unsupervised/0000.parquet"],
        "val": ["default/validation/0000.parquet"],
    }
    assert "reading those that the hub made" in dataset.remarks[0]


def test_unknown_splits_are_left_out(hub: Any, jpegs: list[bytes]) -> None:
    repository = hub.dataset("me/pets")
    one = parquet({"image": pictures(jpegs[:1])})
    repository.commit({"a.parquet": one, "b.parquet": one})
    parts = [{"split": "train", "path": "a.parquet"}, {"split": "extra", "path": "b.parquet"}]
    repository.card = {"configs": [{"config_name": "default", "data_files": parts}]}
    dataset = open_repository(HubReference("me/pets"))
    assert list(dataset.splits) == ["train"] and "split extra left out" in dataset.remarks[0]


def test_several_targets(hub: Any, jpegs: list[bytes], read: Callable[..., Any]) -> None:
    repository = hub.dataset("me/pets")
    rows = {"image": pictures(jpegs), "kind": [0, 1, 1, 0], "tags": [[0], [0, 1], [], [1]], "kg": [1.5, 2.0, None, 4.0]}
    named = {"_type": "ClassLabel", "names": ["small", "loud"]}
    features = {"kind": {"_type": "ClassLabel", "names": PETS}, "tags": {"_type": "Sequence", "feature": named}}
    repository.commit({"train.parquet": parquet(rows, features=features)})
    source = read("hf://datasets/me/pets", targets=(AskedTarget("kind"), AskedTarget("tags"), AskedTarget("kg")))
    assert [(t.name, t.kind, t.classes) for t in source.targets] == [
        ("kind", "class", ("cat", "dog")),
        ("tags", "multilabel", ("small", "loud")),
        ("kg", "number", ()),
    ]
    notes = [json.loads(source.read(entry).note) for entry in source.splits["train"]]
    assert [(note["tags"], note["kg"]) for note in notes] == [
        (["small"], 1.5), (["loud", "small"], 2.0), ([], None), (["loud"], 4.0),
    ]  # fmt: skip


def test_texts(hub: Any, tmp_path: Path, read: Callable[..., Any]) -> None:
    repository = hub.dataset("me/reviews")
    names = {"class_label": {"names": {"0": "bad", "1": "good"}}}
    repository.card = {"dataset_info": [{"config_name": "default", "features": [{"name": "label", "dtype": names}]}]}
    rows = parquet({"text": ["fine", "awful", "lovely"], "label": [1, 0, 1]})
    repository.commit({"data/train-0.parquet": rows, "data/test-0.parquet": parquet({"text": ["meh"], "label": [0]})})
    source = read("hf://datasets/me/reviews")
    assert (source.content, source.classes) == ("text", ("bad", "good"))
    assert contents(source) == [b"fine", b"awful", b"lovely"] and contents(source, "test") == [b"meh"]
    assert source.columns[0].startswith("hf://datasets/me/reviews@") and not list(tmp_path.iterdir())


def test_texts_beside_images(hub: Any, jpegs: list[bytes], read: Callable[..., Any]) -> None:
    rows = {"image": pictures(jpegs[:2]), "caption": ["a cat", None], "label": ["x", "y"]}
    hub.dataset("me/pets").commit({"train.parquet": parquet(rows)})
    source = read("hf://datasets/me/pets", text="caption")
    assert source.inputs == ("image", "text")
    originals = [source.read(entry) for entry in source.splits["train"]]
    assert [original.fields for original in originals] == [{"txt": b"a cat"}, {}]
    assert "caption" not in json.loads(originals[0].note)
    with pytest.raises(DataError, match=r"no column 'Caption' \(--text-column\); it has image, caption, label;"):
        read("hf://datasets/me/pets", text="Caption")
    with pytest.raises(UsageError, match="--text-column label: the column is already its image, label or split"):
        read("hf://datasets/me/pets", text="label")


def test_converted_and_resumed_at_its_commit(
    pets: Any, jpegs: list[bytes], tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch moves while a conversion is interrupted: going on reads what it began with."""
    dst = tmp_path / "D"
    arguments = ("convert", "hf://datasets/me/pets", dst, "--shard-size", "1", "--no-shuffle", "--tile", "off")
    whole = cli(*arguments[:2], tmp_path / "whole", *arguments[3:])
    assert whole.code == 0, whole.err
    before = pets.refs["main"]

    from fastimg.convert import journal

    add = journal.Journal.add

    def stop_after_one(self: Any, shard: Any) -> None:
        add(self, shard)
        raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr(journal.Journal, "add", stop_after_one)
        assert cli(*arguments).code == 130
    pets.commit({"data/train-00001-of-00002.parquet": parquet({"image": pictures(jpegs[:1]), "label": [0]})})
    resumed = cli(*arguments, "--resume")
    assert resumed.code == 0, resumed.err
    assert json.loads((dst / "dataset.json").read_text())["options"]["source"] == f"hf://datasets/me/pets@{before}"
    files = sorted(path.name for path in dst.glob("*.tar"))
    assert files and all((dst / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in files)
    again = cli(*arguments, "--resume")
    assert again.code == 0 and "already complete" in again.err
    with contextlib.closing(open_dataset(dst, "train")) as dataset:
        assert len(dataset) == 3


def test_faults_that_pass(hub: Any, pets: Any, jpegs: list[bytes], read: Callable[..., Any]) -> None:
    """A server that is busy, and a body that is cut in the middle, are asked again."""
    hub.faults = [("train-00000", "busy"), ("cdn/datasets/me/pets", "cut"), ("/tree/", "busy")]
    assert contents(read("hf://datasets/me/pets")) == jpegs[:3]
    assert not hub.faults


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"private": True}, r"knows no such repository, or does not show it \(401\).*HF_TOKEN"),
        ({"gated": True}, "its owner has to grant access.*HF_TOKEN"),
    ],
)
def test_repositories_that_need_a_token(
    pets: Any, change: dict[str, bool], said: str, monkeypatch: pytest.MonkeyPatch, read: Callable[..., Any]
) -> None:
    vars(pets).update(change)
    with pytest.raises(UserError, match=said):
        read("hf://datasets/me/pets")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    assert len(read("hf://datasets/me/pets").splits["train"]) == 3


def test_failures_in_a_sentence(
    hub: Any, pets: Any, tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(reference: str, code: int = 1) -> str:
        ran = cli("convert", f"hf://datasets/{reference}", tmp_path / "D")
        assert ran.code == code and "Traceback" not in ran.err and not (tmp_path / "D").exists()
        return ran.err.strip().splitlines()[-1]

    assert "no such revision; check what stands behind @" in said("me/pets@v9")
    assert "--delimiter" not in said("me/none")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    assert "has no such repository (404); check the name" in said("me/none")
    hub.faults = [("train-00000", "denied")]
    assert "refuses (403)" in said("me/pets")
    hub.faults = [("/me/pets", "busy")] * 20
    assert "fails (503); try again later" in said("me/pets")
    hub.faults = []
    assert "give hf://datasets/USER/NAME" in said("a/b/c", code=2)
    import huggingface_hub

    with monkeypatch.context() as offline:
        offline.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        assert "HF_HUB_OFFLINE is set" in said("me/pets")
    hub.close()
    huggingface_hub.close_session()  # whose connections the server would still answer
    assert "does not answer" in said("me/pets")


def test_reading_by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are fetched ahead where they follow one another, and only a few are kept."""
    monkeypatch.setattr(ranges, "BLOCK_BYTES", 16)
    content = os.urandom(1000)
    fetched: list[int] = []

    def fetch(start: int, end: int) -> bytes:
        fetched.append(start // 16)
        return content[start:end]

    with RangeFile(len(content), fetch) as file:
        assert file.seek(-8, io.SEEK_END) == 992 and file.read() == content[-8:] and fetched == [62]
        file.seek(100)
        assert file.read(4) == content[100:104] and sorted(fetched) == [6, 62]
        assert file.read(500) == content[104:604]
        assert len(fetched) == len(set(fetched)) and len(file._blocks) <= 9
        assert file.read(0) == b"" and file.tell() == 604


def test_a_file_that_is_dropped_waits_for_no_thread() -> None:
    """The garbage collector may drop it while CPython holds the lock that joining a thread needs."""
    lock = getattr(threading, "_shutdown_locks_lock", threading.Lock())  # gone in CPython 3.13
    file = RangeFile(3 * ranges.BLOCK_BYTES, lambda start, end: bytes(end - start))
    assert file.read(10) == bytes(10)  # which started a thread
    cycle: list[Any] = [file]
    cycle.append(cycle)
    gc.collect()  # what other tests have left
    del file, cycle
    ended: list[bool] = []

    def collect() -> None:
        with lock:
            gc.collect()
        ended.append(True)

    collecting = threading.Thread(target=collect, daemon=True)
    collecting.start()
    collecting.join(60)
    assert ended


def test_a_file_that_changes_under_its_commit(hub: Any, pets: Any, read: Callable[..., Any]) -> None:
    dataset = open_repository(HubReference("me/pets"))
    files = pets.commits[pets.refs["main"]]
    name = dataset.splits["train"][0].path
    files[name] += b"more"
    with dataset.splits["train"][0].open() as opened, pytest.raises(DataError, match="run this again"):
        opened.read(10)


def test_the_python_function(pets: Any, tmp_path: Path) -> None:
    import fastimg

    report = fastimg.convert("hf://datasets/me/pets", tmp_path / "D", tile="off")
    assert report.images == 4 and Convert(src=Path("hf://datasets/me/pets"), dst=tmp_path).src.name == "pets"
