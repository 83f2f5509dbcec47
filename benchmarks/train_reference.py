"""A typical training loop: ImageFolder, DataLoader with Pillow, torchvision's transforms, a timm model."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastimg.loaders.runtime.cpus import available_cpus

_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)


def train_plainly(arch: str, data: Path, batch_size: int, size: int, steps: int, warm_steps: int = 2) -> float:
    """Images per second over `steps` steps. As in the trainer: bf16 autocast, channels-last, SGD with momentum."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(_MEAN, _STD),
        ]
    )
    dataset = ImageFolder(data, transform)
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=available_cpus() if device.type == "cuda" else max(1, available_cpus() // 2),
        pin_memory=device.type == "cuda",
        persistent_workers=True,
    )
    model = timm.create_model(arch, num_classes=len(dataset.classes))
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-5)
    began = 0.0
    for step, (images, targets) in enumerate(_endless(loader)):
        if step == warm_steps:
            began = _now(device)
        if step == warm_steps + steps:
            break
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        targets = targets.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), targets, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return steps * batch_size / (_now(device) - began)


def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def _now(device: torch.device) -> float:
    """The current time in seconds, once the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
