"""Arrays stored by content: computed once, despite kills, torn or altered files, and waiting processes."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fastimg.data.digests import DIGEST, NONE, of, sample_digests, stamp_of
from fastimg.embeddings import store as arraycache
from fastimg.embeddings.store import ArrayCache, key_of
from fastimg.errors import UserError
from fastimg.loaders import FilesDataset
from fastimg.loaders.containers.npy import npy_array
from fastimg.loaders.errors import ImageError
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.ranks import Ranks, torch

ONE = Ranks(0, 1, 1, torch.device("cpu"), None)
ABOUT = {"kind": "lengths", "format": 1}
WORDS = ["one", "two", "", "three", "two", "four", "five", "six", "!", "seven", "eight", "nine"]  # "": unreadable


class Words:
    """A dataset whose samples are words; an empty word cannot be read."""

    classes, notes, content, name = ("word",), (), "text", "words"

    def __init__(self, words=WORDS):
        self.words, self.labels, self.fingerprint = words, np.zeros(len(words), np.int64), "words"

    def __len__(self):
        return len(self.words)

    def read(self, index, scratch):
        if not self.words[index]:
            raise ImageError("nothing there")
        return memoryview(self.words[index].encode())

    def digests(self):
        named = [of(word.encode()) if word else NONE for word in self.words]
        return np.frombuffer(b"".join(named), DIGEST)

    def sample_name(self, index):
        return f"word {index}"


class Maker:
    """Makes an array of each word's letters, except for "!". Records its requests."""

    def __init__(self, dataset, dies_after=None):
        self.dataset, self.made, self.closed, self.dies_after = dataset, [], False, dies_after

    def __call__(self, ids):
        try:
            for index in ids.tolist():
                if len(self.made) == self.dies_after:
                    raise KeyboardInterrupt
                word = self.dataset.words[index]
                self.made.append(word)
                yield "no word" if word == "!" else np.array([ord(letter) for letter in word], np.int32)
        finally:
            self.closed = True


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Shards of four arrays."""
    monkeypatch.setattr(arraycache, "SHARD", 4)


@pytest.fixture
def said():
    return []


@pytest.fixture
def fill(tmp_path, said):
    """`fill(words, root, dies_after)`: the filled cache, and the maker of missing arrays."""

    def run(words=WORDS, root=tmp_path / "cache", dies_after=None, **options):
        dataset = Words(words)
        cache, maker = ArrayCache(root, ABOUT, said.append), Maker(dataset, dies_after)
        cache.fill(dataset.digests(), ONE, maker, **options)
        return cache, maker

    return run


def files(cache):
    """All files of a cache by name, except its lock."""
    found = {path.name: path.read_bytes() for path in cache.folder.iterdir() if path.name != ".lock"}
    return found | {name: sorted(found[name].splitlines()) for name in found if name == "shards.jsonl"}


def words_of(cache, words=WORDS):
    """The words that its arrays spell; for a sample without an array, the reason."""
    dataset = cache.dataset(Words(words), Words(words).digests())
    found = []
    for index in range(len(words)):
        try:
            found.append("".join(map(chr, npy_array(dataset.read(index, Scratch())))))
        except ImageError as error:
            found.append(f"({error})")
    dataset.close()
    return found


SPELT = [{"": "(nothing there)", "!": "(no word)"}.get(word, word) for word in WORDS]


def test_each_content_is_made_once_and_read_back(fill):
    cache, maker = fill()
    assert sorted(maker.made) == sorted({*WORDS} - {""}) and maker.closed
    assert words_of(cache) == SPELT
    assert cache.folder.name == key_of(ABOUT) and json.loads((cache.folder / "about.json").read_text()) == ABOUT
    assert sorted(files(cache)) == sorted(
        ["about.json", "shards.jsonl", *(f"{n:05d}.{end}" for n in range(3) for end in ("tar", "idx"))]
    )


def test_a_second_run_makes_only_new_samples(fill):
    fill()
    cache, maker = fill()
    assert maker.made == []
    before = files(cache)
    cache, maker = fill([*WORDS, "ten", "one"])
    assert maker.made == ["ten"] and words_of(cache, [*WORDS, "ten", "one"]) == [*SPELT, "ten", "one"]
    after = files(cache)
    assert {name: after[name] for name in before if name.endswith(("tar", "idx"))} == {
        name: content for name, content in before.items() if name.endswith(("tar", "idx"))
    }


def test_samples_without_an_array_are_stored_with_the_reason(fill, said):
    """Also for a whole shard, which then has no file."""
    bad = [*WORDS, *("!" for _ in range(3))]
    fill(["!"])
    cache, maker = fill(bad)
    assert "!" not in maker.made and words_of(cache, bad)[-1] == "(no word)"
    assert not (cache.folder / "00000.tar").exists() and said == []


@pytest.mark.parametrize("dies_after", [0, 3, 4, 6, 9])
def test_killed_and_resumed_gives_the_same_bytes(fill, tmp_path, dies_after):
    whole, _ = fill()
    root = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        fill(root=root, dies_after=dies_after)
    cache, maker = fill(root=root)
    assert len(maker.made) == 10 - dies_after // 4 * 4  # complete shards are kept
    assert files(cache) == files(whole)


SCRIPT = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("helpers", sys.argv[2])
helpers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helpers)
helpers.arraycache.SHARD = 4

class Slow(helpers.Maker):
    def __call__(self, ids):
        for array in super().__call__(ids):
            print("made", self.made[-1], flush=True)
            while self.made[-1] == sys.argv[3]:
                time.sleep(1)
            yield array

print("begin", sys.stdin.readline(), flush=True)
words = helpers.Words()
cache = helpers.ArrayCache(Path(sys.argv[1]), helpers.ABOUT, lambda text: print("said", text, flush=True))
cache.fill(words.digests(), helpers.ONE, Slow(words))
print("read", helpers.words_of(cache), flush=True)
"""


