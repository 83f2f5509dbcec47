"""What results look like in a notebook: tables and pictures as HTML, for their `_repr_html_`.

Names of files and classes are text here, never markup. A picture is part of the page: a saved notebook keeps it.
"""

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_LARGEST = 4_000_000  # bytes of a picture that becomes part of a notebook; a larger one is only named
_THUMBNAIL = 96  # pixels
ROWS = 20  # of a table that may be long


def page(*parts: str) -> str:
    """Parts below each other; empty ones are left out."""
    return f"<div>{''.join(part for part in parts if part)}</div>"


def facts(rows: Mapping[str, object] | Iterable[tuple[str, object]]) -> str:
    """A name and what belongs to it, a row each; without those of which nothing is known."""
    lines = "".join(
        f"<tr><th style='text-align:left'>{_text(name)}</th><td style='text-align:left'>{_text(value)}</td></tr>"
        for name, value in (rows.items() if isinstance(rows, Mapping) else rows)
        if value is not None and value != ""
    )
    return f"<table>{lines}</table>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], total: int | None = None) -> str:
    """A table; `total` says of how many rows these are the first, where there are more. Cells may be `Picture`s."""
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    told = list(rows)
    lines = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in told)
    more = f"<p>... {total - len(told):,} more</p>" if total is not None and total > len(told) else ""
    return f"<table><tr>{head}</tr>{lines}</table>{more}"


def line(text: str) -> str:
    """A sentence."""
    return f"<p>{_text(text)}</p>"


class Picture(str):
    """HTML that a table shows as it is."""


def picture(file: Path | str | None) -> str:
    """A PNG file with its name below; where it cannot be shown, as at a URL, only the name."""
    if file is None:
        return ""
    path = Path(file)
    try:
        shown = path.is_file() and path.suffix.lower() == ".png" and path.stat().st_size <= _LARGEST
        content = path.read_bytes() if shown else b""
    except OSError:
        content = b""
    image = f"<img style='max-width:100%' src='{_data(content, 'png')}'/>" if content else ""
    return f"<figure>{image}<figcaption>{_text(file)}</figcaption></figure>"


def thumbnail(file: Path | str) -> Picture:
    """A small version of an image file; nothing where there is no image."""
    from PIL import ImageOps

    from fastimg.loaders.opening import open_image

    try:
        with open_image(Path(file)) as image:
            image.draft("RGB", (2 * _THUMBNAIL, 2 * _THUMBNAIL))
            small = ImageOps.exif_transpose(image).convert("RGB")
            small.thumbnail((_THUMBNAIL, _THUMBNAIL))
            buffer = io.BytesIO()
            small.save(buffer, "JPEG")
    except Exception:  # noqa: BLE001 - Pillow raises many kinds for damaged files, and the table goes without
        return Picture()
    return Picture(f"<img src='{_data(buffer.getvalue(), 'jpeg')}'/>")


def share(value: float) -> str:
    """A fraction as percents."""
    return f"{value:.2%}"


def _data(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _cell(value: object) -> str:
    return str(value) if isinstance(value, Picture) else _text(value)


def _text(value: object) -> str:
    return html.escape(str(value))
