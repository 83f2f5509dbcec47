"""Mutations of what is read beside samples: the five derived files, dataset.json, config.yaml and metrics.jsonl.

    python benchmarks/fuzz_files.py [--kinds fidx,fcol,ffld,ftil,fdci,dataset,config,metrics] [--count 100000]

A small dataset of two shards, with targets, fields and large photographs, is converted once. Then each case changes one
file: bytes anywhere, its length, or fields of its format to extremes, neighbours and each other's values; of derived
files mostly with the checksum computed again. The file is loaded as opening a dataset does, and what is taken of it is
compared; in one case of 500 of derived files, and in all of dataset.json, the dataset is opened and all of it
read:

- with the digests that dataset.json states, everything is as it was, or refused in a sentence: labels, targets, fields,
  bytes of samples, and pixels of crops;
- without them (as of older versions: half of the cases), nothing is out of bounds, and where samples differ,
  `verify` names the file;
- of dataset.json, config.yaml and metrics.jsonl: refused in a sentence, or of the right types; labels stay. What a
  class is called is what dataset.json says.

Any other exception, 50 cases of more than a minute, and memory of more than 1 GiB beyond that at the start end the run.
The case is printed, or in the file `begun`; `--first N --count 1` repeats it. Results are appended to
benchmarks/results/fuzz_files.jsonl.
"""

import argparse
import copy
import faulthandler
import io
import json
import os
import random
import re
import resource
import struct
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.config.training import Train
from fastimg.config.yaml_file import dump, load
from fastimg.convert.pipeline import convert
from fastimg.convert.shards.base import read_made
from fastimg.errors import UsageError, UserError
from fastimg.loaders import CenterCrop
from fastimg.loaders.containers import datasets
from fastimg.loaders.containers.derived import (
    block_index,
    dc_images,
    field_columns,
    kept,
    photographs,
    records,
    target_columns,
)
from fastimg.loaders.containers.derived.digests import KINDS, differing
from fastimg.loaders.containers.description import declared_targets, previewed_field, read_description, stated_fields
from fastimg.loaders.containers.fields import SplitFields
from fastimg.loaders.containers.targets import first_class
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders.large import PartialReads
from fastimg.loaders.errors import DataError
from fastimg.loaders.jpeg.decoding.region import LOW
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.train.checkpoints import run_directory

EXTREMES = (0, 1, 2, -1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**45, 2**63 - 1, 2**63, 2**64 - 1)
SECONDS, ARMED = 600, 50  # for so many cases, also on a machine with much else to do
MEMORY = 1 << 30
LARGE = 100 * 100
SAMPLES = 12
SETTINGS = 16  # of a config.yaml, in one case
FULLY = 0.002  # of the cases of derived files: the dataset is opened and all of it read
Case = tuple[bytes, bool, bool]  # of a file: its content, whether digests are stated, whether everything is read


def main() -> None:
    """Run the cases of each kind, print and append how they ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="fidx,fcol,ffld,ftil,fdci,dataset,config,metrics")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="for each kind: the rest of its cases is left out")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "fuzz_files.jsonl")
    parser.add_argument("--folder", type=Path, help="where files are put; default: a temporary folder in memory")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=shm) as folder:
        for record in fuzzed(args, args.folder or Path(folder)):
            measure.append(args.out, {"benchmark": "fuzz_files", **record, "environment": measure.environment()})


def fuzzed(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Run cases `first` to `first + count` of each kind; how they ended."""
    files = Files(folder)
    files.check_unchanged()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        for kind in args.kinds.split(","):
            yield run_kind(files, kind, args)
    finally:
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, before)


