"""What a conversion that is ready to run is made of."""

from dataclasses import dataclass
from typing import Any

from fastimg.convert.delivery.store_destination import StoreDestination
from fastimg.convert.plan import Shard
from fastimg.convert.request import Request
from fastimg.convert.shards.base import Base
from fastimg.convert.sources.samples import Source


@dataclass(frozen=True)
class ConversionJob:
    """A conversion that is ready to run."""

    request: Request
    source: Source
    plan: list[Shard]
    options: dict[str, Any]
    base: Base | None  # the dataset to append to
    ray: Any  # connected to a cluster, with --backend ray
    store: StoreDestination | None = None  # where the destination is a URL; then the folder is staged


def takes_notes(job: ConversionJob) -> bool:
    """Whether targets or fields are derived from the notes of samples."""
    return bool(job.source.targets or job.source.stored_fields)
