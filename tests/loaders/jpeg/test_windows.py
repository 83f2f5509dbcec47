"""Windows of crops in compiled code are those that the crops' own rules give."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastimg.loaders.crop import CenterCrop, RandomCrop, RandomResizedCrop, Window, reaches_out, shape_of
from fastimg.loaders.jpeg.decoding.crops import _JOB
from fastimg.loaders.jpeg.windows import compiled_rule, find_window, place_window

SIDES = st.integers(1, 65500)


def found(crop, width, height, draws, max_pixels=1 << 62):
    """The window in compiled code; None if it is left to others."""
    jobs = np.zeros(1, _JOB)
    if not find_window(width, height, np.array(draws, np.float64), compiled_rule(crop), jobs, max_pixels):
        return None
    x, y, w, h, wide, tall, at_x, at_y = map(int, list(jobs[0].item())[-8:])
    return Window((x, y, w, h), (wide, tall), (at_x, at_y))


def check(crop, width, height, draws):
    tall, wide = shape_of(crop)
    expected = crop.window(width, height, draws)
    assert found(crop, width, height, draws) == (None if reaches_out(expected, wide, tall) else expected)


@given(SIDES, SIDES, st.integers(0, 1 << 32), st.data())
def test_random_crops(width, height, seed, data):
    narrow, broad = sorted(data.draw(st.tuples(*[st.floats(0.01, 50)] * 2)))
    low, high = sorted(data.draw(st.tuples(*[st.floats(1e-4, 1)] * 2)))
    size = data.draw(st.sampled_from([1, 224, (96, 160)]))
    rng = np.random.default_rng(seed)
    draws = rng.random(22) if data.draw(st.booleans()) else rng.choice([0.0, 0.5, 1 - 2.0**-53], 22)
    check(RandomResizedCrop(size=size, scale=(low, high), ratio=(narrow, broad)), width, height, draws.tolist())


def test_many_random_crops_of_photographs():
    """As `train` draws them: the exponential is the same to its last bit, or a side would differ somewhere."""
    crop, rng = RandomResizedCrop(size=224), np.random.default_rng(0)
    for draws in rng.random((20000, 22)).tolist():
        check(crop, *rng.integers(16, 6000, 2).tolist(), draws)


@given(SIDES, SIDES, st.integers(1, 600), st.integers(1, 600), st.integers(0, 300), st.integers(0, 300))
def test_centre_crops(width, height, tall, wide, above, beside):
    check(CenterCrop(size=(tall, wide), resize=(tall + above, wide + beside)), width, height, ())
    check(CenterCrop(size=tall, resize=tall + above), width, height, ())


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 40), st.integers(1, 40), st.data())
def test_padded_crops(width, height, tall, wide, data):
    crop = RandomCrop(size=(tall, wide), padding=data.draw(st.integers(0, min(tall, wide) - 1)))
    draws = data.draw(st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2))
    jobs = np.zeros(1, _JOB)
    assert compiled_rule(crop) is None  # JPEGs leave it to others
    place_window(width, height, np.array(draws), compiled_rule(crop, padded=True), jobs)
    x, y, w, h, *rest = map(int, list(jobs[0].item())[-8:])
    assert ((x, y, w, h), (rest[0], rest[1]), (rest[2], rest[3])) == crop.window(width, height, draws)


def test_windows_that_are_too_large_are_left_to_others():
    crop = CenterCrop(size=8, resize=256)
    assert crop.window(30000, 1, ()).size == (256 * 30000, 256)
    assert found(crop, 30000, 1, (), 256 * 256 * 30000 - 1) is None
    assert found(crop, 30000, 1, (), 256 * 256 * 30000) == crop.window(30000, 1, ())


def test_only_the_two_rules_themselves_are_known():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(RandomResizedCrop):
        pass

    @dataclasses.dataclass
    class Mine:  # which has no hash
        size: int = 8

    for unknown in (RandomCrop(size=8, padding=2), Other(size=8), Mine()):
        assert compiled_rule(unknown) is None
