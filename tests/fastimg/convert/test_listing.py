"""How a class folder is listed: the same on threads, which are taken where most of the time is waiting."""

import threading

import pytest

from fastimg.config.commands import Convert
from fastimg.convert.request import refuse_on_cluster
from fastimg.convert.sources import folders
from fastimg.convert.sources.folders import read_folder, waiting_mapped
from fastimg.errors import UsageError, UserError


def test_what_waits_is_done_on_threads_in_order(monkeypatch):
    monkeypatch.setattr(folders, "_PATIENCE", -1.0)
    monkeypatch.setattr(folders.time, "thread_time", lambda: 0.0)  # the first item has waited
    here = threading.get_ident()
    threads = set()

    def work(number):
        threads.add(threading.get_ident())
        return number * number

    assert list(waiting_mapped(work, range(50))) == [number * number for number in range(50)]
    assert here in threads and len(threads) > 1


def test_what_computes_stays_on_this_thread():
    assert set(waiting_mapped(lambda _: threading.get_ident(), range(50))) == {threading.get_ident()}


def test_the_listing_does_not_depend_on_threads(image_folder):
    def backwards(function, items):
        every = list(items)
        return reversed([function(item) for item in reversed(every)])

    assert read_folder(image_folder, mapped=backwards).fingerprint() == read_folder(image_folder).fingerprint()


@pytest.mark.parametrize(
    ("flags", "error", "words"),
    [
        ({"address": "auto"}, UsageError, "--address has no effect without --backend ray"),
        ({"backend": "ray", "address": "ray://h:1"}, UsageError, "start this command on a machine of the cluster"),
        ({"backend": "ray"}, UserError, "convert --backend ray: Ray is not installed; `"),
    ],
)
def test_flags_of_a_cluster_that_cannot_be(tmp_path, monkeypatch, flags, error, words):
    monkeypatch.setattr("fastimg.cluster.connection.find_spec", lambda name: None)
    with pytest.raises(error, match=words):
        refuse_on_cluster(Convert(src=tmp_path, dst=tmp_path / "D", **flags))
