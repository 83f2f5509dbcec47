"""`fastimg verify`: checks that a dataset is unchanged since its conversion. Reports every fault; changes nothing."""

import json
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from fastimg.config.commands import Verify
from fastimg.config.rule_tables.reading import VERIFY
from fastimg.config.rules import refuse, refuse_set
from fastimg.data.elsewhere import as_given, with_local_data
from fastimg.errors import UserError, printable
from fastimg.loaders import DataError, Dataset, list_splits, open_dataset
from fastimg.loaders.captions.captions import Captions, captions_of
from fastimg.loaders.containers.content import Content, samples_of
from fastimg.loaders.containers.datasets import derive_again, index_large, large_photographs
from fastimg.loaders.containers.derived.digests import differing
from fastimg.loaders.containers.derived.kept import DerivedPlace
from fastimg.loaders.containers.description import DERIVED, QUICK_SUM, read_description
from fastimg.loaders.containers.fields import WithFields
from fastimg.loaders.containers.foreign import foreign_betons, foreign_shards
from fastimg.loaders.containers.quick_sums import both_sums_of_file, sum_of_file
from fastimg.loaders.containers.tars.shards import index_path, parse_index, scan
from fastimg.loaders.decode import decode, read_header
from fastimg.loaders.remote.cache.wanted_files import WantedFile
from fastimg.loaders.remote.mirrors import Mirror, mirror_at, wanted_indexes, wanted_shards
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.system.terminal import say, telling_of_compilation
from fastimg.wording import plural, with_flags

from .annotations.checking import missing_faults, sample_field_faults
from .recompression.facts import recompression_lines
from .shards.base import stated_recompression
from .text_preparation import text_fault

_COPY = "copy it again, or convert again with --overwrite"
_WRONG_QUICK_SUM = f"as converted by its SHA-256, but {QUICK_SUM} in dataset.json is of another content; convert again"


