"""Ranks that wait for a slow or killed one: no collective waits, so none ends after the timeout."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from .rank_commands import arguments, command

# Ranks that take long. In the modes "blocks" and "slow" they go on once the other one waits for them, in an exchange:
# each writes what it waits for to the folder argv[1]. So no collective waits, which would end after the timeout.
IMPATIENT = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from fastimg import cli
from fastimg.config.rule_tables import conditions
from fastimg.embeddings import cache
from fastimg.models.ranks import start
from fastimg.system import rank_exchange
from fastimg.train import opening

conditions.frozen_at_random = lambda _: False
rank, folder, mode = int(os.environ["RANK"]), Path(sys.argv[1]), sys.argv[2]
join, wait_for = rank_exchange.join, rank_exchange.RankExchange._wait_for

def joining(*args):
    global own
    own = join(*args)
    return own

def waiting(self, key):
    (folder / str(rank)).write_text(key)
    wait_for(self, key)

def until_the_other_waits():
    other, end = folder / str(1 - rank), time.monotonic() + 100
    while not other.exists() or other.read_text() != f"{own._turn} all":
        if time.monotonic() > end:
            os.write(2, b"the other rank does not wait in the exchange\\n")
            os._exit(1)
        time.sleep(0.005)

def slowly(function):
    def slow(*args, **kwargs):
        if rank == 0:
            until_the_other_waits()
        return function(*args, **kwargs)
    return slow

def killed(*args, **kwargs):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)

rank_exchange.join, rank_exchange.RankExchange._wait_for = joining, waiting
if mode == "blocks":
    with start("cpu") as ranks:
        for slow in (0, 1):
            with ranks.first_goes_first():
                if rank == slow:
                    until_the_other_waits()
            assert int(ranks.sum(torch.ones(1))) == 2
        said = []
        for exchange in (ranks.gather, ranks.broadcast, lambda value: ranks.agree(value == "0")):
            if rank == 0:
                until_the_other_waits()
            said.append(str(exchange(str(rank))))
        line = " ".join(said)
    os.write(1, f"rank {rank}: {line} {dist.is_initialized()}\\n".encode())  # one write: two ranks share the pipe
    sys.exit(0)
if mode == "slow":
    opening.open_parts = slowly(opening.open_parts)
    cache.sample_digests = slowly(cache.sample_digests)
else:
    rank_exchange.BEAT, rank_exchange.PATIENCE = 0.2, 3.0
    opening.open_parts = killed
code = cli.run(sys.argv[3:])
sys.stdout.flush()
os._exit(code)
"""


@pytest.fixture
def impatient(tmp_path: Path) -> list[str]:
    """A script and its folder."""
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    (tmp_path / "waits").mkdir()
    return [str(tmp_path / "impatient.py"), str(tmp_path / "waits")]


@pytest.mark.slow
def test_ranks_wait_in_no_collective(impatient: list[str], python: str) -> None:
    """For rank 0 within a block, for the others within theirs; and for the messages of each."""
    launcher = [*command(python)[:-2], *impatient, "blocks"]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}: ['0', '1'] 0 False False" for rank in (0, 1)]


@pytest.mark.slow
def test_ranks_wait_in_no_collective_while_rank_0_scans_and_reads(
    make_image_folder: Callable[[int], Path], impatient: list[str], python: str, tmp_path: Path
) -> None:
    flags = [*arguments(make_image_folder(9), tmp_path / "runs", "test_vit", 4), "--freeze", "backbone", "--no-aug"]
    launcher = [*command(python)[:-2], *impatient, "slow", *flags, "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "last checkpoint" in done.stdout


@pytest.mark.slow
def test_a_rank_0_that_is_killed_while_others_wait_ends_them(
    make_image_folder: Callable[[int], Path], impatient: list[str], python: str, tmp_path: Path
) -> None:
    """If no torchrun ends them, and the store outlives rank 0: rank 0's silence is detected."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    variables |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    flags = arguments(make_image_folder(2), tmp_path / "runs", "test_vit", 4)
    ranks = [
        subprocess.Popen(
            [python, *impatient, "killed", *flags],
            env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL, 1]
    assert "lost contact with another rank (rank 0 has given no sign of life for" in said[1]
    assert "Traceback" not in said[1]
