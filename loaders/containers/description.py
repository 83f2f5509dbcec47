"""dataset.json: the classes, splits, counts, sizes and checksums of every shard, and the options that made it."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from fastimg.loaders.errors import ShardError
from fastimg.loaders.wording import plural

from .content import Content
from .fields import StoredField, check_fields
from .identities import StatedContent
from .targets import Target, first_class

FORMAT = "fastimg dataset"
FORMAT_VERSION = 1
SHARD_KEYS = ("name", "samples", "bytes", "sha256", "index_bytes", "index_sha256")  # of a tar in dataset.json
QUICK_SUM = "xxh3"  # a further key of tars and .betons, which older versions did not write: see quick_sums
IDENTITY = "identity"  # another key, which older versions did not write: see identities
DERIVED = "derived"  # key of a split, also new: digests of what its derived files hold, by how these begin
_BETON_KEYS = SHARD_KEYS[:4]
_SHA256 = re.compile("[0-9a-f]{64}")
_XXH3 = re.compile("[0-9a-f]{32}")


def read_description(path: Path) -> dict[str, Any]:
    """The content of dataset.json. Raises ShardError if it is invalid."""
    file = path / "dataset.json"
    try:
        description: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if description["format"] != FORMAT:
            raise KeyError("format")
        if description["version"] > FORMAT_VERSION:
            raise ShardError(f"{file}: written by a newer fastimg; update this one")
        if not all(type(name) is str for name in [*description["splits"], *description["classes"]]):
            raise TypeError("classes")
        if description.setdefault("content", "images") not in get_args(Content):
            raise ValueError(f"content {description['content']!r}")
        _check_types(description)
        declared_targets(description)
        stated_fields(description)
        for name, split in description["splits"].items():
            if not _is_plain(name):
                raise ValueError(f"split {name!r}")
            _check_entries(description["container"], split["samples"], split["shards"])
            _check_counts(split, len(description["classes"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ShardError(f"{file}: not a dataset description ({error!r}); convert again") from error
    return description


# What a description has beside its splits, where it has it, by type: other parts of the program read these.
_TYPES: dict[str, type] = {
    "splits": dict,
    "classes": list,
    "targets": list,
    "fields": list,
    "inputs": list,
    "schema": dict,
    "skipped": list,
    "ignored": dict,
    "outcomes": dict,
    "options": dict,
    "appended": list,
    "recompressed": dict,
    "previewed": str,
    "named": bool,
}


def _check_types(description: Any) -> None:
    """Raises LookupError, TypeError or ValueError where a key holds something of another type."""
    for key, kind in _TYPES.items():
        if key in description and type(description[key]) is not kind:
            raise TypeError(key)
    if type(description["version"]) is not int or description["version"] < 1:
        raise ValueError("version")
    if len(set(description["classes"])) < len(description["classes"]):
        raise ValueError("two classes of one name")
    for key in ("targets", "fields"):
        if not all(type(each) is dict and type(each.get("field", "")) is str for each in description.get(key, ())):
            raise TypeError(key)


def _check_counts(split: Any, classes: int) -> None:
    """Raises TypeError or ValueError for counts that a split cannot have, or digests that are none."""
    total = split["samples"]
    for key in ("missing", "missing_fields", "missing_inputs"):
        stated = split.get(key, {})
        if type(stated) is not dict or not all(_is_count(count, total) for count in stated.values()):
            raise ValueError(f"{key}: {stated!r}")
    stated = split.get("class_counts", [])
    if type(stated) is not list or not all(_is_count(count, total) for count in stated):
        raise ValueError("class_counts")
    if len(stated) > classes:
        raise ValueError(f"class_counts has {plural(len(stated), 'class')}, and there are {plural(classes, 'class')}")
    if not _is_count(split.get("without_targets", 0), total) or not _is_count(split.get("source_bytes", 0)):
        raise ValueError("without_targets or source_bytes")
    digests = split.get(DERIVED, {})
    if type(digests) is not dict or not all(_SHA256.fullmatch(digest) for digest in digests.values()):
        raise ValueError(DERIVED)


def _is_count(value: Any, most: int = 2**63 - 1) -> bool:
    return type(value) is int and 0 <= value <= most


def _check_entries(container: Any, samples: Any, shards: Any) -> None:
    """Raises LookupError, TypeError or ValueError for an invalid description of a split."""
    keys = {"tar": SHARD_KEYS, "beton": _BETON_KEYS}[container]
    counts = [samples] + [shard[key] for shard in shards for key in keys if key in ("samples", "bytes", "index_bytes")]
    if not all(_is_count(count) for count in counts) or samples != sum(shard["samples"] for shard in shards):
        raise ValueError(f"samples: {samples!r}")
    if container == "beton" and len(shards) != 1:
        raise ValueError(f"{len(shards)} files of one split")
    for shard in shards:
        if not _is_plain(shard["name"]) or not all(
            _SHA256.fullmatch(shard[key]) for key in keys if key.endswith("sha256")
        ):
            raise ValueError(f"shard {shard['name']!r}")
        if QUICK_SUM in shard and not _XXH3.fullmatch(shard[QUICK_SUM]):
            raise ValueError(f"shard {shard['name']!r}: {QUICK_SUM} {shard[QUICK_SUM]!r}")
        if IDENTITY in shard and not _SHA256.fullmatch(shard[IDENTITY]):
            raise ValueError(f"shard {shard['name']!r}: {IDENTITY} {shard[IDENTITY]!r}")


def stated_contents(shards: Sequence[Mapping[str, Any]]) -> list[StatedContent]:
    """What a dataset.json states of the contents of its shards."""
    return [StatedContent(shard.get(IDENTITY, ""), shard.get(QUICK_SUM, "")) for shard in shards]


def _is_plain(name: str) -> bool:
    """Whether a name is that of a file directly in a folder, so that nothing outside is read or written."""
    return b"\0" not in os.fsencode(name) and os.path.basename(name) == name and name not in ("", ".", "..")


def stated_fields(description: Mapping[str, Any]) -> dict[str, StoredField]:
    """The fields that a dataset.json states, by name.

    Raises LookupError, TypeError or ValueError if they are not valid.
    """
    stated = [StoredField.of_json(each) for each in description.get("fields", ())]
    fields = {each.name: each for each in stated}
    if len(fields) < len(stated):
        raise ValueError("two fields of one name")
    check_fields(fields)
    return fields


def previewed_field(description: Mapping[str, Any]) -> str | None:
    """The field that a dataset's images are previews of, as `convert` makes them of arrays; None for other images."""
    name = description.get("previewed", description.get("options", {}).get("image_field"))
    return name if name in stated_fields(description) else None


def declared_targets(description: Mapping[str, Any]) -> tuple[Target, ...]:
    """The targets that a dataset.json declares; none where it has only a class.

    Raises LookupError, TypeError or ValueError if they are not valid.
    """
    targets = tuple(Target.of_json(stated) for stated in description.get("targets", ()))
    if not targets:
        return ()
    if len({target.name for target in targets}) < len(targets):
        raise ValueError("two targets of one name")
    own = first_class(targets)
    if list(own.classes if own else ()) != list(description["classes"]):
        raise ValueError("classes are not those of the first class target")
    return targets
