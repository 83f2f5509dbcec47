"""`fastimg inspect`: what a dataset contains, what is wrong with it, and pictures of what a model will see."""

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastimg import notebook
from fastimg.config import yaml_file as configfile
from fastimg.config.augmentation import FIELDS, effective, was_given
from fastimg.config.commands import Inspect, Train
from fastimg.config.flag_types import parse_workers
from fastimg.config.rule_tables.reading import INSPECT, PICTURES
from fastimg.config.rule_tables.training import AUGMENTATION
from fastimg.config.rules import refuse, refuse_set
from fastimg.convert.recompression.facts import recompression_lines
from fastimg.convert.report import field_line, missing_words
from fastimg.convert.shards.base import stated_recompression
from fastimg.data import augmentation
from fastimg.data.datasets import check_classes, display_name, random_crop
from fastimg.data.elsewhere import as_given, sources, with_local_data
from fastimg.errors import UsageError, UserError, nearest, printable
from fastimg.loaders import CenterCrop, DataError, list_splits, open_dataset
from fastimg.loaders.captions.captions import captions_of
from fastimg.loaders.containers.datasets import large_photographs
from fastimg.loaders.crop import CropRule, shape_of
from fastimg.loaders.decode import COMPILED_FORMATS
from fastimg.loaders.errors import not_written
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.predict.result_places import ResultPlace, renewed_words, result_place
from fastimg.system.terminal import print_table, say
from fastimg.wording import plural, with_flags

from .scan import Duplicates, SplitFacts, duplicates, gather, several
from .summaries import (
    Balance,
    balance,
    balanced,
    class_names,
    plain,
    print_classes,
    print_copies,
    print_some,
    stated_fields,
    summarised,
    target_rows,
)
from .texts import TextInspection, inspect_texts

if TYPE_CHECKING:  # torch takes seconds to import, and only pictures and slow formats need it
    from fastimg.convert.slow_formats import SlowFormats
    from fastimg.data.kornia_pass import KorniaPass

_MANY = 1000  # images: to try a few takes seconds, and on a machine that has compiled nothing half a minute
_MEAN, _STD, _SIZE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224
_GRAY_MEAN, _GRAY_STD = (sum(_MEAN) / 3,), (sum(_STD) / 3,)
_ROWS, _EPOCHS, _SAMPLES = 8, 8, 36
_OF_PICTURES = (
    "samples",
    "draw_fields",
    "img_size",
    "config",
    "output",
    "seed",
    "no_aug",
    *FIELDS,
)  # flags that affect only pictures


class ValueRange(NamedTuple):
    """The range of a number over all images."""

    min: float
    median: float
    max: float


@dataclass(frozen=True, kw_only=True)
class Inspection:  # more than 12 fields: the keys of --json, which are flat
    """The result of an inspection of images."""

    data: str
    images: int
    classes: int
    samples: dict[str, int]  # of each split
    splits: dict[str, dict[str, int]]  # split -> class -> images
    unlabelled: int
    targets: list[dict[str, Any]]  # what samples have for each, if targets were declared
    balance: dict[str, Balance | None]
    bytes: int
    formats: dict[str, int]
    width: ValueRange | None  # pixels, after EXIF orientation; None if no image could be read
    height: ValueRange | None
    aspect: ValueRange | None  # width / height
    tiled: int  # images whose crops can be decoded alone
    decoded: bool  # whether every image was decoded, not only its header
    unreadable: int
    unreadable_names: list[tuple[str, str]]
    duplicates: Duplicates
    pictures: list[str] | None  # None: not requested
    fields: list[dict[str, Any]] = dataclass_field(default_factory=list)  # of samples, as dataset.json states them
    large: dict[str, str] = dataclass_field(default_factory=dict)  # split -> what is kept of large photographs
    missing: dict[str, int] | None = None  # of images with texts beside them: samples that lack an input
    recompressed: dict[str, Any] | None = None  # as dataset.json states it: what `convert --recompress` changed
    slow_formats: "SlowFormats | None" = None  # where libraries decode most images: what that costs

    def _repr_html_(self) -> str:
        faults = self.unreadable_names[: notebook.ROWS]
        return notebook.page(
            notebook.facts(_rows(self)),
            notebook.table(("not readable", "reason"), faults, self.unreadable) if faults else "",
            *map(notebook.picture, self.pictures or ()),
        )


