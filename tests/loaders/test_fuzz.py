"""Mutated files of every kind are read correctly or refused: only DataError, no crash, no hang, bounded memory.

python tests/loaders/test_fuzz.py KIND FIRST LAST [SEED]        cases FIRST to LAST - 1 of jpeg, tar, idx or beton

Each case is determined by its kind, number and seed. Cases run in a separate process with a memory limit and an alarm
for each case; the file of a failed case is kept.
"""

import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

COUNTS = {"jpeg": 2000, "tar": 1000, "idx": 1000, "beton": 1000}
SECONDS = 20  # for one case; the slowest takes a few hundredths
MEMORY = 256 << 20  # limit of a case's memory, in addition to the process's memory at its start
MAX_PIXELS = 1 << 18

EXTREMES = (0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


# Mutations


def mutated(data, others, draw, fields):
    """Some changes, half of them at random places and half at those in `fields`."""
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if len(data) < 8:
            break
        if draw.random() < 0.6:
            data = bytearray(fields(data, draw))
        else:
            scatter(data, bytes(draw.choice(others)), draw)
    return bytes(data)


def scatter(data, other, draw):
    """Changes of bits, bytes and chunks at any place."""
    at = draw.randrange(len(data))
    length = draw.choice((1, 2, 4, 16, 64, 512))
    match draw.randrange(9):
        case 0:
            data[at] ^= 1 << draw.randrange(8)
        case 1:
            data[at] = draw.randrange(256)
        case 2:
            data[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
        case 3:
            del data[at : at + length]
        case 4:
            data[at:at] = draw.randbytes(length)
        case 5:
            data[at:at] = data[at : at + length]
        case 6:
            data[at : at + length] = bytes(len(data[at : at + length]))
        case 7:  # the end of another file
            data[at:] = other[draw.randrange(len(other)) :]
        case 8 if draw.random() < 0.3:
            del data[at:]


def near(value, draw):
    """Another value for a field: an extreme, or a neighbour of the true one."""
    return draw.choice((*EXTREMES, value - 1, value + 1, value * 2, value // 2, draw.randrange(256)))


def jpeg_segments(data):
    """(begin, end) of the segments before the scan."""
    at, found = 2, []
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xD9:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((at, min(end, len(data))))
        if data[at + 1] == 0xDA:
            break
        at = end
    return found


def jpeg_fields(data, draw):
    """Places of lengths, sizes, factors, table counts, intervals and markers."""
    segments = jpeg_segments(data)
    if not segments:
        return data
    wanted = draw.choice((0xC0, 0xC2, 0xC4, 0xDB, 0xDA, 0xDD, None, None))
    begin, end = draw.choice([s for s in segments if data[s[0] + 1] == wanted] or segments)
    marker, body = data[begin + 1], begin + 4
    match draw.randrange(8):
        case 0:
            length = near(end - begin - 2, draw) & 0xFFFF
            data[begin + 2 : begin + 4] = length.to_bytes(2, "big")
        case 1:
            data[begin + 1] = draw.choice((*range(0xC0, 0xE3), 0xFE, 0x01, 0x00, 0xFF))
        case 2:
            del data[begin:end]
        case 3:
            data[begin:begin] = data[begin:end]
        case 4:
            other = draw.choice(segments)[0]
            data[other:other] = data[begin:end]
        case 5:
            data[begin:begin] = b"\xff\xdd\0\4" + (draw.choice((0, 1, 2, 3, 5, 65535))).to_bytes(2, "big")
        case _ if marker in (0xC0, 0xC1, 0xC2) and end - body >= 9:
            at = body + draw.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, *range(6, end - body)))
            data[at] = draw.choice((0, 1, 2, 3, 4, 7, 8, 0x11, 0x12, 0x21, 0x22, 0x41, 0x44, 0xFF))
        case _ if end > body:
            at = body + draw.randrange(min(end - body, 20))
            data[at] = near(data[at], draw) & 0xFF
    return data


def tar_fields(data, draw):
    """Change a field of a header together with its checksum, or else blocks."""
    headers = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    if not headers:
        return data
    at = draw.choice(headers)
    digits = bytes(data[at + 124 : at + 135])
    size = int(digits, 8) if digits.isdigit() and digits.isascii() and b"8" not in digits and b"9" not in digits else 0
    match draw.randrange(7):
        case 0:
            value = near(size, draw)
            data[at + 124 : at + 136] = draw.choice(
                (
                    b"%011o\0" % (max(value, 0) & (8**11 - 1)),
                    (value & (1 << 95) - 1 | 1 << 95).to_bytes(12, "big"),
                    (value % 2**96).to_bytes(12, "big"),
                    draw.randbytes(12),
                )
            )
        case 1:
            data[at + 156] = draw.choice(b"0\x001234567SxgLKVMDN\xff")
        case 2:
            name = draw.choice(
                (b"0.jpg", b"1.jpg", b"1.cls", b"../x.jpg", b"/a.jpg", b"\xff\xfe.jpg", b"b .jpg", b"._.jpg")
            )
            start = at + draw.choice((0, 0, 157, 345))
            data[start : start + len(name) + 1] = name + b"\0"
        case 3:
            data[at + 257 : at + 265] = draw.choice((b"ustar\x0000", b"ustar  \0", bytes(8)))
        case 4:
            del data[at : at + 512]
            return data
        case 5:
            data[at:at] = data[at : at + 512 * draw.randrange(1, 4)]
            return data
        case 6:
            data[at + draw.randrange(512)] = draw.randrange(256)
    if len(data) >= at + 512 and draw.random() < 0.9:
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return data


def idx_fields(data, draw):
    """Words and lines of an index."""
    lines = [line.split(b" ") for line in bytes(data).split(b"\n")]
    line = draw.choice(lines)
    at = draw.randrange(len(line))
    match draw.randrange(8):
        case 0 | 1 | 2:
            numbers = [i for i, word in enumerate(line) if word.isdigit()]
            if numbers:
                at = draw.choice(numbers)
                line[at] = b"%d" % near(int(line[at][:18]), draw)
        case 3:
            line[at] = draw.choice((b"", b"-1", b"+5", b"1_0", b"9" * 5000, "٣".encode(), "²".encode(), b"jpg"))
        case 4:
            del line[at]
        case 5:
            lines.remove(line)
        case 6:
            lines.insert(draw.randrange(len(lines)), line)
        case 7:
            draw.shuffle(lines)
    return b"\n".join(b" ".join(line) for line in lines)


def beton_fields(data, draw):
    """A number in the header, a descriptor, the metadata or the table."""
    table = int.from_bytes(data[16:24], "little")
    fields = int.from_bytes(data[2:4], "little")
    metadata = 24 + 1041 * fields
    places = [(0, 2), (2, 2), (4, 4), (8, 8), (16, 8)]
    places += [(24 + 1041 * i, 1) for i in range(min(fields, 9))]
    places += [(24 + 1041 * i + 17 + 8 * j, 8) for i in range(min(fields, 9)) for j in (0, 1, 31, 32, 33)]
    places += [(metadata + draw.randrange(300), width) for width in (1, 2, 4, 8) for _ in range(6)]
    if table + 24 <= len(data):
        places += [(table + 8 * draw.randrange((len(data) - table) // 8), 8) for _ in range(20)]
    at, width = draw.choice(places)
    if at + width <= len(data):
        value = int.from_bytes(data[at : at + width], "little")
        data[at : at + width] = (near(value, draw) % (1 << 8 * width)).to_bytes(width, "little")
    return data


# Cases


def refused(function, *arguments):
    """The result; None if it raises an error meant for users."""
    from fastimg.loaders.errors import DataError

    try:
        return function(*arguments)
    except DataError as error:
        assert str(error)
        return None


def strictly(data):
    """libjpeg-turbo's pixels, None if it warns; Pillow's if TurboJPEG does not support the subsampling."""
    try:
        return simplejpeg.decode_jpeg(data, "RGB", strict=True)
    except ValueError as error:
        if "subsampling level" not in str(error):
            return None
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image)
    except OSError:
        return None


def jpegs():
    """Small JPEGs of every kind, and the same ones tiled."""
    from fastimg.loaders.jpeg.rewriting.tiles import tile

    rng = np.random.default_rng(0)
    pixels = np.clip(rng.normal(128, 40, (37, 67, 3)), 0, 255).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    thumbnail = simplejpeg.encode_jpeg(pixels[:16, :16].copy(), 50)
    found = [simplejpeg.encode_jpeg(pixels, 60, "RGB", sampling) for sampling in ("444", "422", "420", "440", "411")]
    found.append(simplejpeg.encode_jpeg(pixels[:, :, :1].copy(), 60, "GRAY", "Gray"))
    for mode in ("RGB", "L", "CMYK"):
        for options in (
            {"progressive": True},
            {"optimize": True, "exif": exif.tobytes() + thumbnail},
            {"restart_marker_blocks": 2, "icc_profile": b"profile" * 20},
            {"progressive": True, "comment": b"a comment", "subsampling": 2},
        ):
            buffer = io.BytesIO()
            Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", quality=60, **options)
            found.append(buffer.getvalue())
    return found + [tile(data, 16).jpeg for data in found]


class Jpegs:
    """Tiled to the same pixels; a crop equals that of the whole; every decoded image has its header's size."""

    def __init__(self, folder):
        from fastimg.loaders.jpeg.rewriting import tiles

        tiles.MAX_COST = float("inf")
        self.seeds = jpegs()
        self.untiled = self.seeds[: len(self.seeds) // 2]
        self.tiled = 0

    def make(self, draw):
        seeds = self.untiled if draw.random() < 0.7 else self.seeds
        return mutated(draw.choice(seeds), self.seeds, draw, jpeg_fields)

    def check(self, data, draw):
        from fastimg.loaders.decode import decode, decode_box, read_header
        from fastimg.loaders.jpeg.rewriting.tiles import tile
        from fastimg.loaders.runtime.scratch import Scratch

        made = tile(data, 16, MAX_PIXELS)
        if made.kept is None:
            self.tiled += 1
            before, after = strictly(data), strictly(made.jpeg)
            assert before is not None, "tiled, although libjpeg warns of the original"
            assert after is not None and np.array_equal(before, after)
        else:
            assert made.jpeg == data
        for jpeg in {data, made.jpeg}:
            header = refused(read_header, jpeg, MAX_PIXELS)
            if header is None:
                continue
            width, height = header.size
            x, y = draw.randrange(width), draw.randrange(height)
            box = (x, y, draw.randrange(1, width - x + 1), draw.randrange(1, height - y + 1))
            whole = refused(decode, jpeg, header, Scratch())
            found = refused(decode_box, jpeg, header, box, Scratch())
            assert whole is None or whole.shape == (height, width, 3)
            if found is not None:
                part, (left, top, *size) = found
                cut = part[top : top + size[1], left : left + size[0]]
                assert cut.shape == (box[3], box[2], 3)
                if strictly(jpeg) is not None and header.turbo:
                    assert np.array_equal(cut, whole[y : y + box[3], x : x + box[2]])

    def close(self):
        return f"{self.tiled} tiled"


def tars():
    """Small tars of every kind."""
    found = []
    image = jpegs()[0][:700]
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        for long in (False, True):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
                for i in range(3):
                    stem = f"{'é' * 60}/{i}" if long and kind != tarfile.USTAR_FORMAT else f"{'x' * 90 * long}/{i}"
                    for ext, content in (("jpg", image), ("cls", b"%d" % i), ("json", b'{"path": "a"}')):
                        info = tarfile.TarInfo(f"{stem}.{ext}")
                        info.size = len(content)
                        if long and (i, ext) == (2, "jpg"):
                            info.type, info.size, info.linkname = tarfile.LNKTYPE, 0, stem[:-1] + "0.jpg"
                        archive.addfile(info, io.BytesIO(content) if info.size else None)
            found.append(buffer.getvalue()[: -8 * 512] if kind == tarfile.USTAR_FORMAT else buffer.getvalue())
    return found


def opened(folder):
    """Every sample of a dataset as (name, label, bytes), None if it is refused; and the remarks."""
    from fastimg.loaders.containers.datasets import open_dataset
    from fastimg.loaders.runtime.scratch import Scratch

    dataset = refused(open_dataset, folder)
    if dataset is None:
        return None, []
    try:
        assert len(dataset.labels) == len(dataset) and len(dataset.classes) > max([-1, *dataset.labels.tolist()])
        dataset.will_need(np.arange(len(dataset)))
        samples = []
        for i in range(len(dataset)):
            name, data = refused(dataset.sample_name, i), refused(dataset.read, i, Scratch())
            assert isinstance(name, str)
            samples.append((name, int(dataset.labels[i]), None if data is None else bytes(data)))
        return samples, getattr(dataset, "notes", [])
    finally:
        dataset.close()


def judged(tar):
    """Names and contents as tarfile reads them, and whether it reached the end: it stops at unusual user ids."""
    found, data, at = [], tar.read_bytes(), 0
    with contextlib.suppress(tarfile.ReadError), tarfile.open(tar, "r:") as archive:
        for info in archive:
            if (info.isreg() or info.islnk()) and not info.name.rpartition("/")[2].startswith("."):
                found.append((info.name, archive.extractfile(info).read()))
        at = archive.offset
    last = data[at : at + 512]
    whole = not any(last)
    assert whole or tarfile.nti(last[148:156]) in tarfile.calc_chksums(last)
    return found, whole


class Tars:
    """An accepted tar has the members that tarfile finds, and each sample has the bytes at its offset."""

    def __init__(self, folder):
        self.tar = folder / "train-0.tar"
        self.seeds = tars()
        self.taken = 0

    def make(self, draw):
        return mutated(draw.choice(self.seeds), self.seeds, draw, tar_fields)

    def check(self, data, draw):
        from fastimg.loaders.containers.tars.shards import scan

        self.tar.write_bytes(data)
        samples = refused(scan, self.tar)
        found, _ = opened(self.tar.parent)
        if samples is None:
            assert found is None
            return
        self.taken += 1
        members = [member for sample in samples for member in sample]
        theirs, whole = judged(self.tar)
        assert len(theirs) == len(members) or (len(theirs) < len(members) and not whole)
        for member, (name, content) in zip(members, theirs, strict=False):
            assert name.endswith(member.name)  # tarfile joins prefixes in older formats than ustar, too
            assert data[member.offset : member.offset + member.size] == content
        if found is not None:
            for sample, (_, _, image) in zip(samples, found, strict=True):
                assert image in [data[m.offset : m.offset + m.size] for m in sample]

    def close(self):
        return f"{self.taken} taken"


class Indexes:
    """A foreign tar is read correctly whatever its index says; in fastimg's shards every change is detected."""

    def __init__(self, folder):
        from fastimg.loaders.containers.description import FORMAT, FORMAT_VERSION, SHARD_KEYS
        from fastimg.loaders.containers.tars.shards import ShardWriter, index_path

        self.foreign, self.ours = folder / "foreign", folder / "ours"
        images = jpegs()
        for place in (self.foreign, self.ours):
            place.mkdir()
            with ShardWriter(place / "train-0.tar") as writer:
                for i in range(4):
                    writer.add(f"{i:09d}", {"jpg": images[i], "cls": b"%d" % i, "json": b'{"path": "a"}'})
        shard = {key: (vars(writer) | {"name": "train-0.tar", "samples": 4})[key] for key in SHARD_KEYS}
        self.description = {"format": FORMAT, "version": FORMAT_VERSION, "container": "tar"}
        self.description["classes"] = ["a", "b", "c", "d"]
        self.description["splits"] = {"train": {"samples": 4, "shards": [shard]}}
        (self.ours / "dataset.json").write_text(json.dumps(self.description))
        self.index = index_path(self.foreign / "train-0.tar").read_bytes()
        self.text = (self.ours / "dataset.json").read_bytes()
        self.right, _ = opened(self.foreign)
        self.own, _ = opened(self.ours)
        assert len(self.right) == len(self.own) == 4
        self.noted = 0

    def make(self, draw):
        if draw.random() < 0.3:
            return mutated(self.text, [self.text, self.index], draw, self.values)
        return mutated(self.index, [self.index, self.text], draw, idx_fields)

    def values(self, data, draw):
        """Change a value in dataset.json."""
        try:
            at = described = json.loads(data)
        except ValueError:
            return data
        while True:
            key = draw.choice(list(at.keys()) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], (dict, list)) or not at[key] or draw.random() < 0.2:
                break
            at = at[key]
        value = at[key] if isinstance(at[key], int) else 4
        at[key] = draw.choice((None, True, "", "x", "\0", "\ud800", [], {}, 1.5, near(value, draw), "../" * 2000))
        return json.dumps(described).encode()

    def check(self, data, draw):
        from fastimg.loaders.containers.tars.shards import parse_index

        described = data[:1] == b"{"
        if described:
            (self.ours / "dataset.json").write_bytes(data)
            (self.ours / "train-0.idx").write_bytes(self.index)
        else:
            (self.ours / "dataset.json").write_bytes(self.text)
            for place in (self.foreign, self.ours):
                (place / "train-0.idx").write_bytes(data)
            size = (self.foreign / "train-0.tar").stat().st_size
            for sample in refused(parse_index, self.foreign / "train-0.idx", size) or []:
                assert all(0 < m.offset <= m.offset + m.size <= size for m in sample)
            found, notes = opened(self.foreign)
            assert found == self.right
            assert notes or sorted(data.split()) == sorted(self.index.split())
            self.noted += bool(notes)
        found, _ = opened(self.ours)
        assert found == (self.own if found is not None and (described or data == self.index) else None)

    def close(self):
        return f"{self.noted} noted"


class Betons:
    """Every value has the shape of its field."""

    def __init__(self, folder):
        from fastimg.loaders.containers.betons.files import BetonWriter
        from fastimg.loaders.containers.betons.kinds import BetonField

        self.beton = folder / "train.beton"
        array = BetonField("ndarray", np.dtype("<f4"), (2, 3))
        images = jpegs()
        pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
        plain = {"image": BetonField("rgb"), "label": BetonField("int")}
        further = {"bytes": BetonField("bytes"), "json": BetonField("json"), "array": array}
        further |= {"tensor": BetonField("tensor", np.dtype("<i2"), (3,))}
        self.seeds = []
        for fields in (
            plain,
            plain | further,
            {"image": BetonField("rgb")},
            plain | {"score": BetonField("float")} | further,
        ):
            with BetonWriter(self.beton, fields, 4, page_size=1 << 21) as writer:
                for i in range(4):
                    values = {"image": pixels if i == 2 else images[i], "label": i, "score": i / 2, "bytes": b"abc" * i}
                    values |= {"json": {"path": "a"}, "array": np.ones((2, 3), "<f4"), "tensor": np.ones(3, "<i2")}
                    writer.add({name: values[name] for name in fields})
            self.seeds.append(self.beton.read_bytes())
        self.taken = 0

    def make(self, draw):
        return mutated(draw.choice(self.seeds), [seed[-5000:] for seed in self.seeds], draw, beton_fields)

    def check(self, data, draw):
        from fastimg.loaders.containers.betons.files import BetonFile

        self.beton.write_bytes(data)
        reader = refused(BetonFile, self.beton)
        if reader is not None:
            self.taken += 1
            with reader:
                for name, field in reader.fields.items():
                    if field.kind == "custom":
                        continue
                    for i in range(len(reader)):
                        value = refused(reader.value, name, i)
                        if field.dtype is not None:
                            assert value is None or (value.shape, value.dtype) == (field.shape, field.dtype)
        opened(self.beton)

    def close(self):
        return f"{self.taken} taken"


KINDS = {"jpeg": Jpegs, "tar": Tars, "idx": Indexes, "beton": Betons}


def run(kind, first, last, seed, folder):
    """Run cases; the current case's number is in `folder`/case, the file of a failed one in `folder`/failed.<kind>."""
    from fastimg.loaders.containers.derived import kept

    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    kept.replace_file = lambda path, content: None  # nothing is kept between cases
    place = folder / kind
    place.mkdir(exist_ok=True)
    cases = KINDS[kind](place)
    for _ in range(2):
        cases.check(cases.make(random.Random(0)), random.Random(0))  # everything is compiled and imported
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with (folder / "case").open("wb", buffering=0) as note:
        for number in range(first, last):
            draw = random.Random(f"{kind} {seed} {number}")
            os.pwrite(note.fileno(), b"%-9d" % number, 0)
            data = cases.make(draw)
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                cases.check(data, draw)
            except BaseException:
                (folder / f"failed.{kind}").write_bytes(data)
                raise
            finally:
                faulthandler.cancel_dump_traceback_later()
    print(kind, last - first, cases.close())
    return cases


@pytest.mark.parametrize("kind", COUNTS)
def test_read_correctly_or_refused(kind, tmp_path):
    command = [sys.executable, __file__, kind, "0", str(COUNTS[kind]), "0", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    case = (tmp_path / "case").read_text() if (tmp_path / "case").exists() else "none"
    assert ran.returncode == 0, f"case {case} of {kind}, see {tmp_path}: {ran.returncode}\n{ran.stderr[-3000:]}"
    print(ran.stdout)


if __name__ == "__main__":
    import tempfile

    kind, first, last, seed, folder = [*sys.argv[1:], *("0", tempfile.mkdtemp())[len(sys.argv) - 4 :]][:5]
    warnings.simplefilter("ignore")
    run(kind, int(first), int(last), int(seed), Path(folder))
