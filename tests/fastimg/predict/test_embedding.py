"""`fastimg embed`: its output can be read back, is computed once, and never overwrites foreign files."""

import fcntl
import io
import json
import os
import shutil
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fastimg.config.commands import Embed
from fastimg.embeddings.encoder import captured
from fastimg.loaders import open_dataset
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models import ranks
from fastimg.predict import embedding as module
from fastimg.predict import embedding_files as vectors
from fastimg.predict.nearest_neighbours import knn_accuracy
from fastimg.train.checkpoints.format import load_model
from fastimg.train.choices.stated_weights import adopted

FORMATS = ("shards", "npy", "parquet")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture
def shards(trained, tmp_path):
    return shutil.copytree(trained.shards, tmp_path / "shards")


@pytest.fixture
def embed(cli, trained, shards, tmp_path):
    """`embed(*flags)`: embeddings from the trunk of the trained run, in `out`."""

    def run(*flags, data=shards, out=tmp_path / "out", code=0):
        encoder = ("--arch", "test_resnet", "--weights", trained.run, "--img-size", "32", "--no-amp", "-j", "2")
        ran = cli("embed", data, out, *encoder, *flags)
        assert ran.code == code, ran.out + ran.err
        return ran

    return run


def from_tars(folder, split):
    """Keys, labels and embeddings as any reader sees them: members with the same stem form a sample."""
    samples = {}
    for tar in sorted(folder.glob(f"{split}-*.tar")):
        with tarfile.open(tar) as file:
            for member in file:
                stem, _, ext = member.name.partition(".")
                samples.setdefault(stem, {})[ext] = file.extractfile(member).read()
    assert list(samples) == sorted(samples)
    keys = [json.loads(sample["json"])["path"] for sample in samples.values()]
    arrays = [np.load(io.BytesIO(sample["npy"])) for sample in samples.values()]
    return keys, [int(sample.get("cls", -1)) for sample in samples.values()], np.stack(arrays)


def from_npy(folder, split):
    keys = json.loads((folder / f"{split}.keys.json").read_text())
    return keys, np.load(folder / f"{split}.labels.npy").tolist(), np.load(folder / f"{split}.npy")


def from_parquet(folder, split):
    table = pq.read_table(folder / f"{split}.parquet")
    assert table.column_names == ["key", "label", "class", "embedding"]
    assert set(zip(table["label"].to_pylist(), table["class"].to_pylist(), strict=True)) <= {
        *enumerate(("blue", "green", "red"))
    }
    return table["key"].to_pylist(), table["label"].to_pylist(), np.array(table["embedding"].to_pylist())


READ = {"shards": from_tars, "npy": from_npy, "parquet": from_parquet}


def naive(trained, data, split):
    """The model's embeddings with torchvision's preprocessing, image by image."""
    from torchvision.transforms import v2

    model, card = load_model(trained.run)
    p, dataset = card.preprocessing, open_dataset(data, split)
    steps = v2.Compose(
        [
            v2.Resize(p.val_resize, v2.InterpolationMode(p.interpolation), antialias=True),
            v2.CenterCrop(32),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(p.mean, p.std),
        ]
    )
    with torch.inference_mode(), captured(model) as found:
        for index in range(len(dataset)):
            image = Image.open(io.BytesIO(bytes(dataset.read(index, Scratch()))))
            model.module(steps(v2.functional.pil_to_tensor(image.convert("RGB")))[None])
    keys = [dataset.sample_key(index) for index in range(len(dataset))]
    return keys, dataset.labels.tolist(), torch.cat(found).numpy()


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_written_reads_back(embed, kind, trained, shards, tmp_path):
    """Keys and labels of the samples, and the model's numbers."""
    ran = embed("--format", kind, "--dtype", "fp32", "--json")
    out, told = tmp_path / "out", json.loads(ran.out)
    assert told == json.loads((out / "embeddings.json").read_text()) and told["classes"] == ["blue", "green", "red"]
    files = sorted(name for split in told["splits"].values() for name in split["files"])
    assert sorted(path.name for path in out.iterdir()) == sorted([*files, "embeddings.json"])
    for split in ("train", "val"):
        keys, labels, values = READ[kind](out, split)
        expected = naive(trained, shards, split)
        assert keys == expected[0] and labels == expected[1] and len(set(keys)) == len(keys)
        assert any(key.startswith(f"{split}/red/") for key in keys)
        np.testing.assert_allclose(values, expected[2], rtol=1e-3, atol=1e-4)
        assert told["splits"][split]["samples"] == told["splits"][split]["made now"] == len(keys)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_formats_hold_fp16_by_default(embed, kind, tmp_path):
    embed("--format", kind)
    _, _, values = READ[kind](tmp_path / "out", "val")
    if kind == "parquet":
        assert "halffloat" in str(pq.read_schema(tmp_path / "out" / "val.parquet").field("embedding").type)
    else:
        assert values.dtype == np.float16
    assert values.shape[0] == 12 and values.std() > 0


