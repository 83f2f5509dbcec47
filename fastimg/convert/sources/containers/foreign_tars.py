"""What there is to say about tars of other writers, and to refuse, once they are listed; classes that folders name."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from fastimg.convert.sources.labels import FLAG, look_like_lists, look_unique
from fastimg.convert.sources.samples import Entries
from fastimg.errors import UsageError, nearest, printable
from fastimg.loaders.containers.content import TEXT_EXTENSIONS
from fastimg.loaders.containers.tars.grouping import apart_note, folder_of, split_folders
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import Level
from fastimg.wording import plural, shortened

from .tar_rules import USUAL_LABELS, FolderLevels, TarRules, folders_of, usualness
from .tars import TarReader

_SHOWN = 6  # names in a sentence

Texts = dict[str, list[str]]  # by split: the labels of the samples that have one, in order


def labelled_by_folders(src: Path, splits: Mapping[str, Entries], level: Level) -> tuple[dict[str, Entries], Texts]:
    """The entries, each with the number of its label in the texts, by the folders in their keys, which may name splits.

    Raises DataError where a folder says another split than the tar's name, and where some samples alone are in folders
    of splits, which would be mixed, or taken as classes.
    """
    keys = [entry.path for entries in splits.values() for entry in entries if entry.size >= 0]
    levels = FolderLevels.of(keys, level)
    if levels.split is None and (parts := split_folders(map(folder_of, keys))):
        odd = next((key for key in keys if len(folders_of(key)) < 2), None)
        odd = odd or next((key for key in keys if not {*folders_of(key)} & {*parts}), keys[0])
        raise DataError(
            f"{src}: its tars have the folders {', '.join(parts)}, which look like splits, and {printable(odd)} is not "
            "in a folder of a split and one of a class, as all samples should be; make the tars again, each of one "
            "split, or rename these folders if they are classes"
        )
    placed: dict[str, Entries] = {}
    texts: Texts = {}
    for split, entries in splits.items():
        for entry in entries:
            named, label = levels.place(entry.path) if entry.size >= 0 else (None, "")
            if named not in (None, split) and len(splits) > 1:
                raise DataError(
                    f"{src}: {printable(entry.path)} is in a tar of {split} and in a folder of {named}; make the tars "
                    "again, each of one split"
                )
            its = texts.setdefault(named or split, [])
            placed.setdefault(named or split, Entries()).append(entry._replace(label=len(its) if label else -1))
            its += [label] if label else []
    return placed, texts


def foreign_remarks(
    src: Path, reader: TarReader, rules: TarRules, splits: Mapping[str, Entries], texts: Texts
) -> tuple[list[str], bool]:
    """Sentences on how tars of other writers were read, and whether their labels are those of a member that was named.

    Raises DataError and UsageError for what would lose samples or labels.
    """
    images = reader.content == "images"
    if rules.image is not None and not images:
        raise UsageError(f"--image-member {rules.image} has no effect on texts; leave it out")
    if rules.label is not None and not images and f".{rules.label.ext}" in TEXT_EXTENSIONS:
        raise UsageError(f"--label-member {rules.label}: those are the texts of {src}; name another member")
    entries = [entry for each in splits.values() for entry in each] if _lacking(splits) else []
    if rules.image is not None and all(entry.size < 0 for entry in entries) and entries:
        raise DataError(f"--image-member {rules.image}: no sample of {src} has it; {_seen(reader)}; name one of them")
    _refuse_spread(src, splits)
    remarks = [apart_note(src, reader.apart)] if reader.apart else []
    remarks += _choices(src, reader)
    if rules.classes is None:
        remarks += _unread_splits(src, splits)
    labels = Counter(text for its in texts.values() for text in its)
    if not labels:
        if rules.label is not None:
            raise DataError(_no_such_label(src, reader, rules))
        if rules.classes is not None:
            raise DataError(f"--classes {rules.classes}: no sample of {src} is in a folder; leave it out")
        if any(len(each) for each in splits.values()):
            remarks.append(f"{src}: no labels (no .cls); {_seen(reader)}{_remedies(reader, splits)}")
    of_member = rules.label is not None and rules.label.ext != "cls"
    if of_member and labels:
        remarks += _judged(src, rules, labels)
    if (of_member or rules.classes) and (unused := reader.members_seen().get("cls", 0)):
        flag = f"--label-member {rules.label}" if of_member else f"--classes {rules.classes}"
        remarks.append(f"{src}: the .cls of {plural(unused, 'sample')} is left out: {flag}")
    return remarks, of_member


def _lacking(splits: Mapping[str, Entries]) -> int:
    """How many samples have no image, or text."""
    return sum(int((entries.sizes < 0).sum()) for entries in splits.values())


def _refuse_spread(src: Path, splits: Mapping[str, Entries]) -> None:
    """Raise DataError if the image of a sample is in one tar, or folder, and other members of it are in another."""
    if not _lacking(splits):
        return
    orphans = {entry.path for entries in splits.values() for entry in entries if entry.size < 0}
    spread = {entry.path for entries in splits.values() for entry in entries if entry.size >= 0} & orphans
    if spread:
        raise DataError(
            f"{src}: the members of {plural(len(spread), 'sample')}, such as {printable(min(spread))}, are in several "
            "tars, which are read one by one; make the tars again, with all members of a sample in one"
        )
    names = {path.rpartition("/")[2] for path in orphans}
    bases = {entry.path.rpartition("/")[2] for each in splits.values() for entry in each if entry.size >= 0}
    if 2 * len(names & bases) > len(names):
        raise DataError(
            f"{src}: {plural(len(orphans), 'sample')} without an image, such as {printable(min(orphans))}, are named "
            "as images in other folders of the tars, whose labels or texts they may be; the folder is part of a "
            "sample's name: make the tars again, with all members of a sample in one folder"
        )


def _choices(src: Path, reader: TarReader) -> Iterator[str]:
    """Say which of several images are taken."""
    kind = "image" if reader.content == "images" else "text"
    for (first, *others), count in reader.chosen.most_common(_SHOWN):
        takes = "--image-member takes another" if kind == "image" else "the others are kept beside it"
        if "." in first and not reader.members_seen().get("cls", 0):  # which would be left without its image
            takes += f", and --key-dots last makes each {kind} a sample"
        yield (
            f"{src}: {plural(count, 'sample')} with several {kind}s: .{first} is the {kind}, not {_dotted(others)}; "
            f"{takes}"
        )
    if (more := len(reader.chosen) - _SHOWN) > 0:
        yield f"{src}: and {plural(more, 'other choice')} of an {kind}"


def _unread_splits(src: Path, splits: Mapping[str, Entries]) -> Iterator[str]:
    """Say that folders of tars are named as splits and are not read as such."""
    for split, entries in splits.items():
        if named := split_folders(folder_of(entry.path) for entry in entries if entry.size >= 0):
            yield (
                f"{src}: its tars have the folders {', '.join(named)}, which are not taken as splits: the name of a "
                f"tar is, and all samples are in {split}; make a tar of each split, or, if other folders name "
                "classes, give --classes"
            )


def _seen(reader: TarReader) -> str:
    """The members that samples have, and the keys of those that are JSON."""
    named = []
    for ext, count in reader.members_seen().items():
        keys = reader.json_keys.get(ext)
        shown = f".{ext}" if ext else "one without an extension"
        if keys:
            shown += f" (keys: {', '.join(shortened(key, 30) for key in list(keys)[:_SHOWN])})"
        named.append(f"{shown} {count:,}")
    more = f", and {len(named) - 2 * _SHOWN:,} more" if len(named) > 2 * _SHOWN else ""
    return f"members seen in samples: {', '.join(named[: 2 * _SHOWN])}{more}"


def _remedies(reader: TarReader, splits: Mapping[str, Entries]) -> str:
    """Flags that take labels from what there is."""
    seen = reader.members_seen()
    flags = []
    for ext, keys in reader.json_keys.items():
        usual = sorted((key for key, usable in keys.items() if usable and key in USUAL_LABELS), key=usualness)
        flags += [f"--label-member {ext}:{usual[0]}"] if usual else []
    own = TEXT_EXTENSIONS if reader.content == "text" else frozenset[str]()
    flags += [f"--label-member {ext}" for ext in USUAL_LABELS if ext in seen and f".{ext}" not in own]
    flags += [f"--label-member {ext}" for ext in seen if ext.endswith(".cls")][:2]
    if folders := _folders(splits):
        flags.append(f"--classes leaf, the folders {', '.join(folders)}")
    words = f"; to take labels from them, give {' or '.join(flags)}" if flags else ""
    if any(ext.rpartition(".")[2] == "cls" for ext in seen):
        words += "; if names have dots before the one of their extension, give --key-dots last"
    return words


def _folders(splits: Mapping[str, Entries]) -> list[str]:
    """Some of the folders that samples are in, if they are in several."""
    found = {folders[-1] for each in splits.values() for entry in each if (folders := folders_of(entry.path))}
    shown = [shortened(printable(name), 30) for name in sorted(found)]
    return [*shown[:3], *(["..."] if len(shown) > 3 else [])] if len(shown) > 1 else []


def _no_such_label(src: Path, reader: TarReader, rules: TarRules) -> str:
    rule = rules.label
    assert rule is not None
    keys = list(reader.json_keys.get(rule.ext, ()))
    near = nearest(rule.key, keys, n=1) if rule.key else nearest(rule.ext, reader.members_seen(), n=1)
    return f"--label-member {rule}: no sample of {src} has a label there{near}; {_seen(reader)}"


def _judged(src: Path, rules: TarRules, labels: Counter[str]) -> Iterator[str]:
    """Remarks on labels of a member that need not hold classes. Raises DataError if they do not look like such."""
    unknown = {label: count for label, count in labels.items() if label not in rules.known_classes}
    fault = look_like_lists(unknown, labels.total()) or look_unique(unknown, labels.total())
    what = f"{src}: the labels in {rules.label}"
    if fault and not rules.any_labels:
        raise DataError(f"{what} {fault}; name another --label-member, or make each of them a class with {FLAG}")
    if fault:
        yield f"{what} {fault}; {FLAG} makes a class of each of {len(labels):,} different ones"
    elif rules.any_labels:
        yield f"{what} look like classes: {FLAG} changes nothing"


def _dotted(extensions: list[str]) -> str:
    return ", ".join(f".{ext}" for ext in extensions)
