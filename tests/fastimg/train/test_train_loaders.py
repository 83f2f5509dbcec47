"""`--loader`: training and evaluation on batches of every library. dali and ffcv are in tests/peers."""

import json

import pytest
import yaml

from fastimg.loaders.backends import selection as backends
from fastimg.loaders.extras import install

FAST = ("--arch", "test_resnet", "--img-size", "32", "--batch-size", "8", "--no-amp", "--epochs", "1")


def test_runs_name_their_loader_and_torchs_gives_nearly_the_same_loss(cli, trained, tmp_path):
    """The same ids, crops and pixels: the same loss, up to differences of Pillow's libjpeg."""
    losses = {}
    for loader, chosen, said in (
        ("auto", "native", "native, 1 thread,"),
        ("torch", "torch", "DataLoader, 1 process,"),
    ):
        flags = ("train", trained.shards, *FAST, "--workers", "1", "--output", tmp_path, "--name", loader)
        ran = cli(*flags, "--data-backend", loader)
        assert ran.code == 0 and said in ran.out + ran.err, ran.err
        written = yaml.safe_load((tmp_path / loader / "config.yaml").read_text())
        assert written["loader"] == chosen and written["prefetch"] == 3 and written["on_error"] == "skip"
        records = [json.loads(line) for line in (tmp_path / loader / "metrics.jsonl").read_text().splitlines()]
        losses[loader] = [record["loss"] for record in records if record["kind"] in ("train", "val")]
    assert losses["torch"] == pytest.approx(losses["auto"], rel=1e-2) and len(losses["torch"]) == 2
    ran = cli(*flags, "--resume", "auto")  # and without --loader torch
    assert ran.code == 2 and "loader was torch and is native" in ran.err


def test_synthetic_pixels_train_and_are_reported(cli, trained, tmp_path):
    ran = cli("train", trained.shards, *FAST, "--loader", "synthetic", "--output", tmp_path, "--name", "run")
    assert ran.code == 0 and "nothing is read, and accuracy is meaningless" in ran.out + ran.err
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["loader"] == "synthetic" and not {"prefetch", "on_error", "max_pixels", "scale"} & set(written)
    again = cli("train", "--config", tmp_path / "run" / "config.yaml", "--name", "again", "--dry-run")
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--loader", "synthetic", "--on-error", "fail"], "--on-error has no effect with --loader synthetic"),
        (["--loader", "synthetic", "--workers", "2"], "--workers has no effect with --loader synthetic"),
        (["--loader", "synthetic", "--prefetch", "4"], "--prefetch has no effect with --loader synthetic"),
        (["--loader", "synthetic", "--scale", "0.5", "1"], "--scale has no effect with --loader synthetic"),
        (["--loader", "ffcv", "--max-pixels", "100"], "--max-pixels has no effect with --loader ffcv"),
        (["--loader", "torch", "--decode", "gpu"], "--decode has no effect with --loader torch"),
        (["--loader", "torch", "--dct-scaling", "off"], "--dct-scaling has no effect with --loader torch"),
        (["--no-aug", "--dct-scaling", "off"], "--dct-scaling has no effect with --no-aug"),
        (["--loader", "fast"], "fast"),
    ],
)
def test_flags_without_effect_are_refused(cli, trained, tmp_path, flags, words):
    ran = cli("train", trained.shards, *FAST, *flags, "--output", tmp_path)
    assert ran.code == 2 and words in ran.err


def test_a_missing_library_is_named(cli, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    for loader in ("dali", "ffcv"):
        for command in (
            ("train", trained.shards, *FAST, "--output", tmp_path),
            ("eval", trained.run, trained.shards),
        ):
            ran = cli(*command, "--loader", loader)
            assert ran.code == 2 and f"--loader {loader}: " in ran.err and f"{install(loader)}`" in ran.err


def test_ffcv_with_other_data_explains_how_to_convert(cli, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "_MODULES", {})
    ran = cli("train", trained.shards, *FAST, "--loader", "ffcv", "--output", tmp_path)
    assert ran.code == 2 and f"fastimg convert {trained.shards} DST --format beton" in ran.err


def test_evaluation_by_torch_equals_the_native_loaders(cli, trained):
    results = {}
    for loader in ("native", "torch"):
        ran = cli("eval", trained.run, trained.shards, "--loader", loader, "--json", "--no-amp", "--workers", "1")
        assert ran.code == 0, ran.err
        results[loader] = json.loads(ran.out)
        assert ("loader: torch" in ran.err) == (loader == "torch")
    assert results["torch"]["images"] == results["native"]["images"] == 12
    assert results["torch"]["loss"] == pytest.approx(results["native"]["loss"], rel=1e-2)
    assert cli("eval", trained.run, trained.shards, "--loader", "synthetic").code == 2


def test_undecodable_images_are_named_in_the_summary(cli, make_image_folder, tmp_path):
    folder = make_image_folder(8)
    (folder / "red" / "000.jpg").write_bytes(b"\xff\xd8 no image")
    flags = (*FAST, "--loader", "torch", "--val-fraction", "0", "--output", tmp_path)
    ran = cli("train", folder, *flags)
    assert ran.code == 0 and "1 training image could not be decoded" in ran.out + ran.err
