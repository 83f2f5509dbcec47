"""What the stored samples have of each field: how many lack it, the most items or bytes, and the depth of masks.

A shard's facts are part of its line in the journal, so that a conversion that was interrupted knows those of all
shards.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fastimg.loaders.containers.fields import StoredField, unpacked_npy
from fastimg.loaders.errors import ImageError

from .masks import png_depth


@dataclass(kw_only=True)
class FieldFacts:
    """What some samples have of one field."""

    missing: int = 0
    longest: int = 0  # items of a ragged field, or bytes
    deep: bool = False  # whether any mask has 16 bits


class FieldCounter:
    """Counts the fields of samples as they are stored."""

    def __init__(self, schemas: Sequence[StoredField]) -> None:
        self._schemas = schemas
        self.facts = {schema.name: FieldFacts() for schema in schemas}

    def look(self, fields: Mapping[str, bytes], note: bytes) -> dict[str, FieldFacts]:
        """The facts of one sample. Raises ImageError if it has something else than a field's schema says."""
        known = json.loads(note) if any(not schema.member for schema in self._schemas) else {}
        found: dict[str, FieldFacts] = {}
        for schema in self._schemas:
            facts = found[schema.name] = FieldFacts()
            if not schema.member:
                facts.missing = int(known.get(schema.name) is None)
                continue
            data = fields.get(schema.member)
            if data is None:
                facts.missing = 1
            elif schema.kind in ("array", "ragged"):
                try:
                    facts.longest = len(unpacked_npy(schema, data)) if schema.kind == "ragged" else 0
                except ValueError as error:
                    raise ImageError(f"{schema.name}: {error}") from error
            elif schema.kind == "bytes":
                facts.longest = len(data)
            else:
                facts.deep = schema.geometry == "mask" and png_depth(data) == 16
        return found

    def add(self, found: Mapping[str, FieldFacts]) -> None:
        """Count a sample that was stored."""
        self.facts = {name: joined([facts, found[name]]) for name, facts in self.facts.items()}


def joined(several: Iterable[FieldFacts]) -> FieldFacts:
    """The facts of all samples together."""
    facts = FieldFacts()
    for each in several:
        facts.missing += each.missing
        facts.longest = max(facts.longest, each.longest)
        facts.deep = facts.deep or each.deep
    return facts


def with_facts(schema: StoredField, facts: FieldFacts, before: StoredField | None) -> StoredField:
    """The schema of a dataset with these samples; `before` is what it was without them, if it had the field."""
    deep = facts.deep or (before is not None and before.dtype == "uint16")
    return replace(
        schema,
        longest=max(facts.longest, before.longest if before else 0) if schema.kind in ("ragged", "bytes") else 0,
        optional=facts.missing > 0,
        dtype=("uint16" if deep else "uint8") if schema.geometry == "mask" else schema.dtype,
    )
