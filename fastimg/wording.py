"""How counts, values and long names are written, everywhere the same."""

import re

_VERBS = {"is": "are", "was": "were", "has": "have"}
_FLAGS = {
    "use on_error=skip": "use --on-error skip",
    "more than max_pixels=": "more than --max-pixels ",
    "use resume=True": "use --resume",
    "with resume=True": "with --resume",
    "with overwrite=True": "with --overwrite",
    "use classes=leaf": "use --classes leaf",
    "use classes=top": "use --classes top",
    "leave out classes=leaf": "leave out --classes leaf",
    "or classes=top": "or --classes top",
    "with key_dots=": "with --key-dots ",
    "with image_member=": "with --image-member ",
    "larger cache_limit=": "larger --cache-limit",
    "with cache_dir=": "with --cache-dir",
    "and storage_options=": "and --storage-option",
    "with storage_options=": "with --storage-option",
    "smaller window=": "smaller --order-window",
    "use order='quasi-random' with block='shard'": "use --order quasi-random",
}
_SIBILANTS = ("s", "x", "z", "ch", "sh")
_HARD = ("epoch",)  # its ch is a k

# What moves a terminal's cursor, colours it or turns text around, and bytes of names that are not UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Bytes as Python writes them, base64, and what is longer than a file's name can be. Paths are left whole.
_BYTES = re.compile(r"""b'(?:[^'\\]|\\.){200,}'|b"(?:[^"\\]|\\.){200,}\"""")
_WORD = re.compile(r"(?<![\w/.-])[A-Za-z0-9+/=]{1001,}|[^\s/]{301,}")
_MOST = 4000  # characters of an error


def for_terminal(text: str) -> str:
    """Text that only prints, wherever its names come from: control characters are written as escapes, such as \\x1b."""
    return _UNPRINTABLE.sub(lambda found: _escaped(found[0]), text)


def _escaped(letter: str) -> str:
    return f"\\x{ord(letter):02x}" if ord(letter) < 256 else f"\\u{ord(letter):04x}"


def without_cells(sentence: str) -> str:
    """A sentence with the begin and the end of cells of bytes, base64 and other endless words."""
    for cell in (_BYTES, _WORD):  # bytes first: as a word, those in a list would end at the first blank in them
        sentence = cell.sub(lambda found: f"{found[0][:60]}…{found[0][-20:]}", sentence)
    return sentence


def brief(sentence: str) -> str:
    """What an error says, without cells, and not endless."""
    sentence = without_cells(sentence)
    return sentence if len(sentence) <= _MOST else f"{sentence[: _MOST - 1000]} … {sentence[-900:]}"


def plural(count: int, noun: str, verb: str = "") -> str:
    """`count` and `noun` in the number that goes with it, then `verb`: "1 class is", "1,200 batches are"."""
    words = f"{count:,} {noun if count == 1 else several(noun)}"
    return f"{words} {agreeing(count, verb)}" if verb else words


def agreeing(count: int, verb: str) -> str:
    """A verb, given in the singular, as it goes with a count: is, are."""
    return verb if count == 1 else _VERBS[verb]


def several(noun: str) -> str:
    """The plural of a noun, given in the singular."""
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(_SIBILANTS) and not noun.endswith(_HARD) else f"{noun}s"


def number(rate: float) -> str:
    """A rate for people: 1,234 or 12.3."""
    return f"{rate:,.0f}" if rate >= 99.95 else f"{rate:.1f}"


def legible(value: float) -> str:
    """A value of a target for people: seven significant digits or more, so that large ones keep two decimals."""
    if not abs(value) < 1e15:  # no decimals are left, or it is infinite or NaN
        return repr(float(value))
    before = len(str(int(abs(value))))  # digits in front of the point
    return f"{value:.{max(7, before + 2)}g}"


def with_flags(sentence: str) -> str:
    """A sentence of the loaders, which name their settings, with the command line's flags instead."""
    for setting, flag in _FLAGS.items():
        sentence = sentence.replace(setting, flag)
    return sentence


def shortened(text: str, length: int) -> str:
    """At most `length` characters of `text`; an ellipsis says that some are missing."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"
