"""--backend ray: flags, and what needs no cluster. tests/fastimg/cluster trains on one."""

import pytest

from fastimg.config.commands import Train
from fastimg.errors import UsageError
from fastimg.system.terminal import lines_to, say
from fastimg.train.nodes import group, launch, rank
from fastimg.train.nodes.board import RankBoard, RankFault


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--num-workers", "2"), "--num-workers"),
        (("--max-failures", "2"), "--max-failures"),
        (("--backend", "ray", "--num-workers", "2", "--elastic", "1:2"), "leave one of them out"),
        (("--backend", "ray", "--elastic", "8:2"), "--elastic 8:2: give the fewest and the most ranks, as in 2:8"),
        (("--backend", "ray", "--elastic", "8"), "--elastic 8: give the fewest and the most ranks"),
        (("--backend", "ray", "--resources-per-worker", "gpu=0.5"), "ranks cannot share a GPU; give gpu=1"),
        (("--backend", "ray", "--resources-per-worker", "gpu=2"), "a rank trains on one GPU; give gpu=1"),
        (
            ("--backend", "ray", "-o", "s3://b/r", "--name", "x", "--strategy", "fsdp"),
            "a folder that all machines share",
        ),
        (("--backend", "ray", "--device", "cuda:1"), "Ray chooses the GPU; give auto, cpu or cuda"),
        (("--backend", "ray", "--address", "ray://host:1"), "give auto or HOST:PORT"),
    ],
)
def test_what_the_flags_alone_show(cli, image_folder, flags, words):
    ran = cli("train", image_folder, *flags)
    assert ran.code == 2
    assert words in ran.err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cuda"}, "add gpu=1 to --resources-per-worker"),
        ({"device": "cpu", "resources_per_worker": "gpu=1"}, "leave gpu out of --resources-per-worker"),
    ],
)
def test_a_device_that_a_rank_does_not_have(settings, words):
    with pytest.raises(UsageError, match=words):
        launch._amounts(Train(backend="ray", **settings), [{"CPU": 4}])


def test_what_a_rank_takes():
    nodes = [{"CPU": 8}, {"CPU": 64, "GPU": 8}]
    assert launch._amounts(Train(backend="ray"), nodes) == {"GPU": 1, "CPU": 8}
    assert launch._amounts(Train(backend="ray", resources_per_worker="cpu=2"), nodes) == {"CPU": 2}


class Local:
    """Calls of a board in this process, as an actor's handle makes them."""

    def __init__(self, board):
        self._board = board

    def __getattr__(self, name):
        return type("", (), {"remote": staticmethod(getattr(self._board, name))})


def test_the_board_keeps_lines_in_order_and_the_first_fault():
    board = RankBoard()
    console = lines_to(rank._BoardStream(Local(board)))
    say(console, "one")
    say(console, "two [x] :smile:")
    assert board.lines() == ["one", "two [x] :smile:"]
    assert board.lines() == []
    board.refuse(RankFault(words="first", exit_code=2))
    board.refuse(RankFault(words="second", exit_code=1))
    assert board.fault() == RankFault(words="first", exit_code=2)


def test_why_a_group_ended():
    lost = Exception("lost")
    lost.worker_failures = {1: RuntimeError("Connection closed by peer\nmore"), 2: ValueError("x")}
    assert group.reason_of_group(lost) == "ranks 1, 2 failed (Connection closed by peer)"
    assert group.reason_of_group(TimeoutError("no room")) == "its workers could not be started (no room)"
