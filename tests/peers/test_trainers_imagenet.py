"""pytorch/examples' imagenet/main.py, in a script in its manner: the same images with torch's loader and with ours."""

from collections import Counter

import pytest
from torchvision.datasets import FakeData

from fastimg.loaders import ImageFolderLoader

from .clients import TRAIN, VAL, apart, evaluated_in, seen_in


@pytest.fixture
def run(run_client, coloured, tmp_path):
    """Run the client on one process: (head, options) -> what it wrote."""
    given = ("--size", 32, "--workers", 0)
    return lambda head, *options: run_client(
        "imagenet", coloured, tmp_path / "seen", "--loader", head, *given, *options
    )[0]


@pytest.mark.parametrize("head", ["torch", "fastimg"])
def test_every_image_once_on_one_process(head, run, coloured):
    found = run(head)
    for epoch in range(2):
        assert set(seen_in([found], epoch, coloured).values()) == {1} and len(found["seen"][epoch]) == TRAIN
    assert found["seen"][0] != found["seen"][1] and found["steps"] == 2 * -(-TRAIN // 8)
    assert set(evaluated_in([found], coloured).values()) == {1} and found["counted"] == VAL


@pytest.mark.slow
@pytest.mark.parametrize("head", ["torch", "fastimg"])
def test_every_image_once_on_two_processes(head, coloured, tmp_path, run_client):
    found = run_client(
        "imagenet", coloured, tmp_path / "seen", "--loader", head, "--size", 32, "--workers", 1, "--epochs", 2, ranks=2
    )
    for epoch in range(2):
        counts = Counter(seen_in(found, epoch, coloured).values())
        assert counts == ({1: TRAIN} if head == "fastimg" else {1: TRAIN - 1, 2: 1})  # torch's sampler repeats one
    assert [part["steps"] for part in found] == [2 * 3] * 2
    assert [part["counted"] for part in found] == [VAL, VAL]
    assert len(evaluated_in(found, coloured)) == VAL


def test_an_epoch_is_continued(run, tmp_path):
    whole = run("fastimg")
    point = tmp_path / "point"
    first = run("fastimg", "--stop-after", 4, "--checkpoint", point)
    rest = run("fastimg", "--resume", point)
    assert first["seen"][0] + rest["seen"][0] == whole["seen"][0] and rest["seen"][1] == whole["seen"][1]


def test_losses_are_those_of_torchs_loader(run):
    losses = [[run(head, "--seed", seed)["losses"] for seed in range(3)] for head in ("torch", "fastimg")]
    assert apart(*losses) < 2


def test_data_without_files_is_refused_by_name():
    with pytest.raises(TypeError, match="does not read FakeData; it reads folders"):
        ImageFolderLoader(FakeData(8, (3, 32, 32), 10), batch_size=4)
