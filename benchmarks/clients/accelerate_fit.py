"""A loop with accelerate, in the manner of its examples.

python benchmarks/clients/accelerate_fit.py DATA --out run.json
torchrun --nproc-per-node=2 benchmarks/clients/accelerate_fit.py DATA --out run.json
"""

import common
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fastimg.loaders import ImageFolderLoader


class Progress:
    """How many steps are done, kept in checkpoints."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def main():
    args = common.arguments(__doc__, accumulate=1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    train_transform, val_transform = common.transforms(args.size)
    train = ImageFolder(args.data / "train", train_transform)
    val = ImageFolder(args.data / "val", val_transform)
    model = common.model(args.model, len(train.classes))
    optimizer = torch.optim.SGD(model.parameters(), args.lr)
    record, progress = common.Record(args.out, args.stop_after), Progress()
    if args.loader == "torch":
        train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
        val_loader = DataLoader(val, batch_size=args.batch_size, num_workers=args.workers)
    else:
        train_loader = ImageFolderLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
        val_loader = ImageFolderLoader(val, batch_size=args.batch_size, num_workers=args.workers)
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)
    accelerator.register_for_checkpointing(progress)
    if args.resume:
        accelerator.load_state(args.resume)
    first, done = divmod(progress.step, len(train_loader))

    for epoch in range(first, args.epochs):
        train_loader.set_epoch(epoch)
        batches = train_loader
        if epoch == first and done:
            batches = accelerator.skip_first_batches(train_loader, done)
        model.train()
        record.begin_epoch()
        for images, targets in batches:
            record.batch(images)
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(images), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            record.step(loss.detach())
            progress.step += 1
            if record.stopped:
                if args.checkpoint:
                    accelerator.save_state(args.checkpoint)
                break
        record.end_epoch()
        if record.stopped:
            break
        model.eval()
        record.begin_evaluation()
        for images, targets in val_loader:
            with torch.inference_mode():
                outputs = model(images)
            record.evaluate(*accelerator.gather_for_metrics((common.thinned(images), outputs, targets)))
    record.write()
    accelerator.end_training()


if __name__ == "__main__":
    main()
