"""`fastimg doctor`: what is installed and in use, what the machine has, and what is wrong with it.

Nothing here imports torch before it is looked at: where it is missing, this says so.
"""

import dataclasses
import functools
import importlib
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastimg import __version__
from fastimg.config.benchmarking import Doctor
from fastimg.errors import UsageError, UserError, printable
from fastimg.system import disks, hardware, terminal
from fastimg.system import packages as installed
from fastimg.system.disks import Reading
from fastimg.system.hardware import Folder
from fastimg.system.packages import said
from fastimg.system.terminal import print_table

from .findings import rows
from .remedies import Copying, Facts, InUse, Unknown, advice, unusable

T = TypeVar("T")

_MEMORY_SHARE = 8  # at most one part in so many of the memory that is left is copied


def doctor(settings: Doctor, console: Console) -> int:
    """Look, and say it. Returns 0, or 1 where a package that fastimg needs cannot be imported. Raises UsageError."""
    if not settings.folder.exists():
        raise UsageError(f"{settings.folder}: no such folder; name the one that your data is in, or none")
    if not settings.folder.is_dir():
        raise UsageError(f"{settings.folder}: not a folder; name the one that it is in")
    facts = look(settings.folder, terminal.console(stderr=True))
    told = advice(facts)
    if settings.json:
        print(json.dumps({**as_json(facts), "advice": told, "unusable": unusable(facts)}))
    else:
        _print(facts, told, console)
    return 1 if unusable(facts) else 0


def look(folder: Path, err: Console) -> Facts:
    """All facts. What cannot be found out is Unknown, with the reason; nothing is raised."""
    with err.status("looking at what is installed"):
        packages = _probe(installed.packages)
        cuda = _probe(hardware.cuda)
        memory = _probe(hardware.memory)
        cpu = _probe(hardware.cpu)
        compiled = _probe(installed.compiled)
        in_use = _probe(_in_use)
        caches = {name: _probe(functools.partial(_folder, of)) for name, of in _CACHES.items()}
        if not (isinstance(packages, Unknown) or packages["triton"].version):
            del caches["triton"]
    with err.status("measuring memory"):
        room = 0 if isinstance(memory, Unknown) else memory.available // _MEMORY_SHARE
        cores = (os.cpu_count() or 1) if isinstance(cpu, Unknown) else cpu.cores
        copying = _probe(lambda: _copying(room, cores))
    with err.status("measuring the disk"):
        disk = _probe(lambda: disks.measure_disk(folder, disks.FILE))
    return Facts(
        fastimg=__version__,
        commit=_probe(_commit),
        python=platform.python_version(),
        packages=packages,
        pillow=_probe(installed.pillow),
        cuda=cuda,
        compiler=_probe(installed.compiler),
        in_use=in_use,
        cpu=cpu,
        memory=memory,
        copying=copying,
        shared_memory=_probe(hardware.shared_memory),
        open_files=_probe(hardware.open_files),
        disk=disk,
        compiled=compiled,
        caches=caches,
    )


def _print(facts: Facts, told: list[str], console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    section = ""
    for row in rows(facts):
        table.add_row(row.section if row.section != section else "", row.name, Text(printable(row.value)))
        section = row.section
    print_table(console, table)
    for sentence in told:
        console.print(Text(printable(f"advice: {sentence}")), soft_wrap=True)
    if not told:
        console.print("advice: none, all is well")


def as_json(value: Any) -> Any:
    """Facts as json has them: dataclasses as objects, rates of readings with them, {"unknown": reason} for Unknown."""
    if isinstance(value, Unknown):
        return {"unknown": printable(value.reason)}
    if isinstance(value, Reading):
        rates = {"bytes_per_second": round(value.bytes_per_second), "reads_per_second": value.reads_per_second}
        return {**dataclasses.asdict(value), **rates}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: as_json(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [as_json(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value


def _probe(call: Callable[[], T]) -> T | Unknown:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except UserError as error:
        return Unknown(str(error))
    except Exception as error:  # noqa: BLE001 - one fact that cannot be found out leaves the others
        return Unknown(said(error))


def _commit() -> str | None:
    from fastimg.system.measurement import environment

    commit: str | None = environment()["commit"]
    return commit


def _in_use() -> InUse:
    import torch

    from fastimg.augment.backends import backend_of
    from fastimg.data.datasets import chosen_backend
    from fastimg.loaders.backends import nvcodec
    from fastimg.models.precision import choose

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda" and nvcodec.installed()
    names = {"fused": "Triton on the GPU", "cpu": "compiled code on the CPU", "reference": "plain torch"}
    return InUse(
        loader=chosen_backend("auto"),
        decode="the CPU; `--decode gpu` takes nvImageCodec" if on_gpu else "the CPU",
        augmentation=names[backend_of(device)],
        precision=choose(device, True, "auto").reason,
        device=str(device),
    )


def _copying(room: int, cores: int) -> Copying:
    nbytes = min(disks.FILE, room)
    if nbytes < disks.PIECE:
        raise UserError("too little memory is left to measure on")
    one = disks.memory_bandwidth(nbytes)
    return Copying(one_thread=one, all_cores=disks.memory_bandwidth(nbytes, cores) if cores > 1 else one)


def _folder(of: Callable[[], Path]) -> Folder:
    return hardware.folder(of())


def _huggingface() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _torch_hub() -> Path:
    return Path(importlib.import_module("torch.hub").get_dir())


def _triton() -> Path:
    knobs = importlib.import_module("triton").knobs
    return Path(knobs.cache.dir)


_CACHES: dict[str, Callable[[], Path]] = {
    "fastimg": hardware.user_cache,
    "huggingface": _huggingface,
    "torch": _torch_hub,
    "triton": _triton,
    "temporary": lambda: Path(tempfile.gettempdir()),
}
