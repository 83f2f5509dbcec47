"""`fastimg.load`: a model in memory answers as `fastimg.predict` does, whatever form images have."""

import io
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import fastimg
from fastimg.errors import UsageError, UserError
from fastimg.loaders.decode import decode

from .text_models import save_text_run

FAST = {"device": "cpu", "amp": False, "workers": 1}


@pytest.fixture
def files(trained):
    return sorted((trained.images / "val").rglob("*.*"))


@pytest.fixture
def model(trained):
    return fastimg.load(trained.run, **FAST)


def unnamed(answers):
    return [replace(answer, file="") for answer in answers]


def test_files_are_answered_as_by_the_function(model, trained, files):
    expected = fastimg.predict(trained.run, files, topk=2, **FAST)
    assert model.predict(files, topk=2) == expected and len(expected) == 12
    assert model.predict(str(files[0]), topk=2) == expected[:1]
    assert model.predict(trained.images / "val", topk=2) == expected
    assert model.classes == ("blue", "green", "red") and model.device == torch.device("cpu")
    assert repr(model) == f"<Predictor of {trained.run}: test_resnet on cpu>"


def forms(file):
    """The pixels of a file in every form that they may have in memory."""
    content = file.read_bytes()
    pixels = decode(content)
    with Image.open(file) as image:
        image.load()
    yield from (content, bytearray(content), memoryview(content), image, Image.open(io.BytesIO(content)))
    yield from (pixels, np.asfortranarray(pixels), pixels[None], torch.from_numpy(pixels.transpose(2, 0, 1).copy()))
    yield torch.from_numpy(np.stack([pixels.transpose(2, 0, 1)]))
    yield np.dstack([pixels, np.full(pixels.shape[:2], 7, np.uint8)])  # alpha is dropped
    yield Image.fromarray(pixels).convert("RGBA")


@pytest.mark.parametrize("place", [0, 1])  # a JPEG and a PNG
def test_an_image_in_memory_is_answered_as_its_file(place, model, files):
    expected = unnamed(model.predict(files[place])) * 12
    assert unnamed(model.predict(list(forms(files[place])))) == expected


def test_gray_images_in_memory(model, tmp_path):
    gray = np.random.default_rng(0).integers(0, 65536, (40, 50), dtype=np.uint16)
    high = (gray >> 8).astype(np.uint8)
    Image.fromarray(gray).save(tmp_path / "16.png")
    Image.fromarray(high).save(tmp_path / "8.png")
    (of_file,) = unnamed(model.predict(tmp_path / "8.png"))
    assert unnamed(model.predict(tmp_path / "16.png")) == [of_file]
    given = [high, high[:, :, None], torch.from_numpy(high), torch.from_numpy(high[None]), Image.fromarray(high)]
    given += [gray, gray[:, :, None], Image.open(tmp_path / "16.png")]
    assert unnamed(model.predict(given)) == [of_file] * len(given)


def test_other_modes_of_pillow_are_answered_as_their_files(model, tmp_path, files):
    with Image.open(files[1]) as image:
        upright = image.convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.save(tmp_path / "rotated.png", exif=exif)
    upright.quantize(32).save(tmp_path / "palette.png", transparency=3)
    upright.convert("CMYK").save(tmp_path / "cmyk.tif")
    upright.convert("1").save(tmp_path / "bit.png")
    upright.convert("LA").save(tmp_path / "la.png")
    names = sorted(tmp_path.iterdir())
    expected = unnamed(model.predict(names))
    assert unnamed(model.predict([Image.open(name) for name in names])) == expected
    assert len({answer.probabilities[0] for answer in expected}) == 5
    assert unnamed(model.predict(upright.convert("HSV")))[0].error is None


def test_batches_and_the_names_of_answers(model, files):
    pixels = np.stack([decode(file.read_bytes())[:36, :48] for file in files[:3]])
    answers = model.predict([files[0], pixels, pixels[0], Image.fromarray(pixels[1])])
    assert [a.file for a in answers] == [
        *(str(files[0]), "sources[1][0]", "sources[1][1]", "sources[1][2]", "sources[2]", "sources[3]")
    ]
    assert unnamed(answers[1:3]) == unnamed(answers[4:])
    assert [answer.file for answer in model.predict(pixels)] == [f"sources[0][{row}]" for row in range(3)]


