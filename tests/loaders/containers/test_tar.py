"""Tar shards and DALI's index, compared with Python's tarfile."""

import hashlib
import io
import os
import re
import tarfile
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.containers.tars.shards import (
    Member,
    ShardWriter,
    index_path,
    member_header,
    parse_index,
    scan,
    split_name,
)
from fastimg.loaders.errors import ShardError

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
def test_headers_agree_with_tarfile(stem, size, ext):
    header = member_header(stem + ext, size)
    info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")  # checks the sum
    assert (info.name, info.size, info.mode, info.mtime, info.uid, info.type) == (stem + ext, size, 0o644, 0, 0, b"0")


def test_a_header_is_tarfiles_own_bytes():
    info = tarfile.TarInfo("000000017.jpg")
    info.size, info.mode = 12345, 0o644
    theirs = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    ours = member_header("000000017.jpg", 12345)
    blank = slice(329, 345)  # device numbers are meaningless for a regular file: tarfile writes zeros, fastimg nothing
    unlike = [i for i in range(512) if ours[i] != theirs[i] and not 148 <= i < 156 and i not in range(512)[blank]]
    assert unlike == []


@pytest.mark.parametrize(("name", "size"), [("a" * 101, 1), ("a", 8**11)])
def test_members_that_ustar_cannot_hold(name, size):
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


def test_the_writer_keeps_only_the_indexs_text(tmp_path):
    with ShardWriter(tmp_path / "a.tar") as writer:
        tracemalloc.start()
        for i in range(5000):
            writer.add(f"{i:09d}", {"jpg": b"", "cls": b"", "json": b""})
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert writer.count == 5000 and held < 2 * writer.index_bytes < 2_000_000
    assert parse_index(index_path(writer.path), writer.bytes) == scan(writer.path)


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
    st.lists(st.dictionaries(st.sampled_from(["jpg", "cls", "json"]), st.binary(max_size=1100), min_size=1), max_size=8)
)
def test_the_index_file_equals_the_index_of_the_shard(tmp_path_factory, listing):
    with ShardWriter(tmp_path_factory.mktemp("index") / "a.tar") as writer:
        for i, fields in enumerate(listing):
            writer.add(f"{i}", fields)
    found = parse_index(index_path(writer.path), writer.bytes)
    assert found == scan(writer.path)
    content = writer.path.read_bytes()
    assert [{m.ext: content[m.offset : m.offset + m.size] for m in sample} for sample in found] == listing


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
        ("v1.2 1\njpg 512 5 a.jpg\njpg 1536 5 b.jpg\n", "1 sample announced, 2 found"),
        ("v1.2 1\njpg 512 5\n", "line 2 does not fit"),
        ("v1.2 1\njpg 512 five a.jpg\n", "line 2 does not fit"),
        ("v1.2 1\njpg 512 5 \n", "line 2 does not fit"),
        ("v1.2 1\njpg 512 \u0665 a.jpg\n", "line 2 does not fit"),
        ("v1.2 \u00b2\n", "not a DALI index"),
        ("v1.2 1\njpg 513 5 a.jpg\n", "line 2 does not fit"),
        ("v1.2 1\njpg 0 5 a.jpg\n", "line 2 does not fit"),
        ("v1.2 1\njpg 512 -5 a.jpg\n", "line 2 does not fit"),
        ("v1.2 1\njpg 512 4609 a.jpg\n", "line 2 does not fit"),
        ("v1.2 1\n\n", "line 2 does not fit"),
    ],
)
def test_an_index_that_does_not_match(tmp_path, text, message):
    path = tmp_path / "a.idx"
    path.write_text(text)
    with pytest.raises(ShardError, match=f"{re.escape(str(path))}: .*{message}"):
        parse_index(path, 5120)


def test_an_index_that_is_not_text(tmp_path):
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


def tar_of(path, *members, kind=tarfile.GNU_FORMAT, **pax):
    """A tar of (name, type, content or link target)."""
    with tarfile.open(path, "w", format=kind, pax_headers=pax) as archive:
        for name, kind_, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind_
            if isinstance(content, str):
                info.linkname = content
            else:
                info.size = len(content)
            archive.addfile(info, None if isinstance(content, str) else io.BytesIO(content))
    return path


def contents(tar):
    """The members of each sample by name."""
    data = tar.read_bytes()
    return [{m.name: data[m.offset : m.offset + m.size] for m in sample} for sample in scan(tar)]


