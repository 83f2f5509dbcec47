"""The quick checksum of a file: 20 to 30 times as fast as SHA-256, and any part of a file can be summed by itself.

It is the XXH3-128 digest of the XXH3-128 digests (16 bytes each, big-endian) of the file's blocks of BLOCK bytes, of
which the last may be shorter. It finds damage. It is no protection from someone who makes a file for the same sum: that
is SHA-256, which dataset.json states beside it.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

BLOCK = 1 << 20  # bytes


class QuickSum:
    """The sum of bytes that come in order, in pieces of any size."""

    def __init__(self) -> None:
        import xxhash  # here, because most who read datasets need no sum

        self._block = xxhash.xxh3_128()
        self._room = BLOCK
        self._digests: list[bytes] = []

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        view = memoryview(data)
        while view.nbytes:
            piece = view[: self._room]
            self._block.update(piece)
            self._room -= piece.nbytes
            if not self._room:
                self._end_block()
            view = view[piece.nbytes :]

    def digests(self) -> list[bytes]:
        """The digests of all blocks, after which nothing may be added."""
        if self._room < BLOCK:
            self._end_block()
        return self._digests

    def hexdigest(self) -> str:
        """The sum, after which nothing may be added."""
        return sum_of(self.digests())

    def _end_block(self) -> None:
        self._digests.append(self._block.digest())
        self._block.reset()
        self._room = BLOCK


def sum_of(digests: Iterable[bytes]) -> str:
    """The sum of a file whose blocks have these digests, in hexadecimal digits."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(b"".join(digests))


def sum_of_file(file: Path) -> str:
    """The sum of a file. Raises OSError."""
    found = QuickSum()
    with file.open("rb", buffering=0) as content:
        while block := content.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def both_sums_of_file(file: Path) -> tuple[str, str]:
    """The SHA-256 and the quick sum of a file, which is read once. Raises OSError."""
    digest, found = hashlib.sha256(), QuickSum()
    with file.open("rb", buffering=0) as content:
        while block := content.read(BLOCK):
            digest.update(block)
            found.update(block)
    return digest.hexdigest(), found.hexdigest()