@pytest.mark.slow
def test_a_waiting_process_continues_after_a_killed_writer(fill, tmp_path):
    """Two processes: SIGKILL while one writes its second shard and the other waits."""
    whole, _ = fill()
    arguments = [sys.executable, "-c", SCRIPT, str(tmp_path / "shared"), __file__]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([*arguments, "five"], **pipes) as writer,
        subprocess.Popen([*arguments, "none"], **pipes) as waiter,
    ):
        try:
            print(file=writer.stdin, flush=True)
            assert next(line for line in writer.stdout if line == "made five\n")
            print(file=waiter.stdin, flush=True)
            assert next(line for line in waiter.stdout if line.startswith("said")).endswith("waiting for it\n")
            writer.kill()
            assert writer.wait(60) == -signal.SIGKILL
            lines = waiter.communicate(timeout=60)[0].splitlines()
        finally:
            writer.kill()
            waiter.kill()
    assert lines == [*(f"made {word}" for word in ("five", "six", "!", "seven", "eight", "nine")), f"read {SPELT}"]
    assert files(ArrayCache(tmp_path / "shared", ABOUT, print)) == files(whole)


def test_one_writes_while_the_other_waits_and_then_reads(tmp_path):
    """File descriptors exclude each other within a process as well as between two."""
    words, waiting, said = Words(), threading.Event(), []
    cache, maker = ArrayCache(tmp_path, ABOUT, print), Maker(words)

    def wait(text):
        said.append(text)
        waiting.set()

    other, others = ArrayCache(tmp_path, ABOUT, wait), Maker(words)
    thread = threading.Thread(target=lambda: other.fill(words.digests(), ONE, others))

    def make(ids):
        thread.start()
        assert waiting.wait(60)
        yield from maker(ids)

    cache.fill(words.digests(), ONE, make)
    thread.join(60)
    assert len(maker.made) == 10 and others.made == []
    assert words_of(cache) == words_of(other) == SPELT
    assert said == [f"{cache.folder}: another process is writing this cache; waiting for it"]


