"""Runs in an object store: uploaded behind the training, whole by their manifest, and read from there."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fastimg import cli
from fastimg.config.commands import Train
from fastimg.errors import UsageError, UserError
from fastimg.loaders import DataError
from fastimg.models.ranks import Ranks
from fastimg.system.affinity import UNBOUND
from fastimg.train.checkpoints import stored_runs
from fastimg.train.checkpoints.run_directory import read_log
from fastimg.train.checkpoints.run_places import folder_of_runs
from fastimg.train.checkpoints.run_uploads import RunUploads
from fastimg.train.checkpoints.stored_runs import fetch_model, fetch_run, manifest_of, staged_runs

from ...loaders.remote.object_server import ObjectServer
from ...loaders.remote.object_writes import ObjectWrites

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

RUN = "s3://bucket/runs/x"
FLAGS = ("--arch", "test_resnet", "--img-size", "32", "-b", "8", "--workers", "1", "--no-amp", "--val-fraction", "0.25")


@pytest.fixture
def server(named_server: ObjectServer) -> ObjectServer:
    return named_server


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A run's directory after a checkpoint."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("arch: x\n")
    checkpoint(folder, 4, "best", "last")
    return folder


def checkpoint(folder: Path, step: int, *links: str) -> None:
    saved = folder / "checkpoints" / f"{step:08d}"
    saved.mkdir(parents=True)
    (saved / "model.safetensors").write_bytes(b"model %d" % step)
    (saved / "training.pt").write_bytes(b"training %d" % step)
    for link in links:
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(f"checkpoints/{step:08d}")


def uploads(server: ObjectServer, directory: Path, said: list[str]) -> RunUploads:
    return RunUploads(RUN, directory, server.options, said.append)


def objects(server: ObjectServer) -> set[bytes]:
    return {path.read_bytes() for path in (server.folder / "runs/x/objects").iterdir()}


@pytest.mark.usefixtures("shared_locks")
def test_a_process_that_was_forked_while_a_run_was_fetched_locks_out_nobody(tmp_path):
    with stored_runs._alone(tmp_path / "x"):
        pass
    with (tmp_path / ".x.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class TestUploads:
    def test_what_is_there_is_what_the_manifest_names(self, server, directory):
        running = uploads(server, directory, [])
        running.note()
        checkpoint(directory, 8, "last")
        running.finish(lambda words: None)
        assert objects(server) == {b"arch: x\n", b"model 4", b"training 4", b"model 8", b"training 8"}
        manifest = manifest_of(RUN, server.options)
        assert manifest.step == 8 and manifest.links == {
            "last": "checkpoints/00000008",
            "best": "checkpoints/00000004",
        }
        assert server.writes.written[-1] == "runs/x/manifest.json"
        assert not (directory / ".uploading").exists()

    def test_nothing_waits_and_the_newest_wins(self, server, directory):
        running = uploads(server, directory, [])
        arrived = server.hold_next()
        running.note()
        assert arrived.wait(30)
        for step in (8, 12, 16):  # while the first upload hangs
            shutil.rmtree(directory / "checkpoints" / f"{step - 4:08d}")
            checkpoint(directory, step, "last", "best")
            running.note()
        server.hold.set()
        running.finish(lambda words: None)
        assert objects(server) == {b"arch: x\n", b"model 16", b"training 16"}
        assert not any(b"model 8" in path.read_bytes() for path in server.folder.rglob("*") if path.is_file())

    def test_an_upload_that_is_cut_off_leaves_the_manifest_before_whole(self, server, directory, tmp_path):
        said: list[str] = []
        running = uploads(server, directory, said)
        running.finish(lambda words: None)
        before = manifest_of(RUN, server.options)
        checkpoint(directory, 8, "last", "best")
        running = uploads(server, directory, said)
        server.faults = [("PUT runs/x/manifest.json", "denied")]
        with pytest.raises(
            UserError, match=f"could not be uploaded: .*access denied.*; the run is in {directory}, and"
        ):
            running.finish(said.append)
        assert manifest_of(RUN, server.options) == before
        run = fetch_run(RUN, server.options, tmp_path / "cache")
        assert (run / "last/training.pt").read_bytes() == b"training 4"
        uploads(server, directory, said).finish(said.append)
        assert manifest_of(RUN, server.options).step == 8 and b"model 4" not in objects(server)

    def test_a_failure_is_said_and_tried_again_with_the_next_checkpoint(self, server, directory):
        told = threading.Event()
        running = RunUploads(RUN, directory, server.options, lambda words: told.set())
        server.faults = [("PUT runs/x/objects", "denied")]
        running.note()
        assert told.wait(30)
        running.finish(lambda words: None)
        assert manifest_of(RUN, server.options).step == 4

    def test_two_writers_leave_the_run_of_one_and_the_other_is_told(self, server, directory, tmp_path):
        first = uploads(server, directory, [])
        first.note()
        first.close()
        shutil.copytree(directory, tmp_path / "other", symlinks=True)
        first = uploads(server, directory, said := [])
        second = uploads(server, tmp_path / "other", [])
        shutil.rmtree(tmp_path / "other/checkpoints/00000004")
        checkpoint(tmp_path / "other", 8, "last", "best")  # what the first has uploaded is deleted
        second.finish(lambda words: None)
        with pytest.raises(UserError, match="could not be uploaded: another process has written to this run meanwhile"):
            first.finish(said.append)
        assert not any("uploaded" in words for words in said)
        run = fetch_run(RUN, server.options, tmp_path / "cache")
        assert (run / "last/training.pt").read_bytes() == b"training 8"
        assert objects(server) == {b"arch: x\n", b"model 8", b"training 8"}

    def test_a_manifest_that_another_writes_at_the_same_moment_stays(self, server, directory, monkeypatch):
        first = uploads(server, directory, [])
        answer = ObjectWrites.answer

        def late(writes, request, fault):
            if request.path.endswith("manifest.json"):
                (server.folder / "runs/x/manifest.json").write_text("of another")
            return answer(writes, request, fault)

        monkeypatch.setattr(ObjectWrites, "answer", late)
        with pytest.raises(UserError, match="another process has written to this run meanwhile"):
            first.finish(lambda words: None)
        assert (server.folder / "runs/x/manifest.json").read_text() == "of another"
        assert b"model 4" in objects(server)

    def test_a_file_url_is_written_to(self, directory, tmp_path):
        for step in (4, 8):
            running = RunUploads(f"file://{tmp_path}/runs/x", directory, {}, lambda words: None)
            running.finish(lambda words: None)
            assert manifest_of(f"file://{tmp_path}/runs/x", {}).step == step
            checkpoint(directory, step + 4, "last")

    @pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
    def test_faults_that_pass(self, server, directory, fault):
        server.faults = [("PUT runs/x/objects", fault), ("PUT runs/x/manifest.json", fault)]
        uploads(server, directory, []).finish(lambda words: None)
        assert server.faults == [] and b"model 4" in objects(server)


class TestReading:
    def test_a_model_comes_without_what_resuming_needs(self, server, directory, tmp_path):
        uploads(server, directory, []).finish(lambda words: None)
        run = fetch_model(Path(RUN), None)
        assert (run / "best/model.safetensors").read_bytes() == b"model 4"
        assert sorted(path.name for path in run.rglob("*") if path.is_file()) == ["model.safetensors"]
        assert fetch_model(directory, None) == directory

    def test_a_damaged_object_is_refused(self, server, directory, tmp_path):
        uploads(server, directory, []).finish(lambda words: None)
        for path in (server.folder / "runs/x/objects").iterdir():
            path.write_bytes(path.read_bytes()[::-1])
        with pytest.raises(DataError, match=r"its checksum is .*, not its name: it was damaged"):
            fetch_run(RUN, server.options, tmp_path / "cache")

    def test_a_flipped_byte_of_the_manifest_changes_nothing(self, server, directory):
        uploads(server, directory, []).finish(lambda words: None)
        want = manifest_of(RUN, server.options)
        server.rates = {"flip": 0.3}
        assert [manifest_of(RUN, server.options) for _ in range(10)] == [want] * 10
        assert "flip" in server.met

    def test_a_later_checkpoint_here_stays(self, server, directory, tmp_path):
        uploads(server, directory, []).finish(lambda words: None)
        run = fetch_run(RUN, server.options, tmp_path / "cache")
        checkpoint(run, 12, "last")
        assert (fetch_run(RUN, server.options, tmp_path / "cache") / "last/training.pt").read_bytes() == b"training 12"

    def test_no_run_and_no_manifest(self, server, directory, tmp_path):
        with pytest.raises(UserError, match=r"runs/none: no run there \(it has no manifest.json\)"):
            fetch_run("s3://bucket/runs/none", server.options, tmp_path)
        folder = server.folder / "runs/x"
        folder.mkdir(parents=True)
        stated = {"format": "fastimg run", "step": 1, "files": {"../evil": [1, "a"]}, "links": {}}
        for content in ("{}", json.dumps(stated)):
            (folder / "manifest.json").write_text(content)
            with pytest.raises(UserError, match=r"manifest\.json: cannot be read"):
                fetch_run(RUN, server.options, tmp_path)


def test_a_kill_leaves_the_manifest_before(server, directory, tmp_path):
    uploads(server, directory, []).finish(lambda words: None)
    before = manifest_of(RUN, server.options)
    checkpoint(directory, 8, "last", "best")
    server.faults = [("PUT runs/x/objects", "stall")]
    code = (
        "from pathlib import Path; from fastimg.train.checkpoints.run_uploads import RunUploads\n"
        f"RunUploads({RUN!r}, Path({str(directory)!r}), {{}}, print).finish(print)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    assert server.writes.stalled.wait(120)
    process.kill()
    process.wait()
    server.writes.release.set()
    assert manifest_of(RUN, server.options) == before
    run = fetch_run(RUN, server.options, tmp_path / "cache")
    assert (run / "last/training.pt").read_bytes() == b"training 4"
    uploads(server, directory, []).finish(lambda words: None)
    assert manifest_of(RUN, server.options).step == 8


def test_train_evaluate_and_resume_by_url(server, image_folder, tmp_path, capsys):
    flags = ["train", str(image_folder), *FLAGS, "--output", "s3://bucket/runs", "--name", "x"]
    assert cli.run([*flags, "--epochs", "1"]) == 0
    assert "uploaded    s3://bucket/runs/x" in " ".join(capsys.readouterr().out.split("\n"))
    assert cli.run([*flags, "--epochs", "1"]) == 2
    assert "a run of that name already exists" in " ".join(capsys.readouterr().err.split())
    shutil.rmtree(tmp_path / "home")  # another machine
    assert cli.run(["train", "--resume", RUN, "--epochs", "2"]) == 0
    run = fetch_run(RUN, server.options, None)
    assert (run / "metrics.jsonl").read_text().count('"kind": "epoch"') == 2
    capsys.readouterr()
    assert cli.run(["eval", RUN, str(image_folder), "--workers", "1", "--json"]) == 0
    validations = [record["top1"] for record in read_log(run) if record["kind"] == "val"]
    assert json.loads(capsys.readouterr().out)["top1"] == pytest.approx(max(validations))


class TestRanksOnSeveralMachines:
    @pytest.fixture
    def config(self, server: ObjectServer, tmp_path: Path) -> Train:
        options = tuple(f"{name}={value}" for name, value in server.options.items())
        config = Train(output=Path("s3://bucket/runs"), name="x", resume="auto", storage_option=options)
        return replace(config, cache_dir=tmp_path / "machine")

    @pytest.fixture
    def here(self, config: Train) -> Path:
        """The run's directory on this machine."""
        return staged_runs("s3://bucket/runs", config.cache_dir) / "x"

    def ranks(self, monkeypatch: pytest.MonkeyPatch, rank: int, said: str = "") -> Ranks:
        """One of two ranks on two machines; rank 0 says what it says, the other hears `said`."""
        monkeypatch.setattr(Ranks, "broadcast", lambda self, value: value if self.first else said)
        return Ranks(rank, 2, 1, torch.device("cpu"), None, UNBOUND)

    def test_rank_0_uploads_what_its_machine_alone_has(self, server, directory, config, here, monkeypatch):
        uploads(server, directory, []).finish(lambda words: None)
        shutil.copytree(directory, here, symlinks=True)
        checkpoint(here, 12, "last")
        assert folder_of_runs(config, self.ranks(monkeypatch, 0), lambda words: None) == here.parent
        assert manifest_of(RUN, server.options).step == 12 and b"training 12" in objects(server)

    def test_the_others_have_what_rank_0_found(self, server, directory, config, here, monkeypatch):
        uploads(server, directory, []).finish(lambda words: None)
        stated = manifest_of(RUN, server.options).to_json().decode()
        shutil.copytree(directory, here, symlinks=True)
        checkpoint(here, 12, "last")  # which was never uploaded from there
        folder_of_runs(config, self.ranks(monkeypatch, 1, stated), lambda words: None)
        assert (here / "last/training.pt").read_bytes() == b"training 4"

    def test_a_run_that_the_store_does_not_have_begins_anew(self, directory, config, here, monkeypatch):
        shutil.copytree(directory, here, symlinks=True)
        folder_of_runs(config, self.ranks(monkeypatch, 1, ""), lambda words: None)
        assert not here.exists()

    def test_sharded_checkpoints_are_refused(self, config, monkeypatch):
        with pytest.raises(UsageError, match="a folder that all machines share; give such a folder as --output, not"):
            folder_of_runs(replace(config, strategy="fsdp"), self.ranks(monkeypatch, 0), lambda words: None)

    @pytest.mark.slow
    def test_two_machines_resume_with_caches_of_their_own(self, server, image_folder, tmp_path, python):
        """By torchrun; the second time one machine has never seen the run, and the other was rank 0."""
        command = ["train", str(image_folder), *FLAGS, "--output", "s3://bucket/runs", "--name", "x"]
        for epochs, homes in (("1", "ab"), ("2", "ca")):
            port = str(free_port())
            started = []
            for rank, home in enumerate(homes):
                nodes = ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", port]
                launcher = [python, "-m", "torch.distributed.run", *nodes, "--nproc-per-node", "1", "-m", "fastimg"]
                environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / home)}
                asked = [*launcher, *command, "--epochs", epochs, *(["--resume", "auto"] if epochs == "2" else [])]
                started.append(subprocess.Popen(asked, env=environment, stderr=subprocess.PIPE, text=True))
            faults = [process.communicate(timeout=500)[1] for process in started]
            assert [process.returncode for process in started] == [0, 0], faults
        run = fetch_run(RUN, server.options, tmp_path / "d")
        assert (run / "metrics.jsonl").read_text().count('"kind": "epoch"') == 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_run_elsewhere_needs_a_name(capsys):
    assert cli.run(["train", "photos", "--output", "s3://bucket/runs"]) == 2
    assert "a run in an object store has a name that you give; add --name" in " ".join(capsys.readouterr().err.split())
