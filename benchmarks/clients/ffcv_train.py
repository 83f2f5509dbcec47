#!/usr/bin/env python3
"""A trainer in the manner of ffcv-imagenet's train_imagenet.py, with FFCV's Loader and with FFCVLoader.

    build/peers/bin/python benchmarks/clients/ffcv_train.py DATA --loader fastimg --out seen.json

DATA has train.beton and val.beton. The change is the import of `Loader`; here it depends on `--loader`. On a CPU, FFCV
normalises arrays, not tensors, so NormalizeImage comes first; its resolutions grow from three quarters to `--size`.
"""

import argparse

import common
import numpy as np
import torch
import torch.distributed as dist
from ffcv.fields.decoders import IntDecoder
from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LEFT_OUT = {"json": None, "original": None}  # fields that the files of `fastimg convert` may have
MEAN, STD = np.array(common.MEAN) * 255, np.array(common.STD) * 255


def main() -> None:
    """Train and evaluate."""
    args = common.arguments(__doc__ or "", ("ffcv", "fastimg"))
    distributed = common.ranks()[1] > 1
    if distributed:
        dist.init_process_group("gloo")
    if args.loader == "fastimg":
        from fastimg.loaders import FFCVLoader as Loader
    else:
        from ffcv.loader import Loader
    record = common.Record(args.out, args.stop_after)

    decoder = RandomResizedCropRGBImageDecoder((resolution(args, 0),) * 2)
    train_loader = Loader(
        str(args.data / "train.beton"),
        batch_size=args.batch_size,
        num_workers=args.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={
            "image": [
                decoder,
                RandomHorizontalFlip(),
                NormalizeImage(MEAN, STD, np.float32),
                ToTensor(),
                ToTorchImage(),
            ],
            "label": [IntDecoder(), ToTensor(), Squeeze(1)],
            **LEFT_OUT,
        },
        distributed=distributed,
        seed=args.seed,
    )
    cropper = CenterCropRGBImageDecoder((args.size, args.size), ratio=224 / 256)
    val_loader = Loader(
        str(args.data / "val.beton"),
        batch_size=args.batch_size,
        num_workers=args.workers,
        order=OrderOption.SEQUENTIAL,
        drop_last=False,
        pipelines={
            "image": [cropper, NormalizeImage(MEAN, STD, np.float32), ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor(), Squeeze(1)],
            **LEFT_OUT,
        },
        distributed=distributed,
    )

    model = common.model(args.model, 10)
    if distributed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    begin = 0
    if args.resume is not None:
        position = torch.load(args.resume)
        begin = position["epoch"]
        train_loader.load_state_dict(position)  # which FFCV's loader cannot
    for epoch in range(begin, args.epochs):
        side = resolution(args, epoch)
        decoder.output_size = (side, side)
        record.begin_epoch()
        for images, target in train_loader:
            record.batch(images)
            loss = nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            record.step(loss.detach())
            if record.stopped:
                break
        record.end_epoch()
        if record.stopped:
            break
        record.begin_evaluation()
        with torch.no_grad():
            for images, target in val_loader:
                record.evaluate(images, model(images), target)
    if args.checkpoint is not None:
        torch.save(train_loader.state_dict(), args.checkpoint)
    record.write()
    if distributed:
        dist.destroy_process_group()


def resolution(args: argparse.Namespace, epoch: int) -> int:
    """The side of an epoch's images."""
    share = epoch / max(1, args.epochs - 1)
    return round(args.size * (0.75 + 0.25 * share))


if __name__ == "__main__":
    main()
