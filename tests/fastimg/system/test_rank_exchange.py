"""Ranks that wait for each other through the store: as long as necessary, but not longer than the others live."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from fastimg.system import rank_exchange
from fastimg.system.rank_exchange import RankExchange
from fastimg.system.rank_failures import LostRankError, lost_contact

Meet = Callable[..., list[RankExchange]]


@pytest.fixture(scope="module")
def host() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def connect(host: dist.TCPStore, request: pytest.FixtureRequest) -> Callable[[str], PrefixStore]:
    """`connect(part)`: a new connection to a part of the store that only this test uses."""

    def call(part: str) -> PrefixStore:
        client = dist.TCPStore("127.0.0.1", host.port, is_master=False, wait_for_workers=False)
        return PrefixStore(f"{request.node.name} {part}", client)

    return call


@pytest.fixture
def meet(connect: Callable[[str], PrefixStore]) -> Iterator[Meet]:
    """`meet(ranks, of)`: this many ranks, in a world that may have more."""
    made: list[RankExchange] = []

    def call(ranks: int, of: int | None = None) -> list[RankExchange]:
        made.extend(RankExchange(connect("own"), connect("failures"), rank, of or ranks) for rank in range(ranks))
        return made

    yield call
    for exchange in made:
        exchange.close()


def test_every_rank_has_every_value_and_keys_are_removed(
    meet: Meet, connect: Callable[[str], PrefixStore], host: dist.TCPStore
) -> None:
    ranks = meet(4)
    before = host.num_keys()

    def work(rank: int) -> list[list[str]]:
        return [ranks[rank].gather(f"{turn}:{rank} é \udcff" if turn % 3 else "") for turn in range(200)]

    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(work, range(4)))
    assert done[0] == [[f"{turn}:{rank} é \udcff" if turn % 3 else "" for rank in range(4)] for turn in range(200)]
    assert all(own == done[0] for own in done)
    assert host.num_keys() <= before + 4 + 2 + 4  # from the last exchange, and heartbeats


def test_it_waits_longer_than_its_timeout_for_a_live_rank(meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by two beats at each look, once both ranks have given a sign of life."""
    monkeypatch.setattr(rank_exchange, "BEAT", 0.01)
    monkeypatch.setattr(rank_exchange, "PATIENCE", 0.1)
    first, second = meet(2)
    now, came = [time.monotonic()], []

    def signs() -> list[bytes]:
        while not second._store.check(second._alive):  # `multi_get` would wait for them, and keep them from being given
            time.sleep(0.001)
        return second._store.multi_get(second._alive)

    def sleep(seconds: float) -> None:
        before = signs()
        while set(before) & set(signs()):
            time.sleep(0.001)
        now[0] += 2 * rank_exchange.BEAT
        if now[0] > began + 5 * rank_exchange.PATIENCE and not came:
            came.extend(first.gather("late"))

    began = now[0]
    monkeypatch.setattr(rank_exchange, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert second.gather("early") == came == ["late", "early"]


def test_a_rank_without_heartbeats_is_lost(meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_exchange, "BEAT", 0.05)
    monkeypatch.setattr(rank_exchange, "PATIENCE", 0.8)
    first, second = meet(2)
    first.close()  # its thread has ended, as if the process had been killed
    began = time.monotonic()
    with pytest.raises(LostRankError, match="rank 0 has given no sign of life for 1 seconds") as caught:
        second.gather("")
    assert time.monotonic() - began > 0.7
    assert lost_contact(caught.value) == str(caught.value)


def test_a_rank_that_never_came_is_lost(meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_exchange, "BEAT", 0.05)
    monkeypatch.setattr(rank_exchange, "PATIENCE", 0.3)
    with pytest.raises(LostRankError, match="rank 0 has given no sign"):  # rank 2 has not come either: unknown
        meet(2, of=3)[1].gather("")


def test_a_failing_rank_is_noticed_at_once(meet: Meet, connect: Callable[[str], PrefixStore]) -> None:
    failures = connect("failures")
    threading.Timer(0.2, lambda: failures.add("failed", 1)).start()
    with pytest.raises(LostRankError, match="it failed"):  # and not that it has given no sign of life
        meet(2)[1].gather("")


def test_a_process_that_slept_itself_has_patience(meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if suspended together with all the others."""
    first, second = meet(2)
    second._look_for_life()
    second._looked -= 3600.0
    second._look_for_life()
    second._looked -= 3600.0
    second._look_for_life()
    assert max(second._silent) <= 4 * rank_exchange.BEAT
    first.close()
