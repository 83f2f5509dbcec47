"""The techniques in a whole run: equal losses where they are exact, and their messages."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir

BASE = ("--img-size", "32", "--workers", "1", "--log-interval", "1", "--lr", "1e-3", "--epochs", "2")


@pytest.fixture
def run(trained, tmp_path, cli):
    """run("name", flag, ...): train on the small shards; returns the output and the run's directory."""

    def call(name, *flags, arch="test_resnet", code=0):
        pairs = zip(BASE[::2], BASE[1::2], strict=True)
        base = [part for pair in pairs for part in pair if pair[0] not in flags]
        if "--duration" in flags:
            base = base[: base.index("--epochs")]
        ran = cli("train", trained.shards, "--arch", arch, "--no-amp", *base, *flags, "-o", tmp_path, "--name", name)
        assert ran.code == code, ran.err
        return ran, tmp_path / name

    return call


def losses(directory, kind="train"):
    return [record["loss"] for record in rundir.read_log(directory) if record["kind"] == kind]


def test_accumulated_batches_equal_the_large_batch(run):
    """Without batch norm and with clipping; 24 images in batches of 10, so that the last batch is short."""
    _, large = run("large", "-b", "10", "--clip-grad", "1", arch="test_vit")
    _, small = run("small", "-b", "5", "--grad-accum-steps", "2", "--clip-grad", "1", arch="test_vit")
    np.testing.assert_allclose(losses(large, "val"), losses(small, "val"), rtol=2e-5)
    one, two = (load_file(run / "last/model.safetensors") for run in (large, small))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arch", ["test_resnet", "test_vit"])
def test_recomputed_activations_give_the_same_bits(run, arch):
    _, plain = run("plain", "-b", "8", "--drop-path", "0.2", arch=arch)
    ran, saving = run("saving", "-b", "8", "--drop-path", "0.2", "--grad-checkpointing", arch=arch)
    assert "recomputed, not stored" in ran.out
    assert losses(plain) == losses(saving)
    one, two = (load_file(run / "last/model.safetensors") for run in (plain, saving))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)  # statistics included


def test_ghost_batches_train_and_evaluate(run):
    ran, ghost = run("ghost", "-b", "8", "--ghost-bn", "4")
    _, plain = run("plain", "-b", "8")
    assert "ghost batch norm over 4" in ran.out
    assert losses(ghost)[0] != losses(plain)[0]
    assert load_file(ghost / "last/model.safetensors").keys() == load_file(plain / "last/model.safetensors").keys()


def test_blurpool_is_part_of_the_checkpoint(run, trained, cli):
    ran, blurred = run("blurred", "-b", "8", "--blurpool")
    assert "BlurPool" in ran.out and checkpoint.read_card(checkpoint.find(blurred)).blurpool
    _, plain = run("plain", "-b", "8")
    scored = cli("eval", blurred / "last", trained.shards, "--no-amp", "--json")
    recorded = losses(blurred, "val")[-1]
    assert f"{recorded:.4f}"[:5] in scored.out or str(recorded)[:6] in scored.out
    assert losses(blurred, "val") != losses(plain, "val")


def test_a_duration_in_steps_ends_and_resumes(run, tmp_path):
    ran, whole = run("whole", "-b", "8", "--duration", "5ba")
    assert "5 steps (5 steps)" in ran.out and "2 epochs, 5 steps" in ran.out
    records = rundir.read_log(whole)
    assert [record["step"] for record in records if record["kind"] == "train"] == [1, 2, 3, 4, 5]
    assert [record["samples"] for record in records if record["kind"] == "train"] == [8, 16, 24, 8, 16]
    again, _ = run("whole", "-b", "8", "--duration", "5ba", "--resume")
    assert "after step 5 of 5" in again.out
    _, samples = run("samples", "-b", "8", "--duration", "40sp")
    assert losses(samples) == losses(whole)


def test_warmup_in_steps_equals_warmup_in_epochs(run):
    """Three steps per epoch."""
    runs = [run(name, "-b", "8", "--warmup", text)[1] for name, text in (("a", "3ba"), ("b", "1ep"), ("c", "24sp"))]
    rates = [[r["lr"] for r in rundir.read_log(run) if r["kind"] == "train"] for run in runs]
    assert rates[0] == rates[1] == rates[2]
    assert rates[0][:3] == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3])
    ran, _ = run("d", "-b", "8", "--warmup", "7ba", code=2)
    assert "--warmup 7ba: would be 7 steps of a run that has 6" in ran.err


