"""An exported file alone gives the results of `predict`, and documents its preprocessing."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2

from fastimg.data.datasets import center_crop
from fastimg.loaders import FilesDataset, Loader
from fastimg.predict.exporting import graph
from fastimg.predict.exporting import interface as subject
from fastimg.train.checkpoints.format import find, load_model, read_card

from .exports import FORMATS, GRAPHS, opened, stated_in

DOCS = Path(__file__).parents[4] / "docs" / "export.md"


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """Folder with model.onnx, model.pt2 and model.safetensors of one run."""
    folder = tmp_path_factory.mktemp("exported")
    model, card = load_model(trained.run)
    for name in FORMATS:
        graph.write(name, folder / f"model.{name}", find(trained.run), subject.of(model, card))
    return folder


def prepared(files, stated):
    """Preprocessing by torchvision, using only the metadata."""
    steps = v2.Compose(
        [
            v2.Resize(stated["resize"], v2.InterpolationMode(stated["interpolation"]), antialias=stated["antialias"]),
            v2.CenterCrop(stated["crop"]),
        ]
    )
    pixels = [steps(v2.functional.pil_to_tensor(Image.open(file).convert("RGB"))) for file in files]
    return torch.stack(pixels).numpy()


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch 2.11's own code
@pytest.mark.parametrize("kind", GRAPHS)
def test_the_file_alone_says_what_predict_says(kind, exported, trained, cli):
    """Pixels cut by torchvision, class names from the metadata, any number of images."""
    file = exported / f"model.{kind}"
    stated = stated_in(file)
    names = json.loads(stated["classes"])
    files = sorted((trained.images / "val").glob("*/*.png"))
    answers = [json.loads(line) for line in cli("predict", trained.run, *files, "--json", "--no-amp").out.splitlines()]
    pixels, run = prepared(files, json.loads(stated["preprocessing"])), opened(file)
    for count in (1, 2, 5):
        logits = run(pixels[:count])
        assert logits.shape == (count, 3) and logits.dtype == np.float32
        shares = torch.from_numpy(logits).softmax(1).tolist()
        for row, answer in zip(shares, answers, strict=False):
            expected = dict(zip(answer["classes"], answer["probabilities"], strict=True))
            assert dict(zip(names, row, strict=True)) == pytest.approx(expected, abs=1e-5)
    assert np.ptp(run(pixels), axis=0).max() > 0.1  # images are distinguished


@pytest.mark.parametrize("kind", GRAPHS)
def test_metadata(kind, exported, trained):
    card, stated = read_card(find(trained.run)), stated_in(exported / f"model.{kind}")
    assert card.from_json(stated["fastimg"]) == card
    assert json.loads(stated["fastimg"])["fastimg"] and json.loads(stated["classes"]) == ["blue", "green", "red"]
    p = card.preprocessing
    expected = {"resize": p.val_resize, "crop": 32, "interpolation": p.interpolation, "antialias": True}
    expected |= {"normalisation": "inside", "mean": list(p.mean), "std": list(p.std)}
    told = json.loads(stated["preprocessing"])
    assert expected.items() <= told.items() and told["resize_and_crop"] == "by the caller"
    for name, words in {
        "decode": "EXIF orientation applied; RGB of 8 bits",
        "resize_rule": "int(resize * longer / shorter), truncated",
        "resize_filter": "rounded to uint8 after each pass, as torchvision's",
        "resize_difference": "at most 2 of 255",
        "crop_rule": "left = round((width - crop) / 2), halves to even",
        "padding": "none",
    }.items():
        assert words in told[name]
    page = DOCS.read_text()
    assert all(f"`{name}`" in page for name in (*told, *stated))
    for kind, words in (("bilinear", "triangle filter"), ("bicubic", "cubic filter with a = -0.5")):
        assert words in subject.of(load_model(trained.run)[0], _with(card, kind)).metadata["preprocessing"]


def _with(card, interpolation, resize=None):
    """The checkpoint's card with another resize."""
    p = card.preprocessing
    return replace(card, preprocessing=replace(p, interpolation=interpolation, val_resize=resize or p.val_resize))


