"""Sources that are spooled: parquet files with images in them, and datasets known by name."""

import errno
import io
import json
import os
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from torchvision import datasets

from fastimg.convert.sources.columns import Columns
from fastimg.convert.sources.image_parquets import holds_images
from fastimg.convert.sources.resolve import find_parquets
from fastimg.convert.sources.samples import SourceEntry
from fastimg.convert.sources.streams import Spool, SpoolReader, read_named, read_parquets
from fastimg.data.digits import write_digits
from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError

ANIMALS = ["cat", "dog", "owl"]
ANY = {"labels_are_classes": True}
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


@pytest.fixture
def read(tmp_path):
    """`read(src, path=..., label=..., split=...)`: a source that is closed when the test ends."""
    opened = []

    def call(src, **columns):
        named = Columns(**columns)
        files = find_parquets(src) if src.is_dir() else {"train": [src]}
        opened.append(read_parquets(src, files, named, tmp_path))
        return opened[-1]

    yield call
    for source in opened:
        source.close()


@pytest.fixture
def named(tmp_path, monkeypatch):
    """`named(text)`: a named dataset, with the test's own cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    opened = []

    def call(text, **more):
        opened.append(read_named(text, tmp_path, **more))
        return opened[-1]

    yield call
    for source in opened:
        source.close()


def features(**columns):
    """Hugging Face's metadata: name columns are ClassLabels, None is an Image."""
    told = {
        name: {"_type": "Image"} if names is None else {"_type": "ClassLabel", "names": names}
        for name, names in columns.items()
    }
    return {"huggingface": json.dumps({"info": {"features": told}})}


