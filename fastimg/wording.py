"""How counts, values and long names are written, everywhere the same."""

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
