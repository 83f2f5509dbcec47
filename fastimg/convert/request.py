"""The flags of `fastimg convert`, checked against each other and turned into values."""

import hashlib
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fastimg import __version__
from fastimg.cluster.connection import check_installed
from fastimg.config.commands import Convert
from fastimg.config.flag_types import parse_workers
from fastimg.config.rule_tables.clusters import CLUSTER
from fastimg.config.rules import refuse, refuse_set
from fastimg.convert.annotations.cells import check_field_name, parse_fields
from fastimg.convert.recompression.choice import Recompression, parse_recompression
from fastimg.convert.sources.columns import AskedField, AskedTarget
from fastimg.convert.sources.containers.tar_flags import check_tar_flags, stated_rules
from fastimg.convert.sources.samples import Source
from fastimg.convert.sources.targets import parse_targets
from fastimg.errors import UsageError
from fastimg.loaders.jpeg.rewriting.tiles import DEFAULT_TILE_PX
from fastimg.loaders.runtime.cpus import available_cpus

from .image_preparation import Treatment
from .journal import CONTENTS
from .plan import parse_size
from .shards.base import Base

_OF_IMAGES = (
    *("tile", "max_size", "quality", "jpeg", "recompress"),
    *("raw_fraction", "raw_below", "originals", "compare", "max_pixels"),
)


@dataclass(frozen=True)
class Request:
    """A conversion as the user asked for it."""

    sources: tuple[Path, ...]
    dst: Path
    shard_size: int
    workers: int
    treatment: Treatment
    flags: Convert
    targets: tuple[AskedTarget, ...] = ()
    fields: tuple[AskedField, ...] = ()

    def shuffles(self, source: Source) -> bool:
        """Whether the training split is shuffled."""
        if self.flags.shuffle or self.flags.no_shuffle:
            return self.flags.shuffle
        return self.flags.merge or not source.stored

    def options(self, source: Source) -> dict[str, Any]:
        """Everything that determines the output bytes."""
        treatment = asdict(self.treatment)
        tile_px = treatment.pop("tile_px")
        del treatment["compare"], treatment["seed"], treatment["recompress"], treatment["raw_below"]
        return {
            "fastimg": __version__,
            "format": treatment.pop("container"),
            "source": source.kind,
            "listing": source.fingerprint(),
            CONTENTS: source.contents(),
            "classes": hashlib.sha256("\0".join(source.classes).encode("utf-8", "surrogatepass")).hexdigest(),
            "shard_size": self.shard_size,
            "val_fraction": self.flags.val_fraction,
            "shuffle": self.shuffles(source),
            "seed": self.flags.seed,
            "tile": tile_px or 0,
            "on_error": self.flags.on_error,
            "jpeg": "reencode" if treatment.pop("reencode") else "keep",
            **({"recompress": str(self.treatment.recompress)} if self.treatment.recompress else {}),
            **({"raw_below": self.treatment.raw_below} if self.treatment.raw_below else {}),
            **({"labels_are_classes": True} if self.flags.labels_are_classes else {}),
            **stated_rules(self.flags, self.sources),
            **({"image_field": self.flags.image_field} if self.flags.image_field else {}),
            **({"targets": [target.to_json() for target in source.targets]} if source.targets else {}),
            **({"fields": [field.to_json() for field in source.stored_fields]} if source.stored_fields else {}),
        } | treatment


def read_request(config: Convert, container: str | None = None) -> Request:
    """Check the flags; `container` is that of the dataset to append to. Raises UsageError."""
    if container and config.format not in (None, container):
        raise UsageError(f"--format {config.format}: {config.dst} is in {container}; leave it out, or --merge the two")
    refuse(config, CLUSTER)
    shard_size = parse_size(config.shard_size)
    workers = parse_workers(config.workers, available_cpus())
    tile_px = _tile_px(config.tile)
    paths = (config.src, config.dst, *config.more)
    sources = paths[:-1]
    dst = paths[-1]
    if config.append and config.overwrite:
        raise UsageError("--append adds to what is there, --overwrite replaces it; give only one of them")
    if config.delete_first and not config.overwrite:
        raise UsageError("--delete-first has no effect without --overwrite; add it, or leave it out")
    if config.shuffle and config.no_shuffle:
        raise UsageError("--shuffle and --no-shuffle: give only one of them")
    if not 0 <= config.val_fraction < 1:
        raise UsageError(f"--val-fraction {config.val_fraction}: give a share of at least 0 and less than 1, as in 0.1")
    if config.seed < 0:
        raise UsageError(f"--seed {config.seed}: give 0 or more")
    for name, value in (("max-pixels", config.max_pixels), ("max-size", config.max_size)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: give 1 or more")
    for source in sources:
        outer, inner = Path(os.path.realpath(source)), Path(os.path.realpath(dst))  # resolve() raises on loops
        inside = inner == outer or outer in inner.parents
        if inside and not config.append:
            raise UsageError(f"{dst}: the destination lies in the source {source}; give a folder outside it")
    if config.image_field is not None:
        check_field_name(f"--image-field {config.image_field}", config.image_field)
    check_tar_flags(config)
    return Request(
        tuple(sources),
        dst,
        shard_size,
        workers,
        _treatment(config, container or config.format or "tar", tile_px),
        config,
        _targets(config),
        parse_fields(config.field),
    )


def _targets(config: Convert) -> tuple[AskedTarget, ...]:
    """The columns that --target names. Raises UsageError."""
    for name in ("label_column", "labels_are_classes"):
        if config.target and getattr(config, name):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} has no effect with --target, which names every column to learn; leave it out")
    if config.label_delimiter is not None and not config.target:
        raise UsageError("--label-delimiter has no effect without --target; leave it out")
    if config.label_delimiter == "":
        raise UsageError("--label-delimiter: give what separates labels, such as ';' or ' '")
    return parse_targets(config.target)


