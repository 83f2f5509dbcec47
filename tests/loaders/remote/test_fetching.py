"""Whole files that are fetched: what is written where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastimg.loaders.remote import fetching


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(0, 3), st.integers(1, 20))
def test_pieces_are_written_up_to_round_offsets(sizes: list[int], start: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "_ALIGNED", 16)
        begin, data = 16 * start, bytes(range(256)) * 5
        stop = begin + sum(sizes)
        written, ends = bytearray(stop), []

        def short(file: int, parts: list[memoryview], at: int) -> int:
            joined = b"".join(parts)[:most]  # a system may write less than it was given
            written[at : at + len(joined)] = joined
            ends.append(at + len(joined))
            return len(joined)

        patch.setattr(fetching.os, "pwritev", short)
        writer = fetching._AlignedWriter(0, begin, stop)
        at, calls = 0, []
        for size in sizes:
            writer.write(memoryview(data)[at : at + size])
            at += size
            calls.extend(ends[-1:])
        assert bytes(written[begin:]) == data[:at]
        assert all(end % 16 == 0 or end == stop for end in calls)
