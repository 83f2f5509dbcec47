"""Invalid input: a sentence with the name and the remedy, an exit code, and nothing left behind."""

import shutil

import pytest

from .readers import everything


@pytest.fixture
def refuses(cli, tmp_path):
    """`refuses(code, texts, command...)`: it ends with `code`, prints all `texts`, and changes nothing on disk."""

    def check(code, texts, *arguments):
        before = everything(tmp_path)
        ran = cli(*arguments)
        assert ran.code == code, ran.out + ran.err
        assert "Traceback" not in ran.err + ran.out
        last = ran.err.strip().splitlines()[-1]
        assert last.startswith("fastimg: error: ")
        assert not [text for text in texts if str(text) not in last], last
        assert everything(tmp_path).keys() == before.keys()
        assert everything(tmp_path) == before
        return ran

    return check


@pytest.fixture
def folder(trained, tmp_path):
    """A folder with train/ and val/, to be damaged."""
    return shutil.copytree(trained.images, tmp_path / "data")


@pytest.fixture
def shards(trained, tmp_path):
    """Shards with train and val, to be damaged."""
    return shutil.copytree(trained.shards, tmp_path / "shards")


@pytest.fixture
def commands(trained, tmp_path, fast):
    """`commands[name](data)`: the arguments of a command on some data."""
    return {
        "convert": lambda data: ("convert", data, tmp_path / "new" / "out"),
        "train": lambda data: ("train", data, *fast, "-o", tmp_path / "runs"),
        "eval": lambda data: ("eval", trained.run, data, "--output", tmp_path / "plot.png", "--overwrite"),
        "predict": lambda data: ("predict", trained.run, data),
    }