def test_what_is_no_sample_is_passed_over(tmp_path):
    """As DALI and webdataset do with hidden files, which macOS adds."""
    members = [("a", tarfile.DIRTYPE, ""), ("a.b", tarfile.DIRTYPE, ""), ("a/._1.jpg", tarfile.REGTYPE, b"AppleDouble")]
    members += [("a/1.jpg", tarfile.REGTYPE, b"1"), ("a/._1.cls", tarfile.REGTYPE, b"AppleDouble")]
    members += [("a/1.cls", tarfile.REGTYPE, b"0"), ("latest", tarfile.SYMTYPE, "a"), ("null", tarfile.CHRTYPE, "")]
    assert contents(tar_of(tmp_path / "a.tar", *members)) == [{"a/1.jpg": b"1", "a/1.cls": b"0"}]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_hard_link_is_the_data_that_it_links_to(tmp_path, kind):
    far = "x" * 90 + "/" + "y" * 95 + ".jpg"
    to_far = [] if kind == tarfile.USTAR_FORMAT else [("2.jpg", tarfile.LNKTYPE, far)]
    tar = tar_of(
        tmp_path / "a.tar",
        (far, tarfile.REGTYPE, b"far"),
        ("./0.jpg", tarfile.REGTYPE, b"zero"),
        ("./0.cls", tarfile.REGTYPE, b"0"),
        ("1.jpg", tarfile.LNKTYPE, "0.jpg"),
        ("1.cls", tarfile.LNKTYPE, "./0.cls"),
        *to_far,
        ("3.jpg", tarfile.LNKTYPE, "1.jpg"),
        kind=kind,
    )
    expected = [{far: b"far"}, {"./0.jpg": b"zero", "./0.cls": b"0"}, {"1.jpg": b"zero", "1.cls": b"0"}]
    assert contents(tar) == expected + [{"2.jpg": b"far"}] * bool(to_far) + [{"3.jpg": b"zero"}]


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("1.jpg", tarfile.LNKTYPE, "2.jpg"), "1.jpg: a hard link to 2.jpg, which is not before it in the tar; make"),
        (("1.jpg", tarfile.SYMTYPE, "0.jpg"), "1.jpg: a symbolic link to 0.jpg; .* --dereference"),
        (("1.jpg", tarfile.FIFOTYPE, ""), "1.jpg: neither a file nor a link .type '6'.; take it out"),
        (("1.jpg", tarfile.BLKTYPE, ""), "1.jpg: neither a file nor a link .type '4'.; take it out"),
        (("1.jpg", tarfile.GNUTYPE_SPARSE, b""), "1.jpg: a sparse file; .* --sparse"),
        (("0.jpg", tarfile.REGTYPE, b"2"), "0.jpg: the second .jpg of one sample; keep one"),
        (("0.JPG", tarfile.REGTYPE, b"2"), "0.JPG: the second .JPG of one sample; keep one"),
    ],
)
def test_unsupported_members_are_refused(tmp_path, member, message):
    tar = tar_of(tmp_path / "a.tar", ("0.jpg", tarfile.REGTYPE, b"0"), member, ("2.jpg", tarfile.REGTYPE, b"2"))
    with pytest.raises(ShardError, match=f"^{re.escape(str(tar))}: {message}"):
        scan(tar)


def test_a_sparse_file_of_pax_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("0.jpg")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
        archive.addfile(info)
    with pytest.raises(ShardError, match=r"0\.jpg: a sparse file"):
        scan(tmp_path / "a.tar")


NAMES = ["a b/c d.jpg", "/etc/passwd.jpg", "../../up.jpg", "é/ü.jpg", os.fsdecode(b"\xff\xe9.jpg"), "x" * 300 + ".jpg"]


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_labels_from_names(tmp_path, kind):
    members = [(name, tarfile.REGTYPE, name.encode("utf-8", "surrogateescape")) for name in NAMES]
    tar = tar_of(tmp_path / "a.tar", *members, kind=kind, comment="of all members")
    assert contents(tar) == [{name: content} for name, _, content in members]


def test_old_headers(tmp_path):
    """Of v7: a null type, a checksum of signed bytes, numbers with spaces; a slash means a folder."""

    def header(name, size):
        made = bytearray(512)
        made[: len(name)] = name
        made[124:136] = b"%11o " % size
        made[148:156] = b" " * 8
        made[148:156] = b"%6o\0 " % sum(byte - 256 * (byte > 127) for byte in made)
        return bytes(made)

    tar = tmp_path / "a.tar"
    tar.write_bytes(header(b"a.b/", 0) + header(b"\xe9.jpg", 3) + b"one".ljust(512, b"\0") + bytes(1024))
    assert contents(tar) == [{os.fsdecode(b"\xe9.jpg"): b"one"}]
    with tarfile.open(tar) as archive:
        assert archive.getnames() == ["a.b", os.fsdecode(b"\xe9.jpg")]


@pytest.mark.parametrize("field", [b"\x80" + bytes(10) + b"\5", b"00000000005\0", b"          5\0", b"5" + bytes(11)])
def test_sizes(tmp_path, field):
    header = bytearray(member_header("0.jpg", 5))
    header[124:136] = field
    assert read_of(tmp_path, header) == [{"0.jpg": b"12345"}]


@pytest.mark.parametrize(
    "field",
    [
        *(b"\xff" * 11 + b"\xfb", b"\x80" + b"\xff" * 11, b"\x80\0\0\0\x80" + bytes(7), b"\x90" + bytes(10) + b"\5"),
        *(b"-0000000005\0", b"0x000000005\0", b"1_0        \0", b"8          \0", b"77777777777\0", b"00000002001\0"),
    ],
)
def test_invalid_sizes(tmp_path, field):
    header = bytearray(member_header("0.jpg", 5))
    header[124:136] = field
    with pytest.raises(ShardError, match=r"a.tar: not a complete tar: .*; copy or make it again"):
        read_of(tmp_path, header)