def inspect_data(config: Inspect, out: Console, err: Console) -> Inspection | TextInspection:
    """Inspect a dataset and print the result. Raises UsageError, UserError and DataError, each a sentence."""
    refuse(config, INSPECT)
    config = with_local_data(config, partial(say, err))
    if config.no_pictures:
        refuse_set(config, _OF_PICTURES, "with --no-pictures")
    shown, crop = _augmentation(config)
    workers = parse_workers(config.workers, available_cpus())
    check_classes(config.data, config.classes)
    splits_of_data = list_splits(config.data, config.classes)
    if config.split is not None and config.split not in splits_of_data:
        found = f"it has {', '.join(splits_of_data)}{nearest(config.split, splits_of_data, 1)}"
        raise UsageError(f"--split {config.split}: {config.data} has no such split; {found}")
    order = sorted(splits_of_data, key=lambda name: (name != "train", name))  # leaks are from the training split
    folder = config.output or Path(f"inspect-{display_name(config.data)}")
    with ExitStack() as stack:
        place = stack.enter_context(result_place("--output", folder, config, PICTURES[0], config.overwrite))
        names = [config.split] if config.split else order
        datasets = {name: open_dataset(config.data, name, config.classes) for name in names}
        for dataset in datasets.values():
            stack.callback(dataset.close)
        for line in sources(datasets.values()):
            say(err, line)
        for remark in dict.fromkeys(remark for dataset in datasets.values() for remark in dataset.notes):
            say(err, with_flags(remark))
        kinds = {dataset.content for dataset in datasets.values()}
        if len(kinds) > 1:
            raise DataError(f"{config.data}: some splits hold images and some texts; inspect each one with --split")
        if "text" in kinds:
            return inspect_texts(config, datasets, workers, out, err)
        kornia = _kornia(shown, crop)
        if not config.no_pictures:
            _make_folder(place, stack)
        splits = []
        missing: Counter[str] = Counter()
        for name, dataset in datasets.items():
            facts = gather(name, dataset, workers, config.max_pixels, not config.headers_only, err)
            if (captions := captions_of(config.data, dataset)) is not None:
                facts.records["hashed"] &= captions.has_image  # blank images are no copies
                missing.update(image=int((~captions.has_image).sum()), text=int((~captions.has_text).sum()))
            splits.append(facts)
        pictures = None
        if not config.no_pictures:
            pictures = _draw(config, place, shown, crop, kornia, splits[0], err)
        recompressed = stated_recompression(config.data)
        result = replace(
            _result(config, splits, pictures),
            missing=dict(missing) or None,
            recompressed=recompressed,
            slow_formats=None if config.headers_only else _slow_formats(splits[0], err),
        )
    if config.json:
        fields = plain(result)
        for name in ("missing", "recompressed", "slow_formats"):
            if getattr(result, name) is None:
                del fields[name]
        print(json.dumps(fields))
    else:
        _print(result, out)
    return result


def _augmentation(config: Inspect) -> tuple[Train, CropRule]:
    """How training would augment and crop images: flags take precedence over the configuration file."""
    file = Train()
    given = {name: getattr(config, name) for name in FIELDS if was_given(getattr(config, name))}
    if config.no_aug:
        given["no_aug"] = True
    if config.config is not None:
        file = configfile.without_contradicted(configfile.load(config.config, Train), given)
    merged = replace(file, **given)
    refuse(merged, AUGMENTATION)
    merged = replace(merged, **effective(merged, merged.no_aug))
    size = config.img_size if config.img_size is not None else file.train_crop_size or file.img_size or _SIZE
    resize = file.val_resize_size or 0
    interpolation = file.interpolation or "bilinear"
    mean, std = (_GRAY_MEAN, _GRAY_STD) if file.in_chans == 1 else (_MEAN, _STD)
    if file.image_field is not None:  # the pictures are of the images beside it
        file = replace(file, mean=None, std=None)
    merged = replace(merged, mean=file.mean or mean, std=file.std or std)
    if merged.no_aug:
        resize = resize if resize >= size else round(size / 0.875)
        return merged, CenterCrop(size=size, resize=resize, interpolation=interpolation)
    return merged, random_crop(size, interpolation, merged)


