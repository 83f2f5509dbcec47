"""Lightning's Trainer with a module of one's own.

python benchmarks/clients/lightning_fit.py DATA --out run.json [--devices 2 [--strategy ddp_spawn]]
torchrun --nproc-per-node=2 benchmarks/clients/lightning_fit.py DATA --out run.json
"""

import os

import common
import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fastimg.loaders import ImageFolderLoader


class Classifier(L.LightningModule):
    def __init__(self, model, lr, record, checkpoint):
        super().__init__()
        self.model, self.lr, self.record, self.checkpoint = model, lr, record, checkpoint

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)

    def training_step(self, batch):
        images, targets = batch
        self.record.batch(images)
        loss = F.cross_entropy(self.model(images), targets)
        self.record.step(loss.detach())
        return loss

    def validation_step(self, batch):
        images, targets = batch
        self.record.evaluate(images, self.model(images), targets)

    def on_train_epoch_start(self):
        self.record.begin_epoch()

    def on_train_epoch_end(self):
        self.record.end_epoch()

    def on_validation_epoch_start(self):
        self.record.begin_evaluation()

    def on_train_batch_end(self, *_):
        if self.record.stopped and not self.trainer.should_stop:
            self.trainer.should_stop = True
            if self.checkpoint:
                self.trainer.save_checkpoint(self.checkpoint)

    def on_fit_end(self):
        self.record.write()


def main():
    devices = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun's
    args = common.arguments(__doc__, devices=devices, strategy="auto", validations=1)
    train_transform, val_transform = common.transforms(args.size)
    train = ImageFolder(args.data / "train", train_transform)
    val = ImageFolder(args.data / "val", val_transform)
    record = common.Record(args.out, args.stop_after)
    module = Classifier(common.model(args.model, len(train.classes)), args.lr, record, args.checkpoint)
    if args.loader == "torch":
        train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
        val_loader = DataLoader(val, batch_size=args.batch_size, num_workers=args.workers)
    else:
        train_loader = ImageFolderLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
        val_loader = ImageFolderLoader(val, batch_size=args.batch_size, num_workers=args.workers)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=args.devices,
        strategy=args.strategy,
        val_check_interval=1 / args.validations,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, train_loader, val_loader, ckpt_path=args.resume)


if __name__ == "__main__":
    main()
