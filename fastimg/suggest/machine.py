"""The machine that would train: its device, cores and free memory."""

from dataclasses import dataclass

import torch

from fastimg.system import hardware


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What choices depend on. Memory in bytes that is free now: of the device that trains, and of the host."""

    device: str  # cpu or cuda
    name: str
    cores: int
    free: int
    host_free: int
    gpus: int = 0
    load: float = 0.0  # of the last minute, before anything was measured


def machine(device: torch.device) -> Machine:
    """The machine, as the process sees it that trains on `device`."""
    cpu = hardware.cpu()
    cores = cpu.cores
    host = hardware.memory().available
    if device.type != "cuda":
        return Machine(device=device.type, name=cpu.model, cores=cores, free=host, host_free=host, load=cpu.load)
    free, _ = torch.cuda.mem_get_info(device)
    return Machine(
        device=device.type,
        name=torch.cuda.get_device_name(device),
        cores=cores,
        free=free,
        host_free=host,
        gpus=torch.cuda.device_count(),
        load=cpu.load,
    )
