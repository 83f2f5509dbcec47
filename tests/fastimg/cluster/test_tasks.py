"""`ClusterTasks` on a cluster of Ray's own, on this machine. Skipped where Ray is not installed:
`test_convert_on_cluster.py` has the commands.
"""

import os
import sys
import time

import pytest

pytest.importorskip("ray", reason="Ray is not installed: test_convert_on_cluster.py has the command")

import ray

from fastimg.cluster.shared_places import shared_places
from fastimg.cluster.tasks import LOSSES, ClusterLost, ClusterTasks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


def numbered(folder, part):
    """Leave a trace of each number, and yield its square; a process ends at a number whose file says so."""
    for number in part:
        with (folder / f"began-{number}").open("a") as file:
            file.write("x")
        ends = folder / f"ends-{number}"
        yield 2 if ends.exists() else 1
        if ends.exists():
            while not (folder / "arrived").exists() and number > 1:
                time.sleep(0.01)
            if ends.read_text() == "once":
                ends.unlink()
            os._exit(1)
        yield [number * number]


@pytest.fixture
def cluster_tasks(warm, tmp_path):
    """Tasks of one core each, and what they say."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    said = []
    with shared_places("test", [], tmp_path) as places:
        yield ClusterTasks(ray, places, {"CPU": 1.0}, said.append, "go on"), said
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_lost_process_costs_the_piece_in_hand(cluster_tasks, tmp_path):
    tasks, said = cluster_tasks
    (tmp_path / "ends-3").write_text("once")
    ticks = []
    found = {}

    def tick(count):
        ticks.append(count)
        if count == 2:  # of 3, whose process ends once this and all that came before it are here
            (tmp_path / "arrived").touch()

    for item, result in tasks.results(
        numbered, tmp_path, iter(range(40)), "number {}".format, total=40, size=lambda number: 5, tick=tick
    ):
        found[item] = result
    assert found == {number: [number * number] for number in range(40)}
    assert said == ["ray         number 3: its node was lost, or its process killed; it is done again"]
    assert sum(ticks) == 40 * 5
    assert ticks.count(2) == ticks.count(-2) == 1  # what was told of the lost piece is taken back
    began = {number: len((tmp_path / f"began-{number}").read_text()) for number in range(40)}
    assert began == {number: 2 if number == 3 else 1 for number in range(40)}


def test_the_piece_that_ends_its_process_every_time_is_named(cluster_tasks, tmp_path):
    tasks, _ = cluster_tasks
    (tmp_path / "ends-1").write_text("always")
    with pytest.raises(ClusterLost, match=f"number 1: .*, {LOSSES + 1} times; go on"):
        list(tasks.results(numbered, tmp_path, range(12), "number {}".format, total=12))


def lengths(_, part):
    for _ in part:
        yield f"one of {len(part)}"


def test_a_task_takes_as_many_items_as_it_may(cluster_tasks):
    tasks, _ = cluster_tasks
    for most in (1, 3):
        found = {result for _, result in tasks.results(lengths, None, range(40), str, total=40, most=most)}
        assert f"one of {most}" in found and not found & {f"one of {more}" for more in range(most + 1, 41)}