def test_a_second_run_and_training_reuse_embeddings(embed, encoded, cli, trained, shards, tmp_path):
    embed()
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    ran = embed("--json")
    assert {name: told["made now"] for name, told in json.loads(ran.out)["splits"].items()} == {"train": 0, "val": 0}
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert {**before, "embeddings.json": b""} == {**after, "embeddings.json": b""}
    flags = ("--freeze", "backbone", "--arch", "test_resnet", "--weights", trained.run, "--img-size", "32", "--no-amp")
    ran = cli("train", shards, *flags, "--epochs", "1", "-b", "8", "-j", "2", "-o", tmp_path / "runs")
    assert ran.code == 0 and "0 made now" in ran.out and encoded == [24, 12]


def test_interrupted_it_goes_on(embed, encoded, tmp_path, monkeypatch):
    """During encoding and during writing: nothing is encoded twice, and no partial file remains."""
    with monkeypatch.context() as patch:
        patch.setitem(module._WRITERS, "npy", lambda folder, rows: (_ for _ in ()).throw(KeyboardInterrupt))
        embed("--format", "npy", code=130)
    out = tmp_path / "out"
    assert not (out / "embeddings.json").exists()
    embed("--format", "npy")
    assert encoded == [24, 12] and from_npy(out, "train")[2].shape[0] == 24
    assert sorted(path.name for path in out.iterdir() if path.name.startswith(".")) == []


def test_spoiled_images_are_left_out_and_named(embed, trained, tmp_path):
    data = shutil.copytree(trained.images, tmp_path / "spoiled")
    (data / "train/red/2.jpg").write_bytes(b"\xff\xd8 nothing")
    (data / "val/blue/1.png").write_bytes(b"")
    for kind in FORMATS:
        ran = embed("--format", kind, data=data, out=tmp_path / f"as-{kind}")
        assert sum(line.startswith("left out ") for line in ran.err.splitlines()) == 2
        assert f"left out {data}/train/red/2.jpg: " in ran.err and f"left out {data}/val/blue/1.png: " in ran.err
        keys, labels, values = READ[kind](tmp_path / f"as-{kind}", "train")
        assert len(keys) == len(labels) == len(values) == 23 and "train/red/2.jpg" not in keys
        told = json.loads((tmp_path / f"as-{kind}" / "embeddings.json").read_text())["splits"]
        assert told["train"]["left out"] == told["val"]["left out"] == 1
        assert told["train"]["made now"] in (23, 0)  # the second format finds them
    assert "repair or remove it" in embed("--on-error", "fail", data=data, out=tmp_path / "fail", code=1).err


def test_class_names_in_parquet_that_are_not_utf_8(embed, trained, tmp_path):
    data = shutil.copytree(trained.images / "val", tmp_path / "latin")
    (data / "red").rename(data / os.fsdecode(b"caf\xe9"))
    embed("--format", "parquet", data=data)
    classes = pq.read_table(tmp_path / "out" / "train.parquet")["class"].to_pylist()
    assert set(classes) == {"blue", r"caf\udce9", "green"} and len(classes) == 12


def test_nothing_to_embed_is_an_error(embed, tmp_path):
    for name in ("red", "blue"):
        (tmp_path / "bad" / name).mkdir(parents=True)
        (tmp_path / "bad" / name / "0.jpg").write_bytes(b"no")
    assert "none of its samples could be decoded" in embed(data=tmp_path / "bad", code=1).err


