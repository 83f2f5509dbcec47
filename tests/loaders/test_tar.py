"""Tar shards and DALI's index, against Python's own tarfile."""

import hashlib
import io
import re
import tarfile
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastimg.loaders.errors import ShardError
from fastimg.loaders.tar import (
    Member,
    ShardWriter,
    format_index,
    index_path,
    member_header,
    parse_index,
    replace_file,
    scan,
    split_name,
)

SAMPLES = {"000000000": {"jpg": b"a" * 700, "cls": b"3"}, "000000002": {"png": b"", "cls": b"0", "json": b"{}" * 256}}


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "train-00000.tar"
    with ShardWriter(path) as writer:
        for stem, fields in SAMPLES.items():
            writer.add(stem, fields)
    return path


def foreign_tar(path, members, kind):
    with tarfile.open(path, "w", format=kind) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@given(
    stem=st.text("abcdefghij0123456789/-_", min_size=1, max_size=60),
    size=st.integers(0, 8**11 - 1),
    ext=st.just(".jpg"),
)
def test_headers_are_what_tarfile_reads(stem, size, ext):
    header = member_header(stem + ext, size)
    info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")  # checks the sum
    assert (info.name, info.size, info.mode, info.mtime, info.uid, info.type) == (stem + ext, size, 0o644, 0, 0, b"0")


def test_a_header_is_tarfiles_own_bytes():
    info = tarfile.TarInfo("000000017.jpg")
    info.size, info.mode = 12345, 0o644
    theirs = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    ours = member_header("000000017.jpg", 12345)
    blank = slice(329, 345)  # device numbers, which say nothing of a regular file: zeros there, nothing here
    unlike = [i for i in range(512) if ours[i] != theirs[i] and not 148 <= i < 156 and i not in range(512)[blank]]
    assert unlike == []


@pytest.mark.parametrize(("name", "size"), [("a" * 101, 1), ("a", 8**11)])
def test_what_ustar_cannot_hold(name, size):
    with pytest.raises(ValueError, match="at most 100 bytes and a size under 8 GiB"):
        member_header(name, size)


def test_a_shard_is_a_tar(shard):
    with tarfile.open(shard) as archive:
        found = {info.name: archive.extractfile(info).read() for info in archive}
    assert found == {f"{stem}.{ext}": data for stem, fields in SAMPLES.items() for ext, data in fields.items()}
    assert shard.stat().st_size % 512 == 0


def test_index_and_scan_agree_on_every_byte(shard):
    content = shard.read_bytes()
    samples = parse_index(index_path(shard), len(content))
    assert samples == scan(shard)
    for sample, (stem, fields) in zip(samples, SAMPLES.items(), strict=True):
        assert {m.ext: content[m.offset : m.offset + m.size] for m in sample} == fields
        assert [split_name(m.name) for m in sample] == [(stem, ext) for ext in fields]


def test_the_writer_holds_no_more_than_the_indexs_text(tmp_path):
    with ShardWriter(tmp_path / "a.tar") as writer:
        tracemalloc.start()
        for i in range(5000):
            writer.add(f"{i:09d}", {"jpg": b"", "cls": b"", "json": b""})
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert writer.count == 5000 and held < 2 * writer.index_bytes < 2_000_000
    assert index_path(writer.path).read_text() == format_index(scan(writer.path))


def test_the_writer_describes_what_it_wrote(tmp_path, shard):
    with ShardWriter(tmp_path / "again.tar") as writer:
        for stem, fields in SAMPLES.items():
            writer.add(stem, fields)
    assert (tmp_path / "again.tar").read_bytes() == shard.read_bytes()
    for path, size, digest in (
        (shard, writer.bytes, writer.sha256),
        (index_path(shard), writer.index_bytes, writer.index_sha256),
    ):
        assert (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()) == (size, digest)


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["jpg", "cls", "json"]), st.integers(1, 10**6), st.integers(0, 10**9)),
            min_size=1,
            max_size=3,
        ),
        max_size=8,
    )
)
def test_index_round_trip(tmp_path_factory, listing):
    samples = [
        tuple(Member(ext, 512 * block, size, f"{i}.{ext}") for ext, block, size in sample)
        for i, sample in enumerate(listing)
    ]
    path = tmp_path_factory.mktemp("index") / "a.idx"
    path.write_text(format_index(samples))
    assert parse_index(path, 512 * 10**6 + 10**9) == samples


