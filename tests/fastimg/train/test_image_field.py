"""`train --image-field` and `--depth 16`: bands and 16 bits from the decoder to the exported graph."""

import contextlib
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models._manipulate import adapt_input_conv

import fastimg
from fastimg.config.commands import Train
from fastimg.config.rule_tables.training import TRAIN
from fastimg.config.rules import refuse
from fastimg.data import datasets as data
from fastimg.errors import UsageError
from fastimg.loaders import CenterCrop, DataError, Loader, RandomResizedCrop, open_dataset
from fastimg.loaders.containers.bands import BandsDataset
from fastimg.loaders.decoder import Decoder, SampleReader
from fastimg.loaders.decoders.bands import BandsDecoder
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints.format import load_model

FLAGS = ("--arch", "test_resnet", "--img-size", "32", "--workers", "1", "--no-amp", "-b", "4", "--epochs", "1")


def bands_of(number, dtype="uint16"):
    """Five bands of a size of their own."""
    rng = np.random.default_rng(number)
    values = rng.integers(100, 3000, (5, *rng.integers(33, 50, 2))) * np.arange(1, 6)[:, None, None]
    return values.astype(dtype)


def write_table(folder, dtype, missing=(), spoilt=()):
    folder.mkdir()
    rows = ["path,label,bands"]
    for number in range(10):
        bands = bands_of(number, dtype)
        if number in spoilt:
            bands[1, 2, 3] = np.nan
        np.save(folder / f"{number}.npy", bands)
        Image.new("RGB", bands.shape[:0:-1]).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{'ab'[number % 2]},{'' if number in missing else f'{number}.npy'}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder / "table.csv"


@pytest.fixture
def banded(tmp_path, cli):
    """A dataset with uint16 bands."""
    table = write_table(tmp_path / "source", "uint16")
    made = cli("convert", table, tmp_path / "D", "--field", "bands:bands", "--val-fraction", "0.2")
    assert made.code == 0, made.err
    return SimpleNamespace(data=tmp_path / "D", source=table.parent)


