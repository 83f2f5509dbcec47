"""Class folders in an object store that nobody has converted: what they are here, fetched in groups."""

import io
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fastimg.loaders import DataError, Loader, ShardError, list_splits, open_dataset
from fastimg.loaders.folders.stored_files import open_unlabelled
from fastimg.loaders.remote.mirrors import mirror_at, open_mirror
from fastimg.loaders.remote.plain import groups
from fastimg.loaders.runtime.scratch import Scratch

URL = "s3://bucket/photos"


@pytest.fixture
def photos(bucket: Path, images: list[bytes]) -> Path:
    """Two classes in two splits, 20 and 4 files; a few others."""
    folder = bucket / "photos"
    for number, content in enumerate(images):
        place = folder / ("val" if number % 6 == 5 else "train") / ("cats", "dogs")[number % 2 if number < 18 else 0]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:02d} #%.jpg").write_bytes(content)
    for split in ("train", "val"):
        for name in ("cats", "dogs"):
            (folder / split / name).mkdir(exist_ok=True)
            (folder / split / name / f"more-{split}.jpg").write_bytes(images[0])
    (folder / "train/cats/notes.md").write_text("not an image")
    return folder


@pytest.fixture
def opened(server, cache_dir, photos):
    datasets = []

    def open_(split="train", limit=None, classes=None):
        datasets.append(
            open_dataset(URL, split, classes, cache_dir=cache_dir, cache_limit=limit, storage_options=server.options)
        )
        return datasets[-1]

    yield open_
    for each in datasets:
        each.close()


def contents(dataset, indices=None):
    scratch = Scratch()
    return [bytes(dataset.read(i, scratch)) for i in (range(len(dataset)) if indices is None else indices)]


def gets(server):
    return [name for name in server.requests if name.startswith("photos/") and name != "photos/dataset.json"]


