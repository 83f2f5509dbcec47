"""--weights, --teacher and --teacher-weights at URLs: fetched once, and written down as they were given."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import timm
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from fastimg import cli
from fastimg.config.commands import Embed, Train
from fastimg.config.searching import Suggest
from fastimg.errors import UserError
from fastimg.loaders import DataError
from fastimg.loaders.remote.origins import named_by_origins
from fastimg.search.staged.encoders import find
from fastimg.train.checkpoints.run_uploads import RunUploads
from fastimg.train.checkpoints.stored_models import local_model, setting_of, with_local_models

from ...loaders.remote.object_server import ObjectServer

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

RUN, FILE = "s3://bucket/runs/x", "s3://bucket/small.safetensors"
SMALL = ("-b", "8", "--workers", "1", "--no-amp")
SHORT = ("--epochs", "1", "--val-fraction", "0.25")


@pytest.fixture
def server(named_server: ObjectServer) -> ObjectServer:
    return named_server


@pytest.fixture
def weights(server: ObjectServer) -> Path:
    """A file of weights in the store, for three classes."""
    file = server.folder / "small.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet", num_classes=3).state_dict(), file, {"arch": "test_resnet"})
    return file


@pytest.fixture
def run(server: ObjectServer, image_folder: Path, tmp_path: Path) -> Path:
    """A run that was uploaded, and is here as well."""
    flags = ("--arch", "test_resnet", "--img-size", "32", *SMALL, *SHORT, "--output", str(tmp_path / "runs"))
    assert cli.run(["train", str(image_folder), *flags, "--name", "x"]) == 0
    RunUploads(RUN, tmp_path / "runs/x", server.options, print).finish(lambda words: None)
    return tmp_path / "runs/x"


def fetches(server: ObjectServer) -> list[str]:
    """The requests for objects of the run, but those that wrote them."""
    return [name for name in server.requests if name.startswith("runs/x/objects/")]


def test_training_from_a_run_and_with_it_as_a_teacher(server, run, image_folder, tmp_path, capsys):
    server.requests.clear()
    flags = (*SMALL, *SHORT, "--output", str(tmp_path / "runs"))
    capsys.readouterr()
    for name, path in (("there", RUN), ("here", str(run))):
        option = ("--storage-option", "region=us-east-1") if name == "there" else ()
        given = (*flags, "--weights", path, "--teacher", path, "--name", name, *option)
        assert cli.run(["train", str(image_folder), *given]) == 0
        if name == "there":
            said = " ".join(capsys.readouterr().out.split())
            assert f"fetching 1 file of {RUN} (" in said and len(fetches(server)) == 1
            assert f"weights {RUN} states --arch test_resnet" in said
    assert len(fetches(server)) == len(set(fetches(server)))  # for two settings, each object once
    there, here = (load_file(tmp_path / "runs" / name / "last/model.safetensors") for name in ("there", "here"))
    assert all(torch.equal(there[name], here[name]) for name in here)
    written = (tmp_path / "runs/there/config.yaml").read_text()
    assert f"weights: {RUN}" in written and f"teacher: {RUN}" in written
    shutil.rmtree(tmp_path / "home")  # another machine goes on, by the same flags
    more = (*flags, "--weights", RUN, "--teacher", RUN, "--epochs", "2", "--name", "there", "--resume")
    more = (*more, "--storage-option", "region=us-east-1")
    assert cli.run(["train", str(image_folder), *more]) == 0, capsys.readouterr().err


def test_ranks_of_a_node_fetch_once(server, run, image_folder, tmp_path, python):
    server.requests.clear()
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fastimg"]
    flags = (*SMALL, *SHORT, "--device", "cpu", "--output", str(tmp_path / "runs"), "--name", "ranks")
    done = subprocess.run(
        [*launcher, "train", str(image_folder), *flags, "--weights", RUN],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert fetches(server) and len(fetches(server)) == len(set(fetches(server)))
    assert done.stdout.count("fetching ") == 1


def test_embedding_with_a_run(server, run, image_folder, tmp_path):
    for name, path in (("there", RUN), ("here", str(run))):
        flags = ("--weights", path, "--format", "npy", "--workers", "1", "--no-amp")
        assert cli.run(["embed", str(image_folder), str(tmp_path / name), *flags]) == 0
        flags = (*flags, "--storage-option", "region=us-east-1")
        assert cli.run(["embed", str(image_folder), str(tmp_path / name), *flags]) == (0 if name == "there" else 2)
        asked = ("predict", path, str(image_folder / "blue"), "--workers", "1", "--storage-option", "region=us-east-1")
        assert cli.run(asked) == (0 if name == "there" else 2)
    assert (tmp_path / "there/train.npy").read_bytes() == (tmp_path / "here/train.npy").read_bytes()


def test_a_file_of_weights_is_fetched_when_it_has_changed(server, weights, tmp_path):
    config = Train(weights=Path(FILE), cache_dir=tmp_path / "cache", storage_option=("region=us-east-1",))
    said: list[str] = []
    first = with_local_models(config, said.append).weights
    assert first.read_bytes() == weights.read_bytes() and setting_of(first) == Path(FILE)
    assert named_by_origins(f"{first}: no") == f"{FILE}: no" and len(said) == 1
    assert with_local_models(config, said.append).weights == first and len(said) == 1
    weights.write_bytes(weights.read_bytes() + b" ")
    assert with_local_models(config, said.append).weights.read_bytes() == weights.read_bytes() and len(said) == 2
    server.faults = [("small.safetensors", "flip")]  # the look, which has no body to flip
    shutil.rmtree(tmp_path / "cache")
    server.rates = {"flip": 1.0}
    with pytest.raises(DataError, match="fetched 5 times, with another content each time"):
        with_local_models(config, said.append)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_what_is_not_there(server, tmp_path, capsys):
    for flag, url, reason in (
        ("--weights", "s3://bucket/none", "no run there (it has no manifest.json)"),
        ("--teacher", "s3://bucket/none.pth", "not found: no such file or bucket"),
    ):
        code = cli.run(["train", str(tmp_path), "--arch", "test_resnet", flag, url])
        assert code == 1 and f"{url}: {reason}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", ["train", "embed", "suggest"])
def test_options_of_the_store_count_for_weights_too(command, image_folder, tmp_path, capsys):
    more = {"embed": [str(tmp_path / "out")], "suggest": ["-o", str(tmp_path / "x.yaml")]}.get(command, [])
    option = ["--storage-option", "region=us-east-1"]
    assert cli.run([command, str(image_folder), *more, "--arch", "test_resnet", *option]) == 2
    assert "--storage-option" in capsys.readouterr().err
    weights = ["--weights", f"file://{tmp_path}/none"]
    assert cli.run([command, str(image_folder), *more, "--arch", "test_resnet", *option, *weights]) == 1
    assert "no run there" in " ".join(capsys.readouterr().err.split())


def test_a_search_compares_what_urls_name(server, weights):
    found = find((), (Path(FILE), Path("s3://bucket/none")), None, {"img_size": 32}, False)
    (candidate,) = found.candidates
    assert candidate.settings == {"arch": "test_resnet", "weights": FILE}
    assert [each.name for each in found.skipped] == ["s3://bucket/none"]


def test_a_suggestion_names_the_url(server, weights, image_folder, tmp_path):
    from fastimg.suggest.command import suggest

    config = Suggest(data=image_folder, weights=Path(FILE), output=tmp_path / "x.yaml", workers="1", device="cpu")
    suggest(config, Console(quiet=True), Console(quiet=True))
    assert f"weights: {FILE}" in (tmp_path / "x.yaml").read_text()


def test_paths_here_stay_as_they_are(tmp_path):
    assert local_model(tmp_path, None) == tmp_path
    config = Embed(data=tmp_path, dst=tmp_path, weights=tmp_path / "w")
    assert with_local_models(config) is config
    with pytest.raises(UserError, match="no run there"):
        local_model(Path(f"file://{tmp_path}/run"), None)