def check_paths(config: Convert) -> None:
    """Raise UsageError if the number of paths does not fit --append or --merge."""
    sources = 1 + len(config.more)
    if config.merge and sources < 2:
        raise UsageError(f"--merge {config.src} {config.dst}: give at least two sources and then the destination")
    if config.merge and config.append:
        raise UsageError("--merge makes a new dataset, --append adds to one; give only one of them")
    if sources > 1 and not config.merge:
        raise UsageError(f"{sources + 1} paths: convert takes SRC DST; --merge takes several sources and then DST")


def refuse_on_cluster(config: Convert) -> None:
    """Raise UserError or UsageError where the flags alone show that a conversion cannot be one on a cluster."""
    refuse(config, CLUSTER)
    check_installed("convert")


def refuse_image_flags(config: Convert) -> None:
    """Raise UsageError if a flag that applies only to images is given with texts."""
    refuse_set(config, _OF_IMAGES, "on texts")


def _treatment(config: Convert, container: str, tile_px: int | None) -> Treatment:
    quality = 95 if config.quality is None else config.quality
    if not 1 <= quality <= 100:
        raise UsageError(f"--quality {quality}: give 1 to 100")
    raw_fraction = config.raw_fraction or 0.0
    if not 0 <= raw_fraction <= 1:
        raise UsageError(f"--raw-fraction {raw_fraction}: give a share of 0 to 1")
    beton = container == "beton"
    if config.quality is not None and config.jpeg == "keep" and config.max_size is None and not beton:
        raise UsageError(
            "--quality has no effect: no image is encoded at it; add --jpeg reencode or --max-size, or leave it out"
        )
    for name in ("raw_fraction", "raw_below", "originals"):
        if getattr(config, name) is not None and not beton:
            raise UsageError(f"--{name.replace('_', '-')} has no effect with --format tar; leave it out")
    raw_below = 0 if config.raw_below is None else parse_size(config.raw_below, "--raw-below", "64KB")
    if raw_fraction == 1 and raw_below:
        raise UsageError("--raw-below has no effect: --raw-fraction 1 stores all pixels; leave one of them out")
    if raw_fraction == 1 and config.jpeg == "reencode":
        raise UsageError("--jpeg reencode has no effect: --raw-fraction 1 stores pixels; leave one of them out")
    recompress = None if config.recompress is None else parse_recompression(config.recompress)
    if recompress is not None:
        _refuse_without_effect(config, recompress, raw_fraction)
    if config.compare and tile_px is None:
        raise UsageError("--compare has no effect with --tile off; leave it out")
    originals: Literal["keep", "drop", "refuse"] = config.originals or "keep"
    return Treatment(
        container="beton" if beton else "tar",
        max_pixels=config.max_pixels,
        max_size=config.max_size,
        quality=quality,
        reencode=config.jpeg == "reencode",
        recompress=recompress,
        tile_px=tile_px,
        compare=config.compare,
        raw_fraction=raw_fraction,
        raw_below=raw_below,
        originals=originals,
        seed=config.seed,
    )


def _refuse_without_effect(config: Convert, recompress: Recompression, raw_fraction: float) -> None:
    """Raise UsageError if another flag leaves --recompress nothing to do."""
    flag = f"--recompress {recompress}"
    if config.jpeg == "reencode":
        raise UsageError(f"{flag} has no effect with --jpeg reencode, which encodes every image; leave one of them out")
    if raw_fraction == 1:
        raise UsageError(f"{flag} has no effect: --raw-fraction 1 stores pixels; leave one of them out")
    if recompress.quality is None and config.originals == "drop":
        raise UsageError(f"{flag} has no effect with --originals drop, which stores pixels; leave one of them out")


def as_before(config: Convert, base: Base) -> Convert:
    """The flags of an append, with the dataset's own --recompress. Raises UsageError if another one is asked for."""
    before = base.description["options"].get("recompress")
    if config.recompress is not None and str(parse_recompression(config.recompress)) != before:
        made = f"--recompress {before}" if before else "no --recompress"
        raise UsageError(
            f"--recompress {config.recompress}: {base.folder} was made with {made}; leave it out, or --merge both into "
            "a new dataset"
        )
    return replace(config, recompress=before)


def _tile_px(text: str) -> int | None:
    """Width of a tile in pixels; None for no tiles."""
    if text in ("off", "auto"):
        return {"off": None, "auto": DEFAULT_TILE_PX}[text]
    if not text.isascii() or not text.isdigit() or not 8 <= int(text) <= 65_535:
        raise UsageError(f"--tile {text}: give auto, off or a width of 8 to 65535 pixels")
    return int(text)