@pytest.mark.usefixtures("shared_locks")
def test_a_process_that_was_forked_meanwhile_locks_out_nobody(tmp_path):
    cache, words = ArrayCache(tmp_path, ABOUT, print), Words()
    cache.fill(words.digests(), ONE, Maker(words))
    with (cache.folder / arraycache._LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


TORN = [b'{"number": 2, "sam', b'"\xff\xfe broken\n', b'{"number":7,"samples":0,"failed":{"xyz":""}}\n']


@pytest.mark.parametrize("rest", TORN)
def test_torn_or_damaged_journal_lines_are_ignored(fill, tmp_path, rest, said):
    whole, _ = fill(root=tmp_path / "whole")
    cache, _ = fill()
    journal = cache.folder / "shards.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + rest)
    cache, maker = fill()
    assert maker.made == ["eight", "nine"] and words_of(cache) == SPELT
    assert files(cache) == files(whole)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["00001.tar", "00001.idx", "00002.tar"])
@pytest.mark.parametrize("damage", [flip, lambda path: path.write_bytes(path.read_bytes()[:100]), lambda p: p.unlink()])
def test_a_damaged_file_is_reported_once_and_made_again(fill, tmp_path, name, damage, said):
    whole, _ = fill(root=tmp_path / "whole")
    cache, _ = fill()
    damage(cache.folder / name)
    cache, maker = fill()
    assert len(maker.made) == (4 if "1" in name else 2)
    assert files(cache) == files(whole) and words_of(cache) == SPELT
    (sentence,) = said
    assert sentence.startswith(str(cache.folder / name).replace(".idx", ".tar")) and "computed again" in sentence


def test_a_complete_cache_is_only_read(fill, monkeypatch):
    cache, _ = fill()
    before, opened = files(cache), os.open

    def reading(path, flags, *more, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(30, "Read-only file system")
        return opened(path, flags, *more, **options)

    def refuse(*_, **__):
        raise PermissionError(30, "Read-only file system")

    (cache.folder / ".lock").unlink()
    monkeypatch.setattr(os, "open", reading)
    monkeypatch.setattr(os, "mkdir", refuse)
    cache, maker = fill()
    assert maker.made == [] and words_of(cache) == SPELT and files(cache) == before
    with pytest.raises(UserError, match=r"cannot be written: Read-only file system; .*--cache-dir"):
        fill([*WORDS, "ten"])


def test_a_full_disk_is_a_one_line_error_and_written_shards_stay(fill, tmp_path, monkeypatch):
    written = []

    class Full(arraycache.ShardWriter):
        def add(self, stem, fields):
            written.append(stem)
            if len(written) == 6:
                raise OSError(28, "No space left on device")
            super().add(stem, fields)

    with monkeypatch.context() as patch:
        patch.setattr(arraycache, "ShardWriter", Full)
        words, maker = Words(), Maker(Words())
        with pytest.raises(UserError, match=r"no space left on the disk; free some space") as caught:
            ArrayCache(tmp_path / "cache", ABOUT, print).fill(words.digests(), ONE, maker)
        assert maker.closed and caught  # together with its loader and threads, while the error is still referenced
    cache, maker = fill()
    assert len(maker.made) == 6 and words_of(cache) == SPELT


def test_an_error_of_the_maker_is_not_reported_as_the_disks(tmp_path):
    words = Words()

    def make(ids):
        yield np.zeros(1, np.int32)
        raise OSError(5, "the source")

    with pytest.raises(OSError, match="the source"):
        ArrayCache(tmp_path, ABOUT, print).fill(words.digests(), ONE, make)


def test_arrange_puts_the_samples_of_a_shard_in_order(fill):
    _, maker = fill(arrange=lambda ids: ids[np.argsort([-len(WORDS[i]) for i in ids], kind="stable")])
    assert maker.made == ["three", "four", "one", "two", "seven", "five", "six", "!", "eight", "nine"]


def test_ranks_share_the_shards_and_give_the_bytes_of_one_process(fill, tmp_path):
    """Each rank writes every second shard; the journal lists them in order."""
    whole, _ = fill()
    from .rank_meeting import Meeting  # not above: this file is also run as a program

    root, meeting = tmp_path / "ranks", Meeting(2)

    def made(rank):
        words = Words()
        maker = Maker(words)
        ranks = Ranks(rank, 2, 2, torch.device("cpu"), None, exchange=meeting.of(rank))
        ArrayCache(root, ABOUT, print).fill(words.digests(), ranks, maker)
        return len(maker.made)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(made, (1, 0))) == [4, 6]
    tars = {name: data for name, data in files(whole).items() if name.endswith(("tar", "idx"))}
    cache = ArrayCache(root, ABOUT, print)
    assert {name: data for name, data in files(cache).items() if name.endswith(("tar", "idx"))} == tars


