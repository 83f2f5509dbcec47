"""Trains in the manner of timm's train.py: its data sets, its loader with the prefetcher, its evaluator."""

import timm.utils
import torch
from common import MEAN, STD, Record, arguments, model
from timm.data import create_dataset
from timm.task.evaluator import ClassificationEvaluator, evaluation_sample_limit
from torch.nn.parallel import DistributedDataParallel

args = arguments(__doc__)
if args.loader == "torch":
    from timm.data import create_loader
else:
    from fastimg.loaders import create_loader

args.device = "cuda" if torch.cuda.is_available() else "cpu"
device = timm.utils.init_distributed_device(args)  # torchrun's ranks; sets args.distributed
timm.utils.random_seed(args.seed, args.rank)
record = Record(args.out, args.stop_after)
common = {
    "input_size": (3, args.size, args.size),
    "batch_size": args.batch_size,
    "mean": MEAN,
    "std": STD,
    "num_workers": args.workers,
    "distributed": args.distributed,
    "device": device,
}
dataset_train = create_dataset("", root=args.data, split="train", is_training=True)
dataset_eval = create_dataset("", root=args.data, split="validation")
loader_train = create_loader(
    dataset_train, is_training=True, interpolation="random", color_jitter=None, **common
)  # colours stay, as they tell which image it is
loader_eval = create_loader(dataset_eval, interpolation="bicubic", crop_pct=0.9, **common)

torch.manual_seed(args.seed)  # one model on all ranks
network = model(args.model, len(dataset_train.reader.class_to_idx)).to(device)
optimizer = torch.optim.SGD(network.parameters(), args.lr)
if args.distributed:
    network = DistributedDataParallel(network)
start = 0
if args.resume:
    saved = torch.load(args.resume)
    network.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["epoch"]
    if args.loader == "fastimg":
        loader_train.load_state_dict(saved["loader"])


def train_one_epoch(epoch):
    """A loop over the training loader."""
    network.train()
    for images, targets in loader_train:
        record.batch(images)
        loss = torch.nn.functional.cross_entropy(network(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.step(loss)
        if record.stopped:
            save(epoch)
            return


def validate():
    """Accuracy in per cent, over all ranks."""
    network.eval()
    record.begin_evaluation()
    evaluator = ClassificationEvaluator(device, max_samples=evaluation_sample_limit(loader_eval))
    with torch.inference_mode():
        for images, targets in loader_eval:
            outputs = network(images)
            before = evaluator.num_samples
            evaluator.update(outputs, targets)
            kept = evaluator.num_samples - before  # without a sampler's padding
            record.evaluate(images[:kept], outputs[:kept], targets[:kept])
    return evaluator.compute(args.distributed)["top1"]


def save(epoch):
    """A checkpoint, which with our loader has the position in the epoch."""
    if args.checkpoint and timm.utils.is_primary(args):
        saved = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        if args.loader == "fastimg":
            saved["loader"] = loader_train.state_dict()
        torch.save(saved, args.checkpoint)


for epoch in range(start, args.epochs):
    if args.distributed and hasattr(loader_train.sampler, "set_epoch"):
        loader_train.sampler.set_epoch(epoch)
    record.begin_epoch()
    train_one_epoch(epoch)
    record.end_epoch()
    if record.stopped:
        break
    accuracy = validate()
    if timm.utils.is_primary(args):
        print(f"epoch {epoch}: {accuracy:.1f} % top-1 of {record.counted} samples on this rank")
record.write()
if args.distributed:
    torch.distributed.destroy_process_group()
