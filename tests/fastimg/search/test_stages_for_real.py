"""The stages on real trainings of a few images; only the clock is invented, so that they end soon."""

import dataclasses
import io
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file

from fastimg.config.commands import Train
from fastimg.config.yaml_file import fitted
from fastimg.errors import UsageError
from fastimg.models.registry import build
from fastimg.search.probing import metric_of
from fastimg.search.staged import rungs
from fastimg.search.staged.stages import search_by_stages
from fastimg.search.staged.trials import StagedSearch
from fastimg.search.worker import run_trial
from fastimg.train.loop import train

SHARED = {"no_aug": True, "batch_size": 8, "workers": "1", "amp": False, "img_size": 32, "device": "cpu"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """48 images of 3 colours to train on, 12 in a test split that no trial may read."""
    folder = tmp_path_factory.mktemp("staged") / "data"
    drawn = np.random.default_rng(0)
    for split, count in (("train", 16), ("test", 4)):
        for channel, name in enumerate(("blue", "green", "red")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = drawn.integers(60, 140, (40, 40, 3), dtype=np.uint8)
                pixels[:, :, 2 - channel] += 90
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Weights of timm's smallest network, which say what they are of."""
    file = tmp_path_factory.mktemp("weights") / "small.safetensors"
    torch.manual_seed(0)
    save_file(build("test_resnet", 4).module.state_dict(), file, {"arch": "test_resnet"})
    return file


class InProcess:
    """Runs trials here; each of them costs what `costs` says, on a clock of its own."""

    def __init__(self, heads=95.0):  # time for one classifier
        self.costs = {"heads": heads, "fine-tuning": 10.0, "final": 240.0}
        self.time = 0.0
        self.deadline = None
        self.jobs = []

    def clock(self):
        return self.time

    def probe(self, settings):
        self.metric = metric_of(Train(**fitted(settings, Train)))
        return self.metric

    def run(self, jobs, report):
        def training(config, watch):
            return train(config, Console(file=io.StringIO()), signals=False, watch=watch)

        for job in jobs:
            self.jobs.append(job)
            record = run_trial(job, self.metric, lambda reported: False, training)
            seconds = self.costs[job.stage]
            self.time += seconds
            yield dataclasses.replace(record, seconds=seconds)


def test_from_heads_to_the_winner_whose_config_trains_the_same_bits(data, weights, tmp_path, monkeypatch, cli):
    monkeypatch.setattr("fastimg.search.staged.encoders.model_speed", lambda *_: 5.0)
    monkeypatch.setattr("fastimg.search.staged.stages.prediction_speed", lambda *_: 77.0)
    monkeypatch.setattr("fastimg.search.staged.heads.head_epochs", lambda _: 2)
    monkeypatch.setitem(rungs.MOST_EPOCHS, True, 3)
    workers = InProcess()
    said = []
    folder = tmp_path / "search"
    asked = StagedSearch(
        data=data, folder=folder, seconds=400.0, shared=SHARED, weights=(weights,), device="cpu", keep="all"
    )
    board = search_by_stages(asked, workers, said.append, workers.clock)

    assert "the test split is not read by any trial" in said[0]
    assert [job.stage for job in workers.jobs] == ["heads", "fine-tuning", "fine-tuning", "fine-tuning", "final"]
    longer = workers.jobs[3].settings
    assert longer["epochs"] == 3 and longer["name"] in ("0002", "0003")  # the better run, made longer
    assert board.pruned == {}
    assert [row.epochs for row in board.rows if row.stage == "fine-tuning" and row.seconds == 20.0] == [3]
    winner = (folder / "best").resolve()
    assert winner == (folder / board.winner.run).resolve()

    final = folder / "runs" / "0005"
    ran = cli("train", "--config", final / "config.yaml", "--output", tmp_path / "again")
    assert ran.code == 0, ran.err
    (again,) = (tmp_path / "again").iterdir()
    ours, theirs = (load_file(run / "last" / "model.safetensors") for run in (final, again))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_embeddings_that_an_earlier_run_made_are_not_made_again(data, weights, tmp_path, monkeypatch):
    monkeypatch.setattr("fastimg.search.staged.encoders.model_speed", lambda *_: 5.0)
    monkeypatch.setattr("fastimg.search.staged.stages.prediction_speed", lambda *_: 77.0)
    monkeypatch.setattr("fastimg.search.staged.heads.head_epochs", lambda _: 2)
    monkeypatch.setattr("fastimg.search.staged.rungs.MOST_HEADS", 1)
    data = shutil.copytree(data, tmp_path / "data")  # with a cache of its own
    asked = StagedSearch(
        data=data, folder=tmp_path / "search", seconds=9.0, shared=SHARED, weights=(weights,), device="cpu"
    )

    def searched():
        workers, said = InProcess(heads=6.0), []
        return search_by_stages(asked, workers, said.append, workers.clock), said

    with pytest.raises(UsageError, match=r"0:09 is too short for one trial"):
        searched()  # 48 images at 5 a second
    frozen = {"arch": "test_resnet", "weights": str(weights), "freeze": "backbone", "epochs": 1, "data": str(data)}
    places = {"output": str(tmp_path / "runs"), "fold": "0/10", "stratify": True}
    train(Train(**fitted(SHARED | frozen | places, Train)), Console(file=io.StringIO()), signals=False)

    board, said = searched()
    assert board.as_json()["kept_embeddings"] == {"test_resnet": 48}
    assert "embeddings  test_resnet: 48 of 48 are kept, and are not computed again" in said
    log = (asked.folder / board.winner.run / "metrics.jsonl").read_text().splitlines()
    assert [line["made"] for line in map(json.loads, log) if line["kind"] == "cache"] == [0]
