"""What all nodes of a cluster must see. Without Ray."""

import dataclasses
from pathlib import Path

import pytest

from fastimg.cluster.shared_places import SeenSource, shared_places, unseen


@pytest.fixture
def places(tmp_path, monkeypatch):
    for name in ("data", "search", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "train-00000.tar").touch()
    (tmp_path / "list.csv").touch()
    monkeypatch.chdir(tmp_path / "here")
    with shared_places("search", (tmp_path / "data", tmp_path / "list.csv"), tmp_path / "search") as seen:
        yield seen
    assert not list((tmp_path / "search").iterdir())


def test_a_node_that_sees_everything(places, tmp_path):
    (tmp_path / "data" / "train.fidx").touch()  # written since
    assert unseen(places, "n1") is None
    assert [path.name for path in (tmp_path / "search").iterdir()] == [places.token.name]


def test_a_folder_in_an_object_store_needs_no_token(places):
    assert unseen(dataclasses.replace(places, token=None), "n1") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.0"}, "n1: has fastimg .*, and the search 0.0; install the same on all nodes"),
        (
            {"sources": (SeenSource(path=Path("/nowhere")),)},
            "n1: does not see the data, /nowhere; a search on a cluster needs a folder that",
        ),
        (
            {"sources": (SeenSource(path=Path("/"), entries=("val-00000.tar",)),)},
            "n1: has other files in / than the machine that started the search",
        ),
        ({"token": Path("/nowhere/token")}, "n1: does not see the folder of the search, /nowhere"),
        ({"word": "another"}, "n1: has another folder at .*search than the machine that started the search"),
        ({"here": Path("/nowhere")}, "n1: does not see /nowhere, from which relative paths count"),
    ],
)
def test_what_a_node_does_not_see_is_said(places, change, words):
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(unseen(dataclasses.replace(places, **change), "n1"))
