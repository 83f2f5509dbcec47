"""Ranks that open their data, each for itself."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fastimg.errors import UserError
from fastimg.models.ranks import Ranks, torch
from fastimg.train.opening import check_same

from ..embeddings.rank_meeting import Meeting


def found(meeting, rank, data):
    """What rank `rank` of three is told of its data."""
    ranks = Ranks(rank, 3, 3, torch.device("cpu"), None, exchange=meeting.of(rank))
    try:
        check_same(data, ranks)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("same", [True, False])
def test_a_description_that_was_written_anew_while_ranks_started_is_an_error_on_all_of_them(tmp_path, same):
    folders = [tmp_path / str(rank) for rank in range(3)]
    for rank, folder in enumerate(folders):
        folder.mkdir()
        (folder / "dataset.json").write_text("old" if same or rank < 2 else "new")
    meeting = Meeting(3)
    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(found, [meeting] * 3, range(3), folders))
    if same:
        assert told == ["", "", ""]
    else:
        words = "1 rank of 3 (the first is rank 2) opened another dataset.json than rank 0"
        assert all(words in each for each in told)


def test_plain_folders_are_not_compared(tmp_path):
    meeting = Meeting(3)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(found, [meeting] * 3, range(3), [tmp_path] * 3)) == ["", "", ""]
