"""When images are worth storing as raw pixels: the gain by side and kind, and whether memory holds the pixels."""

import pytest

from fastimg.bench import raw_pixels
from fastimg.bench.raw_pixels import as_raw_pixels

SMALL = {
    "count": 50_000,
    "area": 64.0 * 64,
    "side": 64,
    "largest": 64 * 72,
    "jpegs": 1.0,
    "tiled": 0.0,
    "pngs": 0.0,
    "available": 2 << 30,
}


@pytest.fixture(autouse=True)
def gains(monkeypatch):
    """Flat JPEGs gain 4, and 2 from 128 pixels on; PNGs gain 8, and tiled JPEGs hardly anything."""
    table = {"jpeg": (4.0, 4.0, 2.0, 2.0, 2.0, 2.0), "tiled": (1.1,) * 6, "png": (8.0,) * 6}
    monkeypatch.setattr(raw_pixels, "_GAINS", table)


def test_small_images_that_memory_holds():
    found = as_raw_pixels(**SMALL)
    assert found == ("--format beton --raw-below 14KB", {"format": "beton", "raw_below": "14KB"}, 614_400_000, 4.0)
    assert 3 * SMALL["largest"] <= 14_000  # all of them become raw


def test_the_gain_is_that_of_the_side_and_of_the_kinds():
    assert as_raw_pixels(**SMALL | {"side": 96}).gain == pytest.approx(3)
    assert as_raw_pixels(**SMALL | {"side": 20}).gain == 4
    assert as_raw_pixels(**SMALL | {"jpegs": 0.5, "pngs": 0.5}).gain == 6
    assert as_raw_pixels(**SMALL | {"jpegs": 0.9}).gain == pytest.approx(4)


@pytest.mark.parametrize(
    "changes",
    [
        {"available": 1 << 30},  # memory holds only part of the pixels
        {"tiled": 1.0},  # little to gain
        {"jpegs": 0.0},  # of raw pixels, or of formats that were not measured
        {"side": 640, "count": 10},  # larger than what was measured
    ],
)
def test_images_that_stay_as_they_are(changes):
    assert as_raw_pixels(**SMALL | changes) is None


def test_the_table_has_a_gain_for_each_side():
    assert all(len(gains) == len(raw_pixels._SIDES) for gains in raw_pixels._GAINS.values())