@pytest.fixture
def folder(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(f"text {number % 4}")
    return FilesDataset(tmp_path, [f"{number}.txt" for number in range(5)], ("a",), [0] * 5, "text")


def test_digests_of_contents_are_stored(folder, tmp_path, monkeypatch):
    keep = tmp_path / "kept" / "digests.bin"
    found = sample_digests(folder, stamp_of(folder), keep, 2)
    assert [value.tobytes() for value in found] == [of(f"text {number % 4}".encode()) for number in range(5)]
    monkeypatch.setattr(FilesDataset, "read", lambda *_: pytest.fail("it is kept"))
    assert np.array_equal(sample_digests(folder, stamp_of(folder), keep, 2), found)


def test_outdated_or_torn_digests_are_computed_again(folder, tmp_path):
    keep = tmp_path / "kept" / "digests.bin"
    before = sample_digests(folder, stamp_of(folder), keep, 2)
    stamp = stamp_of(folder)
    (tmp_path / "3.txt").write_text("another")
    assert stamp_of(folder) != stamp
    after = sample_digests(folder, stamp_of(folder), keep, 2)
    assert (before != after).tolist() == [False, False, False, True, False]
    flip(keep)
    assert np.array_equal(sample_digests(folder, stamp_of(folder), keep, 2), after)


def test_a_stamp_is_the_same_from_any_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    beside = FilesDataset(tmp_path.relative_to(tmp_path), folder.paths, ("a",), [0] * 5, "text")
    assert stamp_of(beside) == stamp_of(folder)


def test_unreadable_samples_are_tried_again_each_time(folder, tmp_path, monkeypatch):
    """A temporary failure of the disk excludes no sample permanently."""
    keep, read = tmp_path / "kept" / "digests.bin", FilesDataset.read
    whole = sample_digests(folder, "stamp", tmp_path / "other.bin", 1)

    def failing(self, index, scratch):
        if index == 2:
            raise ImageError("Input/output error")
        return read(self, index, scratch)

    with monkeypatch.context() as patch:
        patch.setattr(FilesDataset, "read", failing)
        found = sample_digests(folder, "stamp", keep, 1)
        assert found[2].tobytes() == NONE
    asked = []
    monkeypatch.setattr(FilesDataset, "read", lambda self, i, scratch: asked.append(i) or read(self, i, scratch))
    for _ in range(2):
        assert np.array_equal(sample_digests(folder, "stamp", keep, 1), whole)
    assert asked == [2]


def test_digests_that_cannot_be_stored_are_reported(folder, tmp_path):
    said = []
    (tmp_path / "file").write_text("")
    found = sample_digests(folder, "stamp", tmp_path / "file" / "digests.bin", 1, said.append)
    assert len(found) == 5 and "cannot be written" in said[0] and "will read all samples again" in said[0]
