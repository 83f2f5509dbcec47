"""The profile of this machine: the fastest settings that `fastimg bench --tune` found, for `train --profile`.

It sets only what no flag sets, and does not change results, except through the batch of `--batch-size auto`. One file
in the user's cache directory serves all data. A profile of another machine, or of other versions, is refused.
"""

import json
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fastimg import __version__
from fastimg.config.commands import Train
from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.epochs.config import slots_for
from fastimg.loaders.runtime.cache import cache_folder
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.models.ranks import Ranks
from fastimg.system.measurement import cpu_model

_FORMAT = "fastimg machine profile"
_REMEDY = "make a new one with `fastimg bench DATA --tune`, or leave --profile out"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The fastest settings, and what they were measured with. `workers` and `prefetch` are for one process."""

    device: str  # cpu, or the GPU's name
    workers: int
    prefetch: int
    augment_stream: str
    batch_size: int
    arch: str  # the model that `batch_size` is for
    size: int
    amp: bool
    images_per_second: float
    made: str  # the time in UTC

    def record(self) -> dict[str, Any]:
        """The profile as a dict for JSON."""
        return dict(vars(self))


def now() -> str:
    """The current time in UTC, for a new profile."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def default_path() -> Path:
    """Where `bench --tune` writes the profile, and where `--profile` without a path reads it."""
    return cache_folder() / "machine.json"


def device_name(device: torch.device) -> str:
    """The name of a device in a profile."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _machine() -> dict[str, Any]:
    """What must be the same for a profile to be valid."""
    return {"cpu": cpu_model(), "cores": available_cpus(), "fastimg": __version__, "torch": torch.__version__}


def write(profile: Profile) -> Path:
    """Write a profile to its default place. Raises UserError if that fails."""
    file = default_path()
    content = {"format": _FORMAT, "machine": _machine(), "profile": profile.record()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise UserError(
            f"{file}: {error.strerror or error}; name another cache directory by the variable XDG_CACHE_HOME"
        ) from error
    return file


def read(file: Path, ranks: Ranks) -> Profile:
    """The profile in a file. Raises UsageError if it is missing, unreadable, or from another machine or device."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"--profile: there is no profile {file}; {_REMEDY}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--profile {file}: cannot be read ({error}); {_REMEDY}") from error
    try:
        if content["format"] != _FORMAT:
            raise KeyError("format")
        kinds: dict[str, Any] = {field.name: field.type for field in fields(Profile)}
        values = {name: kind(content["profile"][name]) for name, kind in kinds.items()}
        profile = Profile(**values)
        machine = dict(content["machine"])
        if min(profile.workers, profile.batch_size) < 1 or profile.prefetch < 2:
            raise ValueError("a number that is too small")
        if profile.augment_stream not in ("own", "step"):
            raise ValueError("augment_stream")
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(f"--profile {file}: not the profile of a machine ({error!r}); {_REMEDY}") from error
    measured = {**machine, "device": profile.device}
    for name, value in {**_machine(), "device": device_name(ranks.device)}.items():
        if measured.get(name) != value:
            difference = f"made with {name} {measured.get(name)}, here it is {value}"
            raise UsageError(f"--profile {file}: {difference}; {_REMEDY}")
    if ranks.local_world_size > 1:
        raise UsageError(
            f"--profile {file}: made for one process, and {ranks.local_world_size} share this machine; "
            "leave --profile out"
        )
    return profile


def applied(config: Train, ranks: Ranks) -> tuple[Train, str]:
    """`config` with the settings of --profile that no flag sets, and a sentence that names them; empty for none.

    Raises UsageError for a profile that cannot be used.
    """
    if config.profile is None:
        return config, ""
    profile = read(_file(config.profile), ranks)
    changes: dict[str, Any] = {}
    if config.workers == "auto":
        changes["workers"] = str(profile.workers)
    if config.prefetch is None and profile.prefetch != slots_for(ranks.device.type):
        changes["prefetch"] = profile.prefetch
    if config.augment_stream == "auto" and ranks.device.type == "cuda":
        changes["augment_stream"] = profile.augment_stream
    if not changes:
        return config, ""
    flags = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())
    return replace(config, **changes), f"{flags}, by {_origin(config.profile, profile)}"


def batch_size(config: Train, size: int, samples: int, ranks: Ranks) -> tuple[int, str] | None:
    """The batch in --profile for this model and image `size`, and a line that names its origin.

    None if there is none: the batch has to be searched for.
    """
    if config.profile is None or config.ghost_bn is not None or config.grad_checkpointing or config.freeze is not None:
        return None
    profile = read(_file(config.profile), ranks)
    if (config.arch, size, config.amp) != (profile.arch, profile.size, profile.amp):
        return None
    if profile.batch_size > samples // 5:
        return None
    return profile.batch_size, f"batch size {profile.batch_size:>6}   chosen by {_origin(config.profile, profile)}"


def _file(profile: str) -> Path:
    """The file that --profile means."""
    return default_path() if profile == "auto" else Path(profile)


def _origin(file: str, profile: Profile) -> str:
    return f"`fastimg bench --tune` of {profile.made[:10]} ({_file(file)})"
