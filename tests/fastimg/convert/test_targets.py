"""Targets from tables into shards and back: what a sample states for each of them, in either container."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.journal import Journal
from fastimg.convert.pipeline import convert
from fastimg.convert.report import Report
from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers import datasets
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.datasets import Dataset, open_dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.errors import DataError

QUIET = Console(quiet=True)
FORMATS = pytest.mark.parametrize("container", ["tar", "beton"])
Rows = list[dict[str, Any]]

PETS: Rows = [
    {"path": "0.jpg", "breed": "pug", "age": 3.5, "tags": "small|brown", "house": "north"},
    {"path": "1.jpg", "breed": "collie", "age": 7.25, "tags": "", "house": "south"},
    {"path": "2.jpg", "breed": "", "age": "", "tags": "[]", "house": "north"},
    {"path": "3.jpg", "breed": "", "age": "", "tags": "", "house": ""},
    {"path": "4.jpg", "breed": "pug", "age": -1, "tags": "brown", "house": "south"},
]
FLAGS = ("breed", "age:number", "tags:multilabel", "house")
EXPECTED = {
    "0.jpg": ("pug", 3.5, ("brown", "small"), "north"),
    "1.jpg": ("collie", 7.25, None, "south"),
    "2.jpg": (None, None, (), "north"),
    "3.jpg": (None, None, None, None),
    "4.jpg": ("pug", -1.0, ("brown",), "south"),
}


@pytest.fixture
def table(tmp_path: Path, encode: Any) -> Callable[..., Path]:
    """`table(rows, kind)`: a manifest of these rows, whose images exist."""

    def write(rows: Rows, kind: str = "csv", name: str = "pets") -> Path:
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        for i, row in enumerate(rows):
            if "path" in row and not (folder / row["path"]).exists():
                (folder / row["path"]).write_bytes(encode((10 * i, 90, 40), (24, 20), seed=i))
        src = folder / f"{name}.{kind}"
        if kind == "jsonl":
            src.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), src)
        else:
            cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
            quoted = [['"' + cell.replace('"', '""') + '"' for cell in line] for line in cells]
            src.write_text("".join(("\t" if kind == "tsv" else ",").join(line) + "\n" for line in quoted))
        return src

    return write


def run(src: Path, dst: Path, *targets: str, **flags: Any) -> Report:
    return convert(Convert(src=src, dst=dst, target=targets, workers="1", **flags), QUIET)


def only(rows: Rows, *columns: str) -> Rows:
    """The rows with their paths and these columns."""
    return [{name: row[name] for name in ("path", *columns)} for row in rows]


def value(column: TargetColumn, index: int) -> Any:
    """What a sample has, by name; None where it is missing."""
    if not column.present[index]:
        return None
    if column.target.kind == "multilabel":
        return tuple(column.target.classes[label] for label in column.labels_of(index))
    if column.target.kind == "class":
        return column.target.classes[column.values[index]]
    return float(column.values[index])


def stated(dataset: Dataset) -> dict[str, tuple[Any, ...]]:
    """The targets of every sample by its key."""
    return {dataset.sample_key(i): tuple(value(column, i) for column in dataset.targets) for i in range(len(dataset))}


def targets_of(folder: Path, split: str = "train") -> dict[str, tuple[Any, ...]]:
    dataset = open_dataset(folder, split)
    try:
        return stated(dataset)
    finally:
        dataset.close()


@FORMATS
def test_every_value_of_a_table_comes_back(container: Any, table: Any, tmp_path: Path) -> None:
    report = run(table(PETS), tmp_path / "D", *FLAGS, format=container)
    assert targets_of(tmp_path / "D") == EXPECTED
    assert report.images == 5
    assert [(target["name"], target["kind"], target["missing"]) for target in report.targets] == [
        ("breed", "class", 2),
        ("age", "number", 2),
        ("tags", "multilabel", 2),
        ("house", "class", 1),
    ]
    assert report.without_targets == 1
    described = read_description(tmp_path / "D")
    assert described["splits"]["train"]["missing"] == {"breed": 2, "age": 2, "tags": 2, "house": 1}
    assert described["classes"] == ["collie", "pug"]
    dataset = open_dataset(tmp_path / "D")
    assert dataset.classes == ("collie", "pug")
    assert sorted(dataset.labels.tolist()) == [-1, -1, 0, 1, 1]
    dataset.close()


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_texts_have_targets_too(kind: str, tmp_path: Path, table: Any) -> None:
    rows = [{"text": f"{row['path']} said", **row} for row in PETS]
    for row in rows:
        del row["path"]
    if kind in ("jsonl", "parquet"):  # what these can say and csv cannot
        tags: dict[str, Any] = {"": None, "[]": [], "brown": ["brown"], "small|brown": ["small", "brown"]}
        rows = [
            row | {"tags": tags[row["tags"]], "age": None if row["age"] == "" else float(row["age"])} for row in rows
        ]
    run(table(rows, kind), tmp_path / "D", *FLAGS, no_shuffle=True)
    assert list(targets_of(tmp_path / "D").values()) == list(EXPECTED.values())


def test_images_in_parquet_have_targets_too(tmp_path: Path, encode: Any) -> None:
    rows = [
        {"image": {"bytes": encode(seed=i), "path": f"{i}.jpg"}, "breed": i % 2, "tags": ["a"] * i} for i in range(3)
    ]
    rows.append(rows[0] | {"breed": None, "tags": None})
    schema = pa.Table.from_pylist(rows).schema.with_metadata(
        {"huggingface": json.dumps({"info": {"features": {"breed": {"_type": "ClassLabel", "names": ["pug", "cat"]}}}})}
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "pets.parquet")
    run(tmp_path / "pets.parquet", tmp_path / "D", "breed", "tags", no_shuffle=True)
    dataset = open_dataset(tmp_path / "D")
    assert [tuple(value(column, i) for column in dataset.targets) for i in range(4)] == [
        ("pug", ()),
        ("cat", ("a",)),
        ("pug", ("a",)),
        (None, None),
    ]
    dataset.close()


def test_numbers_and_labels_alone_make_a_dataset_without_classes(table: Any, tmp_path: Path) -> None:
    report = run(table(PETS), tmp_path / "D", "age", "tags")
    assert report.classes == 0
    dataset = open_dataset(tmp_path / "D")
    assert dataset.classes == ()
    assert dataset.labels.tolist() == [-1] * 5
    assert [column.target.kind for column in dataset.targets] == ["number", "multilabel"]
    dataset.close()


@FORMATS
def test_targets_survive_from_one_container_to_the_other_and_back(container: Any, table: Any, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("one", "two", "three"))
    run(table(PETS), first, *FLAGS, format=container)
    run(first, second, format={"tar": "beton", "beton": "tar"}[container])
    run(second, third, format=container)
    assert targets_of(second) == targets_of(third) == EXPECTED
    for name in ("train-00000.tar", "train.beton"):
        if (first / name).exists():
            assert (first / name).read_bytes() == (third / name).read_bytes()
    assert read_description(first)["targets"] == read_description(third)["targets"]


def test_an_append_adds_classes_labels_and_targets(table: Any, tmp_path: Path) -> None:
    run(table(only(PETS[:2], "breed", "tags"), name="a"), tmp_path / "D", "breed", "tags", no_shuffle=True)
    more = [
        {"path": "5.jpg", "breed": "akita", "tags": "red|small", "age": 2.5},
        {"path": "6.jpg", "breed": "", "tags": "", "age": ""},
    ]
    report = run(table(more, name="b"), tmp_path / "D", "breed", "tags", "age:number", append=True, no_shuffle=True)
    assert targets_of(tmp_path / "D") == {
        "0.jpg": ("pug", ("small", "brown")[::-1], None),
        "1.jpg": ("collie", None, None),
        "5.jpg": ("akita", ("small", "red"), 2.5),
        "6.jpg": (None, None, None),
    }
    described = read_description(tmp_path / "D")
    assert described["classes"] == ["collie", "pug", "akita"]
    assert [target.get("classes") for target in described["targets"]] == [
        ["collie", "pug", "akita"],
        ["brown", "small", "red"],
        None,
    ]
    assert described["splits"]["train"]["missing"] == {"breed": 1, "tags": 2, "age": 3}
    assert report.without_targets == 1


def test_a_class_folder_joins_the_first_class(table: Any, tmp_path: Path, encode: Any) -> None:
    for name in ("pug", "akita"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        (tmp_path / "folder" / name / "x.jpg").write_bytes(encode(seed=len(name)))
    src = table(PETS)
    run(src, tmp_path / "pets", "breed", "age:number")
    run(tmp_path / "folder", tmp_path / "pets", append=True)
    found = targets_of(tmp_path / "pets")
    assert found["akita/x.jpg"] == ("akita", None)
    assert found["pug/x.jpg"] == ("pug", None)
    assert found["0.jpg"] == ("pug", 3.5)


def test_a_dataset_of_classes_gets_targets_by_an_append(table: Any, tmp_path: Path, encode: Any) -> None:
    for name in ("pug", "akita"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        (tmp_path / "folder" / name / "x.jpg").write_bytes(encode(seed=len(name)))
    run(tmp_path / "folder", tmp_path / "D")
    assert "targets" not in read_description(tmp_path / "D")
    run(table(PETS), tmp_path / "D", "breed", "age:number", append=True)
    found = targets_of(tmp_path / "D")
    assert found["akita/x.jpg"] == ("akita", None)
    assert found["1.jpg"] == ("collie", 7.25)
    assert read_description(tmp_path / "D")["splits"]["train"]["missing"] == {"breed": 2, "age": 4}


def test_several_sources_are_merged_by_the_names_of_targets(table: Any, tmp_path: Path) -> None:
    run(table(only(PETS[:2], "breed", "age"), name="a"), tmp_path / "A", "breed", "age:number")
    run(table(only(PETS[2:], "breed", "tags"), name="b"), tmp_path / "B", "breed", "tags:multilabel")
    flags = Convert(src=tmp_path / "A", dst=tmp_path / "B", more=(tmp_path / "D",), merge=True, workers="1")
    convert(flags, QUIET)
    assert targets_of(tmp_path / "D") == {
        key: (breed, age if key in ("0.jpg", "1.jpg") else None, None if key in ("0.jpg", "1.jpg") else tags)
        for key, (breed, age, tags, _) in EXPECTED.items()
    }


def test_a_column_that_was_no_target_does_not_become_one(table: Any, tmp_path: Path) -> None:
    run(table(PETS, name="a"), tmp_path / "D", "breed")
    before = {file.name: file.read_bytes() for file in (tmp_path / "D").iterdir()}
    rows = [{"path": "5.jpg", "breed": "pug", "age": 1.5}]
    with pytest.raises(UserError, match=r"has a column 'age' that is no target there; .*--target age"):
        run(table(rows, name="b"), tmp_path / "D", "breed", "age", append=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "D").iterdir()} == before
    run(table(only(PETS, "breed", "age"), name="c"), tmp_path / "E", "breed", "age")
    rows = [{"path": "6.jpg", "label": "pug", "age": "old"}, {"path": "5.jpg", "label": "pug", "age": "young"}]
    with pytest.raises(DataError, match=r"'(old|young)' is not a number, and 'age' is a target of kind number"):
        run(table(rows, name="d"), tmp_path / "E", append=True)
    assert targets_of(tmp_path / "E").keys() == EXPECTED.keys()


def test_a_beton_has_no_place_for_labels_that_come_later(table: Any, tmp_path: Path) -> None:
    run(table(PETS[:2], name="a"), tmp_path / "D", "breed", "tags", format="beton")
    with pytest.raises(UserError, match=r"its field tags has a place for 2 labels, and with the new .*--merge"):
        run(table([PETS[4] | {"tags": "red"}], name="b"), tmp_path / "D", "breed", "tags", append=True)


@FORMATS
def test_a_resumed_conversion_has_the_same_bytes(
    container: Any, table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src = table(PETS)
    flags: dict[str, Any] = {"format": container, "shard_size": "4KB"}
    run(src, tmp_path / "whole", *FLAGS, **flags)
    add = Journal.add

    def stop(journal: Journal, shard: Any) -> None:
        if shard.number == 2:
            raise KeyboardInterrupt
        add(journal, shard)

    monkeypatch.setattr(Journal, "add", stop)
    with pytest.raises(KeyboardInterrupt):
        run(src, tmp_path / "D", *FLAGS, **flags)
    monkeypatch.undo()
    run(src, tmp_path / "D", *FLAGS, **flags, resume=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "D").iterdir()} == {
        file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()
    }


@FORMATS
def test_columns_are_derived_once(container: Any, table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(table(PETS), tmp_path / "D", *FLAGS, format=container)
    derived = []
    for name in ("columns_of_tars", "columns_of_beton"):
        real = getattr(datasets, name)
        monkeypatch.setattr(datasets, name, lambda *given, real=real: derived.append(1) or real(*given))
    assert targets_of(tmp_path / "D") == EXPECTED
    assert derived == []
    kept = tmp_path / "D" / "train.fcol"
    whole = kept.read_bytes()
    for damaged in (whole[:-1], whole[:60], b"", whole[:70] + bytes([whole[70] ^ 1]) + whole[71:]):
        kept.write_bytes(damaged)
        assert targets_of(tmp_path / "D") == EXPECTED
        assert kept.read_bytes() == whole
    assert len(derived) == 4


def test_columns_are_kept_in_the_cache_if_the_folder_is_read_only(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run(table(PETS), tmp_path / "D", *FLAGS)
    (tmp_path / "D" / "train.fcol").unlink()
    (tmp_path / "D" / "train.fcol").mkdir()  # so that no file can be put there, whoever runs this
    assert targets_of(tmp_path / "D") == EXPECTED
    (kept,) = (tmp_path / "cache").rglob("train.fcol")
    monkeypatch.setattr(datasets, "columns_of_tars", None)
    assert targets_of(tmp_path / "D") == EXPECTED
    assert kept.is_file()


def test_fields_of_a_beton_whose_names_ffcv_cannot_have_are_made_and_stated(table: Any, tmp_path: Path) -> None:
    long, foreign = "the number of legs it has", "größe"
    rows = [
        {"path": f"{i}.jpg", "kind": "ab"[i % 2], long: i + 0.5, foreign: i + 1.5, "target": "xy"[i % 2]}
        for i in range(4)
    ]
    report = run(table(rows), tmp_path / "D", "kind", long, foreign, "target", format="beton")
    assert [target["field"] for target in report.targets] == ["label", "target2", "target3", "target4"]
    with BetonFile(tmp_path / "D" / "train.beton") as beton:
        assert {beton.fields[name].kind for name in ("target2", "target3")} == {"float"}
        assert beton.fields["target4"].kind == "int"
    assert targets_of(tmp_path / "D")["1.jpg"] == ("b", 1.5, 2.5, "y")
    lone = open_dataset(tmp_path / "D" / "train.beton")  # without dataset.json its label is still found
    assert sorted(lone.labels.tolist()) == [0, 0, 1, 1]
    lone.close()


def test_verify_finds_a_target_that_is_no_longer_there(table: Any, tmp_path: Path, cli: Any) -> None:
    run(table(PETS), tmp_path / "D", *FLAGS)
    assert cli("verify", tmp_path / "D").code == 0
    description = json.loads((tmp_path / "D" / "dataset.json").read_text())
    description["splits"]["train"]["missing"]["age"] = 0
    (tmp_path / "D" / "dataset.json").write_text(json.dumps(description))
    said = cli("verify", tmp_path / "D")
    assert said.code == 1
    assert "2 samples without the target 'age' where dataset.json says 0" in said.out
    description["targets"][3]["classes"] = ["east", "south"]
    (tmp_path / "D" / "dataset.json").write_text(json.dumps(description))
    assert "target 'house': 'north' is not among its 2 classes" in cli("verify", tmp_path / "D").out


def test_inspect_says_what_samples_have(table: Any, tmp_path: Path, cli: Any) -> None:
    run(table(PETS), tmp_path / "D", *FLAGS)
    said = cli("inspect", tmp_path / "D", "--no-pictures", "--workers", "1")
    assert "age: number, -1 to 7.25, mean 3.25; missing in 2" in said.out
    assert "tags: multilabel, 2 labels (brown 2, small 1); missing in 2" in said.out
    result = json.loads(cli("inspect", tmp_path / "D", "--no-pictures", "--workers", "1", "--json").out)
    assert result["targets"][1] == {
        "name": "age",
        "kind": "number",
        "min": -1.0,
        "mean": 3.25,
        "max": 7.25,
        "missing": 2,
    }
    assert result["targets"][2]["top"] == {"brown": 2, "small": 1}


def test_ten_thousand_labels_take_little_room(table: Any, tmp_path: Path) -> None:
    rows = [{"text": f"text {i}", "tags": [f"tag {i} {j}" for j in range(2500)]} for i in range(4)]
    run(table(rows, "jsonl"), tmp_path / "D", "tags", no_shuffle=True)
    assert (tmp_path / "D" / "train.fcol").stat().st_size < 60_000  # 4 bytes a label that a sample has
    dataset = open_dataset(tmp_path / "D")
    (column,) = dataset.targets
    values, present = column.rows(np.arange(4))
    assert values.shape == (4, 10_000)
    assert values.sum() == 10_000
    assert present.all()
    dataset.close()


def test_targets_that_do_not_go_together_are_refused(table: Any, tmp_path: Path) -> None:
    run(table(only(PETS, "breed", "age"), name="a"), tmp_path / "A", "breed", "age:number")
    run(table(only(PETS, "house"), name="b"), tmp_path / "B", "house")
    run(table(only(PETS, "breed", "age"), name="c"), tmp_path / "C", "breed", "age:class")
    for other, reason in (("B", "its first class is 'house' and that of .* 'breed'"), ("C", "'age' is a class")):
        with pytest.raises(DataError, match=reason):
            flags = Convert(src=tmp_path / "A", dst=tmp_path / other, more=(tmp_path / "D",), merge=True, workers="1")
            convert(flags, QUIET)
        assert not (tmp_path / "D").exists()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"label_column": "breed"}, "--label-column has no effect with --target"),
        ({"labels_are_classes": True}, "--labels-are-classes has no effect with --target"),
        ({"label_delimiter": ""}, "--label-delimiter: give what separates labels"),
        ({"target": (), "label_delimiter": "|"}, "--label-delimiter has no effect without --target"),
        ({"target": ("age", "age:number")}, "--target age: given twice"),
        ({"target": ("path",)}, "--target path"),
    ],
)
def test_flags_that_contradict_targets_are_refused(
    flags: dict[str, Any], reason: str, table: Any, tmp_path: Path
) -> None:
    given = {"target": ("breed",)} | flags
    with pytest.raises(UsageError, match=reason):
        convert(Convert(src=table(PETS), dst=tmp_path / "D", **given), QUIET)
    assert not (tmp_path / "D").exists()


def test_a_folder_and_a_tar_have_no_columns(tmp_path: Path, encode: Any, table: Any) -> None:
    run(table(PETS), tmp_path / "D", "breed")
    for src in (tmp_path / "D", tmp_path / "D" / "train-00000.tar"):
        with pytest.raises(UsageError, match=r"--target: .* has no columns"):
            run(src, tmp_path / "E", "breed")
