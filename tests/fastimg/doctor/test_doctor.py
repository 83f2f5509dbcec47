"""`fastimg doctor`: advice depends only on the measured facts, and the command prints everything that it found."""

import dataclasses
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fastimg import __version__
from fastimg.doctor import diagnosis as doctor
from fastimg.doctor import torch_facts
from fastimg.doctor.findings import rows
from fastimg.doctor.remedies import CACHES, PER_THREAD, Copying, InUse, MachineFacts, Unknown, advice, unusable
from fastimg.loaders.extras import install
from fastimg.system import measurement
from fastimg.system import packages as installed
from fastimg.system.disks import Disk, DiskReading
from fastimg.system.hardware import Cpu, Cuda, Folder, Gpu, Memory, Space
from fastimg.system.packages import NEEDED, OPTIONAL, Compiled, Compiler, Package, Pillow

GIB = 1 << 30


def reading(rate, cold):
    """One second of readings."""
    return DiskReading(bytes=rate, reads=10, seconds=1.0, cold=cold)


DISK = Disk(
    folder="D",
    filesystem="ext4",
    free=100 * GIB,
    measured_on="a temporary file of 256 MiB",
    cold=reading(2_000_000_000, True),
    scattered=reading(900_000_000, True),
    warm=reading(9_000_000_000, False),
)
GPU = Gpu(name="A GPU", memory=80 * GIB, capability="9.0", bf16=True, supported=True)
CUDA = Cuda(
    build="13.0", driver="580.65", available=True, reason="", hidden=False, gpus=[GPU], cudnn="91200", nccl="2.27.3"
)
CPU = Cpu(
    model="A processor",
    logical=32,
    physical=16,
    affinity=32,
    quota=None,
    cores=32,
    instructions=["avx2", "avx512f"],
    load=0.5,
)
GOOD = MachineFacts(
    fastimg="0.1.0",
    commit="0123456789ab",
    python="3.12.1",
    packages={
        **{name: Package(version="99", needed=True, install=f"pip install '{name}>=1'") for name in NEEDED},
        **{name: Package(version="9", needed=False, install=install) for name, (_, _, install) in OPTIONAL.items()},
    },
    pillow=Pillow(version="12.0", simd=False, distributions={"pillow": "12.0"}, libjpeg_turbo="3.1.2"),
    cuda=CUDA,
    compiler=Compiler(cc=None, command="/usr/bin/gcc", other=None, headers=True),
    in_use=InUse(loader="native", decode="the CPU", augmentation="Triton", precision="bf16 autocast", device="cuda"),
    cpu=CPU,
    memory=Memory(total=64 * GIB, limit=None, available=50 * GIB),
    copying=Copying(one_thread=8e9, all_cores=80e9),
    shared_memory=Space(total=32 * GIB, free=32 * GIB),
    open_files=65536,
    disk=DISK,
    compiled=Compiled(folder="/cache/numba", made={"convert": True, "train": False}),
    caches={name: Folder(path=f"/cache/{name}", writable=True, free=100 * GIB) for name in CACHES},
)
ALL_UNKNOWN = dataclasses.replace(
    GOOD,
    **{
        field.name: Unknown("the test says so")
        for field in dataclasses.fields(GOOD)
        if field.name not in ("fastimg", "python", "caches")
    },
    caches=dict.fromkeys(CACHES, Unknown("the test says so")),
)


def but(**changes):
    return dataclasses.replace(GOOD, **changes)


def package(name, **changes):
    """All packages are fine except one."""
    return but(packages={**GOOD.packages, name: dataclasses.replace(GOOD.packages[name], **changes)})


def cuda(**changes):
    return but(cuda=dataclasses.replace(CUDA, **changes))


def no_gpu(**changes):
    return cuda(**{"available": False, "gpus": [], "reason": "it is too old."} | changes)


def compiler(**changes):
    return but(compiler=dataclasses.replace(GOOD.compiler, **changes))