def run_kind(files: "Files", kind: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run the cases of a kind."""
    make, check = files.of(kind)
    ended: Counter[str] = Counter()
    began = told = time.monotonic()
    number = args.first
    while number < args.first + args.count and time.monotonic() - began < args.seconds:
        if number % ARMED == 0 or number == args.first:
            files.begun.write_text(f"{kind}: a case from {number} on, of seed {args.seed}")
            faulthandler.dump_traceback_later(SECONDS, exit=True)  # a thread, which not every case can begin
        try:
            ended[check(make(random.Random(f"{kind} {args.seed} {number}")))] += 1
        except BaseException:
            print(f"{kind}: case {number} of seed {args.seed}", file=sys.stderr)
            raise
        number += 1
        if time.monotonic() - told > 20:
            told = time.monotonic()
            print(f"{kind}: {number - args.first:,} of {args.count:,}: {dict(ended)}", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    count = number - args.first
    record = {"kind": kind, "count": count, "first": args.first, "seed": args.seed, **dict(sorted(ended.items()))}
    print(record, f"{count / seconds:.0f}/s", file=sys.stderr, flush=True)
    return {**record, "seconds": round(seconds, 1)}


class Files:
    """A converted dataset, and what all of it is."""

    def __init__(self, folder: Path) -> None:
        block_index.MIN_PIXELS = dc_images.MIN_PIXELS = LARGE
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        self.folder = folder / "data"
        self.begun = folder / "begun"
        source = folder / "source"
        source.mkdir(parents=True)
        draw = np.random.default_rng(0)
        rows = ["path,kind,tags,score,area,boxes"]
        for i in range(SAMPLES):
            big = i % 4 == 0
            shape = (160, 144, 3) if big else (24 + i, 30, 3)
            pixels = np.kron(draw.integers(0, 256, (shape[0] // 8 + 1, shape[1] // 8 + 1, 3)), np.ones((8, 8, 1)))
            image = Image.fromarray(pixels[: shape[0], : shape[1]].astype(np.uint8))
            image.save(source / f"{i}.jpg", quality=90)
            tags = ("x|y", "y|z", "x", "")[i % 4]
            boxes = json.dumps([[1, 1, 9, 9]] * (i % 3)).replace('"', "")
            rows.append(f'{i}.jpg,{"abc"[i % 3]},{tags},{"" if i == 5 else i / 7},{i * 3},"{boxes}"')
        (source / "m.csv").write_text("\n".join(rows) + "\n")
        asked = Convert(
            src=source / "m.csv",
            dst=self.folder,
            target=("kind", "tags:multilabel", "score:number"),
            field=("area:number", "boxes:box"),
            label_delimiter="|",
            shard_size="40KB",
            shuffle=False,
            workers="1",
        )
        convert(asked, Console(file=io.StringIO()))
        self.anew = folder / "anew"
        self.anew.mkdir()
        datasets.derive_again(self.folder, "train", self.anew, large=True)
        self.text = (self.folder / "dataset.json").read_bytes()
        described = json.loads(self.text)
        self.digests = described["splits"]["train"].pop("derived")
        assert len(self.digests) == len(KINDS), self.digests
        self.without = json.dumps(described).encode()
        self.kept = {suffix: (self.folder / f"train{suffix}").read_bytes() for suffix in KINDS}
        kept.replace_file = lambda path, content: None  # type: ignore[assignment]  # nothing is kept between cases
        kept.sync_folder = lambda folder: None  # type: ignore[assignment]
        os.fsync = lambda file: None
        self.run = folder / "run"
        self.run.mkdir()
        self.config = dump(Train(data=self.folder, epochs=3, batch_size=32, lr=0.1)).encode()
        self.scratch, self.reads = Scratch(), PartialReads()
        (self.folder / "dataset.json").write_bytes(self.text)
        self.right = self.everything()
        self.opened: Any = datasets.open_dataset(self.folder)
        self.stated = self.opened.labels.tolist()
        description = read_description(self.folder)
        self.shards = description["splits"]["train"]["shards"]
        own = first_class(declared_targets(description))
        self.targets = [target for target in declared_targets(description) if target is not own]
        self.fields = list(stated_fields(description).values())
        self.photographs = datasets._photographs(self.opened)

    def everything(self, crops: bool = True) -> dict[str, Any]:
        """Everything that a dataset holds, as values. Raises DataError."""
        dataset: Any = datasets.open_dataset(self.folder)
        try:
            assert len(dataset.labels) == len(dataset)
            found: dict[str, Any] = {"labels": dataset.labels.tolist(), "classes": len(dataset.classes)}
            ids = np.arange(len(dataset))
            dataset.will_need(ids)
            found["targets"] = [[part.tobytes() for part in column.rows(ids)] for column in dataset.targets]
            for column in dataset.targets:
                limit = max(len(column.target.classes), 1)
                assert column.target.kind == "number" or not column.values.size or column.values.max() < limit
            assert not ids.size or (dataset.labels.min() >= -1 and dataset.labels.max() < len(dataset.classes))
            found["samples"], found["fields"], found["crops"] = [], [], []
            for index in ids.tolist():
                found["samples"].append(bytes(dataset.read(index, self.scratch)))
                for name in dataset.fields:
                    value = dataset.read_field(name, index)
                    found["fields"].append(plain(value))
                found["crops"].append(self.crops(dataset, index) if crops else [])
            return found
        finally:
            dataset.close()

    def crops(self, dataset: Any, index: int) -> list[bytes]:
        """Crops of a large photograph at 1/8 and 1/4; those of others are decoded whole."""
        if dataset.blocks is None or dataset.blocks.entry(index) is None:
            return []
        made = []
        for side, box in ((12, 96), (20, 80)):
            out = np.zeros((side, side, 3), np.uint8)
            crop = CenterCrop(size=box, resize=box) if side == 0 else CenterCrop(size=side, resize=side)
            done = self.reads.crop(SampleReader(dataset), index, crop, (), MAX_PIXELS, LOW, self.scratch, out)
            made.append(out.tobytes() if done else b"")
        return made

    def check_unchanged(self) -> None:
        """What was converted is read the same twice; this also compiles."""
        assert self.everything() == self.right
        assert any(self.right["crops"])

    def of(self, kind: str) -> tuple[Callable[[random.Random], Any], Callable[[Any], str]]:
        """What makes a case of a kind, and what checks it and says how it ended."""
        others: dict[str, tuple[Callable[[random.Random], Any], Callable[[Any], str]]] = {
            "dataset": (self.make_description, self.check_description),
            "config": (self.make_config, self.check_config),
            "metrics": (lambda draw: mutated_text(metrics(), draw), self.check_metrics),
        }
        if kind in others:
            return others[kind]
        suffix = f".{kind}"

        def make(draw: random.Random) -> Case:
            return self.mutated(suffix, draw), draw.random() < 0.5, draw.random() < FULLY

        return make, lambda case: self.check(suffix, case)

    def mutated(self, suffix: str, draw: random.Random) -> bytes:
        """A derived file with some changes, mostly with its checksum computed again."""
        data = bytearray(self.kept[suffix])
        size, consistent = kept.HEAD.size, draw.random() < 0.8
        entry = KINDS[suffix][1]
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            if consistent and draw.random() < 0.9:
                change_number(data, size, draw)
            else:
                scatter(data, draw)
        if consistent and len(data) >= size:
            if draw.random() < 0.05:  # the number of samples
                data[40:48] = struct.pack("<Q", draw.choice(EXTREMES) % 2**64)
            held = data[size:] if entry is None else data[size : size + SAMPLES * entry.itemsize]
            data[48:52] = struct.pack("<I", zlib.crc32(held))
        return bytes(data)

    def check(self, suffix: str, case: Case) -> str:
        """Load the file as opening does, and see whether it is taken, and what of it."""
        content, stated, fully = case
        if fully:
            return self.check_fully(suffix, content, stated)
        file = self.folder / f"train{suffix}"
        file.write_bytes(content)
        digests = self.digests if stated else {}
        place = kept.DerivedPlace(folder=self.folder, split="train", digests=digests)
        try:
            same = self.load(suffix, place)
        except Derived:
            return "made again"
        else:
            told = same or file in [path for path, _ in differing(self.anew, place)]
        finally:
            file.write_bytes(self.kept[suffix])
        assert same or not stated, "something else was taken"
        assert told, "verify does not name it"
        return "right" if same else "believed without a digest, and named by verify"

    def load(self, suffix: str, place: kept.DerivedPlace) -> bool:
        """Whether a derived file that is taken holds what it should. Raises Derived where it is not taken."""
        dataset, right = self.opened, self.opened
        count = len(dataset)
        if suffix == records.SUFFIX:
            lengths, counts = dataset.shard_files.lengths, [shard["samples"] for shard in self.shards]
            made, _, _ = records.records(
                dataset.files(),
                dataset.fingerprint,
                place,
                [shard["sha256"] + shard["index_sha256"] for shard in self.shards],
                "images",
                Underivable(),
                lambda taken: records.are_of(taken, lengths, counts, len(dataset.classes)),
            )
            return made.tobytes() == dataset.records.tobytes()
        if suffix == target_columns.SUFFIX:
            columns = target_columns.target_columns(
                place, self.targets, count, dataset.fingerprint, Underivable().derive
            )
            by_name = {column.target.name: column for column in right.targets}
            ids = np.arange(count)
            rows = [(column.rows(ids), by_name[column.target.name].rows(ids)) for column in columns]
            return all(a.tobytes() == b.tobytes() for pair in rows for a, b in zip(*pair, strict=True))
        if suffix == field_columns.SUFFIX:
            lengths = dataset.shard_files.lengths
            found = field_columns.field_columns(
                place, self.fields, count, dataset.fingerprint, lengths, Underivable().derive
            )
            stored = SplitFields({each.schema.name: each for each in found}, dataset.fetch, of_beton=False)
            same = True
            for name in dataset.fields:
                for index in range(count):
                    try:
                        value = stored.read("", name, index)
                    except DataError:
                        same = False
                        continue
                    same &= plain(value) == plain(dataset.read_field(name, index))
            return same
        kind = block_index._kind() if suffix == block_index.SUFFIX else dc_images._kind()
        taken = photographs.large_sections(kind, place, self.photographs, [], most=0)
        if taken is None:
            raise Derived
        doubts: list[int] = []
        before = dataset.blocks
        if suffix == block_index.SUFFIX:
            dataset.blocks = block_index.BlockIndex(taken, doubts.append)
        else:
            dataset.blocks = self.index_without(dc_images.DcImages(taken, doubts.append))
        used = dataset.blocks
        try:
            same = True
            for index in range(0, count, 4):
                made = self.crops(dataset, index)
                pairs = zip(made, self.right["crops"][index], strict=False)
                same &= all(not one or one == other for one, other in pairs)
                entry = used.entry(index)
                if entry is not None:
                    used.ask(entry, 0, min(2, entry[2]))
            return same  # of what does not fit, the whole image is read
        finally:
            (used if suffix == block_index.SUFFIX else used.dc_images).close()
            dataset.blocks = before

    def index_without(self, images: dc_images.DcImages) -> Any:
        """The right index of blocks, with other images at 1/8."""
        made = copy.copy(self.opened.blocks)
        made.dc_images = images
        return made

    def check_fully(self, suffix: str, content: bytes, stated: bool) -> str:
        """Open and read everything."""
        file = self.folder / f"train{suffix}"
        (self.folder / "dataset.json").write_bytes(self.text if stated else self.without)
        file.write_bytes(content)
        try:
            place = kept.DerivedPlace(folder=self.folder, split="train", digests=self.digests)
            told = any(path == file for path, _ in differing(self.anew, place))
            assert told or content == self.kept[suffix] or content[:40] != self.kept[suffix][:40]
            try:
                found = self.everything()
            except DataError as error:
                assert str(error) and "\n" not in str(error)
                return "refused"
            if alike(found, self.right):
                return "right"
            assert not stated, "something else was read"
            assert told
            return "believed without a digest, and named by verify"
        finally:
            file.write_bytes(self.kept[suffix])

    def make_description(self, draw: random.Random) -> bytes:
        """A dataset.json with a changed value, or changed bytes."""
        return mutated_text(self.text if draw.random() < 0.7 else self.without, draw)

    def check_description(self, content: bytes) -> str:
        """Open and read everything, and what commands read of the description."""
        (self.folder / "dataset.json").write_bytes(content)
        try:
            datasets.list_splits(self.folder)
            found = self.everything(crops=False)
            previewed_field(read_made(self.folder))
        except (DataError, UserError) as error:
            assert str(error)
            return "refused"
        finally:
            (self.folder / "dataset.json").write_bytes(self.text)
        assert labelled(found) == labelled(self.right)  # in the order in which the shards are stated
        return "right"

    def make_config(self, draw: random.Random) -> bytes:
        """Some settings of a config.yaml, mutated: reading all of them takes most of the time of a case."""
        settings = re.findall(rb"^\w.*\n(?:[^\w].*\n)*", self.config, re.MULTILINE)
        return mutated_text(b"".join(draw.sample(settings, SETTINGS)), draw)

    def check_config(self, content: bytes) -> str:
        """Read it as settings."""
        file = self.run / "config.yaml"
        file.write_bytes(content)
        try:
            load(file, Train)
        except (UsageError, UserError, DataError) as error:
            assert str(error)
            return "refused"
        return "read"

    def check_metrics(self, content: bytes) -> str:
        """Read it as the records of a run."""
        (self.run / run_directory.METRICS).write_bytes(content)
        try:
            run_directory.train_records(self.run)
            for record in run_directory.read_log(self.run):
                assert isinstance(record, dict)
            run_directory.Log(self.run, 20)
        except (UsageError, UserError, DataError) as error:
            assert str(error)
            return "refused"
        return "read"


def labelled(found: dict[str, Any]) -> list[tuple[bytes, int]]:
    """Samples with their labels, sorted."""
    return sorted(zip(found["samples"], found["labels"], strict=True))


class Derived(Exception):
    """What was kept is not taken: it is derived again."""


class Underivable:
    """Shards of which nothing is derived."""

    def __iter__(self) -> Iterator[Path]:
        raise Derived

    def derive(self) -> Any:
        """Nothing."""
        raise Derived


def plain(value: Any) -> bytes | None:
    """A field's value as bytes."""
    return value if isinstance(value, bytes | None) else value.tobytes()


def alike(found: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether everything is the same; a crop that is not made by an index is made of the whole image."""
    pairs = zip(found["crops"], right["crops"], strict=False)
    crops = all(not one or one == other for ones, others in pairs for one, other in zip(ones, others, strict=False))
    return crops and all(found[key] == right[key] for key in right if key != "crops")


def scatter(data: bytearray, draw: random.Random) -> None:
    """Change bits, bytes and lengths at any place."""
    if not data:
        return
    at, length = draw.randrange(len(data)), draw.choice((1, 2, 4, 16, 64, 512))
    match draw.randrange(7):
        case 0:
            data[at] ^= 1 << draw.randrange(8)
        case 1:
            data[at] = draw.randrange(256)
        case 2:
            del data[at : at + length]
        case 3:
            data[at:at] = draw.randbytes(length)
        case 4:
            data[at : at + length] = bytes(len(data[at : at + length]))
        case 5:
            data[at:at] = data[at : at + length]
        case 6:
            del data[at:]


def change_number(data: bytearray, begin: int, draw: random.Random) -> None:
    """Another value for a number of 1, 4 or 8 bytes behind the head: an extreme, a neighbour, or that of another place.

    Or exchange two pieces of a record's size, which keeps every value possible.
    """
    width = draw.choice((1, 4, 4, 8, 8, 32))
    count = (len(data) - begin) // width
    if count < 2:
        return
    # Mostly in the entries, which are in front.
    near = min(count, SAMPLES * 32 // width) if draw.random() < 0.7 else count
    at, other = (begin + width * draw.randrange(near) for _ in range(2))
    if width == 32 or draw.random() < 0.2:
        data[at : at + width], data[other : other + width] = data[other : other + width], data[at : at + width]
        return
    value = int.from_bytes(data[at : at + width], "little")
    new = draw.choice((*EXTREMES, value - 1, value + 1, value * 2, value // 2, draw.randrange(16)))
    data[at : at + width] = (new % 2 ** (8 * width)).to_bytes(width, "little")


def mutated_text(text: bytes, draw: random.Random) -> bytes:
    """A text with changed bytes, or a JSON document, or a line of one, with changed values."""
    if draw.random() < 0.25:
        data = bytearray(text)
        for _ in range(draw.choice((1, 1, 2, 4))):
            scatter(data, draw)
        return bytes(data)
    lines = text.split(b"\n")
    number = draw.randrange(len(lines))
    for part in (text, lines[number]):
        try:
            content = json.loads(part)
        except ValueError:
            continue
        for _ in range(draw.choice((1, 1, 2))):
            change_value(content, draw)
        made = json.dumps(content).encode()
        return made if part is text else b"\n".join([*lines[:number], made, *lines[number + 1 :]])
    if b": " in lines[number]:  # YAML
        key = lines[number].split(b":")[0]
        lines[number] = key + b": " + json.dumps(any_value(draw, 3)).encode()
    else:
        lines[number] = draw.choice((b"", b"- x", b"epochs: [", b"a: &a [*a]", b"<<: 3", b"? x", b"!!python/name:os.x"))
    return b"\n".join(lines)


def change_value(content: Any, draw: random.Random) -> None:
    """Change, remove, add or exchange a value somewhere in a document."""
    at = content
    while True:
        if not isinstance(at, dict | list) or not at:
            return
        key: Any = draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if not isinstance(at[key], dict | list) or not at[key] or draw.random() < 0.15:
            break
        at = at[key]
    match draw.randrange(6):
        case 0:
            del at[key]
        case 1 if isinstance(at, dict):
            at[str(any_value(draw, key))] = at[key]
        case 1:
            at.append(at[key])
        case 2 if len(at) > 1:
            other: Any = draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if isinstance(at, dict) or not all(isinstance(each, str) for each in at):  # what classes are called
                at[key], at[other] = at[other], at[key]
        case _:
            at[key] = any_value(draw, at[key])


def any_value(draw: random.Random, value: Any) -> Any:
    """A value of any type, near the one that is there if that is a number."""
    number = value if isinstance(value, int) else 3
    several = (None, True, False, "", "x", "\0", "\ud800", [], {}, 1.5, -0.0, 1e400, float("nan"), [[]], {"a": 1})
    numbers = (*EXTREMES, number - 1, number + 1, 10**30, "../" * 20, "9" * 5000)
    return draw.choice(several + numbers)


def metrics() -> bytes:
    """The records of a run of some epochs."""
    lines = []
    for step in range(5, 35, 5):
        shared = {"step": step, "epoch": step // 10}
        lines.append({"kind": "train", **shared, "loss": 1 / step, "lr": 0.1, "images_per_s": 100.0, "seconds": 1.5})
        if step % 10 == 0:
            lines.append({"kind": "val", **shared, "loss": 1 / step, "top1": 0.5, "images": 100})
            lines.append({"kind": "epoch", **shared, "seconds": 3.0})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


if __name__ == "__main__":
    main()
