"""Checkpoints: complete or absent, and which of them are kept."""

import json

import pytest
import torch

from fastimg.errors import UserError
from fastimg.models.registry import Preprocessing, build, read_weights
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints.format import Card, find, load_model, load_training, point, prune, read_card, save

PRE = Preprocessing(
    train_size=32, val_size=40, val_resize=44, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)
)


def card(step=7, **changes):
    given = {
        "arch": "test_resnet",
        "kwargs": {"drop_path_rate": 0.1, "pad_type": "same"},
        "classes": ("a", "ä [b]", "c\nd"),
        "num_classes": 4,
        "preprocessing": PRE,
        "step": step,
        "epoch": 2,
        "metrics": {"top1": 0.5},
    }
    return Card(**(given | changes))


@pytest.fixture
def module():
    return torch.nn.BatchNorm1d(3)


def step_of(folder):
    """The step of a checkpoint, read from both of its files."""
    found = read_card(folder / "model.safetensors").step
    assert load_training(folder)["step"] == found
    return found


def write(run, module, step):
    made = save(run, card(step), module.state_dict(), {"step": step})
    point(run, "last", made)
    return made


def test_a_card_survives_its_json():
    assert Card.from_json(card().to_json()) == card()
    assert json.loads(card().to_json())["fastimg"]


def test_a_model_survives_its_file(tmp_path):
    model = build("test_resnet", 4)
    folder = save(tmp_path, card(kwargs={}), model.module.state_dict(), {"step": 7, "x": torch.arange(3)})
    loaded, found = load_model(folder)
    assert found == card(kwargs={}) and not loaded.module.training
    own, there = model.module.state_dict(), loaded.module.state_dict()
    assert own.keys() == there.keys() and all(own[name].equal(there[name]) for name in own)
    assert load_training(folder)["x"].tolist() == [0, 1, 2]


def test_a_card_from_before_blurpool():
    fields = json.loads(card().to_json())
    del fields["blurpool"]
    assert Card.from_json(json.dumps(fields)) == card()
    assert Card.from_json(card(blurpool=True).to_json()).blurpool


def test_a_card_records_blurpool(tmp_path):
    built = build("torchvision/resnet18", 4, blurpool=True)
    folder = save(tmp_path, card(arch="torchvision/resnet18", kwargs={}, blurpool=True), built.module.state_dict(), {})
    loaded, _ = load_model(folder)
    image = torch.randn(1, 3, 64, 64)
    assert loaded.module(image).equal(built.module.eval()(image))


def test_averages_are_the_saved_model_and_training_uses_the_weights(tmp_path, module):
    own = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    averages = {"weight": torch.full((3,), 0.5), "no_longer_saved": torch.ones(2)}
    folder = save(tmp_path, card(), module.state_dict(), {"step": 7}, averages)
    tensors, _ = read_weights(folder / "model.safetensors")
    assert tensors.keys() == own.keys() and tensors["weight"].equal(averages["weight"])
    kept = load_training(folder)["weights"]
    assert all(kept[name].equal(own[name]) for name in own) and kept["weight"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("fails", ["save_file", "torch.save", "os.fsync", "sync_folder"])
def test_a_crash_while_saving_leaves_the_last_one_whole(fails, tmp_path, module, monkeypatch):
    first = write(tmp_path, module, 1)

    def crash(*arguments, **options):
        raise OSError("the disk is full")

    holder, _, name = f"checkpoint.{fails}".rpartition(".")
    target = {"checkpoint": checkpoint, "checkpoint.torch": checkpoint.torch, "checkpoint.os": checkpoint.os}[holder]
    monkeypatch.setattr(target, name, crash)
    for step in (2, 1):  # another step, and the same step again
        with pytest.raises(OSError, match="full"):
            write(tmp_path, module, step)
        assert (tmp_path / "last").resolve() == first and step_of(tmp_path / "last") == 1
    monkeypatch.undo()
    made = write(tmp_path, module, 2)
    prune(tmp_path, 0)
    assert list((tmp_path / "checkpoints").iterdir()) == [made]


def test_the_same_step_saved_again_replaces_the_link_only(tmp_path, module):
    """`last` may point to the first one, which stays complete until the link has moved."""
    first = write(tmp_path, module, 5)
    again = save(tmp_path, card(5, epoch=3), module.state_dict(), {"step": 5})
    assert again != first and (tmp_path / "last").resolve() == first and step_of(first) == 5
    point(tmp_path, "last", again)
    prune(tmp_path, 0)
    assert [read_card(path / "model.safetensors").epoch for path in (tmp_path / "checkpoints").iterdir()] == [3]


def test_a_link_is_never_missing(tmp_path, module, monkeypatch):
    write(tmp_path, module, 1)
    (tmp_path / ".last.part").symlink_to("nowhere")  # left by a run that was killed
    write(tmp_path, module, 2)
    assert step_of(tmp_path / "last") == 2 and not (tmp_path / "last").readlink().is_absolute()


@pytest.mark.parametrize(
    ("keep", "left"), [(0, [3, 8]), (1, [3, 7, 8]), (2, [3, 6, 7, 8]), (4, [3, 4, 5, 6, 7, 8]), (9, [*range(1, 9)])]
)
def test_prune_keeps_best_last_and_the_newest(keep, left, tmp_path, module):
    for step in range(1, 9):
        made = write(tmp_path, module, step)
        if step == 3:
            point(tmp_path, "best", made)
        prune(tmp_path, max(keep, 8 if step < 8 else keep))
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == left


def test_a_long_history_grows_one_by_one(tmp_path, module):
    for step in range(1, 5):
        write(tmp_path, module, step)
        prune(tmp_path, 3)
        assert len(list((tmp_path / "checkpoints").iterdir())) == step


def test_prune_removes_remains_of_a_killed_run(tmp_path, module):
    write(tmp_path, module, 1)
    (tmp_path / "checkpoints" / ".00000002.part").mkdir()
    prune(tmp_path, 1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000001"]


def test_meaning_of_paths(tmp_path, module):
    first, second = write(tmp_path, module, 1), write(tmp_path, module, 2)
    assert find(tmp_path) == tmp_path / "last" / "model.safetensors"
    point(tmp_path, "best", first)
    assert find(tmp_path) == tmp_path / "best" / "model.safetensors"
    assert find(second) == second / "model.safetensors" == find(second / "model.safetensors")
    for path in (tmp_path / "no", tmp_path / "checkpoints"):
        with pytest.raises(UserError, match=f"{path}: no .*give a run directory"):
            find(path)


@pytest.mark.parametrize("content", [b"", b"\x80\x02", None])
def test_a_truncated_training_state(content, tmp_path, module):
    folder = write(tmp_path, module, 1)
    file = folder / "training.pt"
    file.write_bytes(file.read_bytes()[:-200] if content is None else content)
    with pytest.raises(UserError, match=r"training\.pt: cannot be read .*resume from another"):
        load_training(folder)


def test_a_training_state_is_never_executed(tmp_path, module):
    folder = write(tmp_path, module, 1)
    torch.save({"step": module}, folder / "training.pt")
    with pytest.raises(UserError, match="cannot be read"):
        load_training(folder)
