"""`fastimg.load`: a model in memory answers as `fastimg.predict` does, whatever form images have."""

import io
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import fastimg
from fastimg.errors import UsageError, UserError
from fastimg.loaders.decode import decode

from ...loaders.test_depth import png
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


@pytest.mark.parametrize("flags", [(), ("--in-chans", "1"), ("--depth", "16")])
def test_colours_of_16_bits_in_memory(flags, trained, tmp_path, fast, cli):
    """As a PNG file of 16 bits: by their higher byte, or with all levels for a checkpoint that reads them."""
    run = trained.run
    if flags:
        ran = cli("train", trained.images, *fast, *flags, "--no-aug", "-o", tmp_path / "runs", "--name", "run")
        assert ran.code == 0, ran.err
        run = tmp_path / "runs/run"
    model = fastimg.load(run, **FAST)
    deep = np.random.default_rng(0).integers(0, 65536, (40, 50, 3), dtype=np.uint16)
    (tmp_path / "16.png").write_bytes(png(deep, range(5)))
    alpha = np.dstack([deep, np.full((40, 50), 9, np.uint16)])
    tensor = torch.from_numpy(deep.transpose(2, 0, 1).copy())
    given = [deep, np.asfortranarray(deep), deep[None], alpha, tensor, tensor[None], deep[::-1][::-1]]
    expected = model.inputs(tmp_path / "16.png")
    assert torch.equal(model.inputs(given), expected.expand(7, -1, -1, -1))
    assert unnamed(model.predict(given)) == unnamed(model.predict(tmp_path / "16.png")) * 7
    high = model.inputs((deep >> 8).astype(np.uint8))
    assert torch.equal(high, expected) == ("--depth" not in flags)
    assert "more than max_pixels=100" in fastimg.load(run, max_pixels=100, **FAST).predict(deep)[0].error


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


def damaged(file, kind):
    """A file whose image data is damaged in the middle."""
    buffer = io.BytesIO()
    with Image.open(file) as image:
        image.convert("RGB").save(buffer, kind)
    content = bytearray(buffer.getvalue())
    content[len(content) // 3] ^= 255
    return bytes(content)


def test_damage_is_found_in_pillows_images_too(model, files):
    """Pillow gives what it had read until then, if it is asked again."""
    content = damaged(files[0], "PNG")
    bytes_, image = model.predict([content, Image.open(io.BytesIO(content))])
    assert bytes_.error and image.error and image.classes == []
    opened = Image.open(io.BytesIO(content))
    with pytest.raises(UserError, match=r"sources\[0\]: "):
        model.inputs(opened)


def test_a_closed_image_and_others(model, files):
    with Image.open(files[0]) as closed:
        pass
    good, bad, again = model.predict([files[0], closed, files[0]])
    assert good.error is None and "closed" in bad.error and good == again


def test_large_images_are_refused_before_they_are_decoded(trained, monkeypatch):
    model = fastimg.load(trained.run, max_pixels=1000, **FAST)
    buffer = io.BytesIO()
    Image.new("RGB", (50, 50)).save(buffer, "PNG")
    lazy = Image.open(io.BytesIO(buffer.getvalue()))
    monkeypatch.setattr(lazy, "load", lambda: pytest.fail("it was decoded"))
    wide = np.broadcast_to(np.uint8(0), (50, 50, 3))
    for answer in model.predict([buffer.getvalue(), lazy, wide]):
        assert "50 x 50 pixels are more than max_pixels=1000" in answer.error


def test_open_files_and_other_bytes(model, files):
    expected = unnamed(model.predict(files[0]))
    content = files[0].read_bytes()
    backwards = memoryview(content[::-1])[::-1]
    assert unnamed(model.predict([io.BytesIO(content), backwards])) == expected * 2
    with files[0].open("rb") as file:
        assert unnamed(model.predict(file)) == expected
    assert unnamed(model.predict(io.BytesIO(content))) == expected
    assert unnamed(model.predict(path for path in files)) == unnamed(model.predict(files))


def test_the_mask_of_an_array_is_nothing_to_a_picture(model, files):
    pixels = decode(files[0].read_bytes())
    assert unnamed(model.predict(np.ma.masked_array(pixels, pixels > 100))) == unnamed(model.predict(pixels))


@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_tiffs_of_16_bits_in_either_byte_order(order, model, tmp_path):
    gray = np.random.default_rng(0).integers(0, 65536, (40, 44)).astype(order)
    with (tmp_path / "deep.tif").open("wb") as file:
        tifffile.imwrite(file, gray)
    own, pillows, array = model.predict([tmp_path / "deep.tif", Image.open(tmp_path / "deep.tif"), gray.astype("u2")])
    assert own.error is None and unnamed([own]) == unnamed([pillows]) == unnamed([array])
    Image.fromarray(gray.astype("u2")).save(tmp_path / "deep.pgm")
    own, pillows = model.predict([tmp_path / "deep.pgm", Image.open(tmp_path / "deep.pgm")])
    assert own.error is None and unnamed([own]) == unnamed([pillows])


def test_a_module_that_trains_is_refused(model, files):
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    model.module.train()
    with pytest.raises(UsageError, match=r"training mode, .* call model\.module\.eval\(\)"):
        model.predict(files)
    with pytest.raises(UsageError, match="training mode"):
        model.inputs(files)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.module.state_dict().items())
    model.module.eval()
    assert model.predict(files[0])[0].error is None


