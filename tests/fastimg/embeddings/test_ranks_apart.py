"""Ranks whose machines do not share the folder of a cache: an error, and no samples that are left out."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fastimg.data.digests import DIGEST, of
from fastimg.embeddings import store
from fastimg.embeddings.store import ArrayCache
from fastimg.errors import UserError
from fastimg.models.ranks import Ranks, torch

from .rank_meeting import Meeting


def filled(meeting, rank, root):
    """Fill a cache of eight arrays as one of two ranks. Returns their number, or what was raised."""
    ranks = Ranks(rank, 2, 2, torch.device("cpu"), None, exchange=meeting.of(rank))
    cache = ArrayCache(root, {"kind": "numbers"}, lambda text: None)
    cache.folder.mkdir(parents=True, exist_ok=True)
    digests = np.frombuffer(b"".join(of(bytes([number])) for number in range(8)), DIGEST)
    try:
        return cache.fill(digests, ranks, lambda ids: (np.array([number]) for number in ids.tolist()))
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("shared", [True, False])
def test_what_ranks_have_written_is_seen_by_all_of_them(tmp_path, monkeypatch, shared):
    monkeypatch.setattr(store, "SHARD", 4)
    meeting = Meeting(2)
    roots = [tmp_path / "one", tmp_path / ("one" if shared else "two")]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(filled, [meeting] * 2, range(2), roots))
    if shared:
        assert found == [8, 8]
    else:
        assert all("give --cache-dir a folder that all of them share" in words for words in found)
