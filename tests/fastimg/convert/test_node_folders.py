"""Folders of a cluster's nodes in which shards are made for a URL."""

from fastimg.convert.delivery.node_delivery import NodeDelivery


def delivery(cache_dir, word):
    return NodeDelivery(
        url="s3://bucket/D", options={}, cache_dir=cache_dir, word=word, content="images", notes=False, remedy=""
    )


def test_of_two_conversions_that_run_at_once_stay_and_what_a_dead_one_left_goes(tmp_path):
    with delivery(tmp_path, "one").folder("train-00000") as first:
        (first / "a.tar").touch()
        left = first.parent / "dead-train-00001"
        left.mkdir()
        (left / "b.tar").touch()
        with delivery(tmp_path, "two").folder("train-00000") as second:
            assert (first / "a.tar").exists() and second != first and not left.exists()
            with delivery(tmp_path, "one").folder("train-00001"):
                assert second.exists()
        assert not second.exists()
    assert not first.exists()