def _kornia(shown: Train, crop: CropRule) -> "KorniaPass | None":
    """The part of the augmentation done by Kornia; None if there is none. Raises UsageError."""
    if not shown.kornia or shown.no_aug:
        return None
    import torch

    from fastimg.data import kornia_pass

    return kornia_pass.build(shown.kornia, shape_of(crop)[0], torch.device("cpu"))


def _make_folder(place: ResultPlace, stack: ExitStack) -> None:
    """Create the folder for pictures before the long read; it is removed at the end if it stayed empty."""
    folder = place.path
    assert folder is not None  # one is chosen where none is given
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    if new:
        stack.callback(lambda: None if any(folder.iterdir()) else folder.rmdir())


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(f"--output {folder}: {not_written(error, 'give a writable folder')}")


def _draw(
    config: Inspect,
    place: ResultPlace,
    shown: Train,
    crop: CropRule,
    kornia: "KorniaPass | None",
    facts: SplitFacts,
    err: Console,
) -> list[str]:
    """Draw the pictures of the first split, with TrivialAugment's operations if it is on. Raises UserError.

    Remarks on what a picture cannot show are printed to `err`.
    """
    ids = several(facts, config.samples or _SAMPLES, config.seed)
    if not len(ids):
        return []
    from fastimg.train.reporting.overlays import Overlays
    from fastimg.train.reporting.sheets import (  # imports torch and matplotlib, which takes seconds
        draw_augmented,
        draw_samples,
        draw_trivial,
    )

    assert shown.mean is not None and shown.std is not None and place.path is not None
    samples, augmented, trivial = (place.path / name for name in PICTURES)
    rows = ids[:_ROWS]  # neighbours, which may be mixed, are of different classes
    policy = None if shown.no_aug else augmentation.policy_of(shown, shown.mean, shown.std)
    epochs = 1 if policy is None else _EPOCHS
    operations = policy is not None and policy.trivial
    drawn = (samples, trivial, augmented) if operations else (samples, augmented)
    renewed = renewed_words(drawn)
    wanted = None if config.draw_fields is None else [name for name in config.draw_fields.split(",") if name != "none"]
    overlays = Overlays.of(facts.dataset, wanted)
    name = f"{display_name(config.data)} ({facts.split})"
    try:
        with err.status("drawing"):
            remarks = draw_samples(facts.dataset, ids, config.max_pixels, samples, overlays, f"{name}: images")
            if operations:
                title = f"{name}: TrivialAugment's operations on an image"
                draw_trivial(facts.dataset, int(rows[0]), config.max_pixels, trivial, title)
            fewer = draw_augmented(
                *(facts.dataset, rows, crop, policy, kornia, config.seed, epochs, config.max_pixels, augmented),
                overlays=overlays,
                title=f"{name}: what a model would see",
            )
            remarks = list(dict.fromkeys([*remarks, *fewer]))
    except OSError as error:
        raise _unwritable(place.path, error) from error
    if renewed:
        say(err, renewed)
    for remark in remarks:
        say(err, f"{place.url or place.path}: {remark}")
    return [place.address(file) for file in drawn]


def _result(config: Inspect, splits: list[SplitFacts], pictures: list[str] | None) -> Inspection:
    records = np.concatenate([facts.records for facts in splits])
    readable = records[records["readable"]]
    counted = {facts.split: dict(zip(class_names(facts), facts.counts(), strict=True)) for facts in splits}
    names = list(dict.fromkeys(name for classes in counted.values() for name in classes))
    formats: Counter[str] = sum((facts.formats for facts in splits), Counter())
    return Inspection(
        data=printable(as_given(config.data)),
        images=len(records),
        classes=len(names),
        samples={facts.split: len(facts.records) for facts in splits},
        splits={split: {name: classes.get(name, 0) for name in names} for split, classes in counted.items()},
        unlabelled=sum(int((facts.dataset.labels < 0).sum()) for facts in splits),
        targets=summarised(splits),
        balance={split: balance(classes) for split, classes in counted.items()},
        bytes=int(records["bytes"].sum()),
        formats=dict(formats.most_common()),
        width=_spread(readable["width"]),
        height=_spread(readable["height"]),
        aspect=_spread(readable["width"] / np.maximum(readable["height"], 1)),
        tiled=int(readable["tiled"].sum()),
        decoded=not config.headers_only,
        unreadable=int((~records["readable"]).sum()),
        unreadable_names=[pair for facts in splits for pair in facts.unreadable],
        duplicates=duplicates(splits),
        pictures=pictures,
        fields=stated_fields(splits),
        large={facts.split: kept for facts in splits if (kept := large_photographs(facts.dataset))},
    )


