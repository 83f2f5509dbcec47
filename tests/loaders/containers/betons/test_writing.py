"""What a .beton cannot hold is left out with a reason, and a write that fails leaves no file."""

import io

import numpy as np
import pytest
from PIL import Image

from fastimg.loaders.containers.betons.files import BetonFile, BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField, jpeg_fault

from .beton_samples import ALL, PAGE, jpeg, one, write

EXIF = Image.Exif()
EXIF[0x0112] = 6


def png():
    buffer = io.BytesIO()
    Image.new("RGB", (3, 3)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": b""}, "image: the file is empty"),
        ({"image": b"what"}, "image: not an image"),
        ({"image": png()}, "image: png, not JPEG"),
        ({"image": jpeg(mode="CMYK")}, "image: a JPEG that is neither grayscale nor 8-bit YCbCr"),
        ({"image": jpeg(exif=EXIF)}, "image: it has an EXIF orientation"),
        ({"image": np.zeros((2, 2), np.uint8)}, r"image: pixels must be uint8 \[H, W, 3\], not uint8 \[2, 2\]"),
        ({"image": np.zeros((2, 2, 3))}, "image: pixels must be uint8"),
        (
            {"image": np.zeros((65536, 1, 3), np.uint8)},
            "image: an image must have 1 to 65535 pixels per side, not 1 x 65536",
        ),
        ({"image": np.zeros((0, 1, 3), np.uint8)}, "image: an image must have 1 to 65535 pixels"),
        ({"label": 1.5}, "label: "),
        ({"label": 2**63}, "label: "),
        ({"weight": "heavy"}, "weight: "),
        ({"text": "text"}, "text: "),
        ({"about": {1, 2}}, "about: "),
        ({"about": b"{"}, "about: "),
        ({"about": "{}".encode("utf-16")}, "about: "),
        ({"box": np.zeros((2, 2))}, r"box: expected float32 \[2, 2\], not float64 \[2, 2\]"),
        ({"box": np.zeros((4,), "f4")}, r"not float32 \[4\]"),
        (
            {"text": bytes(PAGE)},
            rf"a sample of \d+ bytes does not fit in a page of {PAGE}: give page_size={2 * PAGE}",
        ),
        ({"other": 1}, "expected image, text"),
    ],
)
def test_values_that_cannot_be_are_left_out(tmp_path, change, message):
    """A refused sample leaves no trace: the file is the same as without it."""
    with BetonWriter(tmp_path / "a.beton", ALL, page_size=PAGE) as beton:
        beton.add(one(0))
        with pytest.raises(ValueError, match=message):
            beton.add(one(2) | change)
        beton.add(one(1))
    write(tmp_path / "b.beton", ALL, [one(0), one(1)])
    assert (tmp_path / "a.beton").read_bytes() == (tmp_path / "b.beton").read_bytes()


def test_jpegs_that_fit(tmp_path):
    kinds = [{}, {"mode": "L"}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 1}]
    assert [jpeg_fault(jpeg(**kind)) for kind in kinds] == [""] * 5


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_failed_write_leaves_no_file(tmp_path, error):
    with pytest.raises((KeyboardInterrupt, OSError)), BetonWriter(tmp_path / "a.beton", ALL) as beton:
        beton.add(one(0))
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_of_the_end_leaves_no_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"), BetonWriter(tmp_path / "a.beton", ALL) as beton:
        beton.add(one(0))
        monkeypatch.setattr("os.fsync", full)
    assert list(tmp_path.iterdir()) == []


def test_files_without_pages(tmp_path):
    for samples in ([], [{"label": 3}]):
        write(tmp_path / "a.beton", {"label": BetonField("int")}, samples)
        with BetonFile(tmp_path / "a.beton") as reader:
            assert [reader.sample(n) for n in range(len(reader))] == samples
    write(tmp_path / "a.beton", ALL, [])
    with BetonFile(tmp_path / "a.beton") as reader:
        assert len(reader) == 0 and reader.fields == ALL
