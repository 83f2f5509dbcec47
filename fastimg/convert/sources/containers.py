"""Shards as a source: tars and .beton files, from fastimg or any other writer. Order, labels, keys and fields are kept.

In a tar, the image is the first member with an image extension; a plain `jpg` goes before `depth.png`. In tars without
images, `txt` holds the text. `cls` is the label, `json` the note, and every other member a field. In a .beton, these
are the image field, the label field, a JSON field called `json`, and `original`, which holds an encoded image that the
image field cannot. Other arrays become the field `name.npy` (numbers as arrays without dimensions), JSON `name.json`.
The names in a tar serve only as keys; no file is ever written under them.
"""

import contextlib
import io
import json
import os
import re
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastimg.convert.stored.shards import StoredShards, bring_indexes, leased, open_shard, stored_shards
from fastimg.errors import printable
from fastimg.loaders.containers.betons.dataset import MAX_CLASSES, BetonDataset
from fastimg.loaders.containers.betons.kinds import RAW
from fastimg.loaders.containers.content import TEXT_EXTENSIONS, Content
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.containers.derived.records import check_index
from fastimg.loaders.containers.description import declared_targets, read_description, stated_fields
from fastimg.loaders.containers.fields import ABSENT, StoredField, packed_npy, unpacked_items
from fastimg.loaders.containers.tars.shards import Sample, index_path, parse_index, scan, split_name
from fastimg.loaders.errors import DataError, ImageError, ShardError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.loaders.folders.formats import image_extensions, undecodable_extensions
from fastimg.loaders.folders.ignored import extension_of
from fastimg.wording import agreeing, plural

from .samples import Entries, Original, Source, SourceEntry, note

ORIGINAL = "original"  # field of a .beton for encoded images that its image field cannot hold

_EXTENSION = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_LABEL_BYTES = 256


def read_dataset(src: Path) -> Source:
    """List a dataset that `fastimg convert` wrote, and check it against its description."""
    description = read_description(src)
    splits = description["splits"]
    bring_indexes(src, description)
    for split, content in splits.items():
        open_dataset(src, split).close()
        for shard in (
            content["shards"] if description["container"] == "tar" else ()
        ):  # opening may use an index rebuilt from the shard
            check_index(index_path(src / shard["name"]), shard["index_sha256"])
    named = bool(description.get("named", True))
    files = {split: [src / shard["name"] for shard in splits[split]["shards"]] for split in splits}
    targets = declared_targets(description)
    stored = stated_fields(description)
    if description["container"] == "beton":
        fields = [stated["field"] for stated in description.get("targets", ())]
        of_samples = {stated["field"]: stored[stated["name"]] for stated in description.get("fields", ())}
        betons = {split: file for split, (file,) in files.items()}
        source = read_betons(src, betons, description["classes"], named, fields, of_samples)
    else:
        source = read_tars(src, files, description["classes"], named, description["content"])
    if stored:
        members = {field.member for field in stored.values() if field.member}
        source = replace(source, stored_fields=tuple(stored.values()), fields=tuple(sorted({*source.fields, *members})))
    source = replace(source, inputs=tuple(description.get("inputs", ())))
    if not targets:
        return source
    return replace(source, targets=targets, remarks=())  # those are about missing labels, which targets may lack