def test_what_cannot_be_read_has_an_error(model, files, tmp_path):
    cut = Image.open(io.BytesIO(files[0].read_bytes()[:-100]))
    wide = Image.new("F", (20, 20))
    good, *bad = model.predict([files[0], tmp_path / "none.jpg", b"no image", cut, wide, b""])
    assert good.error is None and [answer.classes for answer in bad] == [[]] * 5
    reasons = ("No such file", "not an image", "truncated", "mode F", "empty")
    assert all(reason in answer.error for answer, reason in zip(bad, reasons, strict=True))
    small = fastimg.load(model._config.checkpoint, max_pixels=100, **FAST)
    assert "more than max_pixels=100" in small.predict(np.zeros((20, 20, 3), np.uint8))[0].error


def test_refusals(model, trained, tmp_path):
    for sources, kind, message in (
        (np.zeros((3, 20, 20), np.uint8), ValueError, r"shape \[3, 20, 20\]; give \[H, W, C\]"),
        (torch.zeros(20, 20, 3, dtype=torch.uint8), ValueError, r"give \[C, H, W\]"),
        (np.zeros((20, 20, 3), np.float32), ValueError, "image of float32; give uint8"),
        (torch.zeros(3, 20, 20), ValueError, "image of float32; give uint8"),
        (np.zeros((20, 20, 3), np.uint16), ValueError, "image of uint16; give uint8"),
        (np.zeros((0, 20, 3), np.uint8), ValueError, "shape"),
        ([3], TypeError, r"sources\[0\] is of type int; give a path"),
        ([], UsageError, "no images given"),
        ("s3://bucket/a.jpg", UsageError, "use fastimg.predict"),
        (tmp_path, UserError, "no images in this folder"),
    ):
        with pytest.raises(kind, match=message):
            model.predict(sources)
    with pytest.raises(UsageError, match="reads images, not texts"):
        model.predict(text="good")
    with pytest.raises(UsageError, match="--topk"):
        model.predict(np.zeros((20, 20, 3), np.uint8), topk=0)
    with pytest.raises(UsageError, match="--threshold"):
        model.predict(np.zeros((20, 20, 3), np.uint8), threshold=0.5)
    with pytest.raises(TypeError, match="load\\(\\) has no setting 'topk'"):
        fastimg.load(trained.run, topk=3)
    with pytest.raises(UserError, match=str(tmp_path)):
        fastimg.load(tmp_path)
    with pytest.raises(UsageError, match="--device"):
        fastimg.load(trained.run, device="tpu")


def test_the_module_on_its_inputs_gives_the_answers(model, files):
    inputs = model.inputs(files)
    assert inputs.shape == (12, 3, 32, 32) and inputs.dtype == torch.float32 and not model.module.training
    with torch.inference_mode():
        shares = model.module(inputs).softmax(dim=1)
    for answer, own in zip(model.predict(files), shares, strict=True):
        assert model.classes[own.argmax()] == answer.classes[0]
        assert own.max().item() == pytest.approx(answer.probabilities[0], abs=2e-6)
    model.module(inputs).sum().backward()  # as for saliency
    assert all(parameter.grad is not None for parameter in model.module.parameters())
    with pytest.raises(UserError, match=r"none\.jpg: No such file"):
        model.inputs([files[0], "none.jpg"])


def test_batches_that_are_not_full(trained, files):
    model = fastimg.load(trained.run, batch_size=5, **FAST)
    assert [len(batch) for batch in (model.inputs(files), model.predict(files))] == [12, 12]


def test_torch_stays_as_it_was(trained, files):
    torch.manual_seed(5)
    torch.set_float32_matmul_precision("medium")
    state, switches = torch.get_rng_state(), []

    def switched():
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.get_num_threads()

    try:
        switches.append(switched())
        model = fastimg.load(trained.run, **FAST)
        switches.append(switched())
        model.predict(files)
        switches.append(switched())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert switches[0] == switches[1] == switches[2] and torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("nothing_left")
def test_threads_may_share_it(model, files):
    expected, found = model.predict(files), {}

    def ask(number):
        found[number] = [model.predict(files) for _ in range(3)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers for _, rows in sorted(found.items()) for answers in rows] == [expected] * 12


def test_texts(tmp_path):
    run = save_text_run(tmp_path / "run", 2)
    (tmp_path / "a.txt").write_text("the film was good")
    model = fastimg.load(run, device="cpu", amp=False)
    both = model.predict(tmp_path / "a.txt", text=["not a bad film", "bad"])
    assert [answer.file for answer in both] == [str(tmp_path / "a.txt"), "not a bad film", "bad"]
    assert both == fastimg.predict(run, tmp_path / "a.txt", text=["not a bad film", "bad"], device="cpu", amp=False)
    assert model.predict(text="bad") == both[2:] and model.classes == ("bad", "good")
    for call, message in (
        (lambda: model.predict(), "no texts given"),
        (lambda: model.predict(b"bad"), "reads texts, not images"),
        (lambda: model.inputs("a.jpg"), "reads texts, not images"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
