"""The GPU's current clock, power and temperature."""

import shutil
import subprocess
from typing import Any

import torch

_ASKED = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
_NAMES = ("sm_mhz", "memory_mhz", "watts", "celsius")


def clocks(device: torch.device) -> dict[str, Any]:
    """`sm_mhz`, `memory_mhz`, `watts`, `celsius`, as far as nvidia-smi reports them; empty without a GPU or nvidia-smi.

    Takes about 50 ms: call it after a measurement, while the device is still warm, not during one.
    """
    if device.type != "cuda" or shutil.which("nvidia-smi") is None:
        return {}
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    which = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    command = ["nvidia-smi", f"--id={which}", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return parsed(said)


def parsed(said: str) -> dict[str, float]:
    """The numbers in one line of nvidia-smi's output; unknown values ("[N/A]") are left out."""
    found: dict[str, float] = {}
    for name, value in zip(_NAMES, said.strip().splitlines()[0].split(",") if said.strip() else (), strict=False):
        try:
            found[name] = float(value)
        except ValueError:
            continue
    return found
