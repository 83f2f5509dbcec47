"""Checkpoints written in the background: kills during a slow write, full disks, save intervals, and several ranks."""

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fastimg import cli
from fastimg.config.commands import Train
from fastimg.config.values.durations import Interval, interval
from fastimg.config.yaml_file import dump, load
from fastimg.errors import UsageError, UserError
from fastimg.models.registry import Preprocessing
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints import writer as writing
from fastimg.train.checkpoints.format import Card
from fastimg.train.checkpoints.host_copy import HostCopy
from fastimg.train.checkpoints.writer import Pace, Snapshot, Writer

CPU = torch.device("cpu")
PRE = Preprocessing(
    train_size=32, val_size=40, val_resize=44, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)
)


def arguments(data: Path, output: Path, *more: str) -> list[str]:
    flags = ["--arch", "test_resnet", "--img-size", "32", "-b", "4", "--epochs", "2", "--no-amp", "--workers", "1"]
    extra = ["--log-interval", "1", "--save-interval", "1", "--model-ema", "--model-ema-steps", "2"]
    return ["train", str(data), *flags, *extra, "--output", str(output), "--name", "run", *more]


def outcome(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[Any]]:
    training = torch.load(run / "last/training.pt", weights_only=True)
    losses = [(r["kind"], r["step"], r["loss"]) for r in rundir.read_log(run) if "loss" in r]
    return load_file(run / "last/model.safetensors"), training, losses


def assert_same(one: Path, two: Path) -> None:
    (averages, training, losses), (averages2, training2, losses2) = outcome(one), outcome(two)
    assert losses == losses2
    assert averages.keys() == averages2.keys()
    for name, tensor in averages.items():
        assert tensor.equal(averages2[name]), name
        assert training["weights"][name].equal(training2["weights"][name]), name
    for index, state in training["optimizer"]["state"].items():
        for key, value in state.items():
            assert torch.as_tensor(value).equal(torch.as_tensor(training2["optimizer"]["state"][index][key])), key


# --- the copy


def test_a_copy_has_the_bits_and_the_layout_and_is_apart() -> None:
    dense = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    tied = torch.arange(6.0)
    tree = {
        "a": [dense, {"b": torch.tensor(7, dtype=torch.int64), 3: tied}],
        "c": (tied, torch.randn(8, 8)[::2, 1::3], torch.zeros(0), torch.randn(3).bfloat16(), torch.tensor([True])),
        "d": {"lr": 0.1, "nesterov": True, "betas": (0.9, 0.999), "none": None},
    }
    room = HostCopy(CPU)
    copied = room.take(tree)
    assert copied["d"] == tree["d"] and copied["a"][1].keys() == {"b", 3} and isinstance(copied["c"], tuple)
    pairs = [(dense, copied["a"][0]), (tied, copied["a"][1][3]), *zip(tree["c"], copied["c"], strict=True)]
    for source, target in pairs:
        assert target.equal(source) and target.dtype == source.dtype
        assert target.untyped_storage().nbytes() == target.nbytes  # torch.save writes whole storages
    assert copied["a"][0].stride() == dense.stride()
    tied.fill_(-1)
    assert copied["a"][1][3].tolist() == copied["c"][0].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_buffer_is_allocated_once() -> None:
    room = HostCopy(CPU)
    first = room.take({"a": torch.ones(1000), "b": torch.ones(10)})
    second = room.take({"a": torch.zeros(1000), "b": torch.zeros(10)})
    assert first["a"].data_ptr() == second["a"].data_ptr() and first["a"].sum() == 0
    larger = room.take({"a": torch.zeros(5000)})
    assert larger["a"].data_ptr() != first["a"].data_ptr()


