"""Parquet files with images in them: which columns are used, and files that are refused."""

import json
from datetime import date

import pyarrow as pa
import pytest

from fastimg.convert.sources.columns import Columns
from fastimg.convert.sources.image_parquets import holds_images
from fastimg.convert.sources.resolve import find_parquets
from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError

from .parquets import ANIMALS, IMAGE, contents, features, pictures, write, write_pets

ANY = {"labels_are_classes": True}


def notes(source, split="train"):
    return [json.loads(source.read(entry).note) for entry in source.splits[split]]


def test_hugging_face(tmp_path, jpegs, read):
    src = write_pets(tmp_path / "pets.parquet", jpegs)
    assert holds_images(src, Columns())
    source = read(src)
    assert (source.kind, source.classes, source.named, source.stored) == ("parquet", tuple(ANIMALS), True, False)
    assert (source.fields, source.remarks, source.ignored.total) == ((), (), 0)
    entries = source.splits["train"]
    assert [(e.path, e.label, e.size, e.row) for e in entries] == [
        (f"{i}.jpg", label, len(jpegs[i]), i + 1) for i, label in enumerate((0, 2, 1))
    ]
    assert contents(source) == jpegs
    original = source.read(entries[1])
    assert (original.suffix, original.note, original.fields) == ("jpg", b'{"path": "1.jpg"}', {})
    assert source.name(entries[1]) == f"{src}: row 2: 1.jpg" and source.problem(entries[1]) is None


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_column_of_bytes(tmp_path, jpegs, read, kind):
    src = write(tmp_path / "set.parquet", {"img": jpegs, "label": ["b", "a", "b"]}, {"img": kind})
    source = read(src)
    assert source.classes == ("a", "b") and source.splits["train"].labels.tolist() == [1, 0, 1]
    assert contents(source) == jpegs
    assert source.splits["train"][2].path == "set.parquet/000002"
    assert source.read(source.splits["train"][2]).suffix == ""


def test_integers_without_names_are_classes_in_numerical_order(tmp_path, jpegs, read):
    source = read(write(tmp_path / "set.parquet", {"image": pictures(jpegs), "label": [10, 9, 10]}))
    assert source.classes == ("9", "10") and source.splits["train"].labels.tolist() == [1, 0, 1]


def test_named_columns_win(tmp_path, jpegs, read):
    columns = {"image": ["x", "y", "z"], "photo": jpegs, "kind": ["b", "a", "b"], "label": [1, 2, 3]}
    src = write(tmp_path / "set.parquet", columns, {"image": pa.string()})
    assert not holds_images(src, Columns())
    assert holds_images(src, Columns(path="photo")) and not holds_images(src, Columns(path="image"))
    source = read(src, path="photo", label="kind")
    assert source.classes == ("a", "b") and contents(source) == jpegs
    assert notes(source)[0] == {"path": "set.parquet/000000", "image": "x", "label": 1}


def test_the_only_image_and_the_only_class_label_are_found_by_the_metadata(tmp_path, jpegs, read):
    columns = {"photo": pictures(jpegs), "breed": [2, 1, 0]}
    src = write(tmp_path / "s.parquet", columns, {"photo": IMAGE}, features(photo=None, breed=ANIMALS))
    assert holds_images(src, Columns())
    source = read(src)
    assert source.classes == tuple(ANIMALS) and source.splits["train"].labels.tolist() == [2, 1, 0]


def test_labels_that_do_not_look_like_classes(tmp_path, jpegs, read):
    src = write(tmp_path / "set.parquet", {"image": pictures(jpegs), "label": [" x|y", "x", "y"]})
    with pytest.raises(DataError, match=r"column 'label' look like lists in 1 of 3 rows.*--labels-are-classes"):
        read(src)
    source = read(src, labels_are_classes=True)
    assert source.classes == ("x", "x|y", "y") and source.from_table
    assert "--labels-are-classes makes a class of each of 3" in source.remarks[0]
    assert "lose the blanks around them in 1 row, as in ' x|y'" in source.remarks[1]
    source = read(write(tmp_path / "half.parquet", {"image": pictures(jpegs), "label": [0.5, 1, 2]}), **ANY)
    assert source.classes == ("0.5", "1", "2")
    with pytest.raises(DataError, match=r"row 1: the label 0.5 in column 'label' is not a whole number"):
        read(tmp_path / "half.parquet")


def test_names_of_a_schema_are_not_judged(tmp_path, jpegs, read):
    names = [f"{i / 8}|{i}" for i in range(30)]
    columns = {"image": pictures(jpegs * 10), "label": list(range(30))}
    source = read(write(tmp_path / "set.parquet", columns, metadata=features(image=None, label=names)))
    assert source.classes == tuple(names) and not source.from_table and source.remarks == ()


