"""Facts that can only be determined by importing torch, which is done in a subprocess.

`doctor` thus starts at once, and reports what is wrong even if importing a package crashes.
"""

import functools
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastimg.errors import UserError
from fastimg.system import hardware
from fastimg.system import packages as installed
from fastimg.system.hardware import Cuda, Folder
from fastimg.system.packages import Package

from .remedies import InUse, Unknown, probe


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    """Facts about torch and the packages that depend on it."""

    packages: dict[str, Package] | Unknown
    cuda: Cuda | Unknown
    in_use: InUse | Unknown
    caches: dict[str, Folder | Unknown]


def ask() -> TorchFacts:
    """The facts, from a subprocess. If it fails, each of them is Unknown, with the reason."""
    facts = probe(_ask)
    if isinstance(facts, Unknown):
        return TorchFacts(packages=facts, cuda=facts, in_use=facts, caches=dict.fromkeys(_CACHES, facts))
    return facts


def _ask() -> TorchFacts:
    command = [sys.executable, "-c", f"from {__name__} import tell; tell()"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode < 0:
        raise UserError(f"the process that imports torch was killed by signal {-done.returncode}")
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise UserError(f"the process that imports torch failed: {lines[-1] if lines else done.returncode}")
    facts: TorchFacts = pickle.loads(done.stdout)
    return facts


def tell() -> None:
    """Write the facts to standard output; whatever libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        answer.write(pickle.dumps(look()))


def look() -> TorchFacts:
    """The facts, determined in this process, which imports all required packages."""
    return TorchFacts(
        packages=probe(installed.packages),
        cuda=probe(hardware.cuda),
        in_use=probe(_in_use),
        caches={name: probe(functools.partial(_folder, path_of)) for name, path_of in _CACHES.items()},
    )


def _in_use() -> InUse:
    import torch

    from fastimg.augment.backends import named
    from fastimg.data.datasets import chosen_backend
    from fastimg.loaders.backends import nvcodec
    from fastimg.models.precision import choose
    from fastimg.train.choices import step_rates

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda" and nvcodec.installed()
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    rule = choose(device, True, "auto")
    measured = step_rates.machine_types(gpu) if gpu is not None and rule.dtype is torch.bfloat16 else ()
    return InUse(
        loader=chosen_backend("auto"),
        decode="the CPU; `--decode gpu` uses nvImageCodec" if on_gpu else "the CPU",
        augmentation=named(device),
        precision="; ".join((rule.reason, *measured)),
        device=str(device),
        faster=tuple(step_rates.machine_gains(gpu)) if gpu is not None else (),
    )


def _folder(path_of: Callable[[], Path]) -> Folder:
    return hardware.folder(path_of())


def _huggingface() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _torch_hub() -> Path:
    return Path(importlib.import_module("torch.hub").get_dir())


def _triton() -> Path:
    knobs = importlib.import_module("triton").knobs
    return Path(knobs.cache.dir)


_CACHES: dict[str, Callable[[], Path]] = {"huggingface": _huggingface, "torch": _torch_hub, "triton": _triton}