def test_gradual_unfreezing(run):
    """One epoch with only the head, then all of it, lower blocks more slowly; and the same if resumed."""
    _, start = run("start", "-b", "8")
    flags = ("-b", "8", "--weights", start, "--freeze", "backbone", "--freeze-epochs", "1", "--layer-decay", "0.5")
    ran, thawed = run("thawed", *flags, "--checkpoint-hist", "2")
    assert "all but the classifier, for 1 epoch" in ran.out and "layer decay 0.5" in ran.out
    assert "epoch 2/2  --freeze backbone ends: all parameters train from here on" in ran.out
    first = sorted((thawed / "checkpoints").iterdir())[0]
    before, held, after = (load_file(path / "model.safetensors") for path in (start / "best", first, thawed / "last"))
    assert {name for name in before if not torch.equal(before[name], held[name])} == {"fc.weight", "fc.bias"}
    moved = {name for name in held if not torch.equal(held[name], after[name]) and held[name].is_floating_point()}
    assert "conv1.0.weight" in moved and "layer4.0.conv1.weight" in moved
    stem, top = (float((after[name] - held[name]).abs().mean()) for name in ("conv1.0.weight", "layer4.0.conv1.weight"))
    assert stem < top / 2  # four blocks lower, at 0.5 each


def test_sgd_after_unfreezing(run):
    """Parameters that begin to train later are in a group with others, which have momentum by then."""
    _, start = run("start", "-b", "8")
    flags = ("-b", "8", "--weights", start, "--freeze", "2", "--freeze-epochs", "1", "--opt", "sgd")
    _, thawed = run("thawed", *flags, "--checkpoint-hist", "2")
    first = sorted((thawed / "checkpoints").iterdir())[0]
    held, after = (load_file(path / "model.safetensors") for path in (first, thawed / "last"))
    assert not torch.equal(held["conv1.0.weight"], after["conv1.0.weight"])


def test_the_first_blocks_are_frozen(run):
    _, start = run("start", "-b", "8")
    ran, partly = run("partly", "-b", "8", "--weights", start, "--freeze", "2")
    assert "the first 2 blocks" in ran.out
    before, after = (load_file(path / "model.safetensors") for path in (start / "best", partly / "last"))
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert {"conv1.0.weight", "bn1.running_mean", "layer1.0.conv1.weight"} <= same
    assert "layer2.0.conv1.weight" not in same and "layer2.0.bn1.running_mean" not in same


def test_the_training_split_is_evaluated_on_request(run):
    ran, there = run("there", "-b", "8", "--evaluate-training-set", "--tta")
    assert "each image and its mirror image, the training split too" in ran.out
    records = [record for record in rundir.read_log(there) if record["kind"] == "train_eval"]
    assert [record["samples"] for record in records] == [24, 24]
    assert len(re.findall("training split loss", ran.out)) == 2


def test_the_training_split_alone_is_evaluated_every_few_epochs(trained, tmp_path, fast, cli):
    flags = (*fast[:-1], "3", "--val-fraction", "0", "--evaluate-training-set", "--val-interval", "2")
    ran = cli("train", trained.images / "train", *flags, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    records = [record for record in rundir.read_log(tmp_path / "run") if record["kind"] in ("val", "train_eval")]
    assert [(record["kind"], record["epoch"]) for record in records] == [("train_eval", 2), ("train_eval", 3)]


def test_mirror_images_are_averaged_alike_in_training_and_evaluation(run, trained, cli):
    _, there = run("there", "-b", "8", "--tta")
    recorded = losses(there, "val")[-1]
    with_it, without = (
        json.loads(cli("eval", there / "last", trained.shards, "--no-amp", "--json", *flags).out)["loss"]
        for flags in (("--tta",), ())
    )
    assert with_it == pytest.approx(recorded, rel=1e-5)
    assert without != pytest.approx(recorded, rel=1e-5)


def test_shifted_views_are_averaged_alike_in_training_and_evaluation(run, trained, cli):
    ran, there = run("there", "-b", "8", "--tta", "mirror-shift")
    assert "each image and its mirror image, and the same shifted by a pixel two ways" in ran.out
    recorded = losses(there, "val")[-1]
    shifted, mirrored = (
        json.loads(cli("eval", there / "last", trained.shards, "--no-amp", "--json", *flags).out)["loss"]
        for flags in (("--tta", "mirror-shift"), ("--tta",))
    )
    assert shifted == pytest.approx(recorded, rel=1e-5)
    assert mirrored != pytest.approx(recorded, rel=1e-5)


def test_binary_cross_entropy_is_reported(run):
    ran, _ = run("there", "-b", "8", "--bce-loss")
    assert "binary cross-entropy of each class, label smoothing 0.1" in ran.out


def test_a_loss_that_became_nan_names_its_step(run):
    """Detected only at the end of the epoch, long after the step."""
    flags = ("-b", "4", "--opt", "sgd", "--warmup", "0ba", "--sched", "constant")
    base = ("--log-interval", "100")
    ran, there = run("there", *flags, "--lr", "1e30", *base, code=1)
    found = re.search(r"the loss became \S+ in step (\d+) \(learning rate 1e\+30\)", ran.err)
    assert found and int(found[1]) in (2, 3)  # of six
    assert "no checkpoint was written before it" in ran.err and not there.exists()
