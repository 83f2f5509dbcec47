"""Entries of a source, and selections of them."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from fastimg.convert.sources.samples import Entries, SourceEntry

entry = st.builds(
    SourceEntry,
    st.text(st.characters(), max_size=8),
    st.integers(-1, 5),
    st.integers(0, 1 << 40),
    st.integers(-1, 9),
    st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1, max_size=2),
    st.integers(0, 9),
    st.integers(0, 3),
)


@given(st.lists(entry, max_size=12), st.integers(0, 12), st.integers(0, 12), st.sampled_from([1, 2, -1]))
def test_a_selection_is_the_same_with_memory_of_its_own(made: list[SourceEntry], start: int, stop: int, step: int):
    chosen = Entries(made)[start:stop:step]
    compact = chosen.compact()
    assert list(compact) == list(chosen) == made[start:stop:step]
    assert compact.labels.tolist() == chosen.labels.tolist()
    assert list(compact[1:]) == list(chosen)[1:]


def test_one_of_many_is_small() -> None:
    every = Entries(SourceEntry(f"{number:06d}.jpg", 0, 1) for number in range(10_000))
    assert len(pickle.dumps(every[5:15].compact())) < 2_000 < len(pickle.dumps(every[5:15]))
