"""The moving average: its arithmetic, swapping with the model, and a run that validates and saves it."""

import json

import pytest
import timm
import torch
from safetensors.torch import load_file

from fastimg.models.ema import Ema
from fastimg.train.checkpoints import run_directory as rundir


def test_it_follows_its_decay_and_is_faster_at_the_start():
    module = torch.nn.Linear(1, 1)
    average = Ema(module, decay=0.5)
    expected = module.weight.item()
    for step in range(12):
        with torch.no_grad():
            module.weight.fill_(float(step))
        average.update(step)
        keep = min(0.5, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * step
    assert average.tensors["weight"].item() == pytest.approx(expected)
    assert module.weight.item() == 11.0


def test_fewer_updates_move_it_proportionally_further():
    module = torch.nn.Linear(1, 1)
    average = Ema(module, decay=0.9, every=4)
    expected = module.weight.item()
    for step in range(40):
        with torch.no_grad():
            module.weight.fill_(float(step))
        average.update(step)
        if step % 4 == 3:
            share = min(1.0, 4 * (1 - min(0.9, (1 + step) / (10 + step))))
            expected = (1 - share) * expected + share * step
        assert average.tensors["weight"].item() == pytest.approx(expected)
    young = Ema(module, every=64)
    young.update(63)
    assert torch.equal(young.tensors["weight"], module.weight)  # never past the weights


def test_tensors_are_looked_up_once(monkeypatch):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    average = Ema(module, decay=0.0)
    monkeypatch.setattr(torch.nn.Module, "named_parameters", lambda *_: pytest.fail("looked up again"))
    with torch.no_grad():
        module[0].weight.fill_(2.0)
        module[1].running_mean.fill_(3.0)
    average.update(5)
    assert (average.tensors["0.weight"] == 2).all() and (average.tensors["1.running_mean"] == 3).all()


def test_statistics_of_batch_norms_are_averaged_and_counts_are_not():
    module = timm.create_model("test_resnet", num_classes=2)
    average = Ema(module)
    assert {name for name in average.tensors if "running_mean" in name}
    assert not [name for name in average.tensors if "num_batches_tracked" in name]
    assert set(average.tensors) | {n for n, _ in module.named_buffers() if "tracked" in n} == set(module.state_dict())


def test_swapped_and_back_to_the_same_bits():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    average = Ema(module)
    average.tensors["0.weight"] += 1
    own, shadow = module[0].weight.detach().clone(), average.tensors["0.weight"].clone()
    with average.swapped(module):
        assert torch.equal(module[0].weight, shadow)
    assert torch.equal(module[0].weight, own)
    assert torch.equal(average.tensors["0.weight"], shadow)


def test_a_run_saves_the_average_and_resumes_with_both(trained, fast, tmp_path, cli):
    flags = (*fast, "--model-ema", "--model-ema-decay", "0.9", "--lr", "3e-3", "-o", tmp_path / "runs", "--name")
    flags = (*flags[: flags.index("--epochs")], *flags[flags.index("--epochs") + 2 :])
    whole = cli("train", trained.shards, *flags, "whole", "--epochs", "2")
    assert whole.code == 0, whole.err
    assert "moving average of the weights, decay 0.9" in whole.out
    run = tmp_path / "runs/whole/last"
    averages = load_file(run / "model.safetensors")
    weights = torch.load(run / "training.pt", weights_only=True)["weights"]
    assert averages.keys() == weights.keys()
    assert any(not torch.equal(averages[name], weights[name]) for name in averages)
    record = [r for r in rundir.read_log(tmp_path / "runs/whole") if r["kind"] == "val"][-1]
    scored = cli("eval", tmp_path / "runs/whole/last", trained.shards, "--no-amp", "--json")
    assert json.loads(scored.out)["loss"] == pytest.approx(record["loss"], rel=1e-5)  # of the averages, not the weights


@pytest.mark.parametrize(
    "flags",
    [
        ("--model-ema-decay", "0.9"),
        ("--model-ema", "--model-ema-decay", "1"),
        ("--model-ema-steps", "2"),
        ("--model-ema", "--model-ema-steps", "0"),
    ],
)
def test_refused(flags, trained, cli):
    ran = cli("train", trained.shards, *flags)
    assert ran.code == 2 and flags[-2] in ran.err


def test_a_decay_of_zero_is_the_weights_themselves(trained, fast, cli, tmp_path):
    """And not the decay that is used where none is given."""
    flags = (*fast, "--lr", "3e-3", "--no-aug", "-o", tmp_path, "--name")
    assert cli("train", trained.images, *flags, "plain").code == 0
    assert cli("train", trained.images, *flags, "averaged", "--model-ema", "--model-ema-decay", "0").code == 0
    plain, averaged = (load_file(tmp_path / name / "last/model.safetensors") for name in ("plain", "averaged"))
    assert plain.keys() == averaged.keys()
    assert all(torch.equal(plain[name], averaged[name]) for name in plain)