def test_foreign_files_are_refused(embed, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert "contains other files; give an empty folder, or add --overwrite" in embed(code=2).err
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
    embed("--overwrite")
    assert (out / "notes.txt").read_text() == "mine" and len(from_tars(out, "val")[0]) == 12
    (tmp_path / "file").write_text("")
    assert "a file; give a folder" in embed(out=tmp_path / "file", code=2).err


@pytest.mark.parametrize("flags", [("--format", "npy"), ("--dtype", "fp32"), ("--img-size", "48")])
def test_different_embeddings_are_refused_and_replaced_on_request(embed, flags, tmp_path):
    embed()
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert "contains embeddings made with other settings" in embed(*flags, code=2).err
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    embed(*flags, "--overwrite")
    told = json.loads((tmp_path / "out" / "embeddings.json").read_text())
    files = [name for split in told["splits"].values() for name in split["files"]]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*files, "embeddings.json"])


@pytest.mark.parametrize("fault", ["disk", "knn", "interrupt"])
def test_what_fails_replaces_nothing(embed, tmp_path, monkeypatch, fault):
    embed()
    out = tmp_path / "out"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with monkeypatch.context() as patch:
        if fault == "knn":
            assert "--knn 99: there are only 24" in embed("--format", "npy", "--overwrite", "--knn", "99", code=1).err
        else:
            stop = OSError(28, "No space left on device") if fault == "disk" else KeyboardInterrupt()
            patch.setattr(vectors, "replace_file", lambda *_: (_ for _ in ()).throw(stop))
            embed("--format", "npy", "--overwrite", code=1 if fault == "disk" else 130)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / ".replacement").mkdir()  # as a kill leaves it
    embed("--format", "npy", "--overwrite")
    assert len(from_npy(out, "val")[0]) == 12 and not (out / ".replacement").exists()


def test_embeddings_of_other_data_are_refused(embed, shards, tmp_path):
    embed()
    other = shutil.copytree(shards, tmp_path / "other")
    assert "contains embeddings made with other settings" in embed(data=other, code=2).err


def test_splits_one_after_the_other(embed, tmp_path, monkeypatch):
    """Each is appended, even if a run in between was interrupted."""
    embed("--split", "train")
    assert not list((tmp_path / "out").glob("val*"))
    with monkeypatch.context() as patch:
        patch.setitem(module._WRITERS, "shards", lambda folder, rows: (_ for _ in ()).throw(KeyboardInterrupt))
        embed("--split", "val", code=130)
    embed("--split", "val")
    told = json.loads((tmp_path / "out" / "embeddings.json").read_text())
    assert sorted(told["splits"]) == ["train", "val"] and len(from_tars(tmp_path / "out", "train")[0]) == 24


def test_two_at_once_keep_each_others_splits(embed, tmp_path, monkeypatch):
    """One that ends while another computes is not forgotten."""
    write, out = module._write, tmp_path / "out"

    def later(*arguments):
        monkeypatch.setattr(module, "_write", write)
        embed("--split", "train")
        write(*arguments)

    monkeypatch.setattr(module, "_write", later)
    embed("--split", "val")
    told = json.loads((out / "embeddings.json").read_text())
    assert sorted(told["splits"]) == ["train", "val"]
    assert [len(from_tars(out, split)[0]) for split in ("train", "val")] == [24, 12]


def test_one_at_a_time_writes(embed, encoded, tmp_path):
    out = tmp_path / "out"
    embed("--split", "val")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    handle = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        ran = embed("--split", "train", code=1)
    finally:
        os.close(handle)
    assert f"{out}: another embed is writing to it; wait until it ends, then run the same again" in ran.err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    embed("--split", "train")
    assert encoded == [12, 24] and len(from_tars(out, "val")[0]) == 12  # nothing was computed anew


