"""The cores of a rank, on simulated machines."""

import os

import pytest

from fastimg.system import affinity
from fastimg.system.affinity import UNBOUND, Binding, bind, machine_cores, parse_list, plan, spans

ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)]


@pytest.fixture
def machine(tmp_path):
    """`machine(nodes, siblings)`: the root folder of a machine whose GPUs are attached to these (node, cores)."""

    def build(places, cores, siblings=None):
        def put(name, text):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

        put("sys/devices/system/cpu/online", f"0-{cores - 1}")
        for address, (node, local) in zip(ADDRESSES, places, strict=False):
            put(f"sys/bus/pci/devices/{address}/numa_node", str(node))
            put(f"sys/bus/pci/devices/{address}/local_cpulist", local)
        for core in range(cores):
            both = str(core) if siblings is None else f"{core % siblings},{core % siblings + siblings}"
            put(f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list", both)
        return tmp_path

    return build


def all_of(count):
    return frozenset(range(count))


def test_two_nodes_of_two_gpus(machine):
    root = machine([(0, "0-15"), (0, "0-15"), (1, "16-31"), (1, "16-31")], 32)
    plans = [plan(ADDRESSES[:4], rank, f"cuda:{rank}", all_of(32), root) for rank in range(4)]
    assert [sorted(one.cores) for one in plans] == [[*range(8 * n, 8 * n + 8)] for n in range(4)]
    assert plans[0].words == "cores 0-7 of NUMA node 0, beside cuda:0"
    assert plans[3].words == "cores 24-31 of NUMA node 1, beside cuda:3"


def test_sixteen_cores_over_eight_ranks_are_two_each(machine):
    root = machine([(0, "0-15")] * 8, 16)
    plans = [plan(ADDRESSES, rank, f"cuda:{rank}", all_of(16), root) for rank in range(8)]
    assert sorted(core for one in plans for core in one.cores) == list(range(16))
    assert {len(one.cores) for one in plans} == {2}


def test_threads_of_one_processor_stay_together(machine):
    """Cores 0-3 and 8-11 are threads of the same four physical cores of node 0."""
    root = machine([(0, "0-3,8-11"), (0, "0-3,8-11"), (1, "4-7,12-15")], 16, siblings=8)
    plans = [plan([ADDRESSES[0], ADDRESSES[1]], rank, "cuda:0", parse_list("0-3,8-11"), root) for rank in range(2)]
    assert plans[0].words.startswith("cores 0-3,8-11, to which this process was restricted")  # of all 16
    assert plans[0].cores == ()
    places = [(0, "0-3,8-11"), (0, "0-3,8-11"), (1, "4-7,12-15"), (1, "4-7,12-15")]
    root = machine(places, 16, siblings=8)
    plans = [plan(ADDRESSES[:4], rank, f"cuda:{rank}", all_of(16), root) for rank in range(4)]
    assert [one.cores for one in plans] == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]


def test_a_rank_that_would_lose_cores_stays_unbound(machine):
    """One process on a machine with two nodes keeps both, and so do ranks that are all on one node."""
    root = machine([(0, "0-15"), (0, "0-15")], 32)
    alone = plan(ADDRESSES[:1], 0, "cuda:0", all_of(32), root)
    assert alone.cores == () and "would have 16 of the 32 cores, and 1 rank can have 32 each" in alone.words
    both = [plan(ADDRESSES[:2], rank, "cuda:0", all_of(32), root) for rank in range(2)]
    assert both[0] == both[1] and both[0].cores == () and "would have 8 of the 32 cores" in both[0].words


def test_seven_ranks_are_bound_though_some_lose_a_little(machine):
    """8 cores, where an equal share of 64 is 9.14; with 4 of 36, where it is 5.14, there are too few for all ranks."""
    root = machine([(0, "0-31")] * 4 + [(1, "32-63")] * 3, 64)
    plans = [plan(ADDRESSES[:7], rank, "cuda:0", all_of(64), root) for rank in range(7)]
    assert [len(one.cores) for one in plans] == [8, 8, 8, 8, 10, 11, 11]
    root = machine([(0, "0-17")] * 4 + [(1, "18-35")] * 3, 36)
    assert {plan(ADDRESSES[:7], rank, "cuda:0", all_of(36), root).cores for rank in range(7)} == {()}


