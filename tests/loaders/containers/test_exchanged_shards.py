"""Shards of equal member sizes that are exchanged: refused before a sample of the wrong one is used."""

import hashlib
import io
import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from fastimg.loaders import ImageDecoder, RandomResizedCrop
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.containers.description import FORMAT, FORMAT_VERSION, IDENTITY, QUICK_SUM, SHARD_KEYS
from fastimg.loaders.containers.identities import identity_of_file
from fastimg.loaders.containers.quick_sums import sum_of_file
from fastimg.loaders.containers.tars.shards import ShardWriter
from fastimg.loaders.containers.watch import EVERY
from fastimg.loaders.errors import ShardError
from fastimg.loaders.runtime.scratch import Scratch

PER_SHARD = 20
IMAGES = ImageDecoder(RandomResizedCrop(size=16))
pytestmark = pytest.mark.usefixtures("cache", "files_given_back")


def bmp(seed):
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), np.uint8)
    Image.fromarray(pixels).save(out, "BMP")
    return out.getvalue()


def write_tars(folder):
    shards = {}
    for name, start in (("train-00000", 0), ("train-00001", PER_SHARD), ("val-00000", 0)):
        with ShardWriter(folder / f"{name}.tar") as shard:
            for i in range(start, start + PER_SHARD):
                members = {"bmp": bmp(i + 100 * (name < "u")), "cls": b"%d" % (i // PER_SHARD)}
                shard.add(f"{i:09d}", members)
        written = vars(shard) | {"name": f"{name}.tar", "samples": shard.count}
        shards[name] = {key: written[key] for key in (*SHARD_KEYS, QUICK_SUM, IDENTITY)}
    return {
        "train": {"samples": 2 * PER_SHARD, "shards": [shards["train-00000"], shards["train-00001"]]},
        "val": {"samples": PER_SHARD, "shards": [shards["val-00000"]]},
    }


def write_betons(folder):
    splits = {}
    for split in ("train", "val"):
        path = folder / f"{split}.beton"
        with BetonWriter(path, {"image": BetonField("rgb"), "label": BetonField("int")}, page_size=1 << 21) as beton:
            for i in range(PER_SHARD):
                pixels = np.random.default_rng(i + 100 * (split == "val")).integers(0, 256, (24, 24, 3), np.uint8)
                beton.add({"image": pixels, "label": (i + (split == "val")) % 2})
        shard = {"name": path.name, "samples": PER_SHARD, "bytes": path.stat().st_size}
        shard |= {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), QUICK_SUM: sum_of_file(path)}
        splits[split] = {"samples": PER_SHARD, "shards": [shard | {IDENTITY: identity_of_file(path)}]}
    return splits


@pytest.fixture(params=["tar", "beton"])
def folder(request, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    splits = write_tars(folder) if request.param == "tar" else write_betons(folder)
    description = {"format": FORMAT, "version": FORMAT_VERSION, "container": request.param, "classes": ["a", "b"]}
    (folder / "dataset.json").write_text(json.dumps(description | {"splits": splits}))
    for split in splits:
        open_dataset(folder, split).close()
    return folder


def pair(folder, across):
    """Two shards of equal size: of different splits, or of one."""
    if (folder / "train.beton").exists():
        return folder / "train.beton", folder / "val.beton"
    return folder / "train-00000.tar", folder / ("val-00000.tar" if across else "train-00001.tar")


def exchange(a, b):
    a.rename(a.with_suffix(".x"))
    b.rename(a)
    a.with_suffix(".x").rename(b)


def copy(a, b):
    shutil.copy(b, a)


def copy_with_old_times(a, b):
    stat = a.stat()
    shutil.copy(b, a)
    os.utime(a, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("harm", [exchange, copy, copy_with_old_times])
def test_exchanged_before_opening(folder, harm, across, build):
    a, b = pair(folder, across)
    assert a.stat().st_size == b.stat().st_size and a.read_bytes() != b.read_bytes()
    harm(a, b)
    with pytest.raises(ShardError, match=f"^{a}: another content than dataset.json states, though of the same size"):
        loader = build(open_dataset(folder), IMAGES, order="sequential")
        for _ in loader:
            raise AssertionError("a batch of the wrong shard")


def test_exchanged_before_the_index_is_derived(folder):
    a, b = pair(folder, across=False)
    (folder / "train.fidx").unlink(missing_ok=True)
    exchange(a, b)
    with pytest.raises(ShardError, match=f"^{a}: another content than dataset.json states"):
        open_dataset(folder)


@pytest.mark.parametrize("harm", [copy, copy_with_old_times])
def test_exchanged_while_it_is_read(folder, harm, build, read):
    a, b = pair(folder, across=True)
    loader = build(open_dataset(folder), IMAGES, order="sequential")
    read(loader)
    harm(a, b)
    with pytest.raises(ShardError, match=f"^{a}: was altered while it was in use"):
        for _ in range(EVERY):
            read(loader)
    loader.close()
    loader.dataset.close()


def test_a_part_that_is_altered_while_it_is_read_with_its_time_restored(folder, build, read):
    """Outside the places of the identity: the sum of the whole shard shows it."""
    shard, _ = pair(folder, across=False)
    stat = shard.stat()
    loader = build(open_dataset(folder), IMAGES)
    read(loader)
    content = bytearray(shard.read_bytes())
    content[len(content) // 8] ^= 1
    with shard.open("r+b") as file:
        file.write(content)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    if shard.suffix == ".tar":
        assert (
            identity_of_file(shard)
            == json.loads((folder / "dataset.json").read_text())["splits"]["train"]["shards"][0][IDENTITY]
        )
    with pytest.raises(ShardError, match=f"^{shard}: was altered while it was in use"):
        for _ in range(EVERY):
            read(loader)
    loader.close()
    loader.dataset.close()


def test_copied_moved_linked_and_with_other_permissions(folder, tmp_path, build, read):
    expected = read(build(open_dataset(folder), IMAGES))
    shutil.copytree(folder, tmp_path / "copy")
    shutil.move(folder, tmp_path / "moved")
    for place in (tmp_path / "copy", tmp_path / "moved"):
        loader = build(open_dataset(place), IMAGES)
        assert read(loader) == expected
        for shard in list(place.glob("train*.*")):
            shard.chmod(0o444)
            os.link(shard, place / f"{shard.name}.link")
        loader.set_epoch(0)
        assert read(loader) == expected
        loader.close()
        loader.dataset.close()


def test_an_older_description_states_no_identity(folder):
    description = json.loads((folder / "dataset.json").read_text())
    for split in description["splits"].values():
        for shard in split["shards"]:
            del shard[IDENTITY]
    (folder / "dataset.json").write_text(json.dumps(description))
    dataset = open_dataset(folder)
    assert len(dataset.read(0, Scratch()))
    dataset.close()
