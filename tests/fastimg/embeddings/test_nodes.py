"""What a task of a cluster leaves where it fails."""

import tempfile
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from fastimg.data.datasets import DatasetPart
from fastimg.data.digests import DIGEST, of
from fastimg.embeddings import nodes
from fastimg.embeddings.nodes import NodeEncoding, NodeRows


@pytest.fixture
def encoded(monkeypatch, tmp_path):
    """`encoded(rows)`: the task, on a node that shares no folder, of two shards with a sample each."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    part = DatasetPart(SimpleNamespace(), np.arange(2), "")
    items = [NodeRows(n, np.array([n]), np.frombuffer(of(bytes([n])), DIGEST)) for n in range(2)]

    def run(rows):
        encoding = SimpleNamespace(about=dict, rows=lambda part, count: nullcontext(rows))
        monkeypatch.setattr(nodes, "_opened", lambda opener, held: SimpleNamespace(encoding=encoding, part=part))
        common = NodeEncoding(opener=lambda: None, key=nodes.key_of({}), attempts=None)
        return list(nodes._encode_on_node(common, items))

    return run


def test_nothing_stays_of_one_that_fails(encoded, tmp_path):
    def rows():
        yield np.zeros(3, np.float32)
        raise RuntimeError("the encoder fails")

    with pytest.raises(RuntimeError, match="the encoder fails"):
        encoded(rows())
    assert list(tmp_path.iterdir()) == []


def test_nothing_stays_of_one_that_ends(encoded, tmp_path):
    made = encoded(iter(np.zeros((2, 3), np.float32)))
    assert len(made) == 2 and all(each.files and each.folder is None for each in made)
    assert list(tmp_path.iterdir()) == []
