"""One shard: its samples are prepared and stored, and what became of them is counted."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fastimg.convert.annotations.facts import FieldCounter
from fastimg.convert.image_preparation import Prepare, Prepared, Treatment
from fastimg.convert.journal import Finished
from fastimg.convert.plan import Shard
from fastimg.convert.recompression.facts import RecompressionFacts
from fastimg.convert.sources.samples import Source, SourceEntry
from fastimg.convert.sources.targets import StatedTargets
from fastimg.convert.text_preparation import PrepareText
from fastimg.convert.writers import Store
from fastimg.errors import printable
from fastimg.loaders.containers.content import samples_of
from fastimg.loaders.errors import DataError, ImageError


@dataclass(frozen=True)
class ShardWork:
    """What all shards of a conversion have in common. The source's listing is not read."""

    source: Source
    treatment: Treatment
    on_error: Literal["skip", "fail"]
    workers: int  # threads

    @cached_property
    def stated(self) -> StatedTargets:
        """The targets that samples may lack."""
        return StatedTargets(self.source.targets)

    def prepare(self) -> Callable[[SourceEntry], Prepared | str]:
        """What reads and prepares a sample, on any thread."""
        images = samples_of(self.source.content) == "images"
        return Prepare(self.source, self.treatment) if images else PrepareText(self.source)


def write_shard(
    work: ShardWork, shard: Shard, prepared: Iterator[Prepared | str], store: Store, tick: Callable[[], object]
) -> Finished:
    """Write a shard of the samples that `prepared` yields, one per entry. Raises DataError with --on-error fail."""
    counts: Counter[int] = Counter()
    outcomes: Counter[str] = Counter()
    missing: Counter[str] = Counter()  # by target
    fields = FieldCounter(work.source.stored_fields)
    recompressed = RecompressionFacts()
    bare = 0
    skipped = []
    source_bytes = 0
    store.begin(shard)
    for number, (entry, sample) in enumerate(zip(shard.entries, prepared, strict=False), shard.start):
        try:
            if isinstance(sample, str):
                raise ImageError(sample)
            lacking, without = _lacking(work, entry, sample.note)
            found = fields.look(sample.fields, sample.note)
            store.add(number, entry.label, sample)
        except ImageError as error:
            if work.on_error == "fail":
                raise failure(work.source, entry, str(error)) from error
            skipped.append((printable(entry.path), printable(str(error))))
        else:
            counts[entry.label] += 1
            missing.update(lacking)
            fields.add(found)
            bare += without
            outcomes[sample.outcome] += 1
            if sample.recompressed:
                recompressed.add(sample.recompressed, printable(entry.path))
            source_bytes += sample.source_bytes
        tick()
    return Finished(
        split=shard.split,
        number=shard.number,
        samples=counts.total(),
        source_bytes=source_bytes,
        class_counts=dict(sorted(counts.items())),
        skipped=skipped,
        outcomes=dict(sorted(outcomes.items())),
        missing=dict(sorted(missing.items())),
        without_targets=bare,
        fields=fields.facts,
        recompressed=recompressed,
        **store.end(),
    )


def failure(source: Source, entry: SourceEntry, reason: str) -> DataError:
    """The error of a sample that cannot be stored, with --on-error fail."""
    return DataError(f"{printable(source.name(entry))}: {reason}; repair or remove it, or skip it with --on-error skip")


def _lacking(work: ShardWork, entry: SourceEntry, note: bytes) -> tuple[list[str], bool]:
    try:
        return work.stated.missing(entry.label, note)
    except ValueError as error:
        raise DataError(f"{printable(work.source.name(entry))}: {error}") from error
