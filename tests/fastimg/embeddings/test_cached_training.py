"""Cached embeddings in training: the same results as without a cache, with views, after resuming, and on two ranks."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fastimg.embeddings import cache as cached
from fastimg.train.checkpoints.writer import Writer

pytestmark = pytest.mark.usefixtures("own_cache")


def assert_close(one, two, rtol):
    assert [row[:3] for row in one] == [row[:3] for row in two] and len(one) > 5
    np.testing.assert_allclose([row[3] for row in one], [row[3] for row in two], rtol=rtol)
    assert [row[4] for row in one] == [row[4] for row in two]


@pytest.mark.parametrize("more", [(), ("--head", "mlp", "--head-hidden", "16"), ("--evaluate-training-set",)])
def test_cached_and_uncached_training_have_the_same_losses(train, losses, weights, more):
    """To 1e-5, since samples are encoded in different batches."""
    train("cached", "--cache-dtype", "fp32", *more)
    train("uncached", "--cache-embeddings", "off", *more)
    assert_close(losses("cached"), losses("uncached"), 1e-5)
    one, two = weights("cached"), weights("uncached")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_every_tensor_of_the_backbone_keeps_its_bits(train, weights, trained):
    loaded = load_file(trained.run / "best" / "model.safetensors")
    for name, flags in {"cached": (), "uncached": ("--cache-embeddings", "off"), "ema": ("--model-ema",)}.items():
        ran = train(name, "--lr", "0.1", *flags)
        rows = [line.partition("  ")[0] for line in ran.out.splitlines()]
        assert all(rows.count(row) == 1 for row in ("data", "model", "optimiser", "schedule", "loader", "run"))
        if name == "cached":  # the configuration is printed before the encoder runs, its outcome afterwards
            assert rows.index("model") < rows.index("schedule") < rows.index("embeddings") < rows.index("loader")
            assert re.search(r"^speed +[\d,.]+ embeddings/s", ran.out, re.MULTILINE), ran.out
        after = weights(name)
        moved = {tensor for tensor in loaded if not torch.equal(loaded[tensor], after[tensor])}
        assert moved == {"fc.weight", "fc.bias"}
        assert any("running_mean" in tensor for tensor in after)


def test_checkpoints_share_one_host_copy_of_the_backbone(train, weights, monkeypatch):
    saved, put = [], Writer.put
    monkeypatch.setattr(Writer, "put", lambda self, made, *rest: saved.append(made) or put(self, made, *rest))
    train("run", "--save-interval", "1")
    backbone = saved[0].weights.keys() - {"fc.weight", "fc.bias"}
    assert len(saved) > 5 and backbone
    assert all(made.weights[name] is saved[0].weights[name] for made in saved for name in backbone)
    assert all(torch.equal(tensor, saved[-1].weights[name]) for name, tensor in weights("run").items())


def test_k_views_are_the_first_k_epochs_in_turn(train, losses, encoded, monkeypatch):
    """Equal to uncached training with the same crops and flips; epoch 2 uses the views of epoch 0."""
    seen, begin = [], cached.Views.set_epoch
    monkeypatch.setattr(cached.Views, "set_epoch", lambda self, epoch: seen.append(epoch) or begin(self, epoch))
    flags = ("--hflip", "0.5", "--scale", "0.3", "1", "--lr", "1e-12", "--sched", "constant", "--warmup", "0ep")
    ran = train("cached", *flags, "--cache-embeddings", "2", "--cache-dtype", "fp32", "--order", "sequential")
    assert "2 augmented views of each: 60 made now" in ran.out and encoded == [24, 24, 12] and seen[-3:] == [0, 1, 2]
    train("uncached", *flags, "--cache-embeddings", "off", "--order", "sequential")
    one, two = losses("cached"), losses("uncached")
    assert_close([row for row in one if row[1] <= 6], [row for row in two if row[1] <= 6], 1e-5)
    steps = {epoch: [row[3] for row in one if row[0] == "train"][3 * epoch : 3 * epoch + 3] for epoch in range(3)}
    assert steps[0] == pytest.approx(steps[2], rel=1e-5) and steps[0] != pytest.approx(steps[1], rel=1e-4)
    train("again", *flags, "--cache-embeddings", "3")  # in fp16: different embeddings
    assert encoded[3:] == [24, 24, 24, 12]
    train("more", *flags, "--cache-embeddings", "4", "--seed", "0")
    assert encoded[7:] == [24]


def test_views_equal_uncached_training_when_weights_move(train, losses):
    flags = ("--hflip", "0.5", "--aa", "trivial", "--reprob", "0.5", "--epochs", "2")
    train("cached", *flags, "--cache-embeddings", "2", "--cache-dtype", "fp32")
    train("uncached", *flags, "--cache-embeddings", "off")
    assert_close(losses("cached"), losses("uncached"), 1e-5)
    views = (*flags, "--cache-dtype", "fp32", "--dry-run", "--cache-embeddings")
    assert "60 of 60 are kept; none has to be computed" in train("dry", *views, "2").out
    assert "60 of 84 are kept; the others are computed once by the frozen encoder" in train("dry", *views, "3").out


@pytest.fixture
def spoiled(trained, tmp_path):
    """A folder of images, two of which cannot be decoded."""
    data = shutil.copytree(trained.images, tmp_path / "spoiled")
    for name in ("train/red/2.jpg", "val/blue/1.png"):
        (data / name).write_bytes((data / name).read_bytes()[:60])
    (data / "train/blue/4.jpg").unlink()
    (data / "train/blue/4.jpg").symlink_to("nowhere")
    return data


def test_unreadable_images_are_reported_as_without_a_cache(train, losses, spoiled, tmp_path):
    said = {}
    for name, flags in {"off": ("--cache-embeddings", "off"), "first": (), "second": ()}.items():
        lines = train(name, "--cache-dtype", "fp32", *flags, data=spoiled).out if flags == () else None
        lines = lines or train(name, *flags, data=spoiled).out
        said[name] = [line for line in lines.splitlines() if "left out" in line or line.startswith("  /")]
    assert len(said["off"]) == 5 and said["off"][0].startswith("2 training images could not be decoded")
    assert sorted(said["off"]) == sorted(said["first"]) == sorted(said["second"])
    assert_close(losses("off"), losses("first"), 1e-5)
    assert losses("first") == losses("second")
    ran = train("fails", "--on-error", "fail", "--cache-dtype", "fp32", data=spoiled, code=1)
    assert "repair or remove it" in ran.err


def test_a_dry_run_writes_nothing(train, shards, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    ran = train("dry", "--dry-run")
    assert "computed once by the frozen encoder (not in a dry run)" in ran.out
    assert sorted(tmp_path.rglob("*")) == before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("flags", [(), ("--hflip", "0.5", "--cache-embeddings", "2"), ("--head", "mlp", "--model-ema")])
def test_resuming_within_an_epoch_equals_an_uninterrupted_run(train, losses, weights, monkeypatch, flags, tmp_path):
    from fastimg.train import step as module

    train("whole", *flags, "--save-interval", "1")
    average = module.average_gradients

    def dying(run, *rest):
        if run.progress.step == 4:  # the second step of the second epoch
            raise Killed
        return average(run, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(module, "average_gradients", dying)
        with pytest.raises(Killed):
            train("halves", *flags, "--save-interval", "1")
    moved = tmp_path / "elsewhere"
    ran = train("halves", *flags, "--save-interval", "1", "--resume", "auto", "--cache-dir", moved)
    assert "after step 4 of 9" in ran.out and moved.is_dir()
    assert losses("whole") == losses("halves")
    one, two = weights("whole"), weights("halves")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_config_of_a_run_runs_again(train, losses, cli, tmp_path):
    train("one", "--hflip", "0.5", "--cache-embeddings", "2", "--head", "mlp", "--ghost-bn", "4")
    config = tmp_path / "runs" / "one" / "config.yaml"
    ran = cli("train", "--config", config, "--name", "two")
    assert ran.code == 0, ran.err
    assert losses("one") == losses("two")


def test_ghost_batch_norm_in_the_head(train, losses, weights):
    """Statistics over four samples: different from eight, and the same as without a cache."""
    mlp = ("--head", "mlp", "--head-hidden", "8", "--cache-dtype", "fp32")
    train("whole", *mlp)
    train("ghost", *mlp, "--ghost-bn", "4")
    train("uncached", *mlp[:4], "--cache-embeddings", "off", "--ghost-bn", "4")
    assert losses("whole") != losses("ghost")
    assert_close(losses("ghost"), losses("uncached"), 1e-5)
    assert any("running_var" in name and name.startswith("fc.") for name in weights("ghost"))


def test_the_batch_size_search(train):
    ran = train("run", "-b", "auto")
    assert "36 made now" in ran.out and "chosen:" in ran.out
    rows = [line.partition("  ")[0] for line in ran.out.splitlines()]
    assert rows.index("model") < rows.index("embeddings") < rows.index("schedule") < rows.index("batch")


@pytest.mark.slow
def test_two_ranks_on_cached_embeddings(shards, trained, train, losses, tmp_path, fast, two_ranks):
    """Each rank makes its shards, and together they train like one process."""
    frozen = ["--freeze", "backbone", "--weights", trained.run, "--log-interval", "1"]
    more = ["--epochs", "3", "-b", "4", "--cache-dtype", "fp32", "--cache-dir", tmp_path / "ranks"]
    flags = ["train", shards, *fast, *frozen, *more, "-o", tmp_path / "runs", "--name", "two"]
    assert two_ranks(flags).out.count("36 made now") == 1
    train("one", "--cache-dtype", "fp32")
    assert_close(losses("one"), losses("two"), 2e-5)
    before = {path.name: path.read_bytes() for path in Path(tmp_path / "ranks").rglob("*.tar")}
    train("again", "--cache-dtype", "fp32", "--cache-dir", tmp_path / "ranks")
    assert {path.name: path.read_bytes() for path in Path(tmp_path / "ranks").rglob("*.tar")} == before