def _slow_formats(facts: SplitFacts, err: Console) -> "SlowFormats | None":
    """What images of a split cost if libraries decode most of them, and there are so many that it matters."""
    count = facts.formats.total()
    if count < _MANY or 2 * sum(facts.formats[name] for name in COMPILED_FORMATS) >= count:
        return None
    from fastimg.convert.slow_formats import LOOKED_AT, try_slow_formats
    from fastimg.loaders import ImageDecoder, RandomResizedCrop
    from fastimg.loaders.compiling_ahead import looked_at

    decoder = ImageDecoder(RandomResizedCrop(size=_SIZE))
    return try_slow_formats(facts.dataset, looked_at(len(facts.dataset), None, LOOKED_AT), decoder, partial(say, err))


def _spread(values: Any) -> ValueRange | None:
    if not len(values):
        return None
    return ValueRange(*(round(float(value), 4) for value in (values.min(), np.median(values), values.max())))


def _rows(result: Inspection) -> dict[str, str]:
    """The result as names and sentences."""
    splits = ", ".join(f"{split} {count:,}" for split, count in result.samples.items())
    unlabelled = f"; {result.unlabelled:,} without a label" if result.unlabelled else ""
    rows = {
        "dataset": result.data,
        "images": f"{result.images:,} of {plural(result.classes, 'class')} ({splits}{unlabelled})",
        "balance": "\n".join(balanced(split, classes, "image") for split, classes in result.balance.items()),
        **({"targets": target_rows(result.targets)} if result.targets else {}),
        **({"fields": "\n".join(map(field_line, result.fields))} if result.fields else {}),
        "bytes": f"{result.bytes / 1e6:,.1f} MB, {result.bytes / max(1, result.images) / 1e3:,.1f} KB per image",
        "formats": ", ".join(f"{name} {count:,}" for name, count in result.formats.items()) or "none",
        "width": _from_to(result.width, ",.0f", " pixels"),
        "height": _from_to(result.height, ",.0f", " pixels"),
        "aspect": _from_to(result.aspect, ".2f", ", width over height"),
        "tiled": f"{result.tiled:,} ({result.tiled / max(1, result.images):.1%}), of which only the crop is decoded",
        "copies": f"{plural(result.duplicates.within, 'image')} identical to another one in their split",
        "leaks": f"{plural(result.duplicates.leaked, 'image')} identical to one in another split",
        "unreadable": plural(result.unreadable, "image") + ("" if result.decoded else " (judged by headers only)"),
    }
    if result.recompressed is not None:
        rows["recompressed"] = "\n".join(recompression_lines(result.recompressed))
    if result.slow_formats is not None:
        rows["decoding"] = result.slow_formats.sentence()
    if result.missing is not None:
        rows["inputs"] = missing_words(result.missing)
    if result.large:
        rows["large"] = "\n".join(f"{split}: {kept}" for split, kept in result.large.items())
    if result.pictures is not None:
        rows["pictures"] = ", ".join(result.pictures) or "none: no image can be read"
    return rows


def _print(result: Inspection, out: Console) -> None:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(result).items():
        table.add_row(f" {name}", Text(value))
    print_table(out, table)
    print_classes(result.splits, out)
    print_copies(result.duplicates, out)
    print_some(
        out, "Not readable", [f"{name}: {reason}" for name, reason in result.unreadable_names], result.unreadable
    )


def _from_to(spread: ValueRange | None, form: str, unit: str) -> str:
    if spread is None:
        return "none"
    return f"{spread.min:{form}} to {spread.max:{form}}, median {spread.median:{form}}{unit}"
