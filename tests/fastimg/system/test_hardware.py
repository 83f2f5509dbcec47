"""A machine's hardware, read from simulated system files."""

import os
import resource
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fastimg.data.derived import cache_root
from fastimg.loaders.runtime.cache import cache_folder
from fastimg.system import hardware

GIB = 1 << 30
CPUINFO = """\
processor\t: {number}
model name\t: A processor
physical id\t: {socket}
siblings\t: 4
core id\t\t: {core}
flags\t\t: fpu sse2 avx2 avx512f {more}
bogomips\t: 4999.96

"""
MEMINFO = "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   50331648 kB\nHugePages_Total:       0\n"


@pytest.fixture
def system(tmp_path):
    """`system("proc/meminfo", text)`: write a file below the root, which is returned."""

    def put(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    return put


def cpuinfo(more="amx_bf16"):
    """Two sockets with two cores of two threads each."""
    return "".join(CPUINFO.format(number=n, socket=n // 4, core=n % 4 // 2, more=more) for n in range(8))


def test_processors(system):
    root = system("proc/cpuinfo", cpuinfo())
    found = hardware.cpu(root)
    assert found.physical == 4 and found.instructions == ["avx2", "avx512f", "amx_bf16"]
    assert found.quota is None and found.cores == found.affinity == len(os.sched_getaffinity(0))
    assert found.logical == os.cpu_count() and found.load >= 0 and found.model


def test_processors_with_less_information(system):
    root = system("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd bf16\n")
    found = hardware.cpu(root)
    assert found.physical is None and found.instructions == ["asimd", "bf16"]


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "50000 100000"},
        {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"},
    ],
)
def test_the_quota_of_a_container(system, files):
    for name, text in files.items():
        system(f"sys/fs/cgroup/{name}", text)
    found = hardware.cpu(system("proc/cpuinfo", cpuinfo()))
    assert (found.quota, found.cores) == (0.5, 1)


def test_memory_without_a_limit(system):
    system("sys/fs/cgroup/memory.max", "max")
    system("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    found = hardware.memory(system("proc/meminfo", MEMINFO))
    assert found == hardware.Memory(total=64 * GIB, limit=None, available=48 * GIB)


@pytest.mark.parametrize(
    ("groups", "own", "names"),
    [
        ("", "0::/\n", ("memory.max", "memory.current", "inactive_file")),
        ("", "0::/slurm/job:7\n", ("memory.max", "memory.current", "inactive_file")),
        (
            "memory",
            "9:name=systemd:/\n4:memory:/docker/0123\n0::/\n",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_memory_of_a_container(system, groups, own, names):
    """Cached files do not count, since they are dropped on demand. In a container, its cgroup is the root."""
    most, used, cached = names
    folder = f"sys/fs/cgroup/{groups}/{'slurm/job:7' if 'slurm' in own else ''}"
    system(f"{folder}/{most}", str(8 * GIB))
    system(f"{folder}/{used}", str(6 * GIB))
    system(f"{folder}/memory.stat", f"anon 1\n{cached} {5 * GIB}\nactive_file 7\n")
    system("proc/self/cgroup", own)
    found = hardware.memory(system("proc/meminfo", MEMINFO))
    assert found == hardware.Memory(total=64 * GIB, limit=8 * GIB, available=7 * GIB)


def test_the_tightest_group_counts(system):
    """And the limits of all groups above the process's own."""
    for folder, limit, used in (("", 32, 20), ("a", 16, 15), ("a/b", 24, 1)):
        system(f"sys/fs/cgroup/{folder}/memory.max", str(limit * GIB))
        system(f"sys/fs/cgroup/{folder}/memory.current", str(used * GIB))
        system(f"sys/fs/cgroup/{folder}/memory.stat", "inactive_file 0\n")
    system("proc/self/cgroup", "0::/a/b\n")
    found = hardware.memory(system("proc/meminfo", MEMINFO))
    assert found == hardware.Memory(total=64 * GIB, limit=16 * GIB, available=GIB)


def test_shared_memory(tmp_path, monkeypatch):
    asked = []

    def statvfs(path):
        asked.append(path)
        return SimpleNamespace(f_blocks=16384, f_frsize=4096, f_bavail=1024)

    monkeypatch.setattr(hardware.os, "statvfs", statvfs)
    assert hardware.shared_memory(tmp_path) == hardware.Space(total=64 << 20, free=4 << 20)
    assert asked == [tmp_path / "dev/shm"]


@pytest.mark.parametrize(("limit", "expected"), [(1024, 1024), (resource.RLIM_INFINITY, None)])
def test_open_files(monkeypatch, limit, expected):
    monkeypatch.setattr(hardware.resource, "getrlimit", lambda kind: (limit, limit))
    assert hardware.open_files() == expected


def test_a_folder_that_does_not_exist_yet(tmp_path):
    found = hardware.folder(tmp_path / "a" / "b")
    assert found.writable and found.free > 0 and found.reason == "" and found.path.endswith("a/b")
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder(tmp_path):
    (tmp_path / "file").touch()
    found = hardware.folder(tmp_path / "file")
    assert not found.writable and found.reason == f"{tmp_path}/file: Not a directory"


def test_the_cache_folder_is_that_of_embeddings(tmp_path, monkeypatch):
    for cache in (None, tmp_path / "xdg"):
        if cache is None:
            monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        assert cache_root(tmp_path, None).parent == cache_folder()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65  Release Build\nGCC version:\n", "580.65"),
    ],
)
def test_the_driver(system, monkeypatch, text, version):
    monkeypatch.setattr(hardware.shutil, "which", lambda name: None)
    assert hardware.driver(system("proc/driver/nvidia/version", text)) == version


def test_the_driver_in_containers(tmp_path, system, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    for script, expected in (("echo 550.54.15", "550.54.15"), ("echo failed; exit 9", None), ("echo none", None)):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(hardware.shutil, "which", lambda name: str(tool))
        assert hardware.driver(tmp_path) == expected
    assert hardware.driver(system("dev/nvidiactl", "")) == "of an unknown version"


def test_cuda_here():
    found = hardware.cuda()
    assert found.build == torch.version.cuda and found.available == torch.cuda.is_available()
    assert len(found.gpus) == (torch.cuda.device_count() if found.available else 0)
    assert bool(found.reason) != found.available


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((None, "550", False, ""), "this torch is a CPU build"),
        (("13.0", None, True, ""), "there is no NVIDIA driver"),
        (("13.0", "550", True, ""), "CUDA_VISIBLE_DEVICES names no GPU"),
        (("13.0", "550", False, "The driver is too old."), "The driver is too old."),
        (("13.0", "550", False, ""), "torch gives no reason"),
    ],
)
def test_why_there_is_no_gpu(arguments, expected):
    assert hardware.why_none(*arguments) == expected


@pytest.mark.parametrize("visible", ["", "-1"])
def test_gpus_that_are_hidden(monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(hardware, "driver", lambda root: "550.54")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = hardware.cuda()
    assert found.hidden and found.reason == "CUDA_VISIBLE_DEVICES names no GPU" and found.gpus == []


def test_torchs_reason_is_used(monkeypatch):
    def refuse():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(hardware, "driver", lambda root: "470.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", refuse)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert hardware.cuda().reason == "The NVIDIA driver on your system is too old (found version 11040)."


def test_gpus(monkeypatch):
    cards = [
        SimpleNamespace(name="New", total_memory=80 * GIB, major=9, minor=0),
        SimpleNamespace(name="Old", total_memory=16 * GIB, major=7, minor=0),
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: cards[number])
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90"])
    found = hardware.cuda()
    assert [gpu.name for gpu in found.gpus] == ["New", "Old"] and found.reason == ""
    assert [(gpu.capability, gpu.bf16, gpu.supported) for gpu in found.gpus] == [
        ("9.0", True, True),
        ("7.0", False, False),
    ]


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        ((8, 6), ["sm_80", "sm_90"], True),  # code for 8.0 runs on 8.6
        ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_90", "sm_100"], False),
        ((12, 0), ["sm_90", "compute_90"], True),  # compiled when it is loaded
        ((7, 0), ["sm_75", "compute_75"], False),
        ((9, 0), ["sm_90a"], True),
        ((9, 0), [], True),
        ((9, 0), ["gfx90a"], True),
    ],
)
def test_code_for_a_gpu(capability, architectures, expected):
    assert hardware.has_code(capability, architectures) is expected


def test_looking_does_not_import_torch():
    code = (
        "import sys; from fastimg.doctor import diagnosis, findings, remedies; "
        "from fastimg.system import disks, hardware, packages; "
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
