"""Fonts for plots: which installed fonts have the characters of a text, and what is drawn if none has."""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastimg.errors import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontEntry
    from matplotlib.ft2font import FT2Font

LEFT_TO_RIGHT = "\u200e"  # a mark, not seen: what begins with a number takes the direction of its first letter
_NAMED = 5  # characters that a note names
_LOST = 0.25  # share of a name's characters that may be code points; with more, a number says as much
_SHAPED = (0x0590, 0x109F)  # Hebrew, Arabic, the scripts of India and its neighbours: letters join or change places
_PLACEHOLDERS = "Last Resort"  # its glyphs are boxes that name a script, for every character there is


@dataclass(frozen=True)
class Lettering:
    """Font families for some texts, in order of preference, and the characters that no installed font has."""

    families: tuple[str, ...]
    missing: frozenset[str] = frozenset()

    def text(self, text: str, length: int | None = None) -> str:
        """`text` as it is drawn: characters that no font has become their code points, `\\u72ac`.

        Text longer than `length` is shortened in its middle, not within a code point: its ends tell names apart.
        """
        pieces = [_code_point(char) if char in self.missing else char for char in _plain(text)]
        if length is None or sum(map(len, pieces)) <= length:
            return "".join(pieces)
        tail = _fitting(reversed(pieces), (length - 1) // 2)
        head = _fitting(pieces, length - 1 - sum(map(len, tail)))
        return f"{''.join(head).rstrip()}…{''.join(reversed(tail)).lstrip()}"

    def class_label(self, name: str, number: int, length: int | None = None) -> str:
        """A class's name as it is drawn, or `class 7` if fonts lack too much of it."""
        return self.text(name, length) if self._is_legible(name) else f"class {number}"

    def _is_legible(self, name: str) -> bool:
        letters = [char for char in _plain(name) if char != " "]
        return sum(char in self.missing for char in letters) <= _LOST * len(letters)

    def apply(self, figure: "Figure") -> None:
        """Set the fonts of all texts in a figure."""
        from matplotlib.text import Text

        for artist in figure.findobj(Text):
            artist.set_fontfamily(list(self.families))

    def note(self, classes: Mapping[int, str] | None = None) -> str | None:
        """For the user: what is drawn as code points or as a class's number, and what to do. None if all are drawn.

        `classes` are those whose names are drawn by `class_label`.
        """
        numbered = {number: name for number, name in (classes or {}).items() if not self._is_legible(name)}
        rest = {char for number, name in (classes or {}).items() if number not in numbered for char in _plain(name)}
        coded = sorted(self.missing if classes is None else self.missing & rest)
        shown = [f"{char} as {_code_point(char)}" for char in coded]
        shown = [f"{printable(name)} as class {number}" for number, name in numbered.items()] + shown
        if not shown:
            return None
        more = f" and {len(shown) - _NAMED:,} more" if len(shown) > _NAMED else ""
        return (
            f"no installed font has all characters of the names: pictures show {', '.join(shown[:_NAMED])}{more}; "
            "install a font that has them, such as Noto Sans CJK or Noto Emoji"
        )


def lettering(texts: Iterable[str]) -> Lettering:
    """Fonts that have the characters of `texts`: matplotlib's default first, then as few others as possible."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties, findfont

    families = list(rcParams["font.family"])
    missing = {char for text in texts for char in _plain(text) if not char.isascii()}
    unshaped = set[str]() if _shapes() else {char for char in missing if _SHAPED[0] <= ord(char) <= _SHAPED[1]}
    missing -= unshaped
    if missing:
        missing -= _drawable(findfont(FontProperties(family=families)), missing)
    fallbacks = dict(_fallbacks(missing)) if missing else {}
    while missing:
        best = max(sorted(fallbacks), key=lambda name: len(fallbacks[name] & missing), default=None)
        if best is None or not fallbacks[best] & missing:
            break
        families.append(best)
        missing -= fallbacks.pop(best)
    return Lettering(tuple(families), frozenset(missing | unshaped))


def _shapes() -> bool:
    """Whether matplotlib joins and orders letters: it does from 3.11 on."""
    from matplotlib import ft2font

    return hasattr(ft2font, "__libraqm_version__")


def _fitting(pieces: Iterable[str], length: int) -> list[str]:
    """The first pieces that are not longer than `length` together."""
    kept: list[str] = []
    for piece in pieces:
        if sum(map(len, kept)) + len(piece) > length:
            break
        kept.append(piece)
    return kept


def _fallbacks(wanted: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Each installed family, and those of the `wanted` characters that it draws."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {str(entry.fname) for entry in fontManager.ttflist}
    for file in sorted(set(map(str, findSystemFonts())) - known):  # installed after matplotlib made its list
        try:
            fontManager.addfont(file)
        except (OSError, RuntimeError, ValueError):  # not a font, or one that FreeType cannot open
            continue
    regular: dict[str, FontEntry] = {}
    for entry in sorted(fontManager.ttflist, key=_distance_from_regular, reverse=True):
        regular[entry.name] = entry
    for name, entry in sorted(regular.items()):
        if not name.startswith(_PLACEHOLDERS):
            yield name, _drawable(str(entry.fname), wanted)


def _distance_from_regular(entry: "FontEntry") -> tuple[bool, int]:
    """How far a face is from its family's upright one of normal weight."""
    return entry.style != "normal", abs(int(entry.weight) - 400) if str(entry.weight).isdigit() else 0


def _drawable(file: str, wanted: set[str]) -> set[str]:
    """Those of the `wanted` characters for which a font has an outline: bitmap emoji have none."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(file)
        characters = font.get_charmap()
        present = {char for char in wanted if ord(char) in characters}
        if not present or not font.scalable:
            return set()
        font.set_size(12, 72)
        return {char for char in present if _has_outline(font, char)}
    except (OSError, RuntimeError):  # the file is gone, or FreeType cannot use it
        return set()


def _has_outline(font: "FT2Font", char: str) -> bool:
    font.load_char(ord(char))
    return len(font.get_path()[0]) > 0


def _plain(text: str) -> str:
    """Composed, white space as single characters, control characters as code points, without what is invisible."""
    drawn = ""
    for char in unicodedata.normalize("NFC", printable(text)):
        category = unicodedata.category(char)
        if char.isspace():
            drawn += " "
        elif category == "Cc":
            drawn += _code_point(char)
        elif category != "Cf" and not "\ufe00" <= char <= "\ufe0f":  # joiners, directions, variation selectors
            drawn += char
    return drawn


def _code_point(char: str) -> str:
    return char.encode("ascii", "backslashreplace").decode() if not char.isascii() else f"\\x{ord(char):02x}"
