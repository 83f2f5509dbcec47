"""Numbers of bytes in words, and as users write them."""

import re


def in_words(count: int) -> str:
    """A number of bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def parse_size(text: str) -> int:
    """The bytes that a size such as 200GB, 1.5 TB, 64GiB or 1000000 states. Raises ValueError."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if found is None or (found[3] and not found[2]):
        raise ValueError(f"{text!r} is not a size; give bytes, or a number with KB, MB, GB or TB, as in 200GB")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** " KMGT".index(found[2].upper() or " "))