def test_fewer_shards_than_before_leave_no_old_ones(embed, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(vectors, "_SHARD", 6)
        embed()
        out = tmp_path / "out"
        names = [f"train-{n:05d}.{end}" for n in range(4) for end in ("idx", "tar")]
        assert sorted(path.name for path in out.glob("train*")) == sorted(names)  # 24 samples: no empty fifth shard
        small = from_tars(out, "train")
    embed()
    assert [path.name for path in sorted(out.glob("train*.tar"))] == ["train-00000.tar"]
    large = from_tars(out, "train")
    assert small[:2] == large[:2] and np.array_equal(small[2], large[2])


def test_a_full_disk_is_a_one_line_error(embed, monkeypatch, tmp_path):
    def full(folder, rows):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(module._WRITERS, "shards", full)
    assert "no space left on the disk; free some space" in embed(code=1).err


def nearest(known, labels, asked, k, skip):
    """The k nearest neighbours by cosine, one query at a time."""
    found = []
    for i, vector in enumerate(asked):
        cosine = known @ vector / np.linalg.norm(known, axis=1) / np.linalg.norm(vector)
        order = [j for j in np.argsort(-cosine, kind="stable") if not (skip and j == i)][:k]
        found.append(int(np.bincount(np.asarray(labels)[order]).argmax()))
    return found


@pytest.mark.parametrize("k", [1, 3, 7])
def test_knn_of_drawn_vectors(k):
    drawn = np.random.default_rng(k)
    known, labels = drawn.normal(size=(50, 8)), drawn.integers(0, 4, 50)
    asked, answers = drawn.normal(size=(30, 8)), drawn.integers(0, 5, 30)  # a class that none of the known samples has
    own = np.mean(np.array(nearest(known, labels, known, k, True)) == labels)
    other = np.mean(np.array(nearest(known, labels, asked, k, False)) == answers)
    assert knn_accuracy(known, labels, None, labels, k) == pytest.approx(own)
    assert knn_accuracy(known, labels, asked, answers, k) == pytest.approx(other)


def test_knn_of_a_run(embed, tmp_path):
    told = json.loads(embed("--knn", "3", "--dtype", "fp32", "--json").out)["knn"]
    known, asked = (from_tars(tmp_path / "out", split) for split in ("train", "val"))
    expected = np.mean(np.array(nearest(known[2], known[1], asked[2], 3, False)) == np.array(asked[1]))
    assert told == {"k": 3, "known": "train", "asked": "val", "n": 12, "top1": pytest.approx(float(expected))}
    assert "kNN (k 20, cosine): top-1" in embed("--knn", "--dtype", "fp32").out
    alone = embed("--knn", "3", "--split", "val", out=tmp_path / "alone").out
    assert "of 12 of val, among all others" in alone
    ran = embed("--knn", "12", "--split", "val", out=tmp_path / "few", code=1)
    assert "there are only 11 neighbours; give a smaller number" in ran.err


REFUSED = {
    "--max-length has no effect on images": ("--max-length", "8"),
    "--pretrained has no effect with --weights": ("--pretrained",),
    "--knn 0: give 1 or more": ("--knn", "0"),
    "does not read images": ("--arch", "hf:x"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_invalid_arguments_are_refused(cli, words, shards, trained, tmp_path):
    flags = REFUSED[words]
    weights = () if "hf:x" in flags else ("--weights", trained.run, "--img-size", "32")
    arch = () if "--arch" in flags else ("--arch", "test_resnet")
    ran = cli("embed", shards, tmp_path / "out", *arch, *weights, *flags)
    assert ran.code == 2 and words in ran.err and ran.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_encoder_needs_weights(cli, shards, tmp_path):
    ran = cli("embed", shards, tmp_path / "out", "--arch", "test_resnet")
    assert ran.code == 2 and "an encoder needs weights; add --pretrained, or --weights FILE" in ran.err


def test_a_node_of_a_cluster_computes_as_this_machine_does(shards, trained, tmp_path, monkeypatch):
    """With its threads, and the memory of activations: mapped anew for each batch, that takes a part of the time."""
    asked = []
    monkeypatch.setattr(ranks.torch, "set_num_threads", asked.append)
    monkeypatch.setattr(ranks, "keep_freed", lambda: asked.append("kept"))
    config, stated, _ = adopted(Embed(data=shards, dst=tmp_path / "out", weights=trained.run))
    module._open_on_node(config, stated, "cpu", 3, "train").part.dataset.close()
    assert asked == [3, "kept"]