class Fault(NamedTuple):
    """Something that is wrong with a file or sample."""

    name: str
    fault: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was checked, what was not, and what was wrong."""

    data: str
    deep: bool
    shards: int
    headers: int  # images of which only the header was read, where no dataset.json states checksums; 0 if deep
    images: int  # images decoded or texts read; 0 unless deep
    content: Content
    unchecked: list[str]  # sentences
    faults: list[Fault]
    recompressed: dict[str, Any] | None = None  # as dataset.json states it: by format, what --recompress changed


def verify(config: Verify, out: Console, err: Console) -> int:
    """Verify and print. Returns 0 without faults, else 1. Raises UsageError and UserError, each a sentence."""
    refuse(config, VERIFY)
    config = with_local_data(config)
    if not config.data.exists():
        raise UserError(f"{config.data}: no such file or folder; check the path")
    described = (config.data / "dataset.json").exists()
    content: Content = "images"
    recompressed = None
    try:
        description = read_description(config.data) if described else {}
        recompressed = stated_recompression(config.data)
        splits: dict[str, Any] = description["splits"] if described else list_splits(config.data)
        _refuse_flags(config, description.get("content", "images"))
        if described and not config.deep:
            refuse_set(config, ("max_pixels",), "on converted data without --deep")
    except DataError as error:
        if not described:
            raise  # there is no dataset
        faults, shards, looked_at = [Fault(str(config.data), str(error))], 0, 0
    else:
        faults, shards = _all_shard_faults(config.data, splits if described else None, err)
        more, looked_at, content = _content_faults(config, splits, {fault.name for fault in faults}, err)
        faults += more
    result = Verification(
        data=as_given(config.data),
        deep=config.deep,
        shards=shards,
        headers=0 if config.deep else looked_at,
        images=looked_at if config.deep else 0,
        content=content,
        unchecked=list(_unchecked(config.deep, described, content)),
        faults=[Fault(printable(name), printable(with_flags(fault))) for name, fault in dict.fromkeys(faults)],
        recompressed=recompressed,
    )
    if config.json:
        fields = asdict(result) | {"faults": [fault._asdict() for fault in result.faults]}
        if recompressed is None:
            del fields["recompressed"]
        print(json.dumps(fields))
    else:
        _print(result, out)
    return 1 if result.faults else 0


def _unchecked(deep: bool, described: bool, content: Content) -> Iterator[str]:
    """What was not checked, and what would check it."""
    if not described:
        yield "no checksums, which only converted data has"
    if not deep:
        yield "--deep decodes every image" if content == "images" else "--deep reads every text"


def _refuse_flags(config: Verify, content: Content) -> None:
    if content == "text":
        refuse_set(config, ("max_pixels",), "on texts")


def _all_shard_faults(data: Path, described: dict[str, Any] | None, err: Console) -> tuple[list[Fault], int]:
    """What is wrong with the files of the shards, and how many shards there are."""
    faults: list[Fault] = []
    mirror = mirror_at(data)
    if described is not None:
        entries = [shard for split in described.values() for shard in split["shards"]]
        for entry in track(entries, "checksums", console=err, transient=True, disable=not err.is_terminal):
            if mirror is None:
                faults += _shard_faults(data, entry)
            else:
                (wanted,) = wanted_shards([entry])
                indexes = wanted_indexes([entry] if "index_bytes" in entry else [])
                faults += _fetched_faults(mirror, wanted, indexes[0] if indexes else None)
        return faults, len(entries)
    if not data.is_dir():
        return faults, 1  # a .beton
    tars = [tar for tars in foreign_shards(data).values() for tar in tars]
    for tar in tars:
        faults += _index_faults(tar) if mirror is None else _fetched_faults(mirror, mirror.wanted_tars([tar])[0], None)
    return faults, len(tars or foreign_betons(data))


def _content_faults(
    config: Verify, splits: dict[str, Any], known: Collection[str], err: Console
) -> tuple[list[Fault], int, Content]:
    """What is wrong with samples, how many of them were looked at, and their kind.

    If `deep`, they are decoded or read. Else the headers of images are read where no checksum vouches for them. A split
    that cannot be opened because of a file whose fault is `known` has no other one.
    """
    faults: list[Fault] = []
    looked_at = 0
    content: Content = "images"
    printed: set[str] = set()
    for name, split in splits.items():
        try:
            faults += _derived_faults(config, name, split)
            index_large(config.data, name)
            dataset = open_dataset(config.data, name)
        except DataError as error:
            if not any(file in str(error) for file in known):
                faults.append(Fault(str(config.data), str(error)))
            continue
        try:
            content = dataset.content
            _refuse_flags(config, content)
            for note in (note for note in dataset.notes if note not in printed):
                say(err, note)
            printed.update(dataset.notes)
            if kept := large_photographs(dataset):
                say(err, f"{name}: {kept}")
            faults += _label_faults(dataset, split.get("class_counts") if isinstance(split, dict) else None)
            faults += _target_faults(dataset, split.get("missing", {}) if isinstance(split, dict) else {})
            if isinstance(dataset, WithFields) and dataset.stored is not None:
                lacking = missing_faults(dataset.stored.columns, split.get("missing_fields", {}))
                faults += [Fault(dataset.name, fault) for fault in lacking]
            if config.deep or (content == "images" and not isinstance(split, dict)):
                looked_at += len(dataset)
                faults += _sample_faults(dataset, config, err)
            if (captions := captions_of(config.data, dataset)) is not None:
                faults += _caption_faults(captions, split.get("missing_inputs"), config.deep)
        finally:
            dataset.close()
    return faults, looked_at, content


def _derived_faults(config: Verify, split: str, stated: Any) -> Iterator[Fault]:
    """Derive everything again, and compare what is kept; of large photographs only if `deep`. Raises DataError."""
    if not isinstance(stated, dict) and not foreign_shards(config.data):
        return  # neither a dataset.json nor tars: nothing is derived
    digests = stated.get(DERIVED, {}) if isinstance(stated, dict) else {}
    with tempfile.TemporaryDirectory(prefix="fastimg-verify-") as folder:
        derive_again(config.data, split, Path(folder), large=config.deep)
        kept = DerivedPlace(folder=config.data, split=split, digests=digests)
        for path, fault in differing(Path(folder), kept):
            yield Fault(str(path), fault)


def _shard_faults(folder: Path, entry: dict[str, Any]) -> Iterator[Fault]:
    """Compare a shard and its index with dataset.json: existence, sizes, checksums, and that they agree."""
    shard = folder / entry["name"]
    whole = "index_bytes" in entry  # a .beton has no index
    for file, size, sha256 in (
        (shard, entry["bytes"], entry["sha256"]),
        *([(index_path(shard), entry["index_bytes"], entry["index_sha256"])] if whole else []),
    ):
        try:
            actual = file.stat().st_size
            fault = f"{actual} bytes, not {size}: cut short or altered; {_COPY}" if actual != size else ""
            if not fault:
                quick = entry.get(QUICK_SUM, "") if file == shard else ""
                fault = _content_fault(file, sha256, quick)
        except OSError as error:
            fault = f"missing; {_COPY}" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        if fault:
            whole = False
            yield Fault(str(file), fault)
    if whole:
        yield from _index_faults(shard)


def _fetched_faults(mirror: Mirror, wanted: WantedFile, index: WantedFile | None) -> Iterator[Fault]:
    """Fetch a shard and its index anew, which compares them with dataset.json, and see that they agree."""
    try:
        lease = mirror.renew(wanted, index)
    except DataError as error:
        address = mirror.address(wanted.name)
        yield Fault(address, str(error).removeprefix(f"{address}: "))
        return
    try:
        if wanted.quick and sum_of_file(mirror.folder / wanted.name) != wanted.quick:
            yield Fault(mirror.address(wanted.name), _WRONG_QUICK_SUM)
        if wanted.name.endswith(".tar"):
            yield from _index_faults(mirror.folder / wanted.name)
    finally:
        lease.close()


def _index_faults(tar: Path) -> Iterator[Fault]:
    """Compare an index, if there is one, with the members found by scanning the tar."""
    try:
        members = scan(tar)
        index = index_path(tar)
        if not index.exists():
            return
        stated = parse_index(index, tar.stat().st_size)
        named = [[(m.offset, m.size) for m in sample] for sample in stated]
        if named != [[(m.offset, m.size) for m in sample] for sample in members]:
            yield Fault(str(index), f"does not match {tar.name}: delete it to have the tar scanned")
    except DataError as error:
        yield Fault(str(tar), str(error))


def _label_faults(dataset: Dataset, stated: Any) -> Iterator[Fault]:
    """Labels out of range, and class counts that differ from those `stated` in dataset.json."""
    beyond = int(np.count_nonzero((dataset.labels < -1) | (dataset.labels >= len(dataset.classes))))
    if beyond:
        yield Fault(
            dataset.name, f"{plural(beyond, 'label', 'is')} not among its {plural(len(dataset.classes), 'class')}"
        )
    known = dataset.labels[(dataset.labels >= 0) & (dataset.labels < len(dataset.classes))]
    counts = np.bincount(known, minlength=len(dataset.classes)).tolist()
    if stated is not None and stated != counts:
        yield Fault(
            dataset.name, f"{counts} {samples_of(dataset.content)} of its classes where dataset.json says {stated}"
        )


def _caption_faults(captions: Captions, stated: Any, deep: bool) -> Iterator[Fault]:
    """Texts and images that are there or missing where dataset.json says otherwise; if `deep`, texts not in UTF-8."""
    counts = {"image": int((~captions.has_image).sum()), "text": int((~captions.has_text).sum())}
    if stated != counts:
        yield Fault(captions.name, f"samples lack {counts} where dataset.json says {stated}")
    scratch = Scratch()
    for index in np.flatnonzero(captions.has_text).tolist() if deep else ():
        try:
            fault = text_fault(captions.read(index, scratch))
        except DataError as error:
            fault = str(error)
        if fault:
            yield Fault(captions.sample_name(index), f"its text: {fault}")


def _target_faults(dataset: Dataset, stated: dict[str, int]) -> Iterator[Fault]:
    """Targets that are missing in more or fewer samples than `stated` in dataset.json."""
    for column in dataset.targets:
        name = column.target.name
        missing = len(column) - int(np.count_nonzero(column.present))
        if stated.get(name, missing) != missing:
            yield Fault(
                dataset.name,
                f"{plural(missing, 'sample')} without the target {name!r} where dataset.json says {stated[name]:,}",
            )


def _sample_faults(dataset: Dataset, config: Verify, err: Console) -> list[Fault]:
    """If `deep`, decode every image, or read every text; else read the headers of images. In chunks on all cores."""
    chunks = [range(start, min(start + 64, len(dataset))) for start in range(0, len(dataset), 64)]

    def faults_of(chunk: range) -> list[Fault]:
        scratch, faults = Scratch(), []
        for index in chunk:
            try:
                data = dataset.read(index, scratch)
                if dataset.content == "images":
                    header = read_header(data, config.max_pixels)
                    if not config.deep:
                        continue
                    decode(data, header, scratch)
                    of_fields = sample_field_faults(dataset, index, header.size) if dataset.fields else ()
                    faults += [Fault(dataset.sample_name(index), fault) for fault in of_fields]
                elif fault := text_fault(data):
                    faults.append(Fault(dataset.sample_name(index), fault))
            except DataError as error:
                faults.append(Fault(dataset.sample_name(index), str(error)))
        return faults

    with telling_of_compilation(err), ThreadPoolExecutor(available_cpus(), "verify") as pool:
        what = samples_of(dataset.content) if config.deep else "headers"
        found = pool.map(faults_of, chunks)
        steps = track(found, what, len(chunks), console=err, transient=True, disable=not err.is_terminal)
        return [fault for faults in steps for fault in faults]


def _content_fault(file: Path, sha256: str, quick: str) -> str:
    """Compare a file with its SHA-256 and, where it is stated, its quick sum."""
    found, found_quick = both_sums_of_file(file)
    if found != sha256:
        return "its content was altered: the checksum differs from that of the conversion"
    return "" if quick in ("", found_quick) else _WRONG_QUICK_SUM


def _print(result: Verification, out: Console) -> None:
    for name, fault in result.faults[:100]:
        say(out, f"{name}: {fault}")
    if len(result.faults) > 100:
        say(out, f"... and {len(result.faults) - 100:,} more, see --json")
    looked = [plural(result.shards, "shard")] if result.shards else []
    if result.headers:
        looked.append(f"{plural(result.headers, 'header')} read")
    if result.deep:
        looked.append(
            f"{plural(result.images, 'image')} decoded"
            if result.content == "images"
            else f"{plural(result.images, 'text')} read"
        )
    count = len(result.faults)
    verdict = plural(count, "fault") if count else "no fault"
    told = "; ".join(filter(None, [", ".join(looked), *result.unchecked]))
    say(out, f"{result.data}: {verdict} ({told})")
    for line in recompression_lines(result.recompressed) if result.recompressed else ():
        say(out, f"recompressed {line}")