@pytest.mark.parametrize("outputs", [2, 7])
def test_a_module_with_other_outputs_is_refused(outputs, trained, files):
    """Its answers would be other classes than it means, or a class that there is not."""
    model = fastimg.load(trained.run, **FAST)
    model.module.reset_classifier(outputs)
    message = rf"the module gives outputs of shape \[12, {outputs}\], and the checkpoint states \[N, 3\]; give it as"
    with pytest.raises(ValueError, match=message):
        model.predict(files)
    assert model.module(model.inputs(files)).shape == (12, outputs)
    model.module.reset_classifier(3)
    assert len(model.predict(files)) == 12


def test_loading_in_threads_leaves_filters_and_random_numbers(trained):
    filters, state = list(warnings.filters), torch.get_rng_state()
    threads = [threading.Thread(target=fastimg.load, args=(trained.run,), kwargs=FAST) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == filters and torch.equal(torch.get_rng_state(), state)


def test_refusals(model, trained, tmp_path):
    for sources, kind, message in (
        (np.zeros((3, 20, 20), np.uint8), ValueError, r"shape \[3, 20, 20\]; give \[H, W, C\]"),
        (torch.zeros(20, 20, 3, dtype=torch.uint8), ValueError, r"give \[C, H, W\]"),
        (np.zeros((20, 20, 3), np.float32), ValueError, r"sources\[0\]: an image of float32; give uint8"),
        (torch.zeros(3, 20, 20), ValueError, r"image of torch\.float32; give uint8"),
        (torch.zeros(3, 20, 20, dtype=torch.bfloat16), ValueError, r"image of torch\.bfloat16; give uint8"),
        (
            [np.zeros((20, 20, 3), np.uint8)] * 2 + [np.zeros((20, 20), bool)],
            ValueError,
            r"sources\[2\]: an image of bool",
        ),
        (memoryview(np.zeros((20, 20, 3), np.uint8)), ValueError, "several dimensions; give the array"),
        (Image.new("RGB", (0, 5)), ValueError, "an image of 0 x 5 pixels"),
        (np.zeros((0, 20, 20, 3), np.uint8), UsageError, "no images given"),
        (io.StringIO("text"), TypeError, r"sources\[0\]: a file that gives text; open it in binary mode"),
        (None, TypeError, r"sources\[0\] is of type NoneType"),
        ("", UsageError, "'', which is no path"),
        ("a\0b.jpg", UsageError, "which is no path"),
        (np.zeros((20, 20, 3), np.uint32), ValueError, "image of uint32; give uint8, levels from 0 to 255, or uint16"),
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
    with pytest.raises(TypeError, match="load\\(\\) has no setting 'topk': give it to the predict"):
        fastimg.load(trained.run, topk=3)
    with pytest.raises(UsageError, match="topk: expected a whole number"):
        model.predict(np.zeros((20, 20, 3), np.uint8), topk=2.5)
    for sources in ("", ["a.jpg", "a\0b.jpg"]):
        with pytest.raises(UsageError, match=r"sources\[[01]\] is .* no path"):
            fastimg.predict(trained.run, sources)
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
        (lambda: model.predict("the film was good"), "the film was good: no such file; give texts as text="),
        (lambda: model.predict(text=None), "no texts given"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
    for text, kind, message in (
        ([1], TypeError, r"text\[0\] is of type int"),
        (b"bad", TypeError, r"text\[0\] is of type bytes"),
        ("\ud800 a", ValueError, "cannot be written as UTF-8"),
    ):
        with pytest.raises(kind, match=message):
            model.predict(text=text)
    (answer,) = model.predict(text=np.array(["bad"]))
    assert type(answer.file) is str and answer == both[2]


def test_settings_of_other_types(trained, files):
    model = fastimg.load(trained.run, device=torch.device("cpu"), amp=False, workers=64)
    assert model.predict(files[0], topk="2") == model.predict(files[0], topk=np.int64(2))
    assert model.predict(files[0], topk=None) == model.predict(files[0])
    with pytest.raises(AttributeError):
        model.device = torch.device("meta")
