"""Sheets of pictures: samples, TrivialAugment's operations, images as the model sees them."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fastimg.augment import Plan, Policy, apply, draw, mix
from fastimg.augment.layers import layer_names
from fastimg.augment.ops import BINS, TRIVIAL, trivial_table
from fastimg.data.kornia_pass import KorniaPass
from fastimg.data.model_input import model_input
from fastimg.errors import printable
from fastimg.loaders import CenterCrop, DataError, Dataset, ImageDecoder, ImageError, Loader, LoaderConfig
from fastimg.loaders.crop import CropRule
from fastimg.loaders.decode import decode, read_header
from fastimg.loaders.runtime.scratch import Scratch

from .lettering import LEFT_TO_RIGHT, Lettering, lettering
from .overlays import Overlays, can_follow
from .tiles import Pixels, Tile, line_length, save_sheet

_SIDE = 128  # pixels of a tile
_NAME = 18  # characters of a row's name
_SIGNED = frozenset(
    {"Brightness", "Color", "Contrast", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"}
)
_STILL = frozenset({"Identity", "AutoContrast", "Equalize"})


def draw_samples(
    dataset: Dataset,
    ids: npt.NDArray[np.int64],
    max_pixels: int,
    file: Path,
    overlays: Overlays | None = None,
    title: str = "",
) -> list[str]:
    """A grid of whole images, shrunk, with their classes and what `overlays` draw over them. Returns remarks."""
    scratch = Scratch()
    classes = _Classes(dataset, dataset.labels[ids].tolist(), title)
    tiles = []
    faults: list[str] = []
    for index in ids[np.argsort(dataset.labels[ids], kind="stable")].tolist():
        try:
            data = dataset.read(index, scratch)
            image = Image.fromarray(np.ascontiguousarray(decode(data, read_header(data, max_pixels), scratch)))
        except DataError:  # with --headers-only, the image has not been decoded before
            continue
        image.thumbnail((_SIDE, _SIDE))
        pixels = np.asarray(image)
        if overlays:
            try:
                pixels = overlays.over_whole(index, pixels, max_pixels)
            except ImageError as error:  # a mask of another size than its image
                faults.append(f"{dataset.sample_name(index)}: {error}")
        label = classes.text(int(dataset.labels[index]), line_length(_SIDE))
        tiles.append(Tile(pixels, (label,)))
    columns = max(1, math.ceil(math.sqrt(len(tiles))))
    rows = [tiles[at : at + columns] for at in range(0, len(tiles), columns)]
    save_sheet(rows, [""] * len(rows), _SIDE, file, classes.letters, classes.letters.text(title))
    return [*classes.remarks(), *faults]


def class_name(dataset: Dataset, label: int) -> str:
    """The printable name of a class."""
    return printable(dataset.classes[label]) if 0 <= label < len(dataset.classes) else "no label"


def draw_trivial(dataset: Dataset, index: int, max_pixels: int, file: Path, title: str = "") -> None:
    """One image under every operation of TrivialAugment, at seven strengths."""
    image = _rows(dataset, np.array([index]), CenterCrop(size=_SIDE, resize=_SIDE), 0, [0], max_pixels)[0][0]
    table, numbers, captions, shape = trivial_table(), [], [], []
    for number, name in enumerate(TRIVIAL):
        bins = [0] if name in _STILL else range(-30, 31, 10) if name in _SIGNED else range(0, 31, 5)
        rows = [(number * BINS + abs(bin_)) * 2 + (bin_ < 0) for bin_ in bins]
        numbers += rows
        captions += [_strength(name, row) for row in rows]
        shape.append(len(rows))
    count, none = len(numbers), torch.zeros(len(numbers), dtype=torch.bool)
    plan = Plan(
        hflip=none,
        vflip=none,
        angle=torch.zeros(count, dtype=torch.float64),
        trivial=torch.tensor(numbers),
        ops=torch.from_numpy(table.ops[numbers][:, None]),
        magnitudes=torch.from_numpy(table.magnitudes[numbers][:, None]),
    )
    pixels = apply(plan, image.repeat(count, 1, 1, 1), Policy(), torch.uint8).permute(0, 2, 3, 1).numpy()
    tiles = iter(zip(pixels, captions, strict=True))
    rows_of_tiles = [[Tile(image, (caption,)) for image, caption in itertools.islice(tiles, n)] for n in shape]
    letters = lettering([*captions, title])
    save_sheet(rows_of_tiles, list(TRIVIAL), _SIDE, file, letters, letters.text(title))


def _strength(name: str, row: int) -> str:
    """What an operation does at a row of TrivialAugment's table."""
    table = trivial_table()
    if name in _STILL:
        return ""
    if name in ("ShearX", "ShearY"):
        return f"{table.linear[row, 1 if name == 'ShearX' else 2]:+.2f}"
    if name in ("TranslateX", "TranslateY"):
        return f"{0.0 - table.shift[row, 0 if name == 'TranslateX' else 1]:+.0f} px"
    if name == "Rotate":
        return f"{row // 2 % BINS * 135 / (BINS - 1) * (1 - 2 * (row % 2)):+.0f} deg"
    unit = {"Posterize": "{:.0f} bits", "Solarize": "from {:.0f}"}.get(name, "x {:.2f}")
    return unit.format(table.magnitudes[row])