def test_a_model_of_bands_from_its_weights_to_its_graph(banded, tmp_path, cli):
    torch.manual_seed(1)
    rgb = timm.create_model("test_resnet", num_classes=2).state_dict()
    save_file(rgb, tmp_path / "rgb.safetensors")
    moves = ("--vflip", "0.5", "--rotate", "20", "--reprob", "0.5", "--mixup", "0.2")
    still = ("--weights", tmp_path / "rgb.safetensors", "--lr", "1e-9", "--opt", "sgd")
    ran = cli("train", banded.data, "--image-field", "bands", *FLAGS, *moves, *still, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    assert "measured    mean and standard deviation, on 8 training samples" in ran.out
    assert "5 bands of the field 'bands'; mean" in ran.out
    run = tmp_path / "run"
    _, card = load_model(run)
    seen = card.preprocessing
    assert (seen.field, seen.dtype, seen.channels) == ("bands", "uint16", 5)
    levels = 1550 * np.arange(1, 6)
    assert seen.mean == pytest.approx(levels, rel=0.1) and all(s > 0 for s in seen.std)
    weights = load_file(run / "last" / "model.safetensors")["conv1.0.weight"]
    torch.testing.assert_close(weights, adapt_input_conv(5, rgb["conv1.0.weight"]))

    evaluated = cli("eval", run, banded.data, "--no-amp", "--json")
    assert evaluated.code == 0, evaluated.err
    validated = [record for record in rundir.read_log(run) if record["kind"] == "val"][-1]
    assert json.loads(evaluated.out)["loss"] == pytest.approx(validated["loss"], rel=1e-5)
    predicted = cli("predict", run, banded.source / "1.npy", banded.source / "2.npy", "--json")
    assert predicted.code == 0 and len(predicted.out.splitlines()) == 2, predicted.err
    assert "reads bands; give .npy or TIFF files" in cli("predict", run, banded.source / "1.png").err
    model = fastimg.load(run)
    arrays = [np.load(banded.source / name) for name in ("1.npy", "2.npy")]
    answers = model.predict([arrays[0], torch.from_numpy(arrays[1]), arrays[0][None], arrays[1][None]])
    lines = [json.loads(line) for line in predicted.out.splitlines()]
    assert [answer.probabilities for answer in answers] == [line["probabilities"] for line in lines] * 2
    assert model.inputs(arrays[0]).shape == (1, 5, 32, 32)
    for other, message in (
        (Image.new("RGB", (40, 40)), r"reads bands; give an array \[C, H, W\]"),
        (arrays[0].astype(np.float32), r"bands of float32 .*; the checkpoint reads uint16 \[5, H, W\]"),
        (arrays[0][:2], r"bands of uint16 \[2, .*; the checkpoint reads uint16 \[5, H, W\]"),
        (np.zeros((5, 9, 9), object), "bands of object"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(other)
    assert cli("embed", banded.data, tmp_path / "embedded", "--weights", run).code == 0
    exported = cli("export", run, "--output", tmp_path / "m.onnx", "--check")
    assert exported.code == 0 and "uint16 [batch, 5, 32, 32]" in exported.out, exported.err
    whole = cli("export", run, "--output", tmp_path / "w.onnx", "--with-preprocessing")
    assert whole.code == 2 and "reads bands, which the caller resizes and crops" in whole.err

    tuned = cli("train", banded.data, "--weights", run, *FLAGS[2:], "--dry-run")
    assert tuned.code == 0 and "--in-chans 5, --image-field bands" in tuned.out and "measured" not in tuned.out
    frozen = cli("train", banded.data, "--weights", run, *FLAGS[2:], "--freeze", "backbone", "--dry-run")
    assert frozen.code == 0 and "the model reads the field 'bands'" in frozen.out, frozen.err
    pictures = cli("inspect", banded.data, "--config", run / "config.yaml", "--output", tmp_path / "pictures")
    assert pictures.code == 0, pictures.err
    with contextlib.closing(open_dataset(banded.data, "train")) as dataset:
        with pytest.raises(DataError, match="has 5 bands of uint16, and the model reads 4 of uint16; give other data"):
            data.banded(dataset, replace(seen, mean=(1.0,) * 4))
        assert data.banded(dataset, seen).fingerprint != dataset.fingerprint


def test_bands_from_a_store_are_those_of_the_folder(banded, tmp_path, cli):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    url = f"file://{banded.data}"
    decoder = BandsDecoder(CenterCrop(size=8, resize=8), 5, "uint16")
    seen = []
    for place, cache in ((banded.data, {}), (url, {"cache_dir": tmp_path / "cache"})):
        with contextlib.closing(BandsDataset(open_dataset(place, "train", **cache), "bands")) as dataset:
            with Loader(dataset, decoder, batch_size=4, workers=1, seed=1) as loader:  # with the order of each
                epoch = [(batch.ids.clone(), batch.inputs.clone()) for batch in loader]
            ids, inputs = map(torch.cat, zip(*epoch, strict=True))
            seen.append(inputs[torch.argsort(ids)])
    assert torch.equal(*seen) and len(seen[0]) == 8
    flags = ("--image-field", "bands", *FLAGS, "--lr", "1e-3", "--cache-dir", tmp_path / "cache", "-o", tmp_path)
    ran = cli("train", url, *flags, "--name", "run")
    assert ran.code == 0 and "5 bands of the field 'bands'; mean" in ran.out, ran.err
    evaluated = cli("eval", tmp_path / "run", url, "--no-amp", "--json", "--cache-dir", tmp_path / "cache")
    assert evaluated.code == 0, evaluated.err


@pytest.mark.parametrize("form", ["tar", "beton"])
@pytest.mark.parametrize("varies", [False, True])
def test_groups_of_bands_are_read_and_cut_at_once(form, varies, tmp_path, cli, monkeypatch):
    table = write_table(tmp_path / "source", "uint16")
    if not varies:
        for number in range(10):
            np.save(table.parent / f"{number}.npy", bands_of(0))
            Image.new("RGB", bands_of(0).shape[:0:-1]).save(table.parent / f"{number}.png")
    made = cli("convert", table, tmp_path / "D", "--field", "bands:bands", "--format", form, "--val-fraction", "0")
    assert made.code == 0, made.err
    decoder = BandsDecoder(RandomResizedCrop(size=24), 5, "uint16")
    draws = decoder.draw(1, 0, np.arange(10))
    with contextlib.closing(BandsDataset(open_dataset(tmp_path / "D", "train"), "bands")) as dataset:
        reader = SampleReader(dataset)
        (inputs,) = decoder.fields
        seen, wanted = ({"inputs": np.zeros((10, *inputs.shape), inputs.dtype)} for _ in range(2))
        assert not Decoder.fill(decoder, reader, range(10), draws, wanted, Scratch())
        monkeypatch.setattr(dataset, "read_array", None)  # which reads them one by one
        assert not decoder.fill(reader, range(10), draws, seen, Scratch())
    assert (seen["inputs"] == wanted["inputs"]).all()


def test_a_resumed_run_keeps_its_mean(banded, tmp_path, cli):
    flags = ("--image-field", "bands", *FLAGS[:-2], "--lr", "1e-3", "-o", tmp_path)
    for name, epochs in (("whole", 2), ("parted", 1)):
        assert cli("train", banded.data, *flags, "--epochs", epochs, "--sched", "constant", "--name", name).code == 0
    resumed = tmp_path / "parted"
    ran = cli("train", banded.data, *flags, "--epochs", 2, "--sched", "constant", "--resume", resumed)
    assert ran.code == 0 and "measured" not in ran.out, ran.err
    whole, parted = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "parted"))
    assert load_model(resumed)[1].preprocessing == load_model(tmp_path / "whole")[1].preprocessing
    assert whole.keys() == parted.keys()


def test_samples_without_bands_or_with_nan_are_named(tmp_path, cli):
    table = write_table(tmp_path / "source", "float32", missing=(3,), spoilt=(4,))
    made = cli("convert", table, tmp_path / "D", "--field", "bands:bands", "--no-shuffle")
    assert made.code == 0, made.err
    flags = ("--image-field", "bands", *FLAGS, "--val-fraction", "0", "-o", tmp_path / "runs")
    ran = cli("train", tmp_path / "D", *flags, "--mean", *["3000"] * 5, "--std", *["900"] * 5)
    assert ran.code == 0 and "measured" not in ran.out, ran.err
    said = " ".join((ran.out + ran.err).split())
    assert "it has no field 'bands'" in said and "values are NaN or infinite, the first of them in band 1" in said
    strict = cli("train", tmp_path / "D", *flags, "--on-error", "fail")
    assert strict.code == 1 and ("it has no field 'bands'" in strict.err or "are NaN" in strict.err)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--image-field", "other"), "no field 'other'; it has bands"),
        (("--image-field", "bands", "--in-chans", "4"), "--in-chans 4: the field 'bands' of {} has 5 bands; leave it"),
        (
            ("--image-field", "bands", "--mean", "1", "2"),
            "--mean 1 2: the field 'bands' has 5 bands; give a number for",
        ),
        (("--image-field", "bands", "--arch", "torchvision/resnet18"), "torchvision/resnet18 reads only RGB images"),
    ],
)
def test_fields_and_numbers_that_do_not_fit(flags, words, banded, cli):
    ran = cli("train", banded.data, *FLAGS, *flags, "--dry-run")
    assert ran.code in (1, 2) and words.format(banded.data) in " ".join(ran.err.split())


