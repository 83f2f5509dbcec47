"""What crops of images cost that a library decodes, and of what `convert --recompress` makes of them: tried on a few.

JPEG, PNG, BMP, PPM and TIFF without compression are decoded by compiled code, of which a crop takes a part. WebP, AVIF,
HEIF, GIF, other TIFFs and others are decoded by their libraries, mostly as a whole.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.loaders import DataError, Dataset, ImageDecoder, ImageError, open_dataset
from fastimg.loaders.compiling_ahead import compile_path
from fastimg.loaders.decode import COMPILED_FORMATS, read_header
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.pictures.tiff import is_plain_tiff
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.wording import plural

from .pipeline import convert

CHANGES = ("jpeg:95", "lossless")  # values of --recompress
_PLAIN_TIFF = "tiff, not compressed"
_COMPILED = COMPILED_FORMATS | {_PLAIN_TIFF}
LOOKED_AT = 32  # images whose formats are counted
_TRIED = 8  # of these, and pixels of all of them: recompressing so many takes a few seconds
_PIXELS = 2_000_000
_SECONDS = 0.2  # of decoding


@dataclass(frozen=True, kw_only=True)
class SlowFormats:
    """The cost of crops of images that a library decodes, in processor time and by a thread of the loader."""

    formats: dict[str, int]  # of the images that were looked at
    images: int  # that were tried
    milliseconds: float
    images_per_second: float
    recompressed_images_per_second: dict[str, float | None]  # None: it leaves these images as they are

    def record(self) -> dict[str, Any]:
        """The numbers for --json."""
        return asdict(self)

    def sentence(self) -> str:
        """The same in words."""
        slow = ", ".join(f"{count} {name}" for name, count in self.formats.items() if name not in _COMPILED)
        rates = self.recompressed_images_per_second
        gains = [f"{value} {rate:,.0f}" for value, rate in rates.items() if rate is not None]
        kept = [value for value, rate in rates.items() if rate is None]
        text = (
            f"{slow} of {plural(sum(self.formats.values()), 'image')} looked at are decoded by libraries: a crop takes "
            f"{self.milliseconds:.2f} ms, {self.images_per_second:,.0f} img/s a thread"
        )
        if gains:
            text += f"; after `fastimg convert --recompress` {', '.join(gains)} img/s"
        if kept:
            text += f"; --recompress {' or '.join(kept)} would change nothing"
        return f"{text} ({self.images} tried)"


def try_slow_formats(
    dataset: Dataset, ids: npt.NDArray[np.int64], decoder: ImageDecoder, say: Callable[[str], object]
) -> SlowFormats | None:
    """Measure with the first of these samples; None if compiled code decodes most, or all are too large to try."""
    formats: Counter[str] = Counter()
    chosen: dict[str, bytes] = {}
    pixels, scratch = 0, Scratch()
    for index in ids[:LOOKED_AT].tolist():
        with suppress(DataError, ImageError):  # such samples are named elsewhere
            data = dataset.read(index, scratch)
            header = read_header(data)
            name = _PLAIN_TIFF if header.format == "tiff" and is_plain_tiff(data) else header.format
            formats[name] += 1
            size = header.width * header.height
            if name not in _COMPILED and len(chosen) < _TRIED and pixels + size <= _PIXELS:
                chosen[f"{index}.{header.extension}"] = bytes(data)
                pixels += size
    slow = sum(count for name, count in formats.items() if name not in _COMPILED)
    if not chosen or 2 * slow <= formats.total():
        return None
    with tempfile.TemporaryDirectory(prefix="fastimg-formats-") as folder:
        source = Path(folder) / "source"
        (source / "images").mkdir(parents=True)
        for name, content in chosen.items():
            (source / "images" / name).write_bytes(content)
        seconds = _seconds(source, decoder, say)
        after = {value: _seconds_after(value, source, decoder, say) for value in CHANGES}
    return SlowFormats(
        formats=dict(formats.most_common()),
        images=len(chosen),
        milliseconds=round(1e3 * seconds, 3),
        images_per_second=round(1 / seconds, 1),
        recompressed_images_per_second={value: each and round(1 / each, 1) for value, each in after.items()},
    )


def _seconds_after(value: str, source: Path, decoder: ImageDecoder, say: Callable[[str], object]) -> float | None:
    """Seconds of a crop of what --recompress makes of these images; None if it leaves all of them as they are."""
    made = source.parent / value.replace(":", "-")
    report = convert(Convert(src=source, dst=made, recompress=value, workers="1"), Console(quiet=True))
    return _seconds(made, decoder, say) if report.recompressed else None


def _seconds(folder: Path, decoder: ImageDecoder, say: Callable[[str], object]) -> float:
    """Seconds of processor time of a crop, by a thread of the loader."""
    dataset = open_dataset(folder)
    try:
        ids = np.arange(len(dataset))
        compile_path(decoder, dataset, ids[:1], say)
        rows = {field.name: np.zeros((len(ids), *field.shape), field.dtype) for field in decoder.fields}
        reader, scratch = SampleReader(dataset), Scratch()
        epochs, spent, began = 0, 0.0, time.process_time()
        while spent < _SECONDS:
            decoder.fill(reader, ids.tolist(), decoder.draw(0, epochs, ids), rows, scratch)
            epochs += 1
            spent = time.process_time() - began
        return spent / (epochs * len(ids))
    finally:
        dataset.close()