def read_tars(
    src: Path,
    files: Mapping[str, list[Path]],
    classes: list[str] | None = None,
    named: bool = True,
    content: Content = "images",
) -> Source:
    """List tars by split.

    With `classes`, fastimg wrote the tars and their indexes are used; without, the tars are scanned. Scanned tars hold
    texts if there are .txt members and no images.
    """
    _check_splits(src, files)
    shards = stored_shards(src, [tar for tars in files.values() for tar in tars])
    reader = TarReader(ours=classes is not None, content=content, stored=shards)
    splits: dict[str, Entries] = {}
    texts: dict[str, list[str]] = {}
    for split, tars in files.items():
        splits[split], texts[split] = Entries(), []
        for tar in tars:
            for entry, text in reader.add(tar):
                splits[split].append(entry._replace(label=len(texts[split]) if text else -1))
                texts[split] += [text] if text else []
    if classes is None and content == "images" and reader.holds_only_texts:
        return read_tars(src, files, None, named, "text")
    remarks = []
    if classes is None:
        names, numbers = _classes(src, texts)
        named = names is not None
        top = max((label for labels in numbers.values() for label in labels), default=-1)
        classes = names if names is not None else [str(label) for label in range(top + 1)]
    else:
        numbers = {split: [int(text) for text in labels] for split, labels in texts.items()}
    for split, entries in splits.items():
        entries.relabel(np.array(numbers[split], np.int64))
        if missing := int((entries.labels < 0).sum()):
            remarks.append(
                f"{src}: {missing:,} of {plural(len(entries), 'sample')} of {split} {agreeing(missing, 'has')} "
                "no label (no .cls)"
            )
    return Source(
        src,
        "tar",
        tuple(classes),
        splits,
        (reader,),
        named=named,
        stored=True,
        fields=tuple(sorted(reader.fields)),
        remarks=tuple(remarks),
        files=tuple(tar for tars in files.values() for tar in tars),
        content=content,
    )


def read_betons(
    src: Path,
    files: Mapping[str, Path],
    classes: list[str] | None = None,
    named: bool = True,
    target_fields: Collection[str] = (),
    stored: Mapping[str, StoredField] | None = None,
) -> Source:
    """List .beton files, one for each split. `target_fields` hold what the notes of samples state, too.

    `stored` are the samples' fields by the fields of the file that hold them.
    """
    _check_splits(src, files)
    readers: list[BetonSourceReader] = []
    splits: dict[str, Entries] = {}
    remarks: list[str] = []
    for split, file in files.items():
        lease = leased(src, file)
        reader = BetonSourceReader(BetonDataset(file, classes), target_fields, stored)
        dataset = reader.dataset
        dataset.lease = lease
        sizes = reader.sizes()
        splits[split] = Entries(
            SourceEntry(f"{split}/{i:09d}", label, size, place=i, reader=len(readers))
            for i, (label, size) in enumerate(zip(dataset.labels.tolist(), sizes, strict=True))
        )
        readers.append(reader)
        remarks += reader.remarks
        if missing := int((dataset.labels < 0).sum()):
            remarks.append(
                f"{file}: {missing:,} of {plural(len(dataset), 'sample')} {agreeing(missing, 'has')} no label"
            )
    contents = {reader.dataset.content for reader in readers}
    if len(contents) > 1:
        raise DataError(f"{src}: some of its .beton files hold images and some texts; convert them separately")
    if classes is None:
        named = False
        classes = [str(label) for label in range(max(len(reader.dataset.classes) for reader in readers))]
    fields = tuple(sorted({ext for reader in readers for ext in reader.fields}))
    return Source(
        src,
        "beton",
        tuple(classes),
        splits,
        tuple(readers),
        named=named,
        stored=True,
        fields=fields,
        remarks=tuple(remarks),
        files=tuple(files.values()),
        content=contents.pop(),
    )


def _check_splits(src: Path, files: Mapping[str, Any]) -> None:
    known = sorted(set(SPLIT_FOLDERS.values()))
    unknown = [split for split in files if split not in known]
    if unknown:
        raise DataError(
            f"{src}: {', '.join(map(printable, unknown))}: not among the known splits ({', '.join(known)}); "
            "rename the files, or convert them separately"
        )


