#!/usr/bin/env python3
"""A trainer in the manner of pytorch/examples' imagenet/main.py, with torch's DataLoader and with ImageFolderLoader.

    python benchmarks/clients/imagenet.py DATA --loader fastimg --out seen.json
    torchrun --nproc-per-node 2 benchmarks/clients/imagenet.py DATA --loader fastimg --out seen.json

The change is the import and the two names where loaders are made; here `LOADER` is one of both. What an evaluation's
sampler leaves over is read by a DataLoader of torch's, as before.
"""

from typing import Any

import common
import torch
import torch.distributed as dist
import torch.utils.data
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

from fastimg.loaders import ImageFolderLoader


def main() -> None:
    """Train and evaluate."""
    args = common.arguments(__doc__ or "")
    _, world_size = common.ranks()
    distributed = world_size > 1
    if distributed:
        dist.init_process_group("gloo")
    record = common.Record(args.out, args.stop_after)
    loader_type: Any = ImageFolderLoader if args.loader == "fastimg" else torch.utils.data.DataLoader

    normalize = transforms.Normalize(mean=common.MEAN, std=common.STD)
    train_dataset = datasets.ImageFolder(
        args.data / "train",
        transforms.Compose(
            [
                transforms.RandomResizedCrop(args.size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                normalize,
            ]
        ),
    )
    val_dataset = datasets.ImageFolder(
        args.data / "val",
        transforms.Compose(
            [
                transforms.Resize(round(args.size / 0.875)),
                transforms.CenterCrop(args.size),
                transforms.ToTensor(),
                normalize,
            ]
        ),
    )
    train_sampler = DistributedSampler(train_dataset, seed=args.seed) if distributed else None
    val_sampler = DistributedSampler(val_dataset, shuffle=False, drop_last=True) if distributed else None
    train_loader = loader_type(
        train_dataset,
        batch_size=args.batch_size,
        shuffle=train_sampler is None,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
        sampler=train_sampler,
    )
    val_loader = loader_type(
        val_dataset, batch_size=args.batch_size, shuffle=False, num_workers=args.workers, sampler=val_sampler
    )

    model = common.model(args.model, len(train_dataset.classes))
    if distributed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    begin = 0
    if args.resume is not None:  # within an epoch, which torch's loader cannot
        position = torch.load(args.resume)
        begin = position["epoch"]
        train_loader.load_state_dict(position)
    for epoch in range(begin, args.epochs):
        if train_sampler is not None:
            train_sampler.set_epoch(epoch)
        record.begin_epoch()
        for images, target in train_loader:
            record.batch(images)
            loss = nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record.step(loss.detach())
            if record.stopped:
                break
        record.end_epoch()
        if record.stopped:
            break
        validate(val_loader, model, record, args.batch_size, world_size)
    if args.checkpoint is not None:
        torch.save(train_loader.state_dict(), args.checkpoint)
    record.write()
    if distributed:
        dist.destroy_process_group()


@torch.no_grad()
def validate(val_loader: Any, model: nn.Module, record: common.Record, batch_size: int, world_size: int) -> None:
    """Count on each rank, sum up, and count what the sampler has left over."""

    def count(loader: Any) -> None:
        for images, target in loader:
            record.evaluate(images, model(images), target)

    record.begin_evaluation()
    model.eval()
    count(val_loader)
    read = len(val_loader.sampler) * world_size
    if world_size > 1:
        counts = torch.tensor([record.counted, record.correct])
        dist.all_reduce(counts)
        record.counted, record.correct = counts.tolist()
        if read < len(val_loader.dataset):
            aux_val_dataset = Subset(val_loader.dataset, range(read, len(val_loader.dataset)))
            count(torch.utils.data.DataLoader(aux_val_dataset, batch_size=batch_size))
    model.train()


if __name__ == "__main__":
    main()
