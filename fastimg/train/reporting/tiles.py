"""A sheet of captioned pictures: a white grid, saved as a PNG."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .lettering import Lettering
from .plots import write_figure

Pixels = npt.NDArray[np.uint8]  # [H, W, 3]

_GAP, _LINE = 8, 16  # pixels between tiles, and of a line of a caption
_MARGIN = 116  # pixels for the names of rows
_SIZE = 7.5  # points of letters
_RED = "#b00020"


@dataclass(frozen=True)
class Tile:
    """A picture with the lines of its caption, as they are drawn; the first line is red if something is `wrong`."""

    pixels: Pixels
    lines: tuple[str, ...] = ()
    wrong: bool = False


def line_length(side: int) -> int:
    """The characters of a caption below a tile of so many pixels."""
    return max(8, side // 6)


def save_sheet(
    rows: Sequence[Sequence[Tile]],
    names: Sequence[str],
    side: int,
    file: Path,
    letters: Lettering,
    title: str = "",
    heads: Sequence[str] = (),
) -> None:
    """Save tiles as a PNG, with a name before each row and a head above each column if there are any. Raises OSError.

    A tile has `side` pixels each way, and no larger picture. Small pictures are enlarged by a whole factor.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tiles = [tile for row in rows for tile in row]
    across = side + _GAP
    down = across + _LINE * max((len(tile.lines) for tile in tiles), default=1)
    margin = _GAP + (_MARGIN if any(names) else 0)
    head = _GAP + (2 * _LINE if title else 0) + (_LINE if heads else 0)
    width, height = margin + across * max(map(len, rows), default=1), head + down * max(0 if title else 1, len(rows))
    width = max(width, int(len(title) * 8.5)) if title else width
    canvas = np.full((height, width, 3), 255, np.uint8)
    figure = Figure(figsize=(width / 100, height / 100), dpi=100)
    FigureCanvasAgg(figure)

    def write(x: float, y: float, text: str, place: str, size: float = _SIZE, colour: str = "black") -> None:
        x, y = x / width, 1 - y / height
        figure.text(x, y, text, fontsize=size, ha=place, va="center", color=colour, parse_math=False)

    if title:
        write(_GAP, _GAP + _LINE / 2, title, "left", 10)
    for column, text in enumerate(heads):
        write(margin + column * across + side / 2, head - _LINE / 2, text, "center")
    for number, (row, name) in enumerate(zip(rows, names, strict=True)):
        top = head + number * down
        write(margin - _GAP, top + side / 2, name, "right")
        for column, tile in enumerate(row):
            left = margin + column * across
            factor = max(1, side // max(tile.pixels.shape[:2]))
            pixels = tile.pixels.repeat(factor, axis=0).repeat(factor, axis=1)
            h, w = pixels.shape[:2]
            y, x = top + (side - h) // 2, left + (side - w) // 2
            canvas[y : y + h, x : x + w] = pixels
            for line, text in enumerate(tile.lines):
                colour = _RED if tile.wrong and line == 0 else "black"
                write(left + side / 2, top + side + _LINE * (line + 0.6), text, "center", colour=colour)
    figure.figimage(canvas, 0, 0)
    letters.apply(figure)
    write_figure(figure, file, dpi=100, format="png")
