"""The number of CPUs available to a process."""

import os

import pytest

from fastimg.loaders.runtime.cpus import available_cpus


@pytest.fixture
def twelve(monkeypatch):
    """This process may run on twelve cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)


def version_2(root, content):
    (root / "cpu.max").write_text(content)
    return root


def version_1(root, quota, period):
    (root / "cpu").mkdir()
    (root / "cpu/cpu.cfs_quota_us").write_text(quota)
    (root / "cpu/cpu.cfs_period_us").write_text(period)
    return root


@pytest.mark.usefixtures("twelve")
class TestOfTwelveCores:
    def test_affinity(self, tmp_path):
        assert available_cpus(cgroup=tmp_path) == 12

    @pytest.mark.parametrize(
        ("content", "cores"),
        [("max 100000\n", 12), ("400000 100000\n", 4), ("250000 100000\n", 2), ("9900000 100000\n", 12)],
    )
    def test_quota_of_cgroup_2(self, tmp_path, content, cores):
        assert available_cpus(cgroup=version_2(tmp_path, content)) == cores

    @pytest.mark.parametrize(("quota", "cores"), [("-1\n", 12), ("300000\n", 3), ("50000\n", 1)])
    def test_quota_of_cgroup_1(self, tmp_path, quota, cores):
        assert available_cpus(cgroup=version_1(tmp_path, quota, "100000\n")) == cores

    def test_an_unexpected_file(self, tmp_path):
        assert available_cpus(cgroup=version_2(tmp_path, "nonsense")) == 12

    @pytest.mark.parametrize(("processes", "cores"), [(1, 12), (2, 6), (5, 2), (12, 1), (100, 1)])
    def test_an_equal_share_and_never_none(self, tmp_path, processes, cores):
        assert available_cpus(processes, tmp_path) == cores

    def test_the_quota_is_shared_too(self, tmp_path):
        assert available_cpus(3, version_2(tmp_path, "650000 100000")) == 2
        assert available_cpus(8, version_2(tmp_path, "650000 100000")) == 1


def test_a_system_without_affinity(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for count, cores in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert available_cpus(cgroup=tmp_path) == cores