def _classes(src: Path, texts: Mapping[str, list[str]]) -> tuple[list[str] | None, dict[str, list[int]]]:
    """Class names and labels from the contents of .cls members; None for the names if they are all class indices."""
    distinct = {text for split in texts.values() for text in split}
    if all(_INTEGER.fullmatch(text) for text in distinct):
        values = [int(text) for text in distinct]
        if values and not -1 <= min(values) <= max(values) < MAX_CLASSES:
            raise ShardError(
                f"{src}: labels from {min(values)} to {max(values)} are not valid class indices; correct them"
            )
        return None, {split: [int(text) for text in split_texts] for split, split_texts in texts.items()}
    names = sorted(distinct)
    index = {name: label for label, name in enumerate(names)}
    return names, {split: [index[text] for text in split_texts] for split, split_texts in texts.items()}


class TarReader:
    """Reads samples from tars. Keeps 24 bytes per member and 16 per sample in arrays."""

    def __init__(self, ours: bool, content: Content = "images", stored: StoredShards | None = None) -> None:
        self._ours = ours  # written by fastimg: notes stay unchanged
        self._stored = stored  # None: the tars are here
        self._content = content
        self._tars: list[Path] = []
        self._first = array("q", [0])  # index of each sample's first member, then the number of members
        self._tar = array("q")  # index of each sample's tar
        # Of each member:
        self._offsets = array("q")
        self._sizes = array("q")
        self._kinds = array("q")  # index into `_extensions`
        self._extensions: list[str] = []
        self._numbers: dict[str, int] = {}  # inverse of `_extensions`
        self._main = image_extensions() if content == "images" else TEXT_EXTENSIONS
        self._has_main = False  # whether any sample has an image, or a text
        self.fields: set[str] = set()  # of any sample

    def add(self, tar: Path) -> Iterator[tuple[SourceEntry, str]]:
        """Add a tar. Yields its samples and the content of their .cls members."""
        lease = None if self._stored is None else self._stored.lease(tar)
        samples = parse_index(index_path(tar), tar.stat().st_size) if self._ours else scan(tar)
        self._tars.append(tar)
        with self._opened(tar) as file:
            for sample in samples:
                yield self._add(sample), self._label(tar, file, sample)
        if lease is not None:
            lease.close()

    @contextlib.contextmanager
    def _opened(self, tar: Path) -> Iterator[int]:
        file = open_shard(tar, self._stored)
        try:
            yield file
        finally:
            os.close(file)

    @property
    def fetches(self) -> bool:
        """See FetchingReader."""
        return self._stored is not None

    def announce(self, entry: SourceEntry) -> int:
        """See FetchingReader: the tar is fetched, and the one behind it."""
        if self._stored is not None:
            self._stored.announce(self._tars[self._tar[entry.place]])
        return max(entry.size, 0)

    def check_shuffled(self) -> None:
        """Raise DataError if reading in another order would fetch the tars again and again."""
        if self._stored is not None:
            self._stored.check_shuffled()

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        image = suffix = text = None
        fields: dict[str, bytes] = {}
        members = self._members(entry)
        chosen = self._image([ext for ext, _, _ in members])
        tar = self._tars[self._tar[entry.place]]
        with self._opened(tar) as file:
            for position, (ext, offset, size) in enumerate(members):
                data = os.pread(file, size, offset)
                if len(data) != size:
                    raise ShardError(f"{tar}: shrank while it was being read; copy it again, then use --resume")
                if position == chosen:
                    image, suffix = data, ext
                elif ext.lower() == "json":
                    text = data
                elif ext.lower() != "cls":
                    fields[ext] = data
        assert image is not None and suffix is not None
        known = text if text is not None and self._ours else _note(entry.path, text)
        return Original(image, suffix, known, fields)

    def name(self, entry: SourceEntry) -> str:
        """The tar and the sample's key in it."""
        return f"{self._tars[self._tar[entry.place]]}: {entry.path}"

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        if entry.size < 0:
            return "a sample without a text" if self._content == "text" else self._without_image(entry)
        for ext, _, _ in self._members(entry):
            if not _EXTENSION.fullmatch(ext):
                return f"its member .{ext} has an extension with characters other than A-Z a-z 0-9 _ -; rename it"
        return None

    def close(self) -> None:
        """See SourceReader."""
        if self._stored is not None:
            self._stored.close()

    def _without_image(self, entry: SourceEntry) -> str:
        undecodable = undecodable_extensions()
        reasons = (undecodable.get(extension_of(f"x.{ext}")) for ext, _, _ in self._members(entry))
        reason = next(filter(None, reasons), None)
        return f"a sample without an image that can be decoded: {reason}" if reason else "a sample without an image"

    @property
    def holds_only_texts(self) -> bool:
        """Whether the samples added so far have texts and no images."""
        return not self._has_main and any(_has_extension(ext, TEXT_EXTENSIONS) for ext in self._extensions)

    def _add(self, sample: Sample) -> SourceEntry:
        place = len(self._tar)
        image = self._image([member.ext for member in sample])
        self._tar.append(len(self._tars) - 1)
        for position, member in enumerate(sample):
            if member.ext not in self._numbers:
                self._numbers[member.ext] = len(self._extensions)
                self._extensions.append(member.ext)
            self._offsets.append(member.offset)
            self._sizes.append(member.size)
            self._kinds.append(self._numbers[member.ext])
            if position != image and member.ext.lower() not in ("cls", "json"):
                self.fields.add(member.ext)
        self._first.append(len(self._offsets))
        self._has_main = self._has_main or image is not None
        size = -1 if image is None else sample[image].size
        return SourceEntry(split_name(sample[0].name)[0], -1, size, place=place)

    def _members(self, entry: SourceEntry) -> list[tuple[str, int, int]]:
        span = slice(self._first[entry.place], self._first[entry.place + 1])
        extensions = [self._extensions[number] for number in self._kinds[span]]
        return list(zip(extensions, self._offsets[span], self._sizes[span], strict=True))

    def _label(self, tar: Path, file: int, sample: Sample) -> str:
        for member in sample:
            if member.ext.lower() == "cls":
                if member.size > _LABEL_BYTES:
                    raise ShardError(
                        f"{tar}: {printable(member.name)}: too long for a label ({member.size} bytes); correct it"
                    )
                return os.pread(file, member.size, member.offset).decode("utf-8", "backslashreplace").strip()
        return ""

    def _image(self, extensions: list[str]) -> int | None:
        """Index of the member that is the image or text: the first, but in tars of others `jpg` before `depth.png`."""
        images = [position for position, ext in enumerate(extensions) if _has_extension(ext, self._main)]
        if not self._ours:
            images = [position for position in images if "." not in extensions[position]] or images
        return images[0] if images else None


