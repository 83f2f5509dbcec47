"""Sizes that the headers of members state, of several members in one compiled call."""

from typing import Any

from fastimg.loaders.jpeg.decoding.memory import byte_at
from fastimg.loaders.runtime.compiled import held, uint64

_AT, _DIGITS = 124, 11  # the field of a header (POSIX ustar): octal digits, then a 0


@held
def are_stated(rooms: Any, sizes: Any, filled: Any) -> bool:
    """Whether each header that is filled, at the address rooms[k, 0], states the size in eleven octal digits."""
    for i in range(sizes.size):
        if not filled[i]:
            continue
        at = uint64(rooms[i, 0] + _AT)
        size = sizes[i]
        for digit in range(_DIGITS):
            expected = ord("0") + (size >> (3 * (_DIGITS - 1 - digit)) & 7)
            if byte_at(at + uint64(digit)) != uint64(expected):
                return False
        if size >> (3 * _DIGITS) or byte_at(at + uint64(_DIGITS)) != uint64(0):
            return False
    return True
