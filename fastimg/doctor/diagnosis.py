"""`fastimg doctor`: what is installed and in use, what the machine offers, and what is wrong with it.

torch is imported only in a subprocess (`torch_facts`).
"""

import dataclasses
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastimg import __version__
from fastimg.config.benchmarking import Doctor
from fastimg.errors import UsageError, UserError, printable
from fastimg.loaders.remote.stores import url_of
from fastimg.loaders.runtime.cache import cache_folder
from fastimg.system import disks, hardware, measurement, terminal
from fastimg.system import packages as installed
from fastimg.system.disks import DiskReading
from fastimg.system.terminal import print_table, say

from . import torch_facts
from .findings import Row, rows
from .remedies import Copying, MachineFacts, Unknown, advice, probe, unusable

if TYPE_CHECKING:
    from .stored_data import StoredData

_MEMORY_SHARE = 8  # at most 1/8 of the available memory is used to measure copying


def doctor(settings: Doctor, console: Console) -> int:
    """Print the findings. Returns 0, or 1 if a required package cannot be imported.

    Raises UsageError, and DataError where the store of a URL cannot be read.
    """
    url = url_of(settings.folder)
    if url is not None:
        return _with_store(url, settings, console)
    if not settings.folder.exists():
        raise UsageError(f"{settings.folder}: no such folder; name the folder of your data, or leave it out")
    if not settings.folder.is_dir():
        raise UsageError(f"{settings.folder}: not a folder; name the folder that contains it")
    return _told(look(settings.folder, terminal.console(stderr=True)), None, settings, console)


def _with_store(url: str, settings: Doctor, console: Console) -> int:
    """The findings, with those of a dataset at a URL. Raises DataError where the store cannot be read."""
    from .stored_data import stored_data

    found = stored_data(url, settings)
    return _told(look(Path(found.cache), terminal.console(stderr=True)), found, settings, console)


def _told(facts: MachineFacts, found: "StoredData | None", settings: Doctor, console: Console) -> int:
    sentences = advice(facts)
    if settings.json:
        store = {} if found is None else {"store": as_json(found)}
        print(json.dumps({**as_json(facts), **store, "advice": sentences, "unusable": unusable(facts)}))
    else:
        _print(facts, found, sentences, console)
    return 1 if unusable(facts) else 0


def look(folder: Path, err: Console) -> MachineFacts:
    """All facts. A fact that cannot be determined is Unknown, with the reason; nothing is raised."""
    with err.status("checking what is installed"):
        torch = torch_facts.ask()
        memory = probe(hardware.memory)
        cpu = probe(hardware.cpu)
        compiled = probe(installed.compiled)
        caches = {
            "fastimg": probe(lambda: hardware.folder(cache_folder())),
            **torch.caches,
            "temporary": probe(lambda: hardware.folder(Path(tempfile.gettempdir()))),
        }
        if not (isinstance(torch.packages, Unknown) or torch.packages["triton"].version):
            del caches["triton"]
    with err.status("measuring memory"):
        room = 0 if isinstance(memory, Unknown) else memory.available // _MEMORY_SHARE
        cores = (os.cpu_count() or 1) if isinstance(cpu, Unknown) else cpu.cores
        copying = probe(lambda: _copying(room, cores))
    with err.status("measuring the disk"):
        disk = probe(lambda: disks.measure_disk(folder, disks.FILE))
    return MachineFacts(
        fastimg=__version__,
        commit=probe(measurement.commit),
        python=platform.python_version(),
        packages=torch.packages,
        pillow=probe(installed.pillow),
        cuda=torch.cuda,
        compiler=probe(installed.compiler),
        in_use=torch.in_use,
        cpu=cpu,
        memory=memory,
        copying=copying,
        shared_memory=probe(hardware.shared_memory),
        open_files=probe(hardware.open_files),
        disk=disk,
        compiled=compiled,
        caches=caches,
    )


def _print(facts: MachineFacts, found: "StoredData | None", sentences: list[str], console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    section = ""
    for row in (*rows(facts), *_rows_of_store(found)):
        table.add_row(row.section if row.section != section else "", row.name, Text(printable(row.value)))
        section = row.section
    print_table(console, table)
    for sentence in sentences:
        say(console, f"advice: {sentence}")
    if not sentences:
        say(console, "advice: none, everything is fine")


def _rows_of_store(found: "StoredData | None") -> Iterator[Row]:
    if found is not None:
        from .stored_data import rows

        yield from rows(found)


def as_json(value: Any) -> Any:
    """Facts as JSON values: dataclasses as objects, readings with their rates, Unknown as {"unknown": reason}."""
    if isinstance(value, Unknown):
        return {"unknown": printable(value.reason)}
    if isinstance(value, DiskReading):
        rates = {"bytes_per_second": round(value.bytes_per_second), "reads_per_second": value.reads_per_second}
        return {**dataclasses.asdict(value), **rates}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: as_json(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [as_json(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value


def _copying(room: int, cores: int) -> Copying:
    nbytes = min(disks.FILE, room)
    if nbytes < disks.PIECE:
        raise UserError("too little memory is available for a measurement")
    one_thread = disks.memory_bandwidth(nbytes)
    all_cores = disks.memory_bandwidth(nbytes, cores) if cores > 1 else one_thread
    return Copying(one_thread=one_thread, all_cores=all_cores)
