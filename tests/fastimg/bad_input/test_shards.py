"""Shards and descriptions that are incomplete, altered, or not ours."""

import shutil

import pytest

from fastimg.train import loop as training
from fastimg.train.checkpoints.format import load_model


def shorten(file):
    file.write_bytes(file.read_bytes()[:-512])


def alter(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    (file.parent / "train.fidx").unlink(missing_ok=True)
    (file.parent / "val.fidx").unlink(missing_ok=True)


@pytest.mark.parametrize("command", ["train", "eval"])
@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("00000.tar", shorten, "cut short or altered"),
        ("00000.idx", shorten, "cut short or altered"),
        ("00000.idx", alter, "cut short or altered"),
        ("00000.tar", lambda file: file.unlink(), "missing"),
        ("00000.idx", lambda file: file.unlink(), "missing"),
    ],
)
def test_incomplete_shards(command, name, change, reason, shards, commands, refuses):
    file = shards / f"{'train' if command == 'train' else 'val'}-{name}"
    change(file)
    refuses(1, [file, reason, "copy it again, or convert again"], *commands[command](shards))


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"format": "other"}', ""])
@pytest.mark.parametrize("command", ["train", "eval"])
def test_an_invalid_dataset_json(command, content, shards, commands, refuses):
    (shards / "dataset.json").write_text(content)
    refuses(1, [shards / "dataset.json", "convert again"], *commands[command](shards))


@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_conversion_that_did_not_finish(command, shards, commands, refuses):
    (shards / "dataset.json").unlink()
    (shards / "convert.json").write_text("{}")
    refuses(1, [shards, "did not finish", "--resume"], *commands[command](shards))


@pytest.mark.parametrize("cut", ["shrunk", "altered"])
def test_a_shard_that_changes_under_a_running_training(cut, shards, commands, cli, tmp_path, monkeypatch):
    """Never a SIGBUS: the run ends with the shard's name, and its last checkpoint is usable."""
    end_of_epoch = training._end_of_epoch

    def change(run, display):
        end_of_epoch(run, display)
        file = shards / "train-00000.tar"
        content = file.read_bytes()
        file.write_bytes(content[:4096] if cut == "shrunk" else bytes(len(content)))

    monkeypatch.setattr(training, "_end_of_epoch", change)
    ran = cli(*commands["train"](shards), "--epochs", "3")
    assert ran.code == 1 and "Traceback" not in ran.err
    assert f"{shards / 'train-00000.tar'}: " in ran.err and "copy" in ran.err
    (run,) = (tmp_path / "runs").iterdir()
    assert load_model(run / "last")[1].epoch == 1


def test_an_index_that_does_not_match_a_foreign_tar_is_reported(trained, tmp_path, cli, fast):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for file in trained.shards.glob("*.tar"):
        shutil.copy(file, theirs)
        lines = file.with_suffix(".idx").read_text().splitlines()
        (theirs / file.name).with_suffix(".idx").write_text("\n".join(["v1.2 1", lines[2]]) + "\n")
    ran = cli("train", theirs, *fast, "-o", tmp_path / "runs", "--name", "r")
    assert ran.code == 0, ran.err
    assert "train-00000.idx does not fit train-00000.tar: the tar was scanned" in ran.out and "24 images" in ran.out
    ran = cli("eval", tmp_path / "runs/r", theirs)
    assert ran.code == 0 and "val-00000.idx does not fit val-00000.tar" in ran.err


def test_shards_next_to_class_folders_are_not_a_dataset(trained, tmp_path, refuses):
    both = shutil.copytree(trained.images / "train", tmp_path / "both")
    shutil.copy(next(trained.shards.glob("train*.tar")), both)
    refuses(1, (both, "holds both subfolders of images and shards", "move one of them away"), "train", both)