def test_index_of_version_1_1(tmp_path):
    path = tmp_path / "a.idx"
    path.write_text("v1.1 2\njpg 512 700 cls 2048 1\njpg 3072 5\n")
    assert parse_index(path, 10_000) == [
        (Member("jpg", 512, 700, ""), Member("cls", 2048, 1, "")),
        (Member("jpg", 3072, 5, ""),),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a DALI index"),
        ("v1.3 0\n", "not a DALI index"),
        ("v1.2 x\n", "not a DALI index"),
        ("v1.2 2\njpg 512 5 a.jpg\n", "cut short: 2 samples announced, 1 found"),
        ("v1.2 1\njpg 512 5 a.jpg\njpg 1536 5 b.jpg\n", "1 samples announced, 2 found"),
        ("v1.2 1\njpg 512 5\n", "line 2 does not fit"),
        ("v1.2 1\njpg 512 five a.jpg\n", "line 2 does not fit"),
        ("v1.2 1\njpg 513 5 a.jpg\n", "line 2 does not fit"),
        ("v1.2 1\njpg 0 5 a.jpg\n", "line 2 does not fit"),
        ("v1.2 1\njpg 512 -5 a.jpg\n", "line 2 does not fit"),
        ("v1.2 1\njpg 512 4609 a.jpg\n", "line 2 does not fit"),
        ("v1.2 1\n\n", "line 2 does not fit"),
    ],
)
def test_an_index_that_does_not_fit(tmp_path, text, message):
    path = tmp_path / "a.idx"
    path.write_text(text)
    with pytest.raises(ShardError, match=f"{re.escape(str(path))}: .*{message}"):
        parse_index(path, 5120)


def test_an_index_that_is_no_text(tmp_path):
    path = tmp_path / "a.idx"
    path.write_bytes(b"v1.2 1\n\xff\xff")
    with pytest.raises(ShardError, match="cannot be read"):
        parse_index(path, 5120)


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_tars_of_other_tools_are_scanned(tmp_path, kind):
    long = "photographs/" + "long-" * 16 + "/0001"
    if kind != tarfile.USTAR_FORMAT:
        long = "x" * 120 + "/" + "é" * 80
    members = {f"{long}.jpg": b"one", f"{long}.cls": b"1", "b.c/2.seg.png": b"two" * 400, "b.c/2.cls": b"0"}
    tar = foreign_tar(tmp_path / "a.tar", members, kind)
    content = tar.read_bytes()
    samples = scan(tar)
    assert [[m.ext for m in sample] for sample in samples] == [["jpg", "cls"], ["seg.png", "cls"]]
    assert {m.name: content[m.offset : m.offset + m.size] for sample in samples for m in sample} == members


def test_folders_and_links_are_passed_over(tmp_path):
    tar = tmp_path / "a.tar"
    with tarfile.open(tar, "w") as archive:
        for name, kind in (("a", tarfile.DIRTYPE), ("a/1.jpg", tarfile.REGTYPE), ("a/2.jpg", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "1.jpg"
            archive.addfile(info)
    assert [[m.name for m in sample] for sample in scan(tar)] == [["a/1.jpg"]]


def test_an_empty_tar_has_no_samples(tmp_path):
    with ShardWriter(tmp_path / "a.tar"):
        pass
    assert scan(tmp_path / "a.tar") == parse_index(tmp_path / "a.idx", 1024) == []


@pytest.mark.parametrize("keep", [100, 512, 700, 1536, 2100, 3000])
def test_a_tar_that_was_cut_is_refused(shard, keep):
    whole = shard.read_bytes()
    shard.write_bytes(whole[:keep])
    try:
        samples = scan(shard)
    except ShardError as error:
        assert str(shard) in str(error) and "again" in str(error)
    else:  # cut between two members: what is left is whole, though fewer
        assert all(m.offset + m.size <= keep for sample in samples for m in sample)


def test_a_tar_with_a_damaged_header_is_refused(shard):
    content = bytearray(shard.read_bytes())
    content[0:40] = b"\xaa" * 40
    shard.write_bytes(content)
    with pytest.raises(ShardError, match=f"{re.escape(str(shard))}: not a complete tar"):
        scan(shard)


def test_a_damaged_header_further_on_is_refused(shard):
    """tarfile takes a bad header after the first member for the end of the archive."""
    content = bytearray(shard.read_bytes())
    at = content.index(b"000000002.cls")
    content[at : at + 40] = b"\xaa" * 40
    shard.write_bytes(content)
    with pytest.raises(ShardError, match=re.escape(str(shard))):
        scan(shard)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_nothing_is_left_of_a_shard_that_failed(tmp_path, error):
    with pytest.raises((KeyboardInterrupt, OSError)), ShardWriter(tmp_path / "a.tar") as writer:
        writer.add("1", {"jpg": b"1"})
        raise error
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_where_the_end_cannot_be_written(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"), ShardWriter(tmp_path / "a.tar"):
        monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "b.json", b"{}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [("a/b.c/1.seg.png", ("a/b.c/1", "seg.png")), ("1.jpg", ("1", "jpg")), ("a.b/c", ("a.b/c", "")), (".x", ("", "x"))],
)
def test_where_the_extension_starts(name, parts):
    assert split_name(name) == parts