def draw_augmented(
    dataset: Dataset,
    ids: npt.NDArray[np.int64],
    crop: CropRule,
    policy: Policy | None,
    kornia: KorniaPass | None,
    seed: int,
    epochs: int,
    max_pixels: int,
    file: Path,
    overlays: Overlays | None = None,
    title: str = "",
) -> list[str]:
    """Draw one row per image with what the model sees of it in each epoch; without augmentation if `policy` is None.

    Over it stands what `overlays` draw, unless images are mixed or changed by Kornia. Returns remarks.
    """
    classes = _Classes(dataset, dataset.labels[ids].tolist(), title)
    columns: list[list[Tile]] = []
    side = _SIDE
    remarks: list[str] = []
    used = policy or Policy()
    batches = _rows(dataset, ids, crop, seed, range(epochs), max_pixels, overlays, used.channels)
    for epoch, (images, labels, weight, fields) in enumerate(batches):
        plan = None if policy is None else draw(policy, ids, seed, epoch)
        seen = model_input(plan, images, used, torch.float32, kornia, seed * 1_000_003 + epoch)
        seen, soft = mix(plan, seen, labels, max(1, len(dataset.classes)), 0.0, weight)
        mean, std = (torch.tensor(values)[:, None, None] for values in (used.mean, used.std))
        levels = (
            ((seen * std + mean) * 255)
            .round()
            .clamp(0, 255)
            .to(torch.uint8)
            .expand(-1, 3, -1, -1)
            .permute(0, 2, 3, 1)
            .numpy()
        )
        side = max(_SIDE, levels.shape[2])
        captions = [
            _happened(classes, plan, used, row, soft[row], int(own), line_length(side))
            for row, own in enumerate(labels.tolist())
        ]
        pictures: Sequence[Pixels] = list(levels)
        if overlays and (kornia is not None or not can_follow(plan)):
            remarks = ["boxes, points and masks are not drawn over images that are mixed or changed by Kornia"]
        elif overlays:
            pictures = overlays.over_batch(plan, fields, levels)
        columns.append([Tile(image, lines) for image, lines in zip(pictures, captions, strict=True)])
    names = [classes.text(int(dataset.labels[index]), _NAME) for index in ids.tolist()]
    heads = ["without augmentation"] if policy is None else [f"epoch {epoch + 1}" for epoch in range(epochs)]
    rows = [list(row) for row in zip(*columns, strict=True)]
    save_sheet(rows, names, side, file, classes.letters, classes.letters.text(title), heads)
    return [*classes.remarks(), *remarks]


def _happened(
    classes: "_Classes", plan: Plan | None, policy: Policy, row: int, soft: torch.Tensor, own: int, length: int
) -> tuple[str, ...]:
    """Lines: TrivialAugment's operation or a named policy's, and the shares of classes if others are mixed in."""
    lines = []
    if plan is not None and policy.trivial:
        lines.append(tuple(TRIVIAL)[int(plan.trivial[row]) // (BINS * 2)])
    if plan is not None and policy.named:
        lines += [", ".join(happened) for happened in [layer_names(plan, row)] if happened]
    if plan is not None and policy.mixes:
        shares = sorted(((float(share), label) for label, share in enumerate(soft) if share >= 0.005), reverse=True)
        if [label for _, label in shares] != [own]:
            lines += [f"{LEFT_TO_RIGHT}{share:.0%} {classes.text(label, length - 5)}" for share, label in shares]
    return tuple(lines)


def _rows(
    dataset: Dataset,
    ids: npt.NDArray[np.int64],
    crop: CropRule,
    seed: int,
    epochs: Sequence[int],
    max_pixels: int,
    overlays: Overlays | None = None,
    channels: int = 3,
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, Mapping[str, torch.Tensor]]]:
    """(uint8 images [B, C, S, S], classes [B], weights [B], fields) of `ids` for each epoch, cropped by the loader."""
    settings = LoaderConfig(batch_size=len(ids), order="sequential", seed=seed, workers=1, prefetch=2)
    images = ImageDecoder(crop, max_pixels, channels=channels)
    loader = Loader(dataset, overlays.decoder(images) if overlays else images, settings, "cpu", ids, copy=True)
    batches = []
    try:
        for epoch in epochs:
            loader.set_epoch(epoch)
            batches += [(batch.inputs, batch.targets, batch.weight, batch.fields) for batch in loader]
    finally:
        loader.close()
    return batches


class _Classes:
    """The names of some classes, and how they are drawn."""

    def __init__(self, dataset: Dataset, labels: Iterable[int], title: str = "") -> None:
        self._names = {label: class_name(dataset, label) for label in sorted(set(labels))}
        self.letters: Lettering = lettering([*self._names.values(), title])

    def text(self, label: int, length: int) -> str:
        """A class as it is drawn."""
        return self.letters.class_label(self._names[label], label, length)

    def remarks(self) -> list[str]:
        """For the user: what no font has."""
        return [*filter(None, [self.letters.note(self._names)])]