def test_two_class_labels_ask_for_a_choice(tmp_path, jpegs, read):
    columns = {"img": pictures(jpegs), "fine_label": [2, 1, 0], "coarse_label": [0, 0, 1]}
    metadata = features(img=None, fine_label=ANIMALS, coarse_label=["pet", "bird"])
    src = write(tmp_path / "s.parquet", columns, {"img": IMAGE}, metadata)
    with pytest.raises(DataError, match="fine_label, coarse_label all hold labels; choose one with --label-column"):
        read(src)
    source = read(src, label="coarse_label")
    assert source.classes == ("pet", "bird") and notes(source)[0]["fine_label"] == 2


def test_without_labels(tmp_path, jpegs, read):
    source = read(write(tmp_path / "set.parquet", {"image": pictures(jpegs)}))
    assert source.splits["train"].labels.tolist() == [-1, -1, -1]
    assert (source.classes, source.named, source.stored) == ((), False, True)
    assert "no label column (label, class, target" in source.remarks[0] and "--label-column" in source.remarks[0]


def test_test_split_without_labels_and_classes_without_images(tmp_path, jpegs, read):
    write_pets(tmp_path / "train-00000-of-00001.parquet", jpegs, (0, 0, 2))
    write_pets(tmp_path / "test-00000-of-00001.parquet", jpegs, (-1, None, -1))
    source = read(tmp_path)
    assert source.stored and source.splits["test"].labels.tolist() == [-1, -1, -1]
    assert "3 of 3 images of test have no label" in source.remarks[0]
    assert "1 of 3 classes has no training image (dog)" in source.remarks[1]


def test_split_column(tmp_path, jpegs, read):
    columns = {"image": pictures(jpegs), "label": ["a", "b", "a"], "split": ["train", "train", "validation"]}
    source = read(write(tmp_path / "set.parquet", columns))
    assert contents(source) == jpegs[:2] and contents(source, "val") == jpegs[2:]
    assert source.splits["val"][0].row == 3 and notes(source, "val") == [{"path": "set.parquet/000002"}]
    columns["split"] = ["train", "test", "train"]
    with pytest.raises(DataError, match=r"row 2: .*the training split has no class 'b', which test has"):
        read(write(tmp_path / "set.parquet", columns))
    columns["split"] = ["test", "test", "val"]
    with pytest.raises(DataError, match="no training split; it has test, val"):
        read(write(tmp_path / "set.parquet", columns))
    columns["split"] = ["train", "some", "train"]
    with pytest.raises(DataError, match="row 2: 'some' is not a split"):
        read(write(tmp_path / "set.parquet", columns))


def test_empty_images(tmp_path, jpegs, read):
    images = [None, {"bytes": None, "path": "gone.jpg"}, {"bytes": b"", "path": None}, *pictures(jpegs[:1])]
    source = read(write(tmp_path / "set.parquet", {"image": images, "label": [1, 1, 1, 1]}))
    entries = source.splits["train"]
    assert entries.sizes.tolist() == [-1, -1, -1, len(jpegs[0])]
    problems = [source.problem(entry) for entry in entries]
    assert problems[0] == problems[2] == "the image is empty" and problems[3] is None
    assert problems[1].startswith("only the path of an image, and no bytes; store the bytes in the file")
    assert source.name(entries[1]) == f"{tmp_path}/set.parquet: row 2: gone.jpg"
    assert source.read(entries[3]).image == jpegs[0]


@pytest.mark.parametrize("empty", [None, " ", float("nan")])
def test_rows_without_a_label_are_skipped(tmp_path, jpegs, read, empty):
    labels = ["x", "y", "x", empty] if isinstance(empty, str) else [1, 2, 1, empty]
    columns = {"image": pictures([*jpegs, jpegs[0]]), "label": labels, "split": ["train", "train", "val", "val"]}
    source = read(write(tmp_path / "set.parquet", columns))
    assert (len(source.classes), source.stored, source.remarks) == (2, False, ())
    entries = [*source.splits["train"], *source.splits["val"]]
    assert [source.problem(entry) for entry in entries] == [None, None, None, "the label is empty"]
    with pytest.raises(DataError, match="every label in column 'label' is empty; fill them in"):
        read(write(tmp_path / "set.parquet", {"image": pictures(jpegs[:1]), "label": [None]}))


def test_further_columns(tmp_path, jpegs, encode, read):
    mask = encode(kind="PNG")
    columns = {
        "image": pictures(jpegs, ["x/0.jpg", None, None]),
        "label": [1, 2, 1],
        "boxes": [[[1, 2], [3, 4]], [], None],
        "score": [0.5, float("nan"), None],
        "taken": [date(2024, 5, 1), None, None],
        "camera": [{"make": "A", "iso": 100}, None, None],
        "thumb": [b"\0\1", None, b""],
        "mask": [{"bytes": mask, "path": None}, {"bytes": jpegs[1], "path": "m/1.jpeg"}, None],
        "odd": [{"bytes": b"??", "path": "m/2"}, {"bytes": None, "path": None}, None],
    }
    source = read(write(tmp_path / "set.parquet", columns, {"mask": IMAGE, "odd": IMAGE}))
    assert source.fields == ("mask.jpeg", "mask.png", "odd", "thumb")
    assert [source.read(entry).fields for entry in source.splits["train"]] == [
        {"thumb": b"\0\1", "mask.png": mask, "odd": b"??"},
        {"mask.jpeg": jpegs[1]},
        {"thumb": b""},
    ]
    none = {"boxes": None, "score": None, "taken": None, "camera": None}
    assert notes(source) == [
        {"path": "x/0.jpg", "boxes": [[1, 2], [3, 4]], "score": 0.5, "taken": "2024-05-01",
         "camera": {"make": "A", "iso": 100}, "odd.path": "m/2"},
        none | {"path": "set.parquet/000001", "boxes": [], "mask.path": "m/1.jpeg"},
        none | {"path": "set.parquet/000002"},
    ]  # fmt: skip
    assert contents(source) == jpegs


