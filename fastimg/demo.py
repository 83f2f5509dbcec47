"""`fastimg demo`: convert, train, evaluate and predict on embedded data, showing the command for each step."""

import os
import shutil
from pathlib import Path

import numpy as np
from rich.console import Console

from fastimg.config.commands import Convert, Demo, Eval, Predict, Train
from fastimg.convert.pipeline import convert
from fastimg.convert.report import print_report
from fastimg.data.digits import COUNT, write_digits
from fastimg.data.splits import stratified_split
from fastimg.predict.answers import Answer
from fastimg.predict.evaluation import Evaluation, evaluate_checkpoint
from fastimg.predict.prediction import classify
from fastimg.system.terminal import say
from fastimg.train.loop import train
from fastimg.train.reporting.plots import plot_predictions

from .errors import UsageError, UserError
from .loaders import open_dataset
from .loaders.opening import open_image

ARCH, SIZE, VAL_FRACTION, SHOWN, GOAL = "test_resnet", 32, 0.2, 12, 0.97
BATCH = 64  # on every device: the rate is for it
_MARK = ".fastimg-demo"
_WRITTEN = ("images", "shards", "runs/digits", "predictions.png")  # in its folder
_RULE = 80  # columns of a heading


def demo(config: Demo, console: Console) -> int:
    """Run the demo. Returns the signal that stopped it, else 0. Raises UsageError if `output` holds other files."""
    folder = config.output
    _begin(folder)
    images, shards = folder / "images", folder / "shards"
    checkpoint = folder / "runs/digits/best"

    _step(console, f"{COUNT:,} handwritten digits (UCI, in scikit-learn) as an image folder")
    write_digits(images)
    say(console, f"{images}/0 to {images}/9, 8 x 8 pixels each")

    _step(console, f"fastimg convert {images} {shards} --val-fraction {VAL_FRACTION}")
    print_report(
        convert(Convert(src=images, dst=shards, val_fraction=VAL_FRACTION, seed=config.seed), console), console
    )

    flags = f"--arch {ARCH} --img-size {SIZE} --crop-pct 1 --hflip 0 --scale 0.6 1 --batch-size {BATCH} --lr 4e-3"
    flags += f" --epochs {config.epochs}"
    _step(console, f"fastimg train {shards} {flags} --output {folder / 'runs'} --name digits")
    settings = Train(
        data=shards,
        arch=ARCH,
        img_size=SIZE,
        crop_pct=1.0,
        hflip=0.0,  # a mirrored digit is not that digit any more
        scale=(0.6, 1.0),
        batch_size=BATCH,
        lr=4e-3,
        epochs=config.epochs,
        seed=config.seed,
        output=folder / "runs",
        name="digits",
    )
    result = train(settings, console)
    if result.signal:
        return result.signal

    _step(console, f"fastimg eval {checkpoint} {shards}")
    score = evaluate_checkpoint(Eval(checkpoint=checkpoint, data=shards), console, console)
    assert isinstance(score, Evaluation)  # digits are classes
    if score.top1 < GOAL:
        say(console, f"below the {GOAL:.0%} that this demo reaches with its default settings", style="yellow")

    files = _held_out(images, config.seed)
    _step(console, f"fastimg predict {checkpoint} {files[0]} ...")
    answers = classify(Predict(checkpoint=checkpoint, sources=tuple(files)), console)
    _show(console, files, answers, folder / "predictions.png")

    _step(console, "what was written")
    for path, what in (
        (images, "the images"),
        (shards, "the shards: tar, DALI index, dataset.json"),
        (folder / "runs/digits", "the run: config.yaml, metrics.jsonl, curves.png, best and last checkpoint"),
        (Path(score.plot), "the confusion matrix"),
        (folder / "predictions.png", "predictions for a few held-out digits"),
    ):
        say(console, f"  {path}  {what}")
    _step(console, "try next")
    for line in (
        "fastimg convert YOUR_IMAGES DATA --val-fraction 0.2     (one subfolder per class)",
        "fastimg train DATA --arch resnet50 --pretrained         (or --weights FILE, or neither)",
        "fastimg predict runs/DATA-resnet50 SOME_IMAGE.jpg",
    ):
        say(console, f"  {line}")
    return 0


def _begin(folder: Path) -> None:
    """Make the demo's folder, or delete what an earlier demo wrote into it."""
    if folder.exists() and not (folder.is_dir() and ((folder / _MARK).exists() or not any(folder.iterdir()))):
        raise UsageError(f"--output {folder}: holds files that are not from a demo; give another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()  # first, and kept: what is interrupted here is a demo's still
        for name in _WRITTEN:
            if os.path.lexists(path := folder / name):
                _delete(path)
    except OSError as error:
        raise UserError(f"--output {folder}: {error.strerror}; choose a folder that can be created") from error


def _delete(path: Path) -> None:
    """Delete a file, a link or a folder. (The demo's own folder may be a link or a mount, and stays.)"""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _held_out(images: Path, seed: int) -> list[Path]:
    """Some of the images that `convert --val-fraction` held out, from all classes."""
    dataset = open_dataset(images)
    _, held_out = stratified_split(dataset.labels, VAL_FRACTION, seed)
    return [Path(dataset.sample_name(int(i))) for i in held_out[:: len(held_out) // SHOWN][:SHOWN]]


def _step(console: Console, title: str) -> None:
    console.print()
    say(console, f"{title} ".ljust(min(console.width, _RULE), "-"), style="rule.line")


def _show(console: Console, files: list[Path], answers: list[Answer], sheet: Path) -> None:
    """Draw the first image as text, and all of them as a sheet."""
    for row in np.asarray(open_image(files[0])):
        say(console, "  " + "".join(" .:-=+*#%@"[level * 9 // 255] * 2 for level in row.tolist()))
    for file, answer in zip(files, answers, strict=True):
        right = "" if answer.classes[0] == file.parent.name else f"   (it is {file.parent.name})"
        say(console, f"  {file.name}: {answer.classes[0]} {answer.probabilities[0]:.1%}{right}")
    captions = [f"{answer.classes[0]} ({answer.probabilities[0]:.0%})" for answer in answers]
    right_ones = [answer.classes[0] == file.parent.name for file, answer in zip(files, answers, strict=True)]
    images = [np.asarray(open_image(file).convert("RGB")) for file in files]
    title = "predictions of the demo's run for held-out digits"
    for remark in plot_predictions(images, captions, right_ones, sheet, title):
        say(console, f"  {remark}")
