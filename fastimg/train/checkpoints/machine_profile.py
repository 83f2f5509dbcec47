"""The profile of this machine: what `fastimg bench --tune` found best, and `train` takes where it may choose.

Nothing in it changes what is computed, but the batch, which only `--batch-size auto` takes. It lies in the user's
cache directory, one file for all data; another machine's, or other versions', is not believed.
"""

import json
import os
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fastimg import __version__
from fastimg.config.commands import Train
from fastimg.errors import UsageError, UserError
from fastimg.loaders import LoaderConfig
from fastimg.loaders.containers.tar import replace_file
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.models.ranks import Ranks
from fastimg.system.measurement import cpu_model

VARIABLE = "FASTIMG_PROFILE"  # of the environment: a file, or off
_FORMAT = "fastimg machine profile"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was found best, and with what. Workers and slots are for one process on `device`."""

    device: str  # cpu, or the GPU's name
    workers: int
    prefetch: int
    augment_stream: str
    batch_size: int
    arch: str  # that the batch is for
    size: int
    amp: bool
    images_per_second: float
    made: str  # when, in UTC

    def record(self) -> dict[str, Any]:
        """For json."""
        return dict(vars(self))


def now() -> str:
    """When a profile is made."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def path() -> Path:
    """Where the profile is; FASTIMG_PROFILE names another file."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastimg" / "machine.json"


def device_name(device: torch.device) -> str:
    """What a profile calls a device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _machine() -> dict[str, Any]:
    """What must be the same for a profile to be believed."""
    return {"cpu": cpu_model(), "cores": available_cpus(), "fastimg": __version__, "torch": torch.__version__}


def target() -> Path:
    """Where a profile is written. Raises UsageError where there shall be none."""
    file = path()
    if str(file) == "off":
        raise UsageError(f"--tune has nowhere to write to: {VARIABLE} is off; name a file, or unset it")
    return file


def write(profile: Profile) -> Path:
    """Keep a profile. Raises UsageError and UserError where it cannot be."""
    file = target()
    content = {"format": _FORMAT, "machine": _machine(), "profile": profile.record()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}; name another file by {VARIABLE}") from error
    return file


def read(device: torch.device) -> tuple[Profile | None, str]:
    """The profile of this machine and device, and why it is not taken; neither where there is none."""
    file = path()
    if str(file) == "off":
        return None, ""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{file}: cannot be read ({error}); `fastimg bench --tune DATA` makes it anew"
    try:
        if content["format"] != _FORMAT:
            raise KeyError("format")
        kinds: dict[str, Any] = {field.name: field.type for field in fields(Profile)}
        values = {name: kind(content["profile"][name]) for name, kind in kinds.items()}
        profile, machine = Profile(**values), dict(content["machine"])
        if min(profile.workers, profile.batch_size) < 1 or profile.prefetch < 2:
            raise ValueError("a number that is too small")
        if profile.augment_stream not in ("own", "step"):
            raise ValueError("augment_stream")
    except (LookupError, TypeError, ValueError) as error:
        return None, f"{file}: no profile of a machine ({error!r}); `fastimg bench --tune DATA` makes it anew"
    here = {**_machine(), "device": device_name(device)}
    theirs = {**machine, "device": profile.device}
    for name, value in here.items():
        if theirs.get(name) != value:
            words = (
                f"made with {name} {theirs.get(name)}, here it is {value}; `fastimg bench --tune DATA` makes it anew"
            )
            return None, f"{file} is not used: {words}"
    return profile, ""


def applied(config: Train, ranks: Ranks) -> tuple[Train, str]:
    """`config` with the profile's settings where it leaves a choice; and a sentence, empty where nothing is done."""
    if config.loader not in ("auto", "native"):
        return config, ""
    profile, why = _for_ranks(ranks)
    if profile is None:
        return config, why
    changes: dict[str, Any] = {}
    if config.workers == "auto":
        changes["workers"] = str(profile.workers)
    if config.prefetch is None and profile.prefetch != LoaderConfig.prefetch:
        changes["prefetch"] = profile.prefetch
    if config.augment_stream == "auto" and ranks.device.type == "cuda":
        changes["augment_stream"] = profile.augment_stream
    if not changes:
        return config, ""
    flags = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())
    return replace(config, **changes), f"{flags}, by {_origin(profile)}"


def batch_size(config: Train, size: int, samples: int, ranks: Ranks) -> tuple[int, str] | None:
    """The batch that was found for this model and `size` of images, and where from. None: it is to be searched for."""
    profile, _ = _for_ranks(ranks)
    if profile is None or config.ghost_bn is not None or config.loader not in ("auto", "native"):
        return None
    if (config.arch, size, config.amp) != (profile.arch, profile.size, profile.amp):
        return None
    if profile.batch_size > samples // 5 or config.grad_checkpointing or config.freeze is not None:
        return None
    return profile.batch_size, f"batch size {profile.batch_size:>6}   chosen by {_origin(profile)}"


def _for_ranks(ranks: Ranks) -> tuple[Profile | None, str]:
    profile, why = read(ranks.device)
    if profile is not None and ranks.local_world_size > 1:
        return None, f"{path()} is not used: it is for one process, and {ranks.local_world_size} share this machine"
    return profile, why


def _origin(profile: Profile) -> str:
    return f"`fastimg bench --tune` of {profile.made[:10]} ({path()})"
