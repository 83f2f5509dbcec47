"""transformers' Trainer with a model of one's own.

python benchmarks/clients/transformers_fit.py DATA --out run.json
torchrun --nproc-per-node=2 benchmarks/clients/transformers_fit.py DATA --out run.json
"""

from pathlib import Path

import common
import torch
import torch.nn.functional as F
from torchvision.datasets import ImageFolder
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from fastimg.loaders import ImageFolderLoader


class Classifier(torch.nn.Module):
    def __init__(self, model, record):
        super().__init__()
        self.model, self.record = model, record

    def forward(self, pixel_values, labels):
        if self.training:
            self.record.batch(pixel_values)
        logits = self.model(pixel_values)
        loss = F.cross_entropy(logits, labels)
        if self.training:
            self.record.step(loss.detach())
        return {"loss": loss, "logits": logits, "pixels": common.thinned(pixel_values)}


class Recorded(TrainerCallback):
    def __init__(self, record):
        self.record = record

    def on_epoch_begin(self, *_, **__):
        self.record.begin_epoch()

    def on_epoch_end(self, *_, **__):
        self.record.end_epoch()

    def on_step_end(self, arguments, state, control, **_):
        control.should_training_stop = control.should_save = self.record.stopped


def collated(samples):
    images, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


def main():
    args = common.arguments(__doc__)
    train_transform, val_transform = common.transforms(args.size)
    train = ImageFolder(args.data / "train", train_transform)
    val = ImageFolder(args.data / "val", val_transform)
    arguments = TrainingArguments(
        output_dir=str(args.checkpoint or Path(args.out).parent / "unused"),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        dataloader_num_workers=args.workers,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0,
        seed=args.seed,
        eval_strategy="epoch",
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    record = common.Record(args.out, args.stop_after)

    def measured(prediction):
        logits, pixels = map(torch.from_numpy, prediction.predictions)
        record.begin_evaluation()
        record.evaluate(pixels, logits, torch.from_numpy(prediction.label_ids))
        return {"accuracy": record.correct / record.counted}

    trainer = Trainer(
        Classifier(common.model(args.model, len(train.classes)), record),
        arguments,
        train_dataset=train,
        eval_dataset=val,
        data_collator=collated,
        compute_metrics=measured,
        callbacks=[Recorded(record)],
    )
    if args.loader == "fastimg":
        given = {"batch_size": args.batch_size, "num_workers": args.workers}
        trainer.get_train_dataloader = ImageFolderLoader(train, shuffle=True, **given).dicts
        trainer.get_eval_dataloader = lambda dataset=val: ImageFolderLoader(dataset, **given).dicts()
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.resume) if args.resume else None)
    record.write()


if __name__ == "__main__":
    main()
