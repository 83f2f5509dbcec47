"""README's examples are run on small data."""

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[2] / "README.md"
OWN_LOOP = README.parent / "docs/own-loop.md"


def test_it_is_short():
    """The quickstart has to be short."""
    assert len(README.read_text().splitlines()) <= 150


@pytest.fixture
def snippet():
    """The plain PyTorch loop."""
    section = README.read_text().split("## In your own loop\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return code


def test_the_loop_is_ten_lines(snippet):
    lines = [line for line in snippet.splitlines() if line and not re.match("import|from", line)]
    assert len(lines) == 10


@pytest.mark.parametrize("mixing", [False, True])
def test_the_loop_trains(snippet, image_folder, mixing):
    if mixing:  # the single statement that docs/own-loop.md gives for it
        (call,) = re.findall(r"^ +(images, targets = mix\(.*?^ +\))", OWN_LOOP.read_text(), re.DOTALL | re.MULTILINE)
        line = " ".join(call.split())
        plain = "images = apply(draw(policy, batch.ids, seed=0, epoch=epoch), batch.inputs)"
        others = {plain: line, "(hflip=0.5": "(mixup=0.2, hflip=0.5", "batch.targets, red": "targets, red"}
        for theirs, ours in {**others, "apply, draw": "draw, mix"}.items():
            assert theirs in snippet
            snippet = snippet.replace(theirs, ours)
    small = {
        '"D"': repr(str(image_folder)),
        '"cuda"': '"cpu"',
        '"resnet50"': '"test_resnet"',
        "crop=224": "crop=32",
        "batch_size=256": "batch_size=8",
        "range(10)": "range(3)",
        "(F.cross_entropy": "losses.append(F.cross_entropy(model(images), batch.targets).item()); (F.cross_entropy",
    }
    for theirs, ours in small.items():
        assert theirs in snippet
        snippet = snippet.replace(theirs, ours)
    losses = []
    names = {"losses": losses}
    torch.manual_seed(0)
    exec(compile(snippet, "README.md", "exec"), names)
    loader = names["loader"]
    assert loader.epoch == 2 and loader.unreadable == {} and len(losses) == 3 * len(loader) == 15
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])  # the three colours are learnt
    loader.close()


def test_the_functions_run(image_folder, tmp_path, monkeypatch):
    """README's lines from images to predictions, with a smaller model."""
    section = README.read_text().split("## From Python\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    small = {
        '"photos"': repr(str(image_folder)),
        'arch="resnet18", pretrained=True': 'arch="test_resnet", img_size=32, batch_size=8, workers=1',
        "epochs=3": "epochs=1",
        '"a.jpg"': repr(str(image_folder / "red/000.jpg")),
        '"b.jpg"': repr(str(image_folder / "blue/000.jpg")),
    }
    for theirs, ours in small.items():
        assert theirs in code
        code = code.replace(theirs, ours)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["report"].images == 36 and names["result"].best.samples == 3
    assert [len(answer.classes) for answer in names["answers"]] == [3, 3]