def test_on_a_gpu_buffers_are_copied_in_order_and_the_rest_concurrently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    names = iter(("begun", "done"))
    step, side = (Stream(name, said) for name in ("step", "side"))
    current = [step]

    @contextlib.contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "Event", lambda blocking=False: Event(next(names), said))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", entered)
    room = HostCopy(torch.device("cuda", 0))
    sources = [
        SimpleNamespace(name=name, is_cuda=cuda, data_ptr=lambda at=at: at)
        for at, name, cuda in (
            (1, "weight", True),
            (2, "running mean", True),
            (3, "moment", True),
            (4, "count on the host", False),
        )
    ]
    target = SimpleNamespace(
        copy_=lambda source, non_blocking: said.append(f"{source.name} on {current[-1].name}" * non_blocking)
    )
    room._copy(sources, [target] * 4, beside={1, 3, 4})  # type: ignore[arg-type,list-item]
    first = ["running mean on step", "count on the host on step", "begun on step", "side waits for begun"]
    assert said == [*first, "weight on side", "moment on side", "done on side"]
    said.clear()
    room.hold()
    assert said == ["step waits for done"]


class Stream:
    """Records its calls."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def wait_event(self, event: "Event") -> None:
        self.said.append(f"{self.name} waits for {event.name}")


class Event:
    """An event that logs the streams that it is recorded on."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def record(self, stream: Stream) -> None:
        self.said.append(f"{self.name} on {stream.name}")