class TestSamples:
    @pytest.mark.parametrize("limit", [None, 0])
    def test_are_those_of_the_folder(self, opened, photos, server, limit):
        for split in ("train", "val"):
            here, there = open_dataset(photos, split), opened(split, limit)
            assert contents(there) == contents(here)
            assert there.labels.tolist() == here.labels.tolist() and there.classes == here.classes
            assert there.fingerprint == here.fingerprint
            assert [there.sample_key(i) for i in range(len(there))] == [here.sample_key(i) for i in range(len(here))]
            assert there.sample_name(0) == f"{URL}/{here.sample_key(0)}"
            assert [there.glance(i) for i in range(len(there))] == contents(here)
            assert [note.replace(URL, str(photos)) for note in there.notes] == list(here.notes) != []
        assert list_splits(there._mirror.folder) == list_splits(photos)

    def test_are_fetched_once(self, opened, server, cache_dir):
        first = opened()
        contents(first)
        assert sorted(gets(server)) == sorted(
            first.sample_name(i).removeprefix("s3://bucket/") for i in range(len(first))
        )
        contents(opened())
        assert len(gets(server)) == len(first)

    def test_that_are_larger_than_a_group(self, opened, monkeypatch, photos, server):
        monkeypatch.setattr(groups, "GROUP", 9000)
        monkeypatch.setattr(groups, "MOST", 3)
        dataset = opened()
        assert dataset.shard_files.count > 6 and (np.diff(dataset.shard_numbers) >= 0).all()
        assert contents(dataset) == contents(open_dataset(photos))

    def test_of_an_epoch_through_a_small_cache(self, opened, monkeypatch, photos, server, cache_dir):
        monkeypatch.setattr(groups, "GROUP", 1000)  # each a group
        total = sum(len(each) for each in contents(open_dataset(photos)))
        dataset = opened(limit=total * 4 // 5)
        loader = Loader(dataset, batch_size=1, crop=16, window=1, workers=1, prefetch=2)
        assert (loader.config.order, loader.config.block) == ("quasi-random", "shard")
        seen = sorted(int(i) for batch in loader for i in batch.ids)
        loader.close()
        assert seen == list(range(len(dataset))) and len(gets(server)) <= len(dataset) + 3
        assert sum(file.stat().st_size for file in cache_dir.glob("photos-*/*.files")) <= total * 4 // 5

    def test_that_are_empty_and_links_are_files(self, opened, photos):
        (photos / "train/cats/empty.jpg").write_bytes(b"")
        dataset = opened()
        index = next(i for i in range(len(dataset)) if dataset.sample_key(i).endswith("empty.jpg"))
        assert contents(dataset, [index]) == [b""] and contents(dataset) == contents(open_dataset(photos))

    def test_by_the_innermost_folder(self, opened, photos, images):
        (photos / "train/cats/red").mkdir()
        (photos / "train/cats/red/a.jpg").write_bytes(images[3])
        top, leaf = opened(), opened(classes="leaf")
        assert top.classes == ("cats", "dogs") and leaf.classes == ("cats", "dogs", "red")
        assert any("classes=leaf" in note and URL in note for note in top.notes)
        for dataset, level in ((leaf, "leaf"), (top, None)):  # each knows its own groups
            assert contents(dataset) == contents(open_dataset(photos, classes=level))

    def test_of_texts(self, server, bucket, cache_dir):
        for name, text in (("good/a.txt", "so good"), ("bad/b.txt", "so bad")):
            (bucket / "reviews" / name).parent.mkdir(parents=True)
            (bucket / "reviews" / name).write_text(text)
        dataset = open_dataset("s3://bucket/reviews", cache_dir=cache_dir, storage_options=server.options)
        assert dataset.content == "text" and contents(dataset) == [b"so bad", b"so good"]

    def test_without_labels(self, server, cache_dir, photos, images):
        folder = open_mirror(URL + "/train/cats", cache_dir, None, server.options).folder
        dataset = open_unlabelled(folder, "images")
        assert dataset is not None and set(dataset.labels.tolist()) == {-1}
        assert contents(dataset) == [path.read_bytes() for path in sorted((photos / "train/cats").glob("*.jpg"))]
        with pytest.raises(DataError, match=rf"^{URL}/train/cats: no .txt files in this folder \(other files: .*"):
            open_unlabelled(folder, "text")


class TestFaults:
    @pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
    def test_now_and_then_change_no_byte(self, opened, server, photos, fault):
        server.rates = {fault: 0.2}
        assert contents(opened()) == contents(open_dataset(photos)) and fault in server.met

    def test_a_file_that_was_replaced_is_named(self, opened, photos, images):
        dataset = opened()
        (photos / "train/dogs/more-train.jpg").write_bytes(images[1])
        with pytest.raises(ShardError, match=f"^{URL}/train/dogs/more-train.jpg: was replaced in the store while"):
            contents(dataset)

    def test_another_content_of_the_same_size_is_another_file(self, opened, photos):
        dataset = opened()
        file = photos / "train/dogs/more-train.jpg"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        with pytest.raises(ShardError, match=r"more-train.jpg: was replaced in the store"):
            contents(dataset)

    def test_a_file_that_is_gone_is_named(self, opened, photos):
        dataset = opened()
        (photos / "train/dogs/more-train.jpg").unlink()
        with pytest.raises(DataError, match=f"^{URL}/train/dogs/more-train.jpg: not found"):
            contents(dataset)

    def test_a_store_that_fails_for_good_ends_it(self, opened, server):
        dataset = opened()
        server.rates = {"busy": 1.0}
        with pytest.raises(DataError, match=r"tried 9 times: .*503"):
            contents(dataset)

    def test_a_cache_that_is_deleted_is_fetched_again(self, opened, photos, cache_dir):
        dataset = opened()
        contents(dataset)
        shutil.rmtree(cache_dir)
        assert contents(dataset) == contents(open_dataset(photos))

    def test_a_group_that_was_altered_is_fetched_again(self, opened, photos, cache_dir):
        dataset = opened()
        contents(dataset)
        (group,) = cache_dir.glob("photos-*/train-*.files")
        group.write_bytes(b"?" * group.stat().st_size)
        assert contents(dataset) == contents(open_dataset(photos))

    def test_threads_fetch_each_file_once(self, opened, server, photos):
        datasets = [opened() for _ in range(4)]
        found: list[list[bytes]] = []
        threads = [threading.Thread(target=lambda each=each: found.append(contents(each))) for each in datasets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [contents(open_dataset(photos))] * 4 and len(gets(server)) == len(datasets[0])

    def test_a_process_that_was_killed_leaves_nothing_behind(self, server, photos, cache_dir):
        waiting = server.hold_next()
        code = (
            "import sys; from fastimg.loaders import open_dataset; from fastimg.loaders.runtime.scratch import Scratch;"
            f"d = open_dataset({URL!r}, cache_dir=sys.argv[1], storage_options={server.options!r});"
            "print('open', flush=True); sys.stdin.readline(); d.read(0, Scratch())"
        )
        server.hold.set()
        with subprocess.Popen(
            [sys.executable, "-c", code, str(cache_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "open\n"
            waiting = server.hold_next()
            process.stdin.write("\n")
            process.stdin.flush()
            assert waiting.wait(60)
            process.kill()
        server.hold.set()
        dataset = open_dataset(URL, cache_dir=cache_dir, storage_options=server.options)
        assert contents(dataset) == contents(open_dataset(photos))
        assert [path.name for path in cache_dir.rglob("*.part")] == []
        dataset.close()


class TestRefusals:
    def test_what_is_no_class_folder(self, server, cache_dir, photos):
        url = URL + "/train/cats"
        with pytest.raises(DataError, match=f"^{url}: has no class folders; put the images"):
            open_dataset(url, cache_dir=cache_dir, storage_options=server.options)

    def test_classes_without_a_file(self, opened, photos):
        for file in (photos / "train/dogs").iterdir():
            file.unlink()
        (photos / "train/dogs/notes.md").write_text("nothing here")
        with pytest.raises(DataError, match=rf"^{URL}/train/dogs: the class is empty \(other files: "):
            opened()

    def test_more_files_than_are_read_one_by_one(self, opened, monkeypatch):
        monkeypatch.setattr(groups, "MOST_LISTED", 5)
        with pytest.raises(DataError, match=f"^{URL}: more than 5 files, and no dataset.json"):
            opened()

    def test_other_splits(self, opened):
        with pytest.raises(DataError, match=r"no split 'tset' in it; it has train, val; did you mean test\?|no split"):
            opened("tset")


def test_another_listing_is_other_data(opened, photos, images):
    before = mirror_at(opened()._mirror.folder)
    (photos / "train/cats/new.jpg").write_bytes(images[7])
    after = mirror_at(opened()._mirror.folder)
    assert before is not None and after is not None and before.folder != after.folder


def test_the_batches_are_those_of_the_folder(opened, photos):
    def batches(dataset):
        loader = Loader(dataset, batch_size=4, crop=24, order="random", block=1, workers=2, seed=5)
        found = [(batch.ids.tolist(), batch.targets.tolist(), batch.inputs.clone()) for batch in loader]
        loader.close()
        return found

    for (ids, targets, images), others in zip(batches(opened()), batches(open_dataset(photos)), strict=True):
        assert (ids, targets) == others[:2] and (images == others[2]).all()


def test_trees_are_gone_with_their_process(server, photos, cache_dir):
    code = f"""
import sys
from fastimg.loaders import open_dataset
open_dataset({URL!r}, cache_dir=sys.argv[1], storage_options={server.options!r})
"""
    subprocess.run([sys.executable, "-c", code, str(cache_dir)], check=True, env=os.environ)
    assert list((cache_dir / "listings").iterdir()) == []


def test_any_folder_of_random_sizes_is_read_right(server, bucket, cache_dir, monkeypatch):
    draw = random.Random(11)
    monkeypatch.setattr(groups, "GROUP", 3000)
    for name in "ab":
        (bucket / "R" / name).mkdir(parents=True)
        for number in range(40):
            content = io.BytesIO(draw.randbytes(draw.choice((0, 1, 10, 999, 2999, 3000, 3001, 9000))))
            (bucket / "R" / name / f"{number}.png").write_bytes(content.getvalue())
    here = open_dataset(bucket / "R")
    for limit in (0, 20_000, None):
        there = open_dataset("s3://bucket/R", cache_dir=cache_dir, cache_limit=limit, storage_options=server.options)
        indices = draw.sample(range(len(there)), len(there))
        assert contents(there, indices) == contents(here, indices)
        there.close()
