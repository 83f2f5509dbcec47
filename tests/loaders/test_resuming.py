"""Resuming at a loader's state, with any number of threads and ranks."""

import numpy as np
import pytest

from fastimg.loaders import DataError, ImageDecoder, RandomResizedCrop

N = 23  # of the fixture `files`
TRAINING = ImageDecoder(RandomResizedCrop(size=16))
pytestmark = pytest.mark.usefixtures("watchdog", "nothing_left")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_resuming_equals_an_uninterrupted_run(files, workers, run, build, frozen, read):
    expected = run(files, TRAINING, epochs=3)
    steps = 6
    for stop in (1, 5, 6, 7, 12):
        first, done = build(files, TRAINING), []
        while len(done) < stop:
            for batch in first:
                done.append(frozen(batch))
                if len(done) == stop:
                    break
        state = first.state_dict()
        first.close()
        assert done == expected[:stop]
        second = build(files, TRAINING, workers=workers, prefetch=2)
        second.load_state_dict(state)
        assert {**second.state_dict(), "epoch": 0, "position": 0} == {**state, "epoch": 0, "position": 0}
        while len(done) < 3 * steps:
            rest = read(second)
            assert rest
            done += rest
        second.close()
        assert done == expected, stop


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (4, 1)])
def test_resuming_with_another_number_of_ranks(before, after, build, numbers, real, frozen, read):
    taken, states = [], []
    for rank in range(before):
        loader = build(numbers(50), batch_size=3, rank=rank, world_size=before)
        batches = iter(loader)
        taken += real([frozen(next(batches)), frozen(next(batches))])
        states.append(loader.state_dict())
        loader.close()
    assert all(state == states[0] for state in states) and len(taken) == 6 * before
    left, steps = [], set()
    for rank in range(after):
        loader = build(numbers(50), batch_size=3, rank=rank, world_size=after)
        loader.load_state_dict(states[0])
        batches = read(loader)
        left += real(batches)
        steps.add(len(batches))
        loader.close()
    assert sorted(taken + left) == list(range(50)) and len(steps) == 1


def test_a_state_from_before_the_first_batch_or_after_the_last(run, numbers, build, read):
    expected = run(numbers(N), epochs=2)
    for epochs, rest in ((0, expected), (1, expected[6:])):
        loader = build(numbers(N))
        for _ in range(epochs):
            read(loader)
        state = loader.state_dict()
        loader.close()
        again = build(numbers(N))
        again.load_state_dict(state)
        got = read(again)
        again.close()
        assert got == rest[:6]


def test_a_state_of_other_data_or_another_seed_is_refused(build, numbers):
    loader = build(numbers(N))
    state = loader.state_dict()
    for other in (
        build(numbers(N + 1)),
        build(numbers(N, "others")),
        build(numbers(N), indices=np.arange(N - 1)),
        build(numbers(N), indices=np.arange(N)[::-1].copy()),
    ):
        with pytest.raises(DataError, match="not the data that the run began with"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="made with seed 0, but the loader has 1"):
        build(numbers(N), seed=1).load_state_dict(state)


def test_a_state_of_another_part_of_the_data_is_refused(build, numbers):
    ours, theirs = (build(numbers(N), indices=part) for part in (np.arange(10), np.arange(10, 20)))
    with pytest.raises(DataError, match="not the data"):
        ours.load_state_dict(theirs.state_dict())
    same = build(numbers(N), indices=np.arange(10))
    same.load_state_dict(ours.state_dict())