ODD = [(45, 371), (371, 45), (37, 37), (20, 29), (5, 3), (223, 97), (640, 227), (38, 401)]  # width, height


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Smooth images with sharp edges, of sizes at which rounding matters; the last one is rotated by EXIF."""
    folder = tmp_path_factory.mktemp("odd")
    for i, (width, height) in enumerate(ODD):
        small = np.random.default_rng(i).integers(0, 256, (9, 9, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((width, height), Image.Resampling.NEAREST if i % 2 else 3)
        turned = Image.Exif()
        turned[0x0112] = 6 if i == len(ODD) - 1 else 1
        image.save(folder / f"{i}.png", exif=turned)
    return folder


@pytest.fixture(scope="module")
def whole(trained, tmp_path_factory):
    """Folder with model.onnx and model.pt2 that accept images of any size."""
    folder = tmp_path_factory.mktemp("whole")
    for name in GRAPHS:
        graph.write(name, folder / f"model.{name}", find(trained.run), subject.of(*load_model(trained.run), True))
    return folder


def told_of(files, run, cli):
    """The output of `predict`, and its input pixels."""
    lines = cli("predict", run, *files, "--json", "--no-amp").out.splitlines()
    shares = [dict(zip(a["classes"], a["probabilities"], strict=True)) for a in map(json.loads, lines)]
    seen = read_card(find(run)).preprocessing
    data = FilesDataset(files[0].parent, [file.name for file in files])
    settings = {"batch_size": len(files), "order": "sequential", "channels": seen.channels}
    with Loader(data, crop=center_crop(seen), **settings) as loader:
        return shares, next(iter(loader)).inputs.numpy().copy()


def by_the_page(code, model, file):
    """What the code of the page says of an image, and the pixels that it gives the model."""
    names = {}
    text = code.replace("model.onnx", str(model)).replace("image.jpg", str(file)).replace("print(", "said = (")
    exec(compile(text, "export.md", "exec"), names)
    return names["said"], names["pixels"][0]


@pytest.mark.parametrize("kind", ["cut", "whole"])
def test_the_pages_code_answers_as_predict(kind, exported, whole, odd, trained, cli):
    """The code in docs/export.md with only Pillow, NumPy and ONNX Runtime, for both kinds of files."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)) == {"json", "numpy", "onnxruntime", "PIL"}
    files = sorted(odd.iterdir())
    expected, seen = told_of(files, trained.run, cli)
    for file, answer, pixels in zip(files, expected, seen, strict=True):
        said, given = by_the_page(code, (exported if kind == "cut" else whole) / "model.onnx", file)
        assert said == pytest.approx(answer, abs=0.02)
        if kind == "cut":
            assert np.abs(given.astype(int) - pixels).max() <= 2


@pytest.mark.parametrize("kind", ["cut", "whole"])
def test_gray_images(kind, odd, trained, tmp_path, fast, cli):
    """A checkpoint of one channel: what is said about decoding, and the page's code, which does that."""
    ran = cli("train", trained.images, *fast, "--in-chans", "1", "--no-aug", "-o", tmp_path / "runs", "--name", "gray")
    assert ran.code == 0, ran.err
    run, file = tmp_path / "runs/gray", tmp_path / "model.onnx"
    ran = cli("export", run, "-o", file, "--json", *(["--with-preprocessing"] if kind == "whole" else []))
    told = json.loads(ran.out)["preprocessing"]["decode"]
    assert "gray of 8 bits: the luma of a JPEG" in told and "BT.601" in told and "RGB" not in told
    out = cli("export", run, "--with-preprocessing", "--format", "pt2", "-o", tmp_path / "model.pt2").out
    assert "images uint8 [batch, 1, height, width]; left to the caller: decode to upright gray" in " ".join(out.split())
    files = sorted(odd.iterdir())
    for number in (0, 7):
        with Image.open(files[number]) as image:
            image.save(tmp_path / f"{number}.jpg", quality=60, exif=image.getexif())
            files.append(tmp_path / f"{number}.jpg")
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    for folder in (odd, tmp_path):
        own = [each for each in files if each.parent == folder]
        for each, answer, pixels in zip(own, *told_of(own, run, cli), strict=True):
            said, given = by_the_page(code, file, each)
            assert said == pytest.approx(answer, abs=0.02)
            if kind == "cut":
                assert np.abs(given.astype(int) - pixels).max() <= 2


