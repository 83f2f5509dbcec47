"""Data that tests make for themselves, and what ends them when they hang or leave something running."""

import gc
import io
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

COLOURS = {"blue": (40, 60, 200), "green": (50, 180, 60), "red": (210, 50, 40)}


def encoded_image(
    colour: Sequence[int] = (120, 120, 120), size: tuple[int, int] = (40, 32), seed: int = 0, kind: str = "JPEG"
) -> bytes:
    """An image of one colour, (width, height), with noise that `seed` gives."""
    noise = np.random.default_rng(seed).integers(-25, 26, (size[1], size[0], 3))
    pixels = np.clip(np.asarray(colour) + noise, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def write_image_folder(root: Path, per_class: int = 12, colours: dict[str, tuple[int, int, int]] = COLOURS) -> Path:
    """`root/<class>/<number>.jpg` and .png, one colour per class: a linear model learns it."""
    for label, (name, colour) in enumerate(colours.items()):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            kind, ext = ("PNG", "png") if i % 4 == 3 else ("JPEG", "jpg")
            content = encoded_image(colour, (40 + 3 * i, 32 + i), seed=100 * label + i, kind=kind)
            (root / name / f"{i:03d}.{ext}").write_bytes(content)
    return root


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """An unsplit class folder: blue, green and red, twelve small JPEG and PNG images each."""
    return write_image_folder(tmp_path / "images")


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """`encode(colour, (width, height), seed, kind)`: an encoded image."""
    return encoded_image


@pytest.fixture
def make_image_folder(tmp_path: Path) -> Callable[[int], Path]:
    """`make_image_folder(per_class)`: an unsplit folder of three classes with so many images each."""
    return lambda per_class: write_image_folder(tmp_path / "images", per_class)


@pytest.fixture
def watchdog() -> Iterator[None]:
    """What hangs, fails: an alarm after two minutes, and again in case it was swallowed."""

    def ring(signum: int, frame: object) -> None:
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 120, 1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def left_running() -> list[str]:
    """Loaders' threads and processes, ours and FFCV's."""
    threads = [t.name for t in threading.enumerate() if t.name.startswith("fastimg-") or "EpochIter" in str(type(t))]
    return threads + [child.name for child in multiprocessing.active_children()]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Every test ends its loaders' threads and processes."""
    yield
    if left_running():
        gc.collect()
    deadline = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left_running() == []