def test_weights_change_only_after_their_copy(
    trained: Any, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def telling(holder: Any, name: str) -> None:
        inner = getattr(holder, name)

        def told(*arguments: Any, **options: Any) -> Any:
            said.append(name)
            return inner(*arguments, **options)

        monkeypatch.setattr(holder, name, told)

    telling(HostCopy, "take")
    telling(HostCopy, "hold")
    telling(torch.optim.AdamW, "step")
    assert cli(*arguments(trained.images, tmp_path), "--save-interval", "2", "--epochs", "1").code == 0
    assert said == ["step", "step", "take", "hold", "step", "step", "take", "hold", "step", "step", "take"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_copy_overlaps_the_step_and_ends_before_the_next_update() -> None:
    device = torch.device("cuda")
    weights = torch.zeros(1 << 24, device=device)
    running = torch.zeros(1 << 20, device=device)
    room = HostCopy(device)
    room.take({"weights": weights, "running": running}, {weights.data_ptr()})  # allocates
    room.arrive()
    for step in range(1, 6):
        torch.cuda._sleep(20_000_000)  # the previous step is still running
        weights.fill_(step)
        running.fill_(step)
        began = time.perf_counter()
        copied = room.take({"weights": weights, "running": running}, {weights.data_ptr()})
        assert time.perf_counter() - began < 0.005  # no waiting
        running.fill_(-1)  # for the next forward pass, which does not wait for the large copy
        room.hold()
        weights.fill_(-1)  # by the optimiser
        room.arrive()
        assert (copied["weights"] == step).all() and (copied["running"] == step).all()
        assert copied["weights"].is_pinned() or room._room.is_pinned()


# --- the writer


def snapshot(writer: Writer, step: int, value: float = 0.0) -> Snapshot:
    card = Card(arch="x", kwargs={}, classes=("a",), num_classes=1, preprocessing=PRE, step=step, epoch=0, metrics={})
    room = writer.room()
    copied = room.take({"w": torch.full((100,), value), "t": {"step": step}})
    return Snapshot(card=card, weights={"w": copied["w"]}, training=copied["t"], averages=None, files=None, room=room)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writing waits until it is set."""
    opened, write = threading.Event(), checkpoint.save

    def gated(*arguments: Any, **options: Any) -> Path:
        assert opened.wait(60)
        return write(*arguments, **options)

    monkeypatch.setattr(checkpoint, "save", gated)
    return opened


def test_training_goes_on_while_a_checkpoint_is_written(gate: threading.Event, tmp_path: Path) -> None:
    writer = Writer(tmp_path, 1, CPU)
    with writer:
        writer.put(snapshot(writer, 1), ["last"])
        assert not (tmp_path / "last").exists()
        gate.set()
    assert checkpoint.load_training((tmp_path / "last").resolve()) == {"step": 1}


def test_one_checkpoint_at_a_time_in_the_same_buffer(gate: threading.Event, tmp_path: Path) -> None:
    writer = Writer(tmp_path, 9, CPU)
    gate.set()
    rooms = []
    for step in range(1, 5):
        writer.settle()
        made = snapshot(writer, step, float(step))
        rooms.append(made.room)
        writer.put(made, ["last"])
        assert sum(thread.name == "fastimg-checkpoint" for thread in threading.enumerate()) <= 1
    writer.finish()
    assert len(set(map(id, rooms))) == 1
    for step in range(1, 5):
        saved = load_file(tmp_path / f"checkpoints/{step:08d}/model.safetensors")
        assert (saved["w"] == step).all()


def test_a_waiting_checkpoint_is_replaced_by_the_next(gate: threading.Event, tmp_path: Path) -> None:
    """Epochs on embeddings: the last and the best checkpoint are written, those in between are not."""
    writer = Writer(tmp_path, 9, CPU)
    gate.set()
    writer.put(snapshot(writer, 1), ["last", "best"], may_wait=True)  # at once: the last write was long ago
    writer.join()
    for step in range(2, 8):
        writer.put(snapshot(writer, step), ["last", "best"] if step == 4 else ["last"], may_wait=True)
    assert len(writer._rooms) <= 2 and {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"00000001"}
    with writer:
        pass
    assert (tmp_path / "last").resolve().name == "00000007" and (tmp_path / "best").resolve().name == "00000004"
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"00000001", "00000004", "00000007"}


def test_an_error_of_the_thread_is_raised_once_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = Writer(tmp_path, 1, CPU)
    writer.put(snapshot(writer, 1), ["last"])
    writer.settle()
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", full)
        writer.put(snapshot(writer, 2), ["last"])
        with pytest.raises(UserError, match=r"the checkpoint of step 2 could not be written .*No space.*; make room"):
            writer.settle()
        writer.settle()
        writer.put(snapshot(writer, 3), ["last"])
        with pytest.raises(UserError, match="step 3"):
            writer.finish()
        writer.put(snapshot(writer, 4), ["last"])
        with pytest.raises(ValueError, match="of its own"), writer:  # is not hidden by the disk error
            raise ValueError("of its own")
    assert (tmp_path / "last").resolve().name == "00000001"
    with (
        monkeypatch.context() as patched,
        pytest.raises(ZeroDivisionError),
    ):  # an error of another kind stays one
        patched.setattr(checkpoint, "point", lambda *_: 1 / 0)
        broken = Writer(tmp_path, 1, CPU)
        broken.put(snapshot(broken, 5), ["last"])
        broken.finish()


# --- when


@pytest.mark.parametrize(
    ("text", "expected", "words"),
    [
        ("200", Interval(steps=200), "200 steps"),
        ("1", Interval(steps=1), "1 step"),
        ("90s", Interval(seconds=90.0), "1.5 minutes"),
        ("10m", Interval(seconds=600.0), "10 minutes"),
        (" 10 MIN ", Interval(seconds=600.0), "10 minutes"),
        ("1.5h", Interval(seconds=5400.0), "1.5 hours"),
        (".5s", Interval(seconds=0.5), "0.5 seconds"),
    ],
)
def test_intervals(text: str, expected: Interval, words: str) -> None:
    assert interval(text, "--x") == expected and str(expected) == words


@pytest.mark.parametrize("text", ["", "0", "0m", "-5", "1.5", "10ep", "m", "ten", "1e9", "10mm"])
def test_invalid_intervals(text: str) -> None:
    with pytest.raises(UsageError, match=r"--x .*: give a number of steps, 1 or more, or a time, as 90s, 10m or 1.5h"):
        interval(text, "--x")


def test_intervals_in_older_files_are_steps(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("save_interval: 200\n")
    assert load(file, Train).save_interval == "200"
    for given in ("200", "10m"):
        file.write_text(dump(Train(save_interval=given)))
        assert load(file, Train).save_interval == given


def test_saving_by_steps_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(writing.time, "monotonic", lambda: now[0])
    steps, clock = Pace(Interval(steps=3)), Pace(Interval(seconds=60.0))
    now[0] += 59
    assert [steps.at(step) for step in range(1, 7)] == [False, False, True] * 2 and not steps.overdue()
    assert not clock.overdue() and not any(clock.at(step) for step in range(9))
    now[0] += 1
    assert clock.overdue() and not steps.overdue()
    clock.saved()
    assert not clock.overdue()


def test_a_run_saves_by_time_and_reports_it(trained: Any, cli: Any, tmp_path: Path) -> None:
    ran = cli(*arguments(trained.images, tmp_path), "--save-interval", "0.000001s", "--checkpoint-hist", "99")
    assert ran.code == 0, ran.err
    assert "after each epoch and every 1e-06 seconds, while training continues" in ran.out
    made = {int(path.name) for path in (tmp_path / "run/checkpoints").iterdir()}
    assert made == set(range(1, 13))  # each of 6 steps in two epochs
    ran = cli(
        *arguments(trained.images, tmp_path), "--save-interval", "10m", "--name", "rare", "--checkpoint-hist", "99"
    )
    assert {int(path.name) for path in (tmp_path / "rare/checkpoints").iterdir()} == {6, 12}
    assert ran.code == 0 and "every 10 minutes, while training continues" in ran.out


# --- kills


SLOW = """
import os, signal, sys, threading, time
from fastimg import cli
from fastimg.train.checkpoints import format as checkpoint

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one thread computes, as in the tests
place, count = sys.argv[1], int(sys.argv[2])
done = []

def slowly(name, holder):
    function = getattr(holder, name)
    def slow(*arguments, **options):
        if threading.current_thread() is not threading.main_thread():
            done.append(1)
            if place == name and len([1 for _ in done]) >= count:
                time.sleep(0.3)  # training goes on meanwhile
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.05)
        return function(*arguments, **options)
    setattr(holder, name, slow)

slowly(place, {"save_file": checkpoint, "fsync": checkpoint.os, "sync_folder": checkpoint, "point": checkpoint,
               "prune": checkpoint}[place])
sys.exit(cli.run(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def whole(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    output = tmp_path_factory.mktemp("whole")
    assert cli.run(arguments(trained.images, output)) == 0
    return output / "run"


@pytest.mark.slow
@pytest.mark.parametrize(("place", "count"), [("save_file", 3), ("fsync", 8), ("point", 5), ("prune", 7)])
def test_kill_9_while_a_slow_thread_writes_and_resume_gives_the_same_bits(
    place: str, count: int, whole: Path, trained: Any, python: str, tmp_path: Path
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    flags = arguments(trained.images, tmp_path / "halves")
    done = subprocess.run([python, str(script), place, str(count), *flags], capture_output=True, timeout=300)
    run = tmp_path / "halves/run"
    assert done.returncode == -9, done.stderr.decode()
    for link in ("last", "best"):  # the checkpoints they point to are complete
        if (run / link).is_symlink():
            assert checkpoint.read_card(run / link / "model.safetensors").step > 0
            checkpoint.load_training((run / link).resolve())
    assert (run / "last").is_symlink()
    steps = [record["step"] for record in rundir.train_records(run)]
    assert max(steps) > checkpoint.load_training((run / "last").resolve())["step"]  # training had continued
    assert cli.run([*flags, "--resume", "auto"]) == 0
    assert_same(whole, run)
    assert not list((run / "checkpoints").glob(".*"))


def test_a_full_disk_ends_a_run_with_one_sentence(
    trained: Any, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next checkpoint, or at the end; the previous one stays, and the run resumes from it."""
    write, calls = checkpoint.save_file, []

    def full(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) in (3, 13):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments, **options)

    monkeypatch.setattr(checkpoint, "save_file", full)
    flags = arguments(trained.images, tmp_path)
    ran = cli(*flags)
    assert ran.code == 1 and len(ran.err.strip().splitlines()) == 1
    assert "the checkpoint of step 3 could not be written ([Errno 28] No space left on device); make" in ran.err
    assert checkpoint.load_training((tmp_path / "run/last").resolve())["step"] == 2
    ran = cli(*flags, "--resume", "auto")  # its tenth step is the last one
    assert ran.code == 1 and "checkpoint of step 12 could not be written ([Errno 28] No space" in ran.err
    assert checkpoint.load_training((tmp_path / "run/last").resolve())["step"] == 11
    assert cli(*flags, "--resume", "auto").code == 0
    assert checkpoint.load_training((tmp_path / "run/last").resolve())["step"] == 12


def test_a_run_that_diverges_is_not_saved(trained: Any, cli: Any, tmp_path: Path) -> None:
    ran = cli(*arguments(trained.images, tmp_path), "--lr", "1e30", "--warmup", "0ep", "--opt", "sgd")
    assert ran.code == 1 and "the loss became" in ran.err
    for path in (tmp_path / "run/checkpoints").glob("[0-9]*"):
        assert all(torch.isfinite(value).all() for value in load_file(path / "model.safetensors").values())


@pytest.mark.slow
def test_two_ranks_agree_on_when_and_go_on_exactly(trained: Any, two_ranks: Any, tmp_path: Path) -> None:
    """By rank 0's clock, with batch norms whose statistics differ between ranks: saving has no effect on training."""
    flags = (*arguments(trained.images, tmp_path), "--checkpoint-hist", "99", "-b", "2")
    often, never = ("--save-interval", "0.000001s"), ("--save-interval", "1h")
    two_ranks((*flags, *often, "--name", "often"), (*flags, *never, "--name", "never"))
    made = {int(path.name) for path in (tmp_path / "often/checkpoints").iterdir()}
    assert made == set(range(1, 13))
    assert {int(path.name) for path in (tmp_path / "never/checkpoints").iterdir()} == {6, 12}
    assert_same(tmp_path / "often", tmp_path / "never")
    # Resume in the middle of an epoch, as if the run had been killed there.
    checkpoint.point(tmp_path / "often", "last", tmp_path / "often/checkpoints/00000003")
    each = torch.load(tmp_path / "often/last/training.pt", weights_only=True)["each_rank"]
    assert any(not rows[0].equal(rows[1]) for rows in each["buffers"].values())
    two_ranks((*flags, *never, "--name", "often", "--resume", "auto"))
    assert_same(tmp_path / "often", tmp_path / "never")


def test_a_signal_waits_for_the_writer(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checkpoint reported as saved is on disk when the process ends, and no write is pending."""
    from fastimg.train import step as module

    average, write = module.average_gradients, checkpoint.save

    def hooked(run: Any, *rest: Any) -> int:
        if run.progress.step == 2:
            os.kill(os.getpid(), 15)
        return average(run, *rest)

    def slow(*arguments: Any, **options: Any) -> Path:
        time.sleep(0.3)
        return write(*arguments, **options)

    monkeypatch.setattr(module, "average_gradients", hooked)
    monkeypatch.setattr(checkpoint, "save", slow)
    assert cli.run(arguments(trained.images, tmp_path, "--save-interval", "1h")) == 143
    saved = checkpoint.load_training((tmp_path / "run/last").resolve())["step"]
    assert saved in (3, 4)
    assert not [thread for thread in threading.enumerate() if thread.name == "fastimg-checkpoint"]
