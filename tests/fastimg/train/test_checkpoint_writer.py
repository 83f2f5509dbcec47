"""The copy of a checkpoint in host memory, and the thread that writes it: its order, its buffer and its errors."""

import contextlib
import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fastimg.errors import UserError
from fastimg.models.registry import Preprocessing
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints.format import Card
from fastimg.train.checkpoints.host_copy import HostCopy
from fastimg.train.checkpoints.writer import Snapshot, Writer, is_unwritten

CPU = torch.device("cpu")
PRE = Preprocessing(
    train_size=32, val_size=40, val_resize=44, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)
)


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


def test_what_never_changes_is_copied_to_the_host_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[torch.Tensor] = []

    def from_device(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "cpu", from_device)
    writer = Writer(tmp_path, 1, CPU)
    encoder = {"a": torch.arange(3.0), "b": torch.ones(2, 2)}
    first = writer.still(encoder)
    again = writer.still({name: tensor.detach() for name, tensor in encoder.items()})
    assert len(copied) == 2 and all(first[name] is again[name] and first[name].equal(encoder[name]) for name in "ab")
    assert all(first[name].data_ptr() != encoder[name].data_ptr() for name in "ab")
    assert writer.still({}) == {} and len(copied) == 2


def test_a_waiting_checkpoint_is_replaced_by_the_next(gate: threading.Event, tmp_path: Path) -> None:
    """Epochs on embeddings: the last and the best checkpoint are written, those in between are not."""
    writer = Writer(tmp_path, 9, CPU)
    gate.set()
    writer._began -= 10.0  # seconds
    assert writer.put(snapshot(writer, 1), ["last", "best"], may_wait=True)  # at once: the run began long ago
    writer.join()
    for step in range(2, 8):
        assert not writer.put(snapshot(writer, step), ["last", "best"] if step == 4 else ["last"], may_wait=True)
    assert len(writer._rooms) <= 2 and {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"00000001"}
    with writer:
        pass
    assert (tmp_path / "last").resolve().name == "00000007" and (tmp_path / "best").resolve().name == "00000004"
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"00000001", "00000004", "00000007"}


@pytest.mark.parametrize(
    ("error", "of_writing"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed"), True),
        (torch.distributed.DistBackendError("NCCL error in: remote process exited"), False),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5. (/gloo/x)"), False),
        (torch.OutOfMemoryError("CUDA error: out of memory"), False),
        (RuntimeError("CUDA error: out of memory"), False),  # pinned memory of the host
        (ZeroDivisionError(), False),
    ],
)
def test_memory_and_lost_ranks_are_no_full_disk(error: Exception, of_writing: bool) -> None:
    assert is_unwritten(error) is of_writing


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
        with pytest.raises(UserError, match=r"the checkpoint of step 2 could not be written: no space left"):
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
