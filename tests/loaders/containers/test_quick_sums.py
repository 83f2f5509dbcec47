"""The quick checksum: of blocks, in pieces of any size, in any order of the parts."""

import hashlib
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from fastimg.loaders.containers import quick_sums
from fastimg.loaders.containers.quick_sums import BLOCK, QuickSum, both_sums_of_file, sum_of, sum_of_file
from fastimg.loaders.remote.fetching import RANGE


def by_definition(content: bytes, block: int) -> str:
    digests = [xxhash.xxh3_128_digest(content[at : at + block]) for at in range(0, len(content), block)]
    return xxhash.xxh3_128_hexdigest(b"".join(digests))


@given(st.binary(max_size=50), st.lists(st.integers(1, 20), max_size=10))
def test_pieces_do_not_matter(content: bytes, sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick_sums, "BLOCK", 8)
        found, rest = QuickSum(), memoryview(content)
        for size in sizes:
            found.update(rest[:size])
            rest = rest[size:]
        found.update(rest)
        assert found.hexdigest() == by_definition(content, 8)


def test_parts_of_whole_blocks_can_be_summed_by_themselves() -> None:
    content = bytes(range(256)) * (2 * BLOCK // 256) + b"end"
    whole, first, second = QuickSum(), QuickSum(), QuickSum()
    whole.update(content)
    second.update(content[BLOCK:])
    first.update(content[:BLOCK])
    assert whole.hexdigest() == sum_of([*first.digests(), *second.digests()]) == by_definition(content, BLOCK)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_a_file(tmp_path: Path, size: int) -> None:
    content = b"?" * size
    (tmp_path / "a").write_bytes(content)
    assert sum_of_file(tmp_path / "a") == by_definition(content, BLOCK)
    assert both_sums_of_file(tmp_path / "a") == (hashlib.sha256(content).hexdigest(), by_definition(content, BLOCK))


def test_the_sum_stays_what_it_is() -> None:
    """Datasets state it."""
    found = QuickSum()
    found.update(b"fastimg" * 200_000)
    assert found.hexdigest() == "95dfb034d511cff6893ff301b3cc1fb1"


def test_ranges_of_a_remote_file_are_whole_blocks() -> None:
    assert RANGE % BLOCK == 0
