"""The software and hardware of a machine: packages, their import times, the GPU, and the advice of `fastimg doctor`."""

import dataclasses
import importlib
import json
import platform
import tempfile
import time
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

import torch
from bench import Bench
from gpu_clocks import clocks
from gpu_plan import NEEDED, OPTIONAL, missing


def versions(bench: Bench) -> None:
    """Packages, imports, the device, then doctor."""
    packages = {dist.metadata["Name"]: dist.version for dist in distributions() if dist.metadata["Name"]}
    absent = missing((*NEEDED, *OPTIONAL))
    bench.keep({"title": "packages", "python": platform.python_version(), "missing": absent, "packages": packages})
    items = {"imports": partial(_imports, bench), "doctor": partial(_doctor, bench)}
    if bench.device.type == "cuda":
        items = {"device": partial(_device, bench), **items}
    bench.each(items, seconds=300)


def _device(bench: Bench) -> None:
    facts = torch.cuda.get_device_properties(bench.device)
    about = {"name": facts.name, "memory_mib": facts.total_memory >> 20, "processors": facts.multi_processor_count}
    about |= {"capability": f"{facts.major}.{facts.minor}", "l2_mib": getattr(facts, "L2_cache_size", 0) >> 20}
    bench.report("device", [{**about, **clocks(bench.device)}])


def _imports(bench: Bench) -> None:
    found = {"torch": bench.torch_seconds}
    for name in ("torchvision", "timm", "triton", "fastimg.bench.rig"):
        if not missing([name.partition(".")[0]]):
            began = time.perf_counter()
            importlib.import_module(name)
            found[name] = round(time.perf_counter() - began, 2)
    bench.report("seconds per import, in this order", [found])


def _doctor(bench: Bench) -> None:
    from fastimg.doctor.diagnosis import as_json, look
    from fastimg.doctor.remedies import advice
    from fastimg.system import disks

    if bench.quick:
        disks.FILE = 16 << 20
    facts = look(Path(tempfile.gettempdir()), bench.console)
    sentences = advice(facts)
    found = as_json({field.name: getattr(facts, field.name) for field in dataclasses.fields(facts)})
    for key in ("packages", "caches", "compiler"):  # listed above; paths of this machine
        found.pop(key)
    record = {"title": "doctor", "doctor": found, "advice": sentences}
    bench.keep(json.loads(bench.without_paths(json.dumps(record))))
    for sentence in sentences or ["no advice: everything is fine"]:
        bench.console.print(f"doctor: {sentence}")