def read_of(tmp_path, header):
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(header + b"12345".ljust(512, b"\0") + bytes(1024))
    return contents(tmp_path / "a.tar")


@pytest.mark.parametrize(
    "body",
    [
        *(b"x", b"5 a=b", b"6 a=bb", b"0 a=b\n", b"-6 a=b\n", b"7 a=b\n", b"6 aabb\n", b"9" * 30 + b" a=b\n"),
        *(b"10 size=6\n", b"11 size=-5\n", b"10 size=x\n", b"6 a=b\n\0006 c=d\n"),
    ],
)
def test_invalid_extended_headers(tmp_path, body):
    extended = bytearray(member_header("pax", len(body)))
    extended[156:157] = b"x"
    extended[148:156] = b" " * 8
    extended[148:156] = b"%06o\0 " % sum(extended)
    (tmp_path / "a.tar").write_bytes(
        bytes(extended) + body.ljust(512, b"\0") + member_header("0.jpg", 5) + b"12345".ljust(512, b"\0") + bytes(1024)
    )
    with pytest.raises(ShardError, match=r"a.tar: not a complete tar: .*header"):
        scan(tmp_path / "a.tar")


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_an_extended_header_without_its_header(tmp_path, kind):
    tar = foreign_tar(tmp_path / "a.tar", {f"{'x' * 200}/{i}.jpg": b"" for i in range(2)}, kind)
    whole = tar.read_bytes()
    tar.write_bytes(whole[:1024] + whole[1536:])
    with pytest.raises(ShardError, match=r"two extended headers before byte \d+ contradict each other"):
        scan(tar)
    tar.write_bytes(whole[:1024] + bytes(1024))
    with pytest.raises(ShardError, match="ends after an extended header"):
        scan(tar)
    tar.write_bytes(whole[:1023] + b"x" + whole[1024:])
    with pytest.raises(ShardError, match="the extended header before byte 1024 is longer than its stated size"):
        scan(tar)


@pytest.mark.parametrize("name", [b"", b"a\0b.jpg\0"])
def test_an_invalid_long_name(tmp_path, name):
    tar = foreign_tar(tmp_path / "a.tar", {f"{'x' * 200}/0.jpg": b""}, tarfile.GNU_FORMAT)
    whole = tar.read_bytes()
    tar.write_bytes(whole[:512] + name.ljust(512, b"\0") + whole[1024:])
    with pytest.raises(ShardError, match="the long name before byte 1024 is invalid"):
        scan(tar)


def test_a_tar_without_an_end_mark_or_followed_by_another(shard):
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1024])
    with pytest.raises(ShardError, match="it is cut short: no end marker"):
        scan(shard)
    shard.write_bytes(whole[:-512])
    assert len(scan(shard)) == 2
    shard.write_bytes(whole + bytes(9 * 1024))
    assert len(scan(shard)) == 2
    shard.write_bytes(whole + whole)
    with pytest.raises(ShardError, match=r"there is data after its end marker at byte .*, perhaps another tar"):
        scan(shard)


def test_an_empty_tar_has_no_samples(tmp_path):
    with ShardWriter(tmp_path / "a.tar"):
        pass
    assert scan(tmp_path / "a.tar") == parse_index(tmp_path / "a.idx", 1024) == []


@pytest.mark.parametrize("keep", range(0, 4096, 256))
def test_a_tar_that_was_cut_is_refused(shard, keep):
    """Between two members, too: then the first archive has no end mark."""
    whole = shard.read_bytes()
    shard.write_bytes(whole[:keep])
    with pytest.raises(ShardError, match=rf"^{re.escape(str(shard))}: not a complete tar: it is cut short: .*again"):
        scan(shard)


def test_a_tar_with_a_damaged_header_is_refused(shard):
    content = bytearray(shard.read_bytes())
    content[0:40] = b"\xaa" * 40
    shard.write_bytes(content)
    with pytest.raises(ShardError, match=f"{re.escape(str(shard))}: not a complete tar"):
        scan(shard)


def test_a_damaged_header_further_on_is_refused(shard):
    """tarfile treats a bad header after the first member as the end of the archive."""
    content = bytearray(shard.read_bytes())
    at = content.index(b"000000002.cls")
    content[at : at + 40] = b"\xaa" * 40
    shard.write_bytes(content)
    with pytest.raises(ShardError, match=re.escape(str(shard))):
        scan(shard)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_failed_write_leaves_no_shard(tmp_path, error):
    with pytest.raises((KeyboardInterrupt, OSError)), ShardWriter(tmp_path / "a.tar") as writer:
        writer.add("1", {"jpg": b"1"})
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_of_the_end_leaves_no_shard(tmp_path, monkeypatch):
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