def write(file, columns, types=None, metadata=None, **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    types = {"image": IMAGE} | (types or {})
    arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    pq.write_table(pa.table(arrays).replace_schema_metadata(metadata), file, **options)
    return file


def pictures(images, names=None):
    return [{"bytes": data, "path": names and names[i]} for i, data in enumerate(images)]


def write_pets(file, images, labels=(0, 2, 1), **options):
    names = [f"{i}.jpg" for i in range(len(images))]
    columns = {"image": pictures(images, names), "label": list(labels)}
    return write(file, columns, {"label": pa.int64()}, metadata=features(image=None, label=ANIMALS), **options)


@pytest.fixture
def jpegs(encode):
    """Three different images."""
    return [encode(seed=i) for i in range(3)]


def contents(source, split="train"):
    return [source.read(entry).image for entry in source.splits[split]]


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


@pytest.mark.parametrize(
    "form",
    [
        "{split}-{i:05d}-of-00002.parquet",
        "data/{split}-{i:05d}-of-00002-0123456789abcdef.parquet",
        "{split}/{i:04d}.parquet",
        "data/my_{split}_{i}.parquet",
    ],
)
def test_folder_of_shards(tmp_path, jpegs, read, form):
    for split in ("train", "validation", "test"):
        for i in range(2):
            write_pets(tmp_path / "set" / form.format(split=split, i=i), jpegs)
    (tmp_path / "set" / "README.md").write_text("a set")
    source = read(tmp_path / "set")
    assert {split: len(entries) for split, entries in source.splits.items()} == {"test": 6, "train": 6, "val": 6}
    assert contents(source, "val") == jpegs * 2
    second = source.splits["train"][4]
    assert source.name(second) == f"{tmp_path / 'set' / form.format(split='train', i=1)}: row 2: 1.jpg"


def test_keys_of_a_folder_name_the_file(tmp_path, jpegs, read):
    for split in ("train", "test"):
        write(tmp_path / split / "0000.parquet", {"image": pictures(jpegs), "label": [1, 2, 3]})
    source = read(tmp_path)
    assert [entries[0].path for entries in source.splits.values()] == [
        "test/0000.parquet/000000",
        "train/0000.parquet/000000",
    ]


@pytest.mark.parametrize("names", [("part-0.parquet", "part-1.parquet"), ("test-00000-of-00001.parquet",)])
def test_files_with_no_or_one_split_are_for_training(tmp_path, jpegs, names):
    for name in names:
        write_pets(tmp_path / name, jpegs)
    assert find_parquets(tmp_path) == {"train": [tmp_path / name for name in names]}


def test_folders_that_are_not_parquet_datasets(tmp_path, image_folder, jpegs):
    assert find_parquets(tmp_path / "images") == {}
    write_pets(image_folder / "extra.parquet", jpegs)
    assert find_parquets(image_folder) == {}
    write(tmp_path / "list" / "train.parquet", {"path": ["a.jpg"], "label": [1]})
    assert find_parquets(tmp_path / "list") == {}


def test_unknown_split(tmp_path, jpegs, read):
    for split in ("train", "unsupervised"):
        write_pets(tmp_path / f"{split}-00000.parquet", jpegs)
    with pytest.raises(DataError, match="unsupervised: not among the known splits \\(test, train, val\\); rename"):
        read(tmp_path)


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
    assert [source.problem(entry) for entry in entries] == ["the image is empty"] * 3 + [None]
    assert source.name(entries[1]) == f"{tmp_path}/set.parquet: row 2: gone.jpg"
    assert source.read(entries[3]).image == jpegs[0]


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
    with pytest.raises(DataError, match="row 2: the label in column 'label' is empty"):
        read(write(tmp_path / "n.parquet", {"image": pictures(jpegs), "label": [1, None, 2]}))


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


def test_reading_in_any_order_from_any_thread(tmp_path, read):
    images = [bytes([i % 256]) * (1 + i % 50) for i in range(2000)]
    extra = [b"x" * (i % 5) for i in range(2000)]
    columns = {"image": pictures(images), "label": [i % 7 for i in range(2000)], "extra": extra}
    source = read(write(tmp_path / "set.parquet", columns, row_group_size=300))
    entries = source.splits["train"]
    assert [source.read(entry).image for entry in reversed(entries)] == images[::-1]
    with ThreadPoolExecutor(8) as pool:
        order = np.random.default_rng(0).permutation(2000).tolist()
        got = list(pool.map(lambda i: source.read(entries[i]), order))
    assert [original.image for original in got] == [images[i] for i in order]
    assert [original.fields["extra"] for original in got] == [extra[i] for i in order]


def test_memory_is_bounded(tmp_path, read):
    count, size = 20_000, 1500
    data = np.random.default_rng(0).bytes(count + size)
    file = tmp_path / "many.parquet"
    schema = pa.schema({"image": IMAGE, "label": pa.int64(), "vector": pa.list_(pa.float64())})
    with pq.ParquetWriter(file, schema) as writer:
        for start in range(0, count, 5000):
            images = pictures([data[i : i + size] for i in range(start, start + 5000)])
            columns = {"image": images, "label": [i % 10 for i in range(5000)], "vector": [[0.25] * 9] * 5000}
            writer.write_table(pa.table(columns, schema))
    del images, columns
    tracemalloc.start()
    source = read(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(source.splits["train"]) == count
    assert most < 150 * count + (8 << 20), f"{most:,} bytes for {size * count:,} bytes of images"
    assert contents(source)[-1] == data[count - 1 : count - 1 + size]


def test_tick_counts_images(tmp_path, jpegs):
    seen = []
    src = write_pets(tmp_path / "pets.parquet", jpegs)
    read_parquets(src, {"train": [src]}, Columns(), tmp_path, seen.append).close()
    assert seen == [1, 1, 1]


@pytest.mark.parametrize("nameless", [True, False])
def test_spool_leaves_no_file(tmp_path, monkeypatch, nameless):
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE")
    spool = Spool(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []
    large = os.urandom(3 << 20)
    places = [spool.add(image, {}, {})[0] for image in (b"one", large, b"three")]
    spool.flush()
    assert (spool.read(places[0], 3), spool.read(places[1], 3 << 20), spool.read(places[2], 5)) == (
        b"one",
        large,
        b"three",
    )
    with pytest.raises(DataError, match="truncated"):
        spool.read(places[2], 5000)
    spool.close()
    spool.close()


def test_full_disk_is_raised_and_leaves_nothing_open(tmp_path, jpegs, monkeypatch, read):
    src = write_pets(tmp_path / "pets.parquet", jpegs)
    before = len(os.listdir("/proc/self/fd"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        read(src)
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == before


def test_reader_names_samples_without_rows(tmp_path):
    spool = Spool(tmp_path)
    reader = SpoolReader(spool, "torchvision:X")
    assert reader.name(SourceEntry("train/000001", 0, 1)) == "torchvision:X: train/000001"
    reader.close()


def pixels_of(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def test_digits_are_those_of_the_demo(tmp_path, named):
    seen = []
    source = named("sklearn:digits", tick=seen.append)
    write_digits(tmp_path / "digits")
    entries = source.splits["train"]
    assert (source.kind, source.classes, source.named, len(entries)) == (
        "sklearn:digits", tuple("0123456789"), True, 1797
    )  # fmt: skip
    assert entries[3].path == "digits/0003" and len(seen) == 1797 and str(source.src) == "sklearn:digits"
    for number in (0, 3, 1796):
        entry = entries[number]
        assert source.read(entry).image == (tmp_path / "digits" / str(entry.label) / f"{number:04d}.png").read_bytes()
    assert source.name(entries[3]) == "sklearn:digits: digits/0003"


def write_idx(file, array):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def test_mnist(tmp_path, named):
    raw = tmp_path / "cache" / "fastimg" / "torchvision" / "MNIST" / "raw"
    drawn = np.random.default_rng(0)
    images = {name: drawn.integers(0, 256, (n, 28, 28), np.uint8) for name, n in (("train", 20), ("t10k", 10))}
    for name, array in images.items():
        write_idx(raw / f"{name}-images-idx3-ubyte", array)
        write_idx(raw / f"{name}-labels-idx1-ubyte", (np.arange(len(array)) % 10).astype(np.uint8))
    source = named("torchvision:MNIST")
    assert (source.kind, source.named, source.stored) == ("torchvision:MNIST", True, False)
    assert source.classes[3] == "3 - three"
    for split, name in (("train", "train"), ("test", "t10k")):
        entries = source.splits[split]
        assert entries.labels.tolist() == [i % 10 for i in range(len(images[name]))]
        stored = [pixels_of(data) for data in contents(source, split)]
        assert np.array_equal(stored, images[name])
    assert source.splits["test"][7].path == "test/000007"


class Pairs(datasets.VisionDataset):
    """The test's own dataset in place of one of torchvision's."""

    splits = ("train", "valid", "test")

    def __init__(self, root, split="train", download=False, loader=None):
        super().__init__(root)
        if split not in self.splits:
            raise ValueError(f"Unknown value '{split}' for argument split. Valid values are {self.splits}.")
        print("Files already downloaded and verified")
        self.loader, self.split = loader, split
        self.files = [f"{i}.jpg" for i in range(3)]

    def __getitem__(self, index):
        return self.loader(Path(self.root) / self.files[index]), np.int64(index)

    def __len__(self):
        return len(self.files)


@pytest.fixture
def cached_jpegs(tmp_path, jpegs):
    root = tmp_path / "cache" / "fastimg" / "torchvision"
    root.mkdir(parents=True)
    for i, data in enumerate(jpegs):
        (root / f"{i}.jpg").write_bytes(data)
    return root


def test_files_keep_their_bytes(named, monkeypatch, cached_jpegs, jpegs, capsys):
    monkeypatch.setattr(datasets, "DTD", Pairs)
    source = named("torchvision:DTD")
    assert sorted(source.splits) == ["test", "train", "val"]
    assert contents(source, "val") == jpegs
    assert (source.classes, source.named) == (("0", "1", "2"), False)
    assert capsys.readouterr() == ("", "")


def test_images_opened_or_listed_keep_their_files(named, monkeypatch, cached_jpegs, jpegs):
    class Opened(Pairs):
        def __init__(self, root):
            super().__init__(root)
            self.classes = [("tench", "Tinca tinca"), "dog", "owl"]
            self._images = [Path(self.root) / file for file in self.files]

        def __getitem__(self, index):
            image = Image.open(Path(self.root) / self.files[index])
            if index == 1:
                image = image.convert("RGB")
            if index == 2:
                image = image.convert("L").convert("RGB")  # differs from the file's content
            return image, index

    monkeypatch.setattr(datasets, "Caltech101", Opened)
    source = named("torchvision:Caltech101")
    assert source.classes == ("tench, Tinca tinca", "dog", "owl") and source.named
    stored = contents(source)
    assert stored[:2] == jpegs[:2]
    assert np.array_equal(
        pixels_of(stored[2]), np.asarray(Image.open(io.BytesIO(jpegs[2])).convert("L").convert("RGB"))
    )


@pytest.mark.parametrize("target", [{"boxes": []}, (1, 2), "a caption", 0.5])
def test_targets_that_are_not_classes(named, monkeypatch, cached_jpegs, target):
    class Other(Pairs):
        def __getitem__(self, index):
            return self.loader(Path(self.root) / self.files[index]), target

    monkeypatch.setattr(datasets, "DTD", Other)
    with pytest.raises(DataError, match=r"torchvision:DTD: .* is not a pair of an image and a class index"):
        named("torchvision:DTD")


def test_withheld_labels(named, monkeypatch, cached_jpegs):
    class Secret(Pairs):
        splits = ("train", "test")

        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return image, None if self.split == "test" else label

    monkeypatch.setattr(datasets, "CLEVRClassification", Secret)
    source = named("torchvision:CLEVRClassification")
    assert source.stored and source.splits["test"].labels.tolist() == [-1, -1, -1]
    assert "3 of 3 images of test have no label" in source.remarks[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torchvision:CIFAR", "torchvision has no such set; did you mean CIFAR10"),
        ("torchvision:", "torchvision has no such set; torchvision's documentation"),
        ("torchvision:ImageFolder", "torchvision has no such set"),
        ("sklearn:iris", "use sklearn:digits"),
    ],
)
def test_unknown_names(named, text, message):
    with pytest.raises(UsageError, match=message):
        named(text)


def test_datasets_with_required_arguments(named):
    with pytest.raises(DataError, match=r"torchvision.datasets.CocoDetection requires annFile, which"):
        named("torchvision:CocoDetection")


@pytest.mark.parametrize(
    "name", ["MNIST", "CIFAR10", "Flowers102", "EMNIST", "EuroSAT", "Imagenette", "GTSRB", "STL10"]
)
def test_downloads_that_fail(named, monkeypatch, tmp_path, name):
    def fail(*_, **__):
        raise URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    with pytest.raises(DataError) as caught:
        named(f"torchvision:{name}")
    message = str(caught.value)
    assert message.startswith(f"torchvision:{name}: torchvision cannot load it (") and "\n" not in message
    assert "Name or service not known" in message
    assert (
        f"check the network connection, or put its files into {tmp_path}/cache/fastimg/torchvision yourself" in message
    )


def test_packages_that_are_missing(named, monkeypatch):
    def missing(*_, **__):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy.io")

    monkeypatch.setattr(datasets.SVHN, "__init__", lambda self, root, split="train", download=False: missing())
    with pytest.raises(
        DataError, match="torchvision:SVHN: needs scipy, which is not installed; run `pip install scipy`"
    ):
        named("torchvision:SVHN")


def test_cache_that_cannot_be_written(named, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"torchvision:MNIST: .*Not a directory; set another cache directory"):
        named("torchvision:MNIST")
