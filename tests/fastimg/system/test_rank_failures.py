"""One failing rank: one message, one exit code, and no traceback from the ranks that wait for it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from fastimg import cli
from fastimg.errors import UsageError, UserError
from fastimg.loaders import DataError
from fastimg.models.ranks import start
from fastimg.system import rank_failures as ending

CLOSED = "[/a/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:25013. This is typically GLHF!"


@pytest.fixture(scope="module")
def store() -> dist.TCPStore:
    """One store for all tests, since connecting is slow."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def as_rank(
    store: dist.TCPStore, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], None]:
    """`as_rank(n)`: from here on this process is rank n of two, which share a store as under torchrun."""
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    variables |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": request.node.name}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def become(rank: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / f"error-{rank}.json"))

    return become


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def dispatch(*_: Any) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", dispatch)


@pytest.mark.parametrize("first", [0, 1])
def test_all_ranks_fail_and_the_first_prints(
    first: int, as_rank: Callable[[int], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (first, 1 - first):
        as_rank(rank)
        assert cli.run(["nonsense"]) == 2
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 1 and said.err.count("no command 'nonsense'") == 1 and not said.out
    assert ("rank 1:" in said.err) == (first == 1)
    recorded = json.loads((tmp_path / f"error-{first}.json").read_text())["message"]
    assert recorded["message"] == recorded["extraInfo"]["py_callstack"] == said.err.strip()
    assert not (tmp_path / f"error-{1 - first}.json").exists()


@pytest.mark.parametrize(
    ("error", "code", "collateral"),
    [
        (UsageError("a flag"), 2, RuntimeError(CLOSED)),
        (UserError("a file"), 1, ValueError("by the way")),
        (DataError("a shard"), 1, KeyboardInterrupt()),
    ],
)
def test_ranks_that_waited_leave_quietly_with_the_code_of_the_one_that_failed(
    error: Exception,
    code: int,
    collateral: BaseException,
    as_rank: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    as_rank(0)
    failing(monkeypatch, error)
    assert cli.run([]) == code
    assert capsys.readouterr().err == f"fastimg: error: {error}\n"
    as_rank(1)
    failing(monkeypatch, collateral)
    assert cli.run([]) == code
    assert capsys.readouterr() == ("", "")


def test_a_rank_that_loses_the_others_prints_one_line(
    as_rank: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_rank(1)
    failing(monkeypatch, RuntimeError(CLOSED))
    assert cli.run([]) == 1
    said = capsys.readouterr().err
    words = "rank 1: error: lost contact with another rank (Connection closed by peer [127.0.0.1]:25013): it was killed"
    assert words in said and "GLHF" not in said and len(said.splitlines()) == 1


def test_an_internal_error_is_reported_once_with_its_traceback(
    as_rank: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, ZeroDivisionError("division"))
    for rank in (0, 1):
        as_rank(rank)
        assert cli.run([]) == 1
    said = capsys.readouterr().err
    assert said.count("Traceback") == said.count("please report it") == 1
    recorded = json.loads((tmp_path / "error-0.json").read_text())["message"]["message"]
    assert recorded == "internal error in fastimg: ZeroDivisionError: division"


@pytest.mark.parametrize(
    ("flags", "words"),
    [(("--nonsense",), "train has no flag --nonsense"), (("--epochs", "many"), "--epochs many: give a whole number")],
)
def test_wrong_flags_are_printed_once(
    flags: tuple[str, ...], words: str, as_rank: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        as_rank(rank)
        assert cli.run(["train", *flags]) == 2
    said = capsys.readouterr()
    assert (said.err + said.out).count(words) == 1


def test_a_restart_ignores_the_failure_before_it(
    as_rank: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_rank(0)
    assert cli.run(["one"]) == 2
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert cli.run(["two"]) == 2
    assert "no command 'two'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCHELASTIC_USE_AGENT_STORE", "False"),  # rank 0 would host it in its process group
        ("MASTER_PORT", "1"),  # nobody listens: its host has ended
    ],
)
def test_without_a_store_each_rank_prints_its_own_error(
    name: str,
    value: str,
    as_rank: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    as_rank(1)
    monkeypatch.setenv(name, value)
    assert cli.run(["nonsense"]) == 2
    assert "fastimg: rank 1: error: no command" in capsys.readouterr().err


@pytest.mark.parametrize(("world_size", "destroyed"), [(1, True), (2, False)])
def test_a_rank_that_fails_does_not_wait_for_the_others_in_the_process_group(
    world_size: int, destroyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("fastimg.models.ranks._join", lambda ranks, backend: calls.append("join"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroy"))
    for name, value in {"RANK": 0, "WORLD_SIZE": world_size, "MASTER_ADDR": "h", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError), start("cpu"):
        raise UserError("no")
    assert ("destroy" in calls) == destroyed
    calls.clear()
    with start("cpu"):
        pass
    assert calls == ["join", "destroy"]


def test_the_last_collection_is_left_out_only_without_torch(monkeypatch):
    """Triton's bindings print warnings about leaks for objects that were not collected."""
    asked = []
    monkeypatch.setattr(ending.gc, "freeze", lambda: asked.append("freeze"))
    monkeypatch.setattr(ending.gc, "unfreeze", lambda: asked.append("unfreeze"))
    for loaded in (True, False):
        if not loaded:
            monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(SystemExit):
            ending.leave(0)
    assert asked == ["unfreeze", "freeze"]
