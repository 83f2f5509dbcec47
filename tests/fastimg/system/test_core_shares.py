"""Cores of processes that share a machine."""

import os

import pytest

from fastimg.system.core_shares import CoreClaim, even_share


@pytest.fixture
def siblings(tmp_path, monkeypatch):
    """A machine of four processors with two threads each: 0 and 4, 1 and 5, ..."""
    for core in range(8):
        file = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(f"{core % 4},{core % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def test_shares_are_even_and_of_whole_processors(siblings):
    assert [even_share(place, 2, siblings) for place in range(2)] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    thirds = [even_share(place, 3, siblings) for place in range(3)]
    assert sorted(core for share in thirds for core in share) == list(range(8))
    assert sorted(map(len, thirds)) == [2, 3, 3]


@pytest.mark.parametrize("count", [1, 9])
def test_one_process_and_too_many_have_all_cores(siblings, count):
    assert even_share(0, count, siblings) == ()


def test_claims_are_disjoint_until_there_are_no_more(tmp_path):
    first, second = (CoreClaim(2, range(5), tmp_path) for _ in range(2))
    assert (first.cores, second.cores) == ((0, 1), (2, 3))
    third = CoreClaim(2, range(5), tmp_path)
    assert third.cores == (0, 4)  # the last free one, and one that is shared
    first.release()
    assert CoreClaim(2, range(5), tmp_path).cores == (0, 1)


@pytest.mark.parametrize("count", [0, 5, 6])
def test_no_cores_are_claimed_where_all_are_asked_for(tmp_path, count):
    assert CoreClaim(count, range(5), tmp_path / "none").cores == ()
    assert not (tmp_path / "none").exists()
