"""`fastimg export`: the file alone gives the results of `predict`, and documents its preprocessing."""

import errno
import importlib.util
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from PIL import Image, ImageOps
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torchvision.transforms import v2

from fastimg.data.datasets import center_crop
from fastimg.loaders import FilesDataset, Loader
from fastimg.models.precision import Precision
from fastimg.models.registry import TextSide, build
from fastimg.models.tokenizer import Tokenizer as TextTokens
from fastimg.predict import export_check as agreement
from fastimg.predict import export_interface as subject
from fastimg.predict import graph, inference
from fastimg.train.checkpoints.format import Card, find, load_model, read_card, save

FORMATS = ("onnx", "pt2", "safetensors")
GRAPHS = ("onnx", "pt2")
DOCS = Path(__file__).parents[3] / "docs" / "export.md"


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """Folder with model.onnx, model.pt2 and model.safetensors of one run."""
    folder = tmp_path_factory.mktemp("exported")
    model, card = load_model(trained.run)
    for name in FORMATS:
        graph.write(name, folder / f"model.{name}", find(trained.run), subject.of(model, card))
    return folder


@pytest.fixture
def written(monkeypatch):
    """Exports that take no time: an empty file with the right name."""
    monkeypatch.setattr(graph, "write", lambda name, file, source, what: file.write_bytes(b""))


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_follows_from_the_output_name(name, trained, tmp_path, written, cli):
    ran = cli("export", trained.run, "-o", tmp_path / f"a.{name}", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["format"] == name and (tmp_path / f"a.{name}").exists()


@pytest.mark.parametrize("output", [(), ("-o", "a.bin"), ("-o", ".")])
def test_an_unknown_format(output, trained, cli):
    ran = cli("export", trained.run, *output)
    assert ran.code == 2 and "export: which format? give --format onnx, pt2 or safetensors, or an --output" in ran.err


def opened(file):
    """The file as used without fastimg: its inputs -> float32 [N, classes]."""
    if file.suffix == ".pt2":
        module = torch.export.load(file).module()
        return lambda *inputs: module(*map(torch.from_numpy, inputs)).detach().numpy()
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda *inputs: session.run(["logits"], dict(zip(names, inputs, strict=True)))[0]


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


def stated_in(file):
    """The metadata of a file, by name."""
    if file.suffix == ".pt2":
        found = {"classes": ""}  # torch takes an empty tuple for none
        torch.export.load(file, extra_files=found)
        return found
    return {pair.key: pair.value for pair in onnx.load(file).metadata_props}


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


def told_of(files, trained, cli):
    """The output of `predict`, and its input pixels."""
    lines = cli("predict", trained.run, *files, "--json", "--no-amp").out.splitlines()
    shares = [dict(zip(a["classes"], a["probabilities"], strict=True)) for a in map(json.loads, lines)]
    crop = center_crop(read_card(find(trained.run)).preprocessing)
    data = FilesDataset(files[0].parent, [file.name for file in files])
    with Loader(data, batch_size=len(files), crop=crop, order="sequential") as loader:
        return shares, next(iter(loader)).inputs.numpy().copy()


@pytest.mark.parametrize("kind", ["cut", "whole"])
def test_the_pages_code_answers_as_predict(kind, exported, whole, odd, trained, cli):
    """The code in docs/export.md with only Pillow, NumPy and ONNX Runtime, for both kinds of files."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)) == {"json", "numpy", "onnxruntime", "PIL"}
    files = sorted(odd.iterdir())
    expected, seen = told_of(files, trained, cli)
    for file, answer, pixels in zip(files, expected, seen, strict=True):
        names = {}
        model = (exported if kind == "cut" else whole) / "model.onnx"
        text = code.replace("model.onnx", str(model)).replace("image.jpg", str(file)).replace("print(", "said = (")
        exec(compile(text, "export.md", "exec"), names)
        assert names["said"] == pytest.approx(answer, abs=0.02)
        if kind == "cut":
            assert np.abs(names["pixels"][0].astype(int) - pixels).max() <= 2


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch 2.11's own code
@pytest.mark.parametrize("kind", GRAPHS)
def test_images_of_any_size(kind, whole, odd, trained, cli):
    """Any number of images, with one size per batch."""
    files = sorted(odd.iterdir())
    expected, _ = told_of(files, trained, cli)
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


def test_preprocessing_that_cannot_be_exported(trained, text_run, tmp_path, cli):
    ran = cli("export", trained.run, "--format", "safetensors", "--with-preprocessing", "-o", tmp_path)
    assert (ran.code, ran.out) == (2, "") and not list(tmp_path.iterdir())
    assert "--with-preprocessing: --format safetensors holds only weights; leave it out" in ran.err
    ran = cli("export", text_run, "--format", "onnx", "--with-preprocessing", "-o", tmp_path)
    assert (ran.code, ran.out) == (2, "") and not list(tmp_path.iterdir())
    assert "reads texts, and its tokenizer is written next to the file; leave it out" in ran.err


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


@pytest.mark.parametrize("kind", FORMATS)
def test_check(kind, trained, tmp_path, cli):
    """The whole command; the file is checked on real samples, and only the result is printed."""
    ran = cli(
        "export", trained.run, "--format", kind, "-o", tmp_path, "--check", "--check-data", trained.shards, "--json"
    )
    assert ran.code == 0 and ran.err == ""
    told = json.loads(ran.out)
    assert told["file"] == str(tmp_path / f"run.{kind}") and [told["file"]] == [
        str(file) for file in tmp_path.iterdir()
    ]
    assert told["bytes"] == os.path.getsize(told["file"])
    assert told["inputs"] == ([] if kind == "safetensors" else ["images uint8 [batch, 3, 32, 32]"])
    assert told["preprocessing"]["normalisation"] == ("by the caller" if kind == "safetensors" else "inside")
    check = told["check"]
    assert check["agrees"] and (check["samples"], check["top1"], check["unreadable"]) == (12, 12, 0)
    assert check["origin"] == f"images from {trained.shards} (val)"
    assert check["probabilities"] < 1e-5 and check["logits"] < 1e-4


@pytest.fixture
def judged(trained, exported):
    """`judged(run, data)`: the report of the check on a file that behaves like `run`."""

    def judge(run, data=None):
        engine = inference.load(trained.run, torch.device("cpu"), Precision("cpu", None, ""))
        return agreement.compare(exported / "model.onnx", run, engine, data)

    return judge


@pytest.fixture
def honest(trained):
    return graph.open_module(subject.of(*load_model(trained.run)))


def test_words(trained, tmp_path, written, honest, monkeypatch, cli):
    monkeypatch.setattr(graph, "open_pt2", lambda file, what: honest)
    ran = cli("export", trained.run, "--format", "pt2", "-o", tmp_path, "--check")
    assert ran.code == 0 and ran.err == ""
    for words in (
        *("run.pt2", "test_resnet, 3 classes", "images uint8 [batch, 3, 32, 32]", "resize to", "logits float32"),
        *("normalisation (mean 0.5 0.5 0.5", "agrees with predict on 16 noise images", "is the same for 16"),
    ):
        assert words in ran.out
    ran = cli("export", trained.run, "--format", "safetensors", "-o", tmp_path)
    assert ran.code == 0 and "only weights" in ran.out and "check" not in ran.out and "input" not in ran.out


def test_counts_of_the_check(judged, honest, trained):
    right = judged(honest, trained.shards)
    assert right.agrees and right.top1 == right.samples == 12 and right.logits < 1e-5
    for by in (3, -3):  # the same probabilities
        shifted = judged(lambda batch, by=by: honest(batch) + by, trained.shards)
        assert shifted.agrees and shifted.logits == pytest.approx(3, abs=1e-4) and shifted.probabilities < 1e-5
    wrong = judged(lambda batch: honest(batch).roll(1, 1), trained.shards)
    assert not wrong.agrees and wrong.top1 == 0 and wrong.probabilities > 0.01
    scaled = judged(lambda batch: honest(batch) * 1.01, trained.shards)
    assert not scaled.agrees and scaled.top1 == 12 and 1e-4 < scaled.probabilities < 0.1
    nothing = judged(lambda batch: honest(batch) * float("nan"))
    assert not nothing.agrees and nothing.logits is None and nothing.probabilities is None


def test_one_differing_sample_is_enough(judged, honest, trained):
    seen = []

    def run(batch):
        seen.append(len(batch))
        logits = honest(batch)
        return logits.flip(1) if len(seen) == 4 else logits

    assert not judged(run, trained.images).agrees
    assert set(seen) > {1} and sum(seen) >= 36  # the exported size, two, is not tried


def test_at_most_64_samples_spread_over_the_data(judged, honest, tmp_path, encode):
    for number in range(100):
        (tmp_path / f"{number:03d}.jpg").write_bytes(encode((2 * number, 99, 99), seed=number))
    (tmp_path / "099.jpg").write_bytes(b"no image")
    found = judged(honest, tmp_path)
    assert (found.samples, found.unreadable, found.agrees) == (63, 1, True)
    assert judged(honest, tmp_path / "000.jpg").samples == 1


def test_a_file_that_disagrees(trained, tmp_path, monkeypatch, cli):
    forward = subject.Pixels.forward
    monkeypatch.setattr(subject.Pixels, "forward", lambda self, images: forward(self, images) * 1.01)
    flags = ("-o", tmp_path, "--check", "--check-data", trained.images)
    ran = cli("export", trained.run, "--format", "safetensors", *flags)
    assert ran.code == 1 and "does NOT agree with predict on 36 images" in ran.out and "Traceback" not in ran.err


@pytest.mark.parametrize("content", [b"", b"no image"])
def test_check_data_without_an_image(content, trained, written, monkeypatch, tmp_path, honest, cli):
    monkeypatch.setattr(graph, "open_pt2", lambda file, what: honest)
    data = tmp_path / "data"
    data.mkdir()
    if content:
        (data / "0.jpg").write_bytes(content)
    ran = cli("export", trained.run, "--format", "pt2", "-o", tmp_path, "--check", "--check-data", data)
    assert ran.code == 1 and str(data) in ran.err and "Traceback" not in ran.err
    assert ("not an image" if content else "no images in this folder") in ran.err
    ran = cli(
        "export", trained.run, "--format", "pt2", "-o", tmp_path / "a.pt2", "--check", "--check-data", data / "no"
    )
    assert ran.code == 1 and "no such file or folder" in ran.err


@pytest.mark.parametrize("checkpoint", ["", "best", "last", "checkpoints/*", "best/model.safetensors"])
def test_the_default_name_survives_the_checkpoint(checkpoint, trained, tmp_path, written, monkeypatch, cli):
    shutil.copytree(trained.run, tmp_path / "my run", symlinks=True)
    path = sorted(tmp_path.glob(f"my run/{checkpoint}"))[0]
    ran = cli("export", path, "--format", "onnx")
    assert (
        ran.code == 0
        and (tmp_path / "my run" / "my run.onnx").exists()
        and str(tmp_path / "my run.onnx") not in ran.out
    )
    monkeypatch.chdir(path if path.is_dir() else path.parent)
    ran = cli("export", "." if path.is_dir() else path.name, "--format", "pt2", "--json")
    assert os.path.samefile(json.loads(ran.out)["file"], tmp_path / "my run" / "my run.pt2")


def test_the_default_name_of_a_lone_file(trained, tmp_path, written, cli):
    lone = tmp_path / "digits.v2.safetensors"
    shutil.copy(find(trained.run), lone)
    assert cli("export", lone, "--format", "onnx").code == 0 and (tmp_path / "digits.v2.onnx").exists()
    before = lone.read_bytes()
    ran = cli("export", lone, "--format", "safetensors", "--overwrite")
    assert ran.code == 2 and "is the checkpoint itself" in ran.err and lone.read_bytes() == before


def test_an_existing_file(trained, tmp_path, cli):
    file = tmp_path / "a.safetensors"
    file.write_text("precious")
    ran = cli("export", trained.run, "--format", "safetensors", "-o", file)
    assert ran.code == 1 and "--overwrite" in ran.err and file.read_text() == "precious"
    assert cli("export", trained.run, "--format", "safetensors", "-o", file, "--overwrite").code == 0
    assert file.read_bytes() == find(trained.run).read_bytes()


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (("--check-data", "x"), 2, "--check-data x: has no effect without --check"),
        (("-o", "x.pt2"), 2, "ends in .onnx"),
        (("-o", "no/x.onnx"), 1, "the folder no does not exist"),
    ],
)
def test_flags_that_make_no_sense(flags, code, text, trained, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    ran = cli("export", trained.run, "--format", "onnx", *flags)
    assert ran.code == code and text in ran.err and ran.out == "" and not list(tmp_path.iterdir())


def test_missing_packages(trained, monkeypatch, tmp_path, written, cli):
    real = importlib.util.find_spec
    lost = {"onnxruntime"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in lost else real(name, *rest))
    arguments = ("export", trained.run, "--format", "onnx", "-o", tmp_path)
    assert cli(*arguments).code == 0  # only needed for --check
    ran = cli(*arguments, "--overwrite", "--check")
    assert (
        ran.code == 2
        and "--format onnx --check: needs onnxruntime, which is not installed; `pip install onnx " in ran.err
    )
    lost |= {"onnx", "onnxscript"}
    ran = cli(*arguments, "--overwrite")
    assert (
        ran.code == 2 and "needs onnx and onnxscript, which are not installed" in ran.err and "Traceback" not in ran.err
    )
    assert cli("export", trained.run, "--format", "pt2", "-o", tmp_path).code == 0


class Exotic(torch.nn.Module):
    """Its control flow depends on the pixels, which no graph can express."""

    def forward(self, images):
        return images.flatten(1)[:, :3].float() if images.sum() > 3 else images.flatten(1)[:, 3:6].float()


class Fixed(torch.nn.Module):
    """Accepts only batches of two."""

    def forward(self, images):
        return images.flatten(1)[:, :3].float().view(2, 3)


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("module", [Exotic, Fixed])
def test_models_that_cannot_be_traced(module, kind, trained, tmp_path, monkeypatch, cli):
    monkeypatch.setattr(subject, "Pixels", lambda model, card: module())
    ran = cli("export", trained.run, "--format", kind, "-o", tmp_path)
    assert ran.code == 1 and "Traceback" not in ran.err and len(ran.err.splitlines()) == 1 and ran.out == ""
    assert f"test_resnet cannot be exported as {kind} (" in ran.err and "--format safetensors" in ran.err
    assert "dynamic" in ran.err if module is Fixed else "data-dependent" in ran.err
    assert not list(tmp_path.iterdir())


def test_a_model_too_large_for_onnx(trained, tmp_path, monkeypatch, cli):
    monkeypatch.setattr(graph, "ONNX_LIMIT", 10_000)
    ran = cli("export", trained.run, "--format", "onnx", "-o", tmp_path)
    assert ran.code == 1 and "use --format pt2 or safetensors" in ran.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["pt2", "safetensors"])
def test_a_full_disk_keeps_the_old_file(kind, trained, tmp_path, monkeypatch, cli):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / f"a.{kind}"
    file.write_text("precious")
    monkeypatch.setattr(os, "fsync", full)
    ran = cli("export", trained.run, "--format", kind, "-o", file, "--overwrite")
    assert ran.code == 1 and "No space left" in ran.err and str(file) in ran.err
    assert file.read_text() == "precious" and list(tmp_path.iterdir()) == [file]


def test_unnamed_outputs_are_cut_off(trained):
    model, card = build("test_resnet", 7), read_card(find(trained.run))
    what = subject.of(model, replace(card, num_classes=7))
    assert not what.module.training
    assert graph.open_module(what)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 3)


WORDS = ("[PAD]", "[UNK]", "good", "bad", "film", "the", "a", "was", "very", "not")


@pytest.fixture(scope="module")
def text_run(tmp_path_factory):
    """A checkpoint that reads texts: a BERT with two layers, ten words and random weights."""
    engine = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    engine.pre_tokenizer = Whitespace()
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes).to_dict()
    settings = json.loads(json.dumps({"config": config, "pooling": "mean", "length": 12, "pad": 0}, default=str))
    text = TextSide(tokenizer=TextTokens(engine.to_str(), 12), settings=settings)
    torch.manual_seed(0)
    model = build("hf:tiny", 3, head_init="he", text=text)
    card = Card(
        arch="hf:tiny",
        kwargs={},
        classes=("bad", "good"),
        num_classes=3,
        step=1,
        epoch=1,
        preprocessing=model.preprocessing,
        metrics={},
        text=settings,
    )
    run, weights = tmp_path_factory.mktemp("texts") / "run", model.module.state_dict()
    return save(run, card, weights, {}, files=text.tokenizer.files())


@pytest.mark.parametrize("kind", FORMATS)
def test_texts(kind, text_run, tmp_path, cli):
    """Token ids and a mask of any size; the tokenizer next to the file; padding changes nothing."""
    texts = ["good film", "the film was not very good", "bad", "a " * 30, "film the bad was a not"]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    out = tmp_path / "out"
    out.mkdir()
    arguments = ("export", text_run, "--format", kind, "-o", out)
    ran = cli(*arguments, "--check", "--check-data", tmp_path, "--json")
    assert (ran.code, ran.err) == (0, "")
    told = json.loads(ran.out)
    assert told["check"]["origin"] == f"texts from {tmp_path}" and told["check"]["samples"] == 5
    assert told["beside"] == [str(out / "tokenizer.json")] and told["preprocessing"]["length"] == 12
    assert sorted(path.name for path in out.iterdir()) == sorted(["tokenizer.json", f"run.{kind}"])
    if kind == "safetensors":
        ran = cli(*arguments, "--check", "--overwrite")
        assert ran.code == 0 and "texts of random letters" in ran.out and "tokenizer.json" in ran.out
        assert load_model(out / "run.safetensors")[1] == read_card(find(text_run))
        return
    stated = json.loads(stated_in(out / f"run.{kind}")["preprocessing"])
    engine = Tokenizer.from_file(str(out / stated["tokenizer"]))
    engine.enable_truncation(stated["length"])
    engine.enable_padding(pad_id=stated["pad"])
    model, run = load_model(text_run)[0], opened(out / f"run.{kind}")
    for chosen in (texts, texts[:1], texts[1:4]):
        encoded = engine.encode_batch(chosen)
        logits = run(*(np.array([getattr(e, name) for e in encoded]) for name in ("ids", "attention_mask")))
        assert logits.shape == (len(chosen), 2)
        for text, row in zip(chosen, logits, strict=True):
            tokens = torch.from_numpy(model.text.tokenizer.tokens(text.encode()))[None]
            assert row.tolist() == pytest.approx(model.module(tokens)[0, :2].tolist(), abs=1e-5)


def test_another_tokenizer_is_not_replaced(text_run, tmp_path, cli):
    (tmp_path / "tokenizer.json").write_text("another's")
    ran = cli("export", text_run, "--format", "safetensors", "-o", tmp_path, "--overwrite")
    assert ran.code == 1 and "tokenizer.json: exists and is not the checkpoint's" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("reads", ["images", "texts"])
def test_data_of_the_other_kind(reads, trained, text_run, tmp_path, cli):
    rows = "".join(f"a film,{label}\n" for label in ("good", "bad") * 4)
    (tmp_path / "set.csv").write_text("text,label\n" + rows)
    assert cli("convert", tmp_path / "set.csv", tmp_path / "texts").code == 0
    run, data = (trained.run, tmp_path / "texts") if reads == "images" else (text_run, trained.shards)
    ran = cli("export", run, "--format", "safetensors", "-o", tmp_path, "--check", "--check-data", data)
    assert ran.code == 1 and f"but the checkpoint reads {reads}" in ran.err
    assert not (tmp_path / "run.safetensors").exists()
    if reads == "texts":
        ran = cli("export", run, "--format", "safetensors", "-o", tmp_path, "--check", "--check-data", trained.images)
        assert ran.code == 1 and "no .txt files" in ran.err


def test_not_a_checkpoint(tmp_path, cli):
    ran = cli("export", tmp_path, "--format", "pt2")
    assert ran.code == 1 and "no checkpoint in it" in ran.err