def test_a_path_column_names_the_images_and_their_struct_is_kept(tmp_path, jpegs, read):
    images = [{"bytes": data, "path": f"{i}.png", "width": 40} for i, data in enumerate(jpegs)]
    columns = {"image": images, "path": ["a/0.jpg", None, "2.png"], "label": [1, 2, 1]}
    source = read(write(tmp_path / "set.parquet", columns, {"image": pa.struct([*IMAGE, ("width", pa.int32())])}))
    assert notes(source) == [
        {"path": "a/0.jpg", "image.width": 40, "image.path": "0.png"},
        {"path": "1.png", "image.width": 40},
        {"path": "2.png", "image.width": 40},
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"jpg": [b"x"]}, "the column 'jpg' holds bytes beside the images in 'image'.*rename it"),
        ({"a b": [b"x"]}, "the column 'a b' holds bytes"),
        ({"views": [[b"x"]]}, "row 1: the column 'views' holds bytes, which JSON cannot store; drop the column"),
        ({"path": [1]}, "the column 'path' beside 'image' is not text"),
        ({"label": [7]}, "row 1: the label 7 in column 'label' is not one of the 3 classes that the schema names"),
    ],
)
def test_unsupported_columns_are_an_error(tmp_path, jpegs, read, columns, message):
    src = write(
        tmp_path / "s.parquet", {"image": pictures(jpegs[:1]), "label": [0]} | columns, metadata=features(label=ANIMALS)
    )
    with pytest.raises(DataError, match=message):
        read(src)


def test_wrong_columns(tmp_path, jpegs, read):
    src = write_pets(tmp_path / "pets.parquet", jpegs)
    with pytest.raises(DataError, match=r"no column 'imag' \(--path-column\).*did you mean image"):
        read(src, path="imag")
    with pytest.raises(DataError, match="the column 'label' holds no encoded images"):
        read(src, path="label")
    with pytest.raises(DataError, match=r"no column 'x' \(--label-column\)"):
        read(src, label="x")
    with pytest.raises(UsageError, match="image, label and split are three columns"):
        read(src, label="image")


def test_files_that_differ(tmp_path, jpegs, read):
    write_pets(tmp_path / "train-0.parquet", jpegs)
    write(tmp_path / "train-1.parquet", {"image": pictures(jpegs), "label": [0, 1, 1], "more": [1, 2, 3]})
    with pytest.raises(
        DataError, match=r"train-1.parquet: its columns differ from .*train-0.parquet: only one of them has 'more'"
    ):
        read(tmp_path)
    write(tmp_path / "train-1.parquet", {"image": pictures(jpegs), "label": [0, 1, 1]})
    with pytest.raises(DataError, match="labels or types differ"):
        read(tmp_path)


def test_damaged_and_empty_files(tmp_path, jpegs, read):
    src = write_pets(tmp_path / "pets.parquet", jpegs)
    whole = src.read_bytes()
    for damaged in (whole[:-100], whole[:3], b"", whole[:4] + bytes(20) + whole[24:]):
        src.write_bytes(damaged)
        with pytest.raises(DataError, match=r"pets\.parquet: the manifest cannot be read"):
            read(src)
    src.write_bytes(b"PAR1")
    assert not holds_images(src, Columns()) and not holds_images(tmp_path / "none.parquet", Columns())
    assert find_parquets(tmp_path) == {"train": [src]}
    with pytest.raises(DataError, match="no rows"):
        read(write_pets(src, [], []))
    write_pets(tmp_path / "train.parquet", jpegs)
    write_pets(tmp_path / "test.parquet", [], [])
    src.unlink()
    with pytest.raises(DataError, match="no rows in the files of test"):
        read(tmp_path)


def test_fingerprint_tells_content_and_further_columns(tmp_path, jpegs, read):
    def fingerprint(images, score):
        columns = {"image": pictures(images), "label": [1, 2, 1], "score": score}
        return read(write(tmp_path / "set.parquet", columns)).fingerprint()

    first = fingerprint(jpegs, [1, 2, 3])
    assert fingerprint(jpegs, [1, 2, 3]) == first
    assert fingerprint(jpegs, [1, 2, 4]) != first
    changed = [jpegs[0][:-1] + b"\0", *jpegs[1:]]
    assert fingerprint(changed, [1, 2, 3]) != first