def cpu(gpus=1, **changes):
    return but(cpu=dataclasses.replace(CPU, **changes), cuda=dataclasses.replace(CUDA, gpus=[GPU] * gpus))


def cache(name, **changes):
    return but(caches={**GOOD.caches, name: dataclasses.replace(GOOD.caches[name], **changes)})


def disk(rate, cold=True):
    """A disk with this read rate."""
    found = {"cold": reading(rate, True)} if cold else {"cold": None, "scattered": None, "warm": reading(rate, False)}
    return but(disk=dataclasses.replace(DISK, **found))


ADVICE = {
    "missing": (
        package("timm", version=None, fault="No module"),
        ["timm, which fastimg needs", "`pip install 'timm>=1'`"],
    ),
    "broken": (
        package("pyarrow", version="20.0", fault="ImportError: libarrow"),
        ["pyarrow 20.0", "(ImportError: libarrow)", "`pip install --force-reinstall --no-deps 'pyarrow>=1'`"],
    ),
    "torchvision of another torch": (
        package("torchvision", version="0.20", fault="RuntimeError: operator torchvision::nms does not exist"),
        ["torchvision 0.20", "nms", "`pip install --upgrade torch torchvision`"],
    ),
    "broken, and optional": (
        package("ffcv", version="1.0.2", fault="ImportError: libopencv"),
        ["ffcv 1.0.2", "libopencv", "`apt-get install libopencv-dev", f"{install('ffcv')}`"],
    ),
    "old": (
        package("numpy", version="1.25", oldest="1.26"),
        ["numpy 1.25 is older than 1.26", "`pip install 'numpy>=1'`"],
    ),
    "two pillows": (
        but(
            pillow=Pillow(
                version="12.0", simd=False, distributions={"pillow": "12.0", "pillow-simd": "9"}, libjpeg_turbo=None
            )
        ),
        ["both installed", "Pillow without SIMD is imported now", "`pip uninstall pillow pillow-simd`"],
    ),
    "CPU build": (
        no_gpu(build=None),
        ["NVIDIA driver (580.65)", "CPU build", "`pip uninstall torch torchvision`", "`pip install torch torchvision`"],
    ),
    "hidden GPUs": (no_gpu(hidden=True), ["`unset CUDA_VISIBLE_DEVICES`"]),
    "old driver": (no_gpu(), ["driver (580.65)", "sees no GPU: it is too old; check `nvidia-smi`"]),
    "GPU without code": (
        cuda(gpus=[dataclasses.replace(GPU, name="Old", capability="7.0", supported=False)]),
        ["no code for Old (compute capability 7.0)", "get_arch_list"],
    ),
    "no NCCL": (cuda(gpus=[GPU, GPU], nccl=None), ["no NCCL", "2 GPUs", "`pip install --force-reinstall torch"]),
    "no compiler": (compiler(command=None), ["no C compiler", "Triton", "`apt-get install gcc`"]),
    "cc alone": (compiler(command=None, other="/usr/bin/cc"), ["`export CC=/usr/bin/cc`"]),
    "CC with flags": (
        compiler(cc="cc -mavx2", command=None, other="/usr/bin/gcc"),
        ["CC='cc -mavx2' does not name a program", "`unset CC`: /usr/bin/gcc is installed"],
    ),
    "CC of nothing": (compiler(cc="icc", command=None), ["CC='icc'", "`apt-get install gcc`, and `unset CC`"]),
    "no headers": (compiler(headers=False), ["Python.h", "`apt-get install python3-dev`"]),
    "quota": (cpu(quota=1.5, gpus=1), ["1.5 cores for 1 GPU, by the container's quota", "`docker run --cpus N`"]),
    "quota of several GPUs": (cpu(quota=8, gpus=8), ["8 cores for 8 GPUs, by the container's quota"]),
    "affinity": (cpu(affinity=1, gpus=1), ["1 core for 1 GPU:", "`taskset`"]),
    "busy": (cpu(load=40.25), ["40.25 processes competed for 32 cores", "`top`"]),
    "small /dev/shm": (
        but(shared_memory=Space(total=64 << 20, free=0)),
        ["/dev/shm has 64 MiB", "`--loader torch`", "`docker run --shm-size 8g`"],
    ),
    "few files": (but(open_files=256), ["256 files only", "`ulimit -n 65536`"]),
    "slow disk": (disk(150_000_000), ["D is read at 150 MB/s", "`fastimg convert SRC DST`", "`--order quasi-random`"]),
    "slow, and never cold": (disk(50_000_000, cold=False), ["D is read at 50 MB/s"]),
    "no place for machine code": (
        but(compiled=Compiled(folder=None, made={"convert": False, "train": False})),
        ["every process compiles", "`export NUMBA_CACHE_DIR=FOLDER`"],
    ),
    "cache that is not writable": (
        cache("fastimg", writable=False, reason="/cache: Read-only file system"),
        ["data derived by fastimg cannot be cached (/cache: Read-only", "`export XDG_CACHE_HOME=FOLDER`"],
    ),
    "hub that is not writable": (cache("torch", writable=False), ["`export TORCH_HOME=FOLDER`"]),
    "full cache": (
        cache("huggingface", free=300 << 20),
        ["/cache/huggingface, the cache for", "has 300 MiB left", "`export HF_HOME=FOLDER`"],
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice(case):
    """One sentence on one line, with the command that fixes it."""
    facts, words = ADVICE[case]
    (sentence,) = advice(facts)
    assert not [word for word in words if word not in sentence], sentence
    assert sentence.count("`") >= 2 and "\n" not in sentence and not sentence.endswith(".")


QUIET = {
    "all is well": GOOD,
    "nothing is known": ALL_UNKNOWN,
    "no GPU, no driver": no_gpu(driver=None, reason="there is no NVIDIA driver"),
    "a CPU build where there is no driver": no_gpu(driver=None, build=None),
    "hidden GPUs that are none": no_gpu(driver=None, hidden=True),
    "few cores without a GPU": but(cpu=dataclasses.replace(CPU, affinity=1), cuda=dataclasses.replace(CUDA, gpus=[])),
    "two cores a GPU": cpu(quota=8, gpus=4),
    "one GPU without NCCL": cuda(nccl=None),
    "no compiler and no Triton": dataclasses.replace(
        package("triton", version=None), compiler=Compiler(cc=None, command=None, other=None, headers=False)
    ),
    "no headers and no GPU": dataclasses.replace(
        no_gpu(driver=None), compiler=Compiler(cc=None, command="/usr/bin/gcc", other=None, headers=False)
    ),
    "Pillow-SIMD alone": but(
        pillow=Pillow(version="9.5.0.post2", simd=True, distributions={"pillow-simd": "9"}, libjpeg_turbo=None)
    ),
    "what is optional is missing": package("ffcv", version=None),
    "no limit of files": but(open_files=None),
    "a slow disk that is read from memory": but(disk=dataclasses.replace(DISK, warm=reading(10, False))),
    "an optional package of any version": package("kornia", version="0.0.1"),
}


@pytest.mark.parametrize("case", QUIET)
def test_no_advice_if_nothing_is_wrong(case):
    assert advice(QUIET[case]) == []


def test_fatal_problems():
    assert unusable(package("timm", version=None, fault="No module named 'timm'")) == ["timm"]
    assert unusable(package("ffcv", fault="ImportError")) == unusable(package("numpy", oldest="99")) == []
    assert unusable(ALL_UNKNOWN) == []


def test_torchs_companions_are_not_fixed_separately():
    fault = "ImportError: libcudart.so.13: cannot open shared object file"
    packages = {**GOOD.packages, "numpy": dataclasses.replace(GOOD.packages["numpy"], oldest="100")}
    packages |= {n: dataclasses.replace(packages[n], fault=fault) for n in ("torch", "torchvision", "timm")}
    told = advice(but(packages=packages))
    assert [sentence.split()[0] for sentence in told] == ["torch", "numpy"]
    assert "`pip install --force-reinstall torch torchvision`" in told[0]
    assert unusable(but(packages=packages)) == ["torch", "torchvision", "timm"]


def test_fatal_problems_come_first():
    facts = dataclasses.replace(package("timm", version=None, fault="No module"), open_files=10)
    assert [sentence.split()[0] for sentence in advice(facts)] == ["timm,", "a"]


def lines(facts):
    """The table's rows, by section and name."""
    return {(row.section, row.name): row.value for row in rows(facts)}


def test_the_table():
    told = lines(GOOD)
    assert told["versions", "fastimg"] == "0.1.0 (0123456789ab)"
    assert told["versions", "torch"] == "99 (CUDA 13.0)"
    assert told["GPU", "GPU 0"] == "A GPU, 80.0 GiB, compute capability 9.0, bf16"
    assert told["GPU", "cuDNN, NCCL"] == "91200, 2.27.3"
    assert told["GPU", "C compiler"] == "/usr/bin/gcc"
    assert told["decoders", "pillow"] == (
        "12.0 (without SIMD, which matters only for `--loader torch`), libjpeg-turbo 3.1.2"
    )
    assert told["decoders", "fastimg's own"] == "compiled for convert; to be compiled at first use: train"
    assert told["in use", "loader"] == "native, JPEGs decoded on the CPU"
    assert told["machine", "CPU"] == "A processor; avx2, avx512f"
    assert told["machine", "cores"] == "32 to use: 32 logical, 16 physical; load 0.5"
    assert told["machine", "memory"] == "64.0 GiB, 50.0 GiB available"
    assert told["machine", "memory copied"] == "8.00 GB/s by one thread, 80.00 GB/s by all cores"
    assert told["disk", "folder"] == "D (ext4), 100.0 GiB free"
    assert told["disk", "cold"] == "2.00 GB/s in order"
    assert told["disk", "cold, scattered"] == "0.90 GB/s, 10 reads of 128 KiB per second, one at a time"
    assert told["disk", "from memory"] == "9.00 GB/s in order"
    assert told["caches", "numba"] == "/cache/numba, writable"
    assert {section for section, _ in told} == {"versions", "GPU", "decoders", "in use", "machine", "disk", "caches"}


def test_the_table_has_install_commands():
    packages = {name: p if p.needed else dataclasses.replace(p, version=None) for name, p in GOOD.packages.items()}
    told = lines(but(packages=packages))
    assert told["versions", "onnx, onnxruntime"] == f"not installed; `{install('export')}`"
    assert told["decoders", "webdataset"] == "not installed; `pip install webdataset`"
    values = " ".join(told.values())
    assert not [install for _, _, install in OPTIONAL.values() if f"`{install}`" not in values]


def test_the_table_of_limits():
    told = lines(
        but(
            cpu=dataclasses.replace(CPU, affinity=8, quota=3.5, cores=3),
            memory=Memory(total=64 * GIB, limit=4 * GIB, available=GIB),
        )
    )
    assert told["machine", "cores"] == (
        "3 to use: 32 logical, 16 physical; 8 for this process; the container's quota is 3.5, which is lower; load 0.5"
    )
    assert told["machine", "memory"] == "64.0 GiB, 4.0 GiB for this container or job, 1.0 GiB available"


def test_the_table_without_cold_reads():
    facts = but(disk=dataclasses.replace(DISK, cold=None, scattered=None, why="it stays in memory"))
    told = lines(facts)
    assert told["disk", "cold"] == "unknown: it stays in memory" and ("disk", "cold, scattered") not in told
    assert told["disk", "from memory"] == "9.00 GB/s in order"


def test_the_table_of_unknown_facts():
    told = lines(ALL_UNKNOWN)
    unknown = {key for key, value in told.items() if "unknown: the test says so" in value}
    assert set(told) - unknown == {("versions", "python")}
    assert len({section for section, _ in unknown}) == 7


def test_json_of_facts():
    told = json.loads(json.dumps(doctor.as_json(GOOD)))
    assert set(told) == {field.name for field in dataclasses.fields(MachineFacts)}
    assert told["disk"]["cold"]["bytes_per_second"] == 2_000_000_000 and told["disk"]["cold"]["cold"]
    assert told["cuda"]["gpus"][0]["name"] == "A GPU" and told["commit"] == "0123456789ab"
    unknown = json.loads(json.dumps(doctor.as_json(ALL_UNKNOWN)))
    assert set(unknown) == set(told) and unknown["cpu"] == {"unknown": "the test says so"}
    assert unknown["caches"]["torch"] == {"unknown": "the test says so"}
    assert json.dumps(doctor.as_json(but(fastimg="\udcff"))).isascii()


@pytest.fixture
def small(monkeypatch):
    """Copy and read little, and start no process for an import."""
    monkeypatch.setattr(doctor.disks, "FILE", 16 << 20)
    monkeypatch.setattr(installed, "why_not_importable", lambda module: "")
    monkeypatch.setattr(torch_facts, "_ask", torch_facts.look)


def test_json(cli, tmp_path, small):
    ran = cli("doctor", tmp_path, "--json")
    assert (ran.code, ran.err) == (0, "")
    told = json.loads(ran.out)
    assert {"fastimg", "python", "packages", "cuda", "cpu", "memory", "disk", "caches", "advice"} <= set(told)
    assert told["fastimg"] == __version__ and told["unusable"] == []
    assert not [name for name, value in told.items() if isinstance(value, dict) and "unknown" in value]
    assert told["packages"]["torch"]["version"] and told["cpu"]["cores"] >= 1
    assert told["disk"]["warm"]["bytes"] == 16 << 20 and told["disk"]["folder"] == str(tmp_path.resolve())
    assert told["copying"]["one_thread"] > 0
    assert isinstance(told["advice"], list) and list(tmp_path.iterdir()) == []


def test_the_command(cli, monkeypatch):
    monkeypatch.setattr(doctor, "look", lambda folder, err: but(open_files=256))
    ran = cli("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert re.search(r"^versions +fastimg +0\.1\.0 \(0123456789ab\)", ran.out, re.MULTILINE)
    assert re.search(r"^ +python +3\.12\.1", ran.out, re.MULTILINE)
    assert "advice: a process may open 256 files only, but shards stay open: `ulimit -n 65536`\n" in ran.out


def test_the_command_if_all_is_well(cli, monkeypatch):
    monkeypatch.setattr(doctor, "look", lambda folder, err: GOOD)
    assert cli("doctor").out.endswith("advice: none, everything is fine\n")


def test_a_missing_package_gives_exit_code_1(cli, monkeypatch):
    facts = package("torch", version=None, fault="ModuleNotFoundError: No module named 'torch'")
    monkeypatch.setattr(doctor, "look", lambda folder, err: facts)
    ran = cli("doctor")
    assert ran.code == 1 and "advice: torch, which fastimg needs, is not installed: `pip install 'torch>=1'`" in ran.out
    ran = cli("doctor", "--json")
    assert ran.code == 1 and json.loads(ran.out)["unusable"] == ["torch"]


def test_failed_measurements_are_unknown(monkeypatch, tmp_path, small):
    """Facts that do not depend on it are still printed."""

    def fail(*_, **__):
        raise RuntimeError("it broke\nin two lines")

    for module, name in (
        *((doctor.hardware, name) for name in ("cpu", "memory", "cuda", "shared_memory", "open_files", "folder")),
        *((installed, name) for name in ("packages", "pillow", "compiler", "compiled")),
        (doctor, "_copying"),
        (torch_facts, "_in_use"),
        (measurement, "commit"),
    ):
        monkeypatch.setattr(module, name, fail)
    facts = doctor.look(tmp_path, Console(quiet=True))
    found = {field.name: getattr(facts, field.name) for field in dataclasses.fields(facts)}
    known = {name for name, value in found.items() if value != Unknown("RuntimeError: it broke")}
    assert known == {"fastimg", "python", "disk", "caches"}
    assert set(facts.caches.values()) == {Unknown("RuntimeError: it broke")}
    assert list(rows(facts)) and advice(dataclasses.replace(facts, disk=DISK)) == []


@pytest.mark.slow
def test_torch_is_queried_in_another_process(monkeypatch, python):
    monkeypatch.setattr(sys, "executable", python)
    facts = torch_facts.ask()
    assert not isinstance(facts.packages, Unknown) and facts.packages["torch"].version == torch.__version__
    assert set(facts.caches) == {"huggingface", "torch", "triton"}


def test_a_crashed_process_does_not_affect_the_rest(monkeypatch):
    crash = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    run = subprocess.run
    monkeypatch.setattr(torch_facts.subprocess, "run", lambda command, **options: run(crash, **options))
    facts = torch_facts.ask()
    assert facts.cuda == facts.caches["torch"] == Unknown("the process that imports torch was killed by signal 11")


def test_a_folder_that_cannot_be_measured(cli, tmp_path, small, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.disks.tempfile, "TemporaryFile", refuse)
    ran = cli("doctor", tmp_path, "--json")
    reason = json.loads(ran.out)["disk"]["unknown"]
    assert ran.code == 0 and "Permission denied" in reason and "holds no file of at least 16 MiB" in reason


@pytest.mark.parametrize(("name", "reason"), [("nowhere", "no such folder"), ("file", "not a folder")])
def test_no_such_folder(cli, tmp_path, name, reason):
    (tmp_path / "file").touch()
    ran = cli("doctor", tmp_path / name)
    assert ran.code == 2 and f"{name}: {reason}" in ran.err and ran.out == "" and "Traceback" not in ran.err


def test_help(cli):
    ran = cli("doctor", "--help")
    assert ran.code == 0 and "--json" in ran.out and "FOLDER" in ran.out


def test_the_threads_of_each_gpu():
    facts = but(cpu=dataclasses.replace(CPU, cores=16), cuda=dataclasses.replace(CUDA, gpus=[GPU] * 8))
    told = lines(facts)["machine", "loader threads"]
    assert told.startswith(
        "16 cores over 8 GPUs are 2 threads a rank: about 3,500 img/s each (an estimate: 2 x 1,770 of"
    )
    assert "benchmarks/results/loaders.jsonl" in told and "`fastimg bench DATA` measures" in told
    assert lines(GOOD)["machine", "loader threads"].startswith("32 cores over 1 GPU are 32 threads a rank")
    assert ("machine", "loader threads") not in lines(no_gpu())


def test_the_rate_of_a_thread_matches_the_records():
    """Half of the median for two workers on two cores."""
    file = Path(__file__).resolve().parents[3] / "benchmarks/results/loaders.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    rates = [r["images_per_second"] for r in records if r["benchmark"] == "loader gil" and r["workers"] == 2]
    assert len(rates) >= 6 and pytest.approx(statistics.median(rates[:6]) / 2, rel=0.01) == PER_THREAD


def test_the_gain_of_flags_is_printed():
    used = dataclasses.replace(GOOD.in_use, faster=("`train --compile` is 1.50x for transformers",))
    assert lines(but(in_use=used))["in use", "faster"] == "`train --compile` is 1.50x for transformers"
    assert ("in use", "faster") not in lines(GOOD) and advice(but(in_use=used)) == []