BANDS = {"image_field": "bands", "arch": "test_resnet"}
DEEP = {"depth": 16, "arch": "test_resnet"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"in_chans": 5}, "--in-chans 5: give 1 for gray or 3 for RGB; of other bands name their field with --image"),
        ({"depth": 12}, "--depth 12: give 8, or 16"),
        (
            {**BANDS, "aa": "trivial"},
            "--image-field bands: --aa trivial changes levels of 8 bits, and bands have others",
        ),
        ({**BANDS, "brightness": (0.5, 1.5)}, "--image-field bands: --brightness changes levels"),
        ({**BANDS, "color_jitter": (0.4, 0.4, 0.4)}, "--image-field bands: --color-jitter changes levels"),
        ({**BANDS, "gaussian_blur_prob": 0.1}, "--gaussian-blur-prob changes levels"),
        ({**BANDS, "augmentation": [{"RandomGamma": {}}]}, "Kornia's augmentations take RGB images of 8 bits"),
        ({**BANDS, "loader": "torch"}, "bands are read by fastimg's own loader alone; leave --loader torch out"),
        ({**BANDS, "resident": True}, "leave --resident out"),
        ({**BANDS, "depth": 16}, "its values have the type that they are stored in; leave --depth 16 out"),
        ({**BANDS, "teacher": "runs/x"}, "--teacher sees images"),
        ({**BANDS, "dct_scaling": "low"}, "--dct-scaling has no effect with --image-field"),
        ({**BANDS, "std": (0.0,)}, "--std 0: give numbers above 0"),
        ({**DEEP, "mean": (2.0,)}, "--mean 2: give shares of white, from 0 to 1"),
        ({**DEEP, "aa": "rand-m9"}, "--depth 16: --aa rand-m9 changes levels of 8 bits, and images of 16 bits have"),
        ({**DEEP, "solarize_prob": 0.1}, "--depth 16: --solarize-prob changes levels"),
        ({**DEEP, "decode": "gpu"}, "images of 16 bits are read by fastimg's own loader alone; leave --decode gpu out"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(settings, words):
    with pytest.raises(UsageError, match=words):
        refuse(Train(**settings), TRAIN)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_16_bits(channels, tmp_path, cli):
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for label in "ab":
            (tmp_path / "images" / split / label).mkdir(parents=True)
            for number in range(count):
                levels = rng.integers(0, 900, (40, 36)).astype(np.uint16)  # of ten bits
                Image.fromarray(levels).save(tmp_path / "images" / split / label / f"{number}.png")
    flags = ("--depth", "16", "--in-chans", channels, *FLAGS, "--vflip", "0.5", "--reprob", "0.3", "--lr", "1e-3")
    ran = cli("train", tmp_path / "images", *flags, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    assert "measured    mean and standard deviation, on 8 training samples" in ran.out and "of 16 bits; mean" in ran.out
    run = tmp_path / "run"
    seen = load_model(run)[1].preprocessing
    assert (seen.field, seen.dtype, seen.channels) == (None, "uint16", channels)
    assert seen.mean == pytest.approx((450 / 65535,) * channels, rel=0.05)
    evaluated = cli("eval", run, tmp_path / "images", "--no-amp", "--json")
    assert evaluated.code == 0, evaluated.err
    validated = [record for record in rundir.read_log(run) if record["kind"] == "val"][-1]
    assert json.loads(evaluated.out)["loss"] == pytest.approx(validated["loss"], rel=1e-5)
    assert cli("predict", run, tmp_path / "images" / "val").code == 0
    assert cli("embed", tmp_path / "images", tmp_path / "embedded", "--weights", run).code == 0
    exported = cli("export", run, "--output", tmp_path / "m.onnx", "--check")
    assert exported.code == 0 and f"uint16 [batch, {channels}, 32, 32]" in exported.out, exported.err
    longer = shutil.copytree(run, tmp_path / "longer", symlinks=True)
    more = ("--epochs", "2", "--config", longer / "config.yaml", "-o", tmp_path)
    ran = cli("train", "--resume", longer, *more)
    assert ran.code == 0 and "measured" not in ran.out, ran.err