@pytest.mark.parametrize(
    ("channels", "dtype", "words"),
    [
        (3, "uint8", "RGB of 8 bits: gray repeated, palettes looked up"),
        (1, "uint8", "gray of 8 bits: the luma of a JPEG, as libjpeg's grayscale output"),
        (3, "uint16", "RGB of 16 bits: gray repeated, palettes looked up"),
        (1, "uint16", "gray of 16 bits: the luma of a JPEG, as libjpeg's grayscale output"),
    ],
)
def test_what_is_said_of_decoding(channels, dtype, words, trained):
    model, card = load_model(trained.run)
    seen = replace(card.preprocessing.of(channels), dtype=dtype)
    stated = json.loads(subject.of(model, replace(card, preprocessing=seen)).metadata["preprocessing"])
    assert stated["decode"].startswith(f"EXIF orientation applied; {words}")
    assert ("times 257" in stated["decode"]) == (dtype == "uint16")


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch 2.11's own code
@pytest.mark.parametrize("kind", GRAPHS)
def test_images_of_any_size(kind, whole, odd, trained, cli):
    """Any number of images, with one size per batch."""
    files = sorted(odd.iterdir())
    expected, _ = told_of(files, trained.run, cli)
    run = opened(whole / f"model.{kind}")
    names = json.loads(stated_in(whole / f"model.{kind}")["classes"])
    for file, answer in zip(files, expected, strict=True):
        pixels = np.asarray(ImageOps.exif_transpose(Image.open(file))).transpose(2, 0, 1)
        for count in (1, 3):
            logits = run(np.ascontiguousarray(np.repeat(pixels[None], count, axis=0)))
            assert logits.shape == (count, 3)
            for row in torch.from_numpy(logits).softmax(1).tolist():
                said = dict(zip(names, row, strict=True))
                assert said == pytest.approx(answer, abs=1e-4 if kind == "pt2" else 0.02)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_what_the_graph_makes_of_pixels(kind, interpolation, odd, trained, tmp_path):
    """Resize and crop without the model: torch gives the loader's bits, ONNX Runtime differs by at most 2 of 255."""
    model, card = load_model(trained.run)
    card = _with(card, interpolation, 41)
    what = subject.of(model, card, True)
    graph.write(
        kind,
        tmp_path / f"a.{kind}",
        find(trained.run),
        replace(what, module=subject.AnySize(torch.nn.Identity(), card)),
    )
    run, names = opened(tmp_path / f"a.{kind}"), sorted(path.name for path in odd.iterdir())
    with Loader(
        FilesDataset(odd, names), batch_size=1, crop=center_crop(card.preprocessing), order="sequential"
    ) as loader:
        for name, batch in zip(names, loader, strict=True):
            pixels = np.asarray(ImageOps.exif_transpose(Image.open(odd / name))).transpose(2, 0, 1)[None]
            found = run(np.ascontiguousarray(pixels)).astype(int)
            assert np.abs(found - batch.inputs.numpy()).max() <= (0 if kind == "pt2" else 2), name


@pytest.mark.parametrize("kind", GRAPHS)
def test_check_of_images_of_any_size(kind, trained, tmp_path, odd, cli):
    """With data and with noise; the message says that only decoding is left to the caller."""
    arguments = ("export", trained.run, "--format", kind, "--with-preprocessing", "-o", tmp_path, "--check")
    ran = cli(*arguments, "--check-data", odd, "--json")
    assert ran.code == 0 and ran.err == ""
    told = json.loads(ran.out)
    assert told["inputs"] == ["images uint8 [batch, 3, height, width]"]
    assert told["preprocessing"]["resize_and_crop"] == told["preprocessing"]["normalisation"] == "inside"
    check = told["check"]
    assert check["agrees"] and (check["samples"], check["unreadable"]) == (len(ODD), 0)
    assert check["bound"] == (1e-4 if kind == "pt2" else 2e-2)
    assert check["probabilities"] < (1e-5 if kind == "pt2" else 2e-2)


def test_check_on_noise_of_several_sizes(trained, tmp_path, written, monkeypatch, cli):
    right = graph.open_module(subject.of(*load_model(trained.run), True))
    asked = []

    def run(images):
        asked.append(images.shape)
        return right(images)

    monkeypatch.setattr(graph, "open_pt2", lambda file, what: run)
    arguments = ("export", trained.run, "--format", "pt2", "--with-preprocessing", "-o", tmp_path, "--check")
    ran = cli(*arguments)
    assert ran.code == 0 and ran.err == "", ran.err
    words = " ".join(ran.out.split())
    assert "agrees with predict on 16 noise images of several sizes" in words
    assert "left to the caller: decode to upright RGB" in words and "centre crop to 32" in words
    assert len({shape[2:] for shape in asked}) == 16
    monkeypatch.setattr(graph, "open_pt2", lambda file, what: lambda images: right(images[:, :, 3:]))
    ran = cli(*arguments, "--overwrite")
    assert ran.code == 1 and "does NOT agree" in ran.out


def test_onnx_is_one_valid_file_with_named_axes(exported):
    model = onnx.load(exported / "model.onnx", load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert sorted(path.name for path in exported.iterdir()) == sorted(f"model.{name}" for name in FORMATS)
    (images,), (logits,) = model.graph.input, model.graph.output
    shapes = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in (images, logits)]
    assert shapes == [["batch", 3, 32, 32], ["batch", 3]]
    assert (images.name, logits.name) == ("images", "logits")
    assert images.type.tensor_type.elem_type == onnx.TensorProto.UINT8


def test_safetensors_is_a_checkpoint(exported, trained, tmp_path, fast, cli):
    file = exported / "model.safetensors"
    assert file.read_bytes() == find(trained.run).read_bytes()
    image = trained.images / "val" / "red" / "0.jpg"
    assert cli("predict", file, image).out == cli("predict", trained.run, image).out
    ran = cli("train", trained.images, *fast, "--weights", file, "-o", tmp_path, "--dry-run")
    assert ran.code == 0, ran.err
