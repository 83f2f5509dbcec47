"""A script in the manner of timm's train.py, with timm's loader and with ours: one line differs."""

import functools

import pytest

from .clients import TRAIN, VAL, apart, evaluated_in, seen_in

CLIENT = "timm_train"
BATCH = 5  # 45 images are nine batches on one rank; on two, five are left over
SMALL = ("--size", 32, "--workers", 1, "--batch-size", BATCH)


@pytest.fixture(scope="module")
def one_epoch(coloured, tmp_path_factory, run_client):
    """What each rank wrote of one epoch, with a loader and a seed: run once."""
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def run(head, seed=0, ranks=1):
        out = folder / f"{head}-{seed}-{ranks}"
        options = ("--loader", head, "--seed", seed, "--epochs", 1, *SMALL)
        return run_client(CLIENT, coloured, out, *options, ranks=ranks)

    return run


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_same_samples_as_timms_loader(ranks, one_epoch, coloured):
    """Each image at most once an epoch, and in evaluation exactly once: counts are those of all images."""
    steps = TRAIN // (BATCH * ranks)
    for head in ("torch", "fastimg"):
        found = one_epoch(head, ranks=ranks)
        assert [rank["steps"] for rank in found] == [steps] * ranks
        seen = seen_in(found, 0, coloured)
        assert seen.total() == steps * BATCH * ranks
        assert len(seen) == seen.total() or head == "torch"  # which repeats an image to make the ranks equal
        assert sum(rank["counted"] for rank in found) == VAL
        evaluated = evaluated_in(found, coloured)
        assert evaluated.total() == len(evaluated) == VAL
    if ranks == 1:
        assert seen_in(one_epoch("torch"), 0, coloured) == seen_in(one_epoch("fastimg"), 0, coloured)


def test_resuming_within_an_epoch_reads_what_is_left(coloured, tmp_path, run_client):
    options = ("--loader", "fastimg", "--epochs", 2, *SMALL)
    steps = TRAIN // (BATCH * 2)
    checkpoint = tmp_path / "checkpoint.pt"
    whole = run_client(CLIENT, coloured, tmp_path / "whole", *options, ranks=2)
    stop = ("--stop-after", steps + 2, "--checkpoint", checkpoint)
    first = run_client(CLIENT, coloured, tmp_path / "first", *options, *stop, ranks=2)
    rest = run_client(CLIENT, coloured, tmp_path / "rest", *options, "--resume", checkpoint, ranks=2)
    for all_of, begun, ended in zip(whole, first, rest, strict=True):
        assert all_of["seen"][1] == begun["seen"][1] + ended["seen"][0]
        assert all_of["seen"][0] != all_of["seen"][1]


def test_losses_lie_within_the_spread_of_seeds(one_epoch):
    losses = {head: [one_epoch(head, seed)[0]["losses"] for seed in range(3)] for head in ("torch", "fastimg")}
    assert apart(losses["torch"], losses["fastimg"]) < 3
