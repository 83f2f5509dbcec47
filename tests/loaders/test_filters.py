"""The filters of PNG's rows, undone in compiled code, against the specification's own words."""

import numpy as np

from fastimg.loaders.pictures.filters import undo_filters

BEHIND = 8  # bytes


def expected(rows, step):
    """Rows [H, 1 + length] without their filters, a byte after the other (PNG, 3rd edition, 9.2)."""
    above = [0] * (rows.shape[1] - 1)
    found = []
    for kind, *values in rows.tolist():
        row = []
        for x, value in enumerate(values):
            a, b, c = (row[x - step], above[x], above[x - step]) if x >= step else (0, above[x], 0)
            p = a + b - c
            paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            row.append((value + (0, a, b, (a + b) // 2, paeth)[kind]) & 255)
        found.append(row)
        above = row
    return np.array(found)


def test_rows_of_any_width_height_and_filters():
    draw = np.random.default_rng(0)
    for number in range(600):
        width, height, step = draw.integers(1, 41), draw.integers(1, 30), draw.choice([1, 2, 3, 4, 6, 8])
        rows = draw.integers(0, draw.choice([3, 256]), (height, 1 + width * step), np.uint8)
        rows[:, 0] = draw.integers(0, 5, height) if number % 2 else draw.choice(5)
        memory = np.concatenate([rows.ravel(), draw.integers(0, 256, BEHIND, np.uint8)])
        behind = memory[-BEHIND:].copy()
        assert undo_filters(memory.ctypes.data, height, width * step, step, 0)
        np.testing.assert_array_equal(memory[:-BEHIND].reshape(rows.shape)[:, 1:], expected(rows, step))
        np.testing.assert_array_equal(memory[-BEHIND:], behind)


def test_a_filter_that_there_is_not():
    rows = np.zeros((9, 1 + 40), np.uint8)
    rows[8, 0] = 5
    memory = np.concatenate([rows.ravel(), np.zeros(BEHIND, np.uint8)])
    assert not undo_filters(memory.ctypes.data, 9, 40, 1, 0)


def test_rows_from_one_on():
    """Those above it are undone as far as it needs them; what is behind the last row stays."""
    draw = np.random.default_rng(1)
    for _ in range(300):
        width, height, step = draw.integers(1, 41), draw.integers(1, 40), draw.choice([1, 3, 4])
        first = draw.integers(height)
        rows = draw.integers(0, 256, (height, 1 + width * step), np.uint8)
        rows[:, 0] = draw.integers(0, 5, height)
        memory = np.concatenate([rows.ravel(), np.zeros(BEHIND, np.uint8)])
        assert undo_filters(memory.ctypes.data, height, width * step, step, first)
        np.testing.assert_array_equal(memory[:-BEHIND].reshape(rows.shape)[first:, 1:], expected(rows, step)[first:])
