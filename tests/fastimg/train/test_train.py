"""The trainer from a user's view: it learns, leaves a run directory, and prints its progress."""

import csv
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from fastimg import cli
from fastimg.config import yaml_file as configfile
from fastimg.config.command_line.parsing import parse
from fastimg.config.commands import Convert, Train
from fastimg.convert.pipeline import convert
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.system.signals import Interrupt
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.loop import train
from fastimg.train.reporting import summary


def flags(data: Path, output: Path, *more: str) -> list[str]:
    base = ["--arch", "test_resnet", "--img-size", "32", "-b", "16", "--val-fraction", "0.25"]
    return ["train", str(data), *base, "--output", str(output), "--name", "run", *more]


def test_it_overfits_a_few_images(image_folder: Path, tmp_path: Path) -> None:
    more = ["--epochs", "12", "--lr", "5e-3", "--smoothing", "0", "--no-aug", "--no-amp", "--val-fraction", "0"]
    assert cli.run([*flags(image_folder, tmp_path / "runs"), *more]) == 0
    records = [record for record in rundir.read_log(tmp_path / "runs/run") if record["kind"] == "train"]
    assert records[-1]["loss"] < 0.1
    assert records[-1]["top1"] == 1.0


@pytest.mark.curves
def test_a_run_writes_all_documented_files(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    draw = summary.plot_curves
    monkeypatch.setattr(summary, "_DRAWING", math.inf)

    def counting(records: Any, *rest: Any) -> None:
        drawn.append(sum(record["kind"] == "val" for record in records))
        if len(drawn) == 4:
            draw(records, *rest)

    monkeypatch.setattr(summary, "plot_curves", counting)
    assert cli.run(flags(image_folder, tmp_path / "runs", "--epochs", "3", "--verbose")) == 0
    assert drawn == [1, 2, 3, 3]  # after each epoch, and at the end
    run = tmp_path / "runs/run"
    assert {"config.yaml", "metrics.jsonl", "results.csv", "curves.png", "last", "best", "checkpoints"} <= {
        p.name for p in run.iterdir()
    }
    card = checkpoint.read_card(checkpoint.find(run))
    assert card.classes == ("blue", "green", "red")
    assert card.preprocessing.val_size == 32
    assert card.metrics["samples"] == 9
    with Image.open(run / "curves.png") as curves:
        assert curves.size[0] > 500
    records = rundir.read_log(run)
    assert [record["kind"] for record in records].count("val") == 3
    with (run / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [(row["epoch"], row["step"]) for row in table] == [("1", "2"), ("2", "4"), ("3", "6")]
    for kind in ("train", "val"):
        losses = {record["epoch"]: record["loss"] for record in records if record["kind"] == kind}
        told = [float(row[f"{kind}_loss"]) for row in table]
        assert told == [pytest.approx(losses[epoch], rel=1e-5) for epoch in (1, 2, 3)]
    steps = [record for record in records if record["kind"] == "step"]
    assert [(one["epoch"], one["step"]) for one in steps] == [(1, 1), (1, 2), (2, 3), (2, 4), (3, 5), (3, 6)]
    for last in (record for record in records if record["kind"] == "train"):
        mine = [one for one in steps if one["epoch"] == last["epoch"]]
        assert sum(one["samples"] for one in mine) == last["samples"] == 27
        assert sum(one["loss"] * one["samples"] for one in mine) / 27 == pytest.approx(last["loss"])
        assert mine[-1]["lr"] == last["lr"] and 0 <= mine[0]["top1"] <= 1
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"epoch 2/3 training loss [\d.]+ validation loss [\d.]+ top1", out)
    for words in ("36", "plain folder", "fastimg convert", "slots of", "bytes", "best validation", "epoch 3/3"):
        assert words in out


def test_long_runs_write_one_record_for_several_steps(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastimg.train.run._TRACED", 3)
    more = ["-b", "4", "--duration", "10ba", "--val-fraction", "0", "--save-interval", "7"]
    assert cli.run([*flags(image_folder, tmp_path / "runs"), *more]) == 0
    steps = [record for record in rundir.read_log(tmp_path / "runs/run") if record["kind"] == "step"]
    # Means of four steps each, also where the run is saved, and where an epoch ends.
    expected = [(1, 4, 16), (1, 7, 12), (1, 8, 4), (1, 9, 4), (2, 10, 4)]
    assert [(one["epoch"], one["step"], one["samples"]) for one in steps] == expected


def test_nested_folders_and_files_that_are_left_out(
    tmp_path: Path, encode: Callable[..., bytes], cli: Callable[..., Any]
) -> None:
    data = tmp_path / "D"
    for i, name in enumerate(("animals/a", "animals/b", "plants/c")):
        (data / name).mkdir(parents=True)
        for j in range(4):
            (data / name / f"{j}.jpg").write_bytes(encode(seed=4 * i + j))
    (data / "loose.jpg").write_bytes(encode())
    (tmp_path / "leaf.yaml").write_text("classes: leaf\n")
    left_out = "1 of 13 files is not used: 1 outside any class folder (.jpg); the first is loose.jpg"
    for more, classes, leaf in (
        ((), ("animals", "plants"), 1),
        (("--config", tmp_path / "leaf.yaml"), ("a", "b", "c"), 0),
    ):
        ran = cli(*flags(data, tmp_path / f"runs{leaf}", "--epochs", "1"), *more)
        assert ran.code == 0, ran.err
        assert ran.out.count(left_out) == 1 and ran.out.count("use --classes leaf to take the innermost folder") == leaf
        assert checkpoint.read_card(checkpoint.find(tmp_path / f"runs{leaf}/run")).classes == classes
    run = tmp_path / "runs0/run"
    assert "classes: leaf" in (run / "config.yaml").read_text()
    asked = cli("eval", run, data, "--classes", "leaf", "--json", "--output", tmp_path / "plot.png", "--overwrite")
    assert json.loads(asked.out)["images"] == 3 and left_out in asked.err  # those that training held out


def test_classes_has_no_effect_on_shards(trained: Any, tmp_path: Path, cli: Callable[..., Any]) -> None:
    embed = ("embed", trained.shards, tmp_path / "E", "--arch", "test_resnet", "--weights", trained.run)
    for arguments in (
        flags(trained.shards, tmp_path)[:2],
        ("eval", trained.run, trained.shards),
        ("inspect", trained.shards),
        embed,
    ):
        ran = cli(*arguments, "--classes", "leaf")
        message = f"--classes leaf has no effect: {trained.shards} is not a folder of class folders; leave it out"
        assert ran.code == 2 and message in ran.err + ran.out


def test_config_yaml_reproduces_the_weights(image_folder: Path, tmp_path: Path) -> None:
    assert cli.run(flags(image_folder, tmp_path / "runs", "--epochs", "2")) == 0
    config = tmp_path / "runs/run/config.yaml"
    assert cli.run(["train", "--config", str(config), "--output", str(tmp_path / "again")]) == 0
    one, two = (load_file(tmp_path / name / "last/model.safetensors") for name in ("runs/run", "again/run"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    again = configfile.load(tmp_path / "again/run/config.yaml", Train)
    before = configfile.load(config, Train)
    assert {k: v for k, v in before.__dict__.items() if k != "output"} == {
        k: v for k, v in again.__dict__.items() if k != "output"
    }


def test_shards_and_their_folder_give_the_same_validation(image_folder: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    convert(Convert(src=image_folder, dst=shards, val_fraction=0.25), Console(quiet=True))
    assert cli.run(["train", str(shards), "--arch", "test_vit", "--img-size", "32", "-o", str(tmp_path / "runs")]) == 0
    assert (tmp_path / "runs/shards-test_vit/best/model.safetensors").exists()
    record = [r for r in rundir.read_log(tmp_path / "runs/shards-test_vit") if r["kind"] == "val"][-1]
    assert record["samples"] == 9


def test_every_sample_counts_once_though_batches_do_not_divide(image_folder: Path, tmp_path: Path) -> None:
    more = ["-b", "7", "--epochs", "1", "--log-interval", "1", "--val-fraction", "0"]
    assert cli.run([*flags(image_folder, tmp_path / "runs"), *more]) == 0
    records = [record for record in rundir.read_log(tmp_path / "runs/run") if record["kind"] == "train"]
    assert [record["samples"] for record in records] == [7, 14, 21, 28, 35, 36]


def test_unreadable_images_are_left_out_counted_and_named(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = image_folder / "red/000.jpg"
    victim.write_bytes(victim.read_bytes()[:300])
    more = ["--epochs", "1", "--val-fraction", "0", "--log-interval", "1"]
    assert cli.run([*flags(image_folder, tmp_path / "runs"), *more]) == 0
    assert [r["samples"] for r in rundir.read_log(tmp_path / "runs/run") if r["kind"] == "train"][-1] == 35
    out = capsys.readouterr().out
    assert "1 training image could not be decoded" in out
    assert "000.jpg" in out
    assert cli.run([*flags(image_folder, tmp_path / "other"), *more, "--on-error", "fail"]) == 1
    assert "000.jpg" in capsys.readouterr().err


def test_patience_ends_a_run(image_folder: Path, tmp_path: Path) -> None:
    more = ["--epochs", "20", "--lr", "1e-12", "--sched", "constant", "--patience", "2"]
    assert cli.run([*flags(image_folder, tmp_path / "runs"), *more]) == 0
    epochs = [r["epoch"] for r in rundir.read_log(tmp_path / "runs/run") if r["kind"] == "val"]
    assert 3 <= len(epochs) < 20


def test_who_watches_a_run_may_end_it_after_a_validation(image_folder: Path, tmp_path: Path) -> None:
    seen: dict[int, float] = {}

    def watch(epochs: int, values: Mapping[str, float]) -> bool:
        seen[epochs] = values["top1"]
        return epochs == 2

    given = parse("train", Train, [*flags(image_folder, tmp_path / "runs")[1:], "--epochs", "3"], {})
    result = train(Train(**given), Console(quiet=True), watch=watch, summary=False)
    assert (result.epochs, result.signal, list(seen)) == (2, 0, [1, 2])
    assert result.run is not None
    logged = {r["epoch"]: r["top1"] for r in rundir.read_log(result.run) if r["kind"] == "val"}
    assert logged == seen
    resumed = train(replace(Train(**given), resume="auto"), Console(quiet=True))
    assert resumed.epochs == 3


def test_a_loss_that_became_nan_stops_the_run(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [
        "--opt",
        "sgd",
        "--lr",
        "1e30",
        "--warmup-fraction",
        "0",
        "--no-amp",
        "--log-interval",
        "1",
        "--epochs",
        "4",
    ]
    assert cli.run([*flags(image_folder, tmp_path / "runs"), *more]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "the loss became nan" in message
    assert "lower --lr" in message


def test_a_dry_run_writes_nothing(image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(flags(image_folder, tmp_path / "runs", "--dry-run")) == 0
    assert not (tmp_path / "runs").exists()
    assert "adamw (fused), lr" in capsys.readouterr().out


def test_a_frozen_backbone_does_not_change(image_folder: Path, tmp_path: Path) -> None:
    assert cli.run(flags(image_folder, tmp_path / "runs", "--epochs", "1")) == 0
    start = tmp_path / "runs/run/last/model.safetensors"
    more = ["--weights", str(start), "--freeze", "backbone", "--lr", "0.1", "--epochs", "2"]
    assert cli.run(flags(image_folder, tmp_path / "frozen", *more)) == 0
    before, after = load_file(start), load_file(tmp_path / "frozen/run/last/model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"fc.weight", "fc.bias"}  # batch norm statistics are unchanged, too


def test_a_second_ctrl_c_stops_at_once() -> None:
    with Interrupt() as interrupt:
        interrupt._note(2, None)
        assert interrupt.signal == 2
        with pytest.raises(KeyboardInterrupt):
            interrupt._note(2, None)


def test_weights_with_other_classes_lend_the_rows_that_are_the_same(image_folder: Path, tmp_path: Path) -> None:
    assert cli.run(flags(image_folder, tmp_path / "runs", "--epochs", "1")) == 0
    (image_folder / "blue").rename(image_folder / "azure")
    more = ["--weights", str(tmp_path / "runs/run"), "--freeze", "backbone", "--epochs", "1", "--lr", "1e-9"]
    more += ["--head-init", "zeros"]
    assert cli.run(flags(image_folder, tmp_path / "other", *more)) == 0
    before, after = (load_file(tmp_path / name / "run/last/model.safetensors") for name in ("runs", "other"))
    assert torch.equal(before["conv1.0.weight"], after["conv1.0.weight"])
    assert after["fc.weight"][0].abs().max() < 1e-4  # azure began at zero
    assert torch.allclose(after["fc.weight"][1:], before["fc.weight"][1:], rtol=0, atol=1e-6)
    assert before["fc.weight"].abs().max() > 1e-3


def test_no_readable_validation_image_stops_the_run(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("blue", "green", "red"):
        (tmp_path / "split/train").mkdir(parents=True, exist_ok=True)
        (image_folder / name).rename(tmp_path / "split/train" / name)
        (tmp_path / "split/val" / name).mkdir(parents=True)
        (tmp_path / "split/val" / name / "broken.jpg").write_bytes(b"nothing")
    base = ["train", str(tmp_path / "split"), "--arch", "test_resnet", "--img-size", "32", "-o", str(tmp_path / "runs")]
    assert cli.run(base) == 1
    assert "no validation image could be decoded" in " ".join(capsys.readouterr().err.split())


def test_a_full_disk_is_a_one_line_error(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    assert cli.run(flags(image_folder, tmp_path / "runs", "--epochs", "1")) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "no space left on the disk; free some space, then start again: no checkpoint was saved before" in message


def test_a_beton_trains_and_evaluates(image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "betons").mkdir()
    fields = {"image": BetonField("rgb"), "label": BetonField("int")}
    for split in ("train", "val"):
        with BetonWriter(tmp_path / f"betons/{split}.beton", fields) as writer:
            for label, name in enumerate(("blue", "green", "red")):
                for file in sorted((image_folder / name).glob("*.jpg")):
                    writer.add({"image": file.read_bytes(), "label": label})
    base = ["--arch", "test_resnet", "--img-size", "32", "-b", "8", "--epochs", "1", "-o", str(tmp_path / "runs")]
    assert cli.run(["train", str(tmp_path / "betons"), *base]) == 0
    assert cli.run(["eval", str(tmp_path / "runs/betons-test_resnet"), str(tmp_path / "betons"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["images"] == 27
    assert cli.run(["train", str(tmp_path / "betons/train.beton"), *base]) == 0  # one file: some are held out
    assert "plain folder" not in capsys.readouterr().out