def _has_extension(ext: str, extensions: Set[str]) -> bool:
    return "." + ext.lower().rpartition(".")[2] in extensions


def _note(key: str, text: bytes | None) -> bytes:
    """Make the note of a sample that another writer stored under `key`; `text` is its .json, if it has one."""
    if text is None:
        return note(key)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ImageError(f"its .json is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        return json.dumps({"path": key, "json": value}).encode()
    return json.dumps(({"__key__": key} if "path" in value else {"path": key}) | value).encode()


def extension(name: str, kind: str) -> str:
    """The extension that a .beton field gets in a tar, except for images."""
    if kind == "bytes" or (kind in ("ndarray", "tensor") and name == "npy"):
        return name
    return f"{name}.{'json' if kind == 'json' else 'npy'}"


class BetonSourceReader:
    """Reads samples from one .beton."""

    def __init__(
        self,
        dataset: BetonDataset,
        target_fields: Collection[str] = (),
        stored: Mapping[str, StoredField] | None = None,
    ) -> None:
        self.dataset = dataset
        self._target_fields = tuple(target_fields)
        self._stored = dict(stored or {})
        self._reader = reader = dataset.reader
        self.remarks: list[str] = []
        self._note: str | None = None  # the field with the notes
        self._original: str | None = None  # the field with encoded images, see ORIGINAL
        self.fields: dict[str, str] = {}  # other fields of the file, by extension
        for name, field in reader.fields.items():
            if name in (dataset.image_field, dataset.label_field, *target_fields):
                continue
            if name in self._stored:
                if member := self._stored[name].member:  # numbers stand in the note
                    self.fields[member] = name
            elif field.kind == "custom":
                self.remarks.append(
                    f"{reader.path}: {name} is left out: only the code that defined its type can read it"
                )
            elif field.kind == "json" and name == "json":
                self._note = name
            elif field.kind == "bytes" and name == ORIGINAL and dataset.content == "images":
                self._original = name
            else:
                self._add(name, field.kind)

    def __reduce__(self) -> tuple[Any, ...]:
        """On another machine the file is opened again."""
        return _opened, (self._reader.path, self.dataset.classes, self._target_fields, self._stored)

    def sizes(self) -> list[int]:
        """Size of every image in bytes [N]."""
        _, sizes = self._reader.extents(self.dataset.image_field)
        return [int(size) for size in sizes]

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        reader = self._reader
        index = entry.place
        text = reader.raw(self._note, index).removesuffix(b"\0") if self._note else None
        known = json.loads(text) if text else {}
        if not isinstance(known, dict):
            known = {"json": known}
        absent = known.pop(ABSENT, ())
        if text is None or absent or "path" not in known:
            text = json.dumps(known if "path" in known else {"path": entry.path} | known).encode()
        fields = {ext: self._field(name, index) for ext, name in self.fields.items() if ext not in absent}
        if self._original and (data := reader.raw(self._original, index)):
            return Original(data, "", text, fields)
        return Original(reader.value(self.dataset.image_field, index), "", text, fields)

    def name(self, entry: SourceEntry) -> str:
        """The file, the sample's number, and its original path."""
        return self.dataset.sample_name(entry.place)

    def problem(self, entry: SourceEntry) -> str | None:
        """Always None: opening the file has checked every pointer."""
        return None

    def close(self) -> None:
        """See SourceReader."""
        self.dataset.close()

    def _add(self, name: str, kind: str) -> None:
        """Register a field under an extension that shows its kind."""
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name).strip(".") or "field"
        if kind == "rgb":
            modes = set(self._reader.column(name)["mode"].tolist())
            if len(modes) > 1:
                raise DataError(
                    f"{self._reader.path}: the additional image field {name} holds both JPEGs and raw pixels; "
                    "write the file again with only one of them"
                )
            ext = f"{plain}.{'png' if modes == {RAW} else 'jpg'}"
        else:
            ext = extension(plain, kind)
        if ext in ("cls", "json") or ext in self.fields:
            raise DataError(f"{self._reader.path}: field {name} clashes with another name in a sample; rename it")
        self.fields[ext] = name

    def _field(self, name: str, index: int) -> bytes:
        """Encode a field's value as the content of a tar member."""
        kind = self._reader.fields[name].kind
        if name in self._stored and self._stored[name].kind == "ragged":
            return packed_npy(unpacked_items(self._stored[name], self._reader.raw(name, index)))
        if name in self._stored and kind == "ndarray":
            return packed_npy(self._reader.value(name, index))
        if kind == "bytes":
            return self._reader.raw(name, index)
        if kind == "json":
            return self._reader.raw(name, index).removesuffix(b"\0")
        value = self._reader.value(name, index)
        buffer = io.BytesIO()
        if kind == "rgb":
            if isinstance(value, bytes):
                return value
            Image.fromarray(value).save(buffer, "PNG")
        else:
            np.save(
                buffer, np.float64(value) if kind == "float" else np.int64(value) if kind == "int" else value, False
            )
        return buffer.getvalue()


def _opened(
    path: Path, classes: Sequence[str], target_fields: Collection[str], stored: Mapping[str, StoredField]
) -> BetonSourceReader:
    return BetonSourceReader(BetonDataset(path, classes), target_fields, stored)