def test_all_cores_are_not_reported(machine):
    assert plan(ADDRESSES[:1], 0, "cuda:0", all_of(16), machine([(0, "0-15")], 16)) == UNBOUND


@pytest.mark.parametrize("places", [[(-1, "0-15"), (-1, "0-15")], [(0, ""), (0, "")], []])
def test_a_machine_without_topology(machine, places):
    found = plan(ADDRESSES[:2], 1, "cuda:1", all_of(16), machine(places, 16))
    assert found.cores == () and "does not tell the NUMA node of cuda:1" in found.words


def test_a_gpu_without_an_address(machine):
    found = plan([None, ADDRESSES[1]], 0, "cuda:0", all_of(16), machine([(0, "0-15")] * 2, 16))
    assert found.cores == () and "does not tell" in found.words


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/job\n", {"job/cpuset.cpus.effective": "0-7"}),
        ("0::/\n", {"cpuset.cpus.effective": "0-7"}),
        ("3:cpuset:/docker/1\n0::/\n", {"cpuset/docker/1/cpuset.effective_cpus": "0-7"}),
        ("3:cpuset:/docker/1\n", {"cpuset/cpuset.cpus": "0-7"}),
    ],
)
def test_the_cpuset_of_a_container_is_the_whole_machine(machine, groups, files):
    """So a process in it was not restricted explicitly; with taskset in it, it was."""
    root = machine([(0, "0-3"), (1, "4-7")], 16)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        (root / "sys/fs/cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / name).write_text(text)
    assert machine_cores(root) == all_of(8)
    assert plan(ADDRESSES[:2], 0, "cuda:0", all_of(8), root).cores == (0, 1, 2, 3)
    by_hand = plan(ADDRESSES[:2], 0, "cuda:0", all_of(6), root)
    assert by_hand == Binding(words="cores 0-5, to which this process was restricted from outside")


def test_all_threads_of_the_process_move(machine, monkeypatch):
    root = machine([(0, "0-7"), (1, "8-15")], 16)
    for thread in (100, 101):
        (root / f"proc/self/task/{thread}").mkdir(parents=True)
    moved = {}

    def setaffinity(thread, cores):
        if thread == 101:
            raise ProcessLookupError
        moved[thread] = tuple(cores)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(os, "sched_setaffinity", setaffinity)
    assert bind(ADDRESSES[:2], 1, "cuda:1", root).words == "cores 8-15 of NUMA node 1, beside cuda:1"
    assert moved == {0: tuple(range(8, 16)), 100: tuple(range(8, 16))}


def test_a_system_that_forbids_it_is_reported(machine, monkeypatch):
    def setaffinity(thread, cores):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(os, "sched_setaffinity", setaffinity)
    found = bind(ADDRESSES[:2], 0, "cuda:0", machine([(0, "0-7"), (1, "8-15")], 16))
    assert found.cores == ()
    assert found.words == "not bound to cores 0-7 of NUMA node 0, beside cuda:0: Operation not permitted"


def test_this_process_really_moves(machine):
    """To one of its cores, and back."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two cores")
    first, second = sorted(before)[:2]
    root = machine([(0, str(first)), (1, str(second))], 1)
    (root / "sys/devices/system/cpu/online").write_text(spans(before).split()[1])
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/task").symlink_to("/proc/self/task")
    try:
        even = affinity.LEAST
        affinity.LEAST = 0.0
        assert bind(ADDRESSES[:2], 1, "cuda:1", root).cores == (second,)
        assert os.sched_getaffinity(0) == {second}
    finally:
        affinity.LEAST = even
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), before)


def test_lists_of_cores():
    assert parse_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11} and parse_list("\n") == frozenset()
    assert spans({8, 0, 1, 2, 3, 10, 11}) == "cores 0-3,8,10-11" and spans([5]) == "core 5"
