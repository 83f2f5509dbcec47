"""`fastimg search` over values of flags, from the command line to the folder it leaves. Trials run in this process."""

import json
import sys
import time
from contextlib import AbstractContextManager

import optuna
import pytest
import yaml

from fastimg.config.commands import Train
from fastimg.config.yaml_file import dump
from fastimg.errors import UsageError
from fastimg.loaders.extras import install
from fastimg.loaders.folders.folder import FilesDataset
from fastimg.search import command
from fastimg.search.places.folder import locked
from fastimg.search.probing import metric_of
from fastimg.search.worker import _config, _train, _with_speed, run_trial
from fastimg.train.checkpoints.run_directory import read_log

BASE = ("--img-size", 32, "--batch-size", 8, "--workers", 1, "--no-amp", "--epochs", 1)


class InThisProcess(AbstractContextManager["InThisProcess"]):
    """A pool without processes."""

    def __init__(self, hosts, metric, say):
        self.deadline = None
        self.speed_split = None

    def __exit__(self, *_):
        pass

    def probe(self, settings):
        self.metric = metric_of(_config(settings))
        return self.metric

    def run(self, jobs, report):
        for job in jobs if self.deadline is None or time.monotonic() < self.deadline else ():
            record = run_trial(job, self.metric, lambda told: report(told.number, told.epoch, told.value), _train)
            if self.speed_split is not None:
                record = _with_speed(record, job, self.speed_split, {("test_resnet", "{}", 32): 123.0})
            yield record


@pytest.fixture
def search(cli, image_folder, tmp_path, monkeypatch):
    """`search(--param, ..., base=...)`: search in tmp_path/S."""
    monkeypatch.setattr("fastimg.search.command.TrialPool", InThisProcess)
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it would fail
    monkeypatch.setattr("fastimg.search.param_search.prediction_speed", lambda *_: 100.0)
    monkeypatch.setattr("fastimg.train.reporting.summary.plot_curves", lambda *arguments: arguments[-1].touch())

    def call(*arguments, base=BASE):
        given = (image_folder, "--arch", "test_resnet", "-o", tmp_path / "S", "--device", "cpu", *arguments)
        return cli("search", *given, "--", *base)

    return call


PARAM = ("--param", "lr=log:1e-4:1e-2", "smoothing=0:0.2:0.1", "aa=none,trivial")


def test_a_search_leaves_a_study_runs_and_a_leaderboard_and_goes_on(search, cli, tmp_path):
    folder = tmp_path / "S"
    ran = search(*PARAM, "--trials", 2)
    assert ran.code == 0, ran.err
    assert "2 trials; median ends trials that are not promising; each trains on" in ran.out
    assert "best        trial 0: " in ran.out
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["0000", "0001"]
    board = json.loads((folder / "leaderboard.json").read_text())
    assert [row["rank"] for row in board["trials"]] == [1, 2]
    assert (folder / "best").resolve().name == board["trials"][0]["run"].removeprefix("runs/")
    assert (folder / "best" / "curves.png").exists()
    asked = json.loads((folder / "search.json").read_text())
    assert asked["param"] == ["lr=log:0.0001:0.01", "smoothing=0:0.2:0.1", "aa=none,trivial"]

    config = yaml.safe_load((folder / "best" / "config.yaml").read_text())
    assert "resume" not in config
    again = cli("train", "--config", folder / "best" / "config.yaml", "--output", tmp_path / "again")
    assert again.code == 0, again.err
    validations = [
        [record for record in read_log(run) if record["kind"] == "val"]
        for run in (tmp_path / "again" / config["name"], folder / "best")
    ]
    assert validations[0] == validations[1]

    times = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/metrics.jsonl")}
    more = search(*PARAM, "--trials", 3, "--json")
    assert more.code == 0, more.err
    assert "goes on after 2 trials" in more.err
    assert [row["rank"] for row in json.loads(more.out)["trials"]] == [1, 2, 3]
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert [run.name for run in folder.glob("runs/*") if (run / "last").exists()] == [(folder / "best").resolve().name]
    assert "deleted     the checkpoints of " in more.err

    spent = search(*PARAM, "--trials", 9, "--max-time", "0.1s", "--json")
    assert "time        --max-time 0.1s is used up: " in spent.err
    assert spent.out == more.out

    other = search("--param", "lr=log:1e-4:1e-1", "--trials", 3)
    assert other.code == 2
    assert "its search began with param [lr=log:0.0001:0.01, smoothing=0:0.2:0.1, aa=none,trivial]" in other.err


def test_accuracy_and_speed(search, tmp_path):
    ran = search("--param", "smoothing=0,0.1", "--algorithm", "grid", "--objective", "accuracy,speed", "--json")
    assert ran.code == 0, ran.err
    assert "2 combinations" in ran.err
    board = json.loads(ran.out)
    assert len(board["trials"]) == 2
    front = {record["run"] for record in board["trials"] if not record["freed"]}
    assert board["trials"][0]["run"] in front
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 'S' / 'study.db'}")
    assert [trial.params for trial in study.trials] == [{"smoothing": 0.0}, {"smoothing": 0.1}]
    assert {f"runs/{trial.number:04d}" for trial in study.best_trials} == front


@pytest.mark.parametrize(("metric", "least"), [("tags.map", False), (None, True)])
def test_of_several_targets_the_metric_is_one_of_theirs(search, tmp_path, monkeypatch, metric, least):
    from tests.fastimg.train.test_targets import columns

    monkeypatch.setattr(FilesDataset, "targets", property(columns))
    given = () if metric is None else ("--metric", metric)
    ran = search("--param", "lr=1e-3,1e-2", "--algorithm", "grid", "--json", *given)
    assert ran.code == 0, ran.err
    board = json.loads(ran.out)
    assert board["metric"] == (metric or "loss")
    values = [row["value"] for row in board["trials"]]
    assert values == sorted(values, reverse=not least)
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 'S' / 'study.db'}")
    assert study.best_value == values[0]


def test_without_a_class_smoothing_is_not_searched_by_default(search, tmp_path, monkeypatch):
    """Nor is a recipe's held against the trials."""
    from tests.fastimg.train.test_targets import columns

    monkeypatch.setattr(FilesDataset, "targets", property(lambda dataset: columns(dataset)[2:]))
    (tmp_path / "c.yaml").write_text("recipe: cifar-fast\n")
    ran = search("--trials", 2, "--config", tmp_path / "c.yaml", base=BASE)
    assert ran.code == 0 and "2 models, 0 trials ended early" in ran.out, ran.out + ran.err
    assert "search      lr=log:0.0001:0.1, weight-decay=log:1e-05:0.1, aa=none,trivial; tpe" in ran.out
    ran = search("--param", "smoothing=0.2,0.3", "--trials", 1, "-o", tmp_path / "T")
    assert ran.code == 2 and "1 of 1 trial: --smoothing has no effect: no target is a class" in ran.err, ran.err


def test_of_several_targets_an_unknown_metric_is_refused_with_their_names(search, monkeypatch):
    from tests.fastimg.train.test_targets import columns

    monkeypatch.setattr(FilesDataset, "targets", property(columns))
    ran = search(*PARAM, "--trials", 1, "--metric", "wave.mea")
    assert ran.code == 2
    assert "--metric wave.mea: give one of loss, " in ran.err and "did you mean wave.mae" in ran.err


def test_trials_that_diverge_are_pruned_with_their_reason(search, tmp_path):
    ran = search("--param", "lr=1e30,1e32", "--trials", 2, base=(*BASE, "--opt", "sgd"))
    assert ran.code == 2
    assert "of 2 trials: the loss became" in ran.err
    assert json.loads((tmp_path / "S" / "leaderboard.json").read_text())["trials"] == []


def test_ray_that_is_not_installed(search, monkeypatch):
    monkeypatch.setattr("fastimg.cluster.connection.find_spec", lambda name: None)
    ran = search(*PARAM, "--trials", 1, "--backend", "ray")
    assert (ran.code, ran.err) == (
        1,
        f"fastimg: error: search --backend ray: Ray is not installed; `{install('ray')}`\n",
    )


def test_a_second_search_on_a_folder_says_who_is_there(search, tmp_path):
    with locked(tmp_path / "S"):
        ran = search(*PARAM, "--trials", 1)
    assert ran.code == 1
    assert "is searching here; wait for it, or give another --output" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--param", "lrr=0:1", "--trials", 1), "train has no flag --lrr; did you mean lr?"),
        (("--param", "lr=0.1:0.1", "--trials", 1), "the range is empty"),
        (("--param", "lr=log:0:1", "--trials", 1), "ends above 0"),
        (("--param", "aa=none,x9", "--trials", 1), "train refuses it"),
        (("--param", "lr=0.1:0.2", "--algorithm", "grid"), "has no steps; give them, as in lr=0.1:0.2:0.025"),
        (("--param", "lr=0.1:0.2"), "say when it ends, by --trials N or --max-time 20m"),
        ((), "say when it ends: --max-time 20m"),
        (("--param", "lr=0.1:0.2", "--trials", 0), "--trials 0: give 1 or more"),
        (("--trials", 1, "--address", "auto"), "--address has no effect without --backend ray"),
        (
            ("--trials", 1, "--backend", "ray", "--address", "ray://h:1"),
            "start this command on a machine of the cluster",
        ),
        (
            ("--trials", 1, "--backend", "ray", "--device", "cuda:1"),
            "Ray chooses the GPU; give auto, cpu or",
        ),
        (("--trials", 1, "--backend", "ray", "--limit-gpu-memory"), "has no effect without a part of a GPU, as in"),
        (("--max-time", "soon"), "--max-time soon: give a time"),
        (("--objective", "accuracy,size", "--max-time", "1m"), "give accuracy or speed"),
        (("--objective", "speed", "--max-time", "1m"), "give accuracy, or accuracy,speed"),
        (("--param", "lr=0.1:0.2", "--trials", 1, "--metric", "top9"), "--metric top9: give one of loss, top1"),
        (("--param", "lr=0.1:0.2", "--trials", 1, "--epochs", 1), "behind `--`"),
        (("--param", "lr=0.1:0.2", "--trials", 1, "--device", "tpu"), "--device tpu: give auto, cpu, cuda or cuda:N"),
        (
            ("--param", "lr=0.1:0.2", "--trials", 1, "--objective", "accuracy,speed", "--pruner", "median"),
            "--pruner median: trials with several objectives cannot be ended early",
        ),
        (("--param", "lr=0.1:0.2", "--max-time", "0.001s"), "--max-time 0.001s: too short for one trial"),
        (("--param", "lr=0.1:0.2", "--trials", 1, "--arch", "a,b"), "compare with --param arch=a,b"),
        (("--param", "lr=0.1:0.2", "--trials", 1, "--storage", "nonsense://x"), "--storage nonsense://x: "),
        (("--max-time", "1h", "--storage", "nonsense://x"), "--storage nonsense://x: "),
    ],
)
def test_bad_input_is_one_sentence(search, arguments, words, tmp_path):
    ran = search(*arguments)
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err
    left = {path.name for path in tmp_path.glob("S/*")}
    assert left <= {"lock"} or "runs" in left  # another search may use the folder, unless a trial had begun


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (("--name", "x"), "--name stands behind `--`: a search sets it for each trial"),
        (("--seed", "1"), "--seed stands behind `--`: put it in front of `--`"),
        (("elsewhere",), "DATA stands behind `--`"),
        (("--epochs", "0"), "--epochs 0: give 1 or more"),
        (("--nonsense",), "train has no flag --nonsense"),
        (("--val-fraction", "0"), "nothing validates the trials"),
    ],
)
def test_bad_settings_of_all_trials(search, base, words):
    ran = search(*PARAM, "--trials", 1, base=base)
    assert ran.code == 2
    assert words in ran.err


def test_without_optuna_the_extra_is_named(search, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    ran = search(*PARAM, "--trials", 1)
    assert ran.code == 1
    assert f"`{install('tune')}`" in ran.err


def test_every_gpu_that_is_visible_has_a_process(monkeypatch):
    monkeypatch.setattr(command, "_gpus", lambda: ["2", "GPU-a"])
    assert command.devices_of("auto", None) == ["cuda:2", "cuda:GPU-a"]
    assert command.devices_of("cuda", 3) == ["cuda:2", "cuda:GPU-a", "cuda:2"]
    assert command.devices_of("cuda:1", None) == ["cuda:GPU-a"]
    assert command.devices_of("cpu", 2) == ["cpu", "cpu"]
    with pytest.raises(UsageError, match="--device cuda:2: 2 GPUs can be used here"):
        command.devices_of("cuda:2", None)
    monkeypatch.setattr(command, "_gpus", list)
    assert command.devices_of("auto", None) == ["cpu"]
    with pytest.raises(UsageError, match="no GPU can be used here"):
        command.devices_of("cuda", None)


@pytest.mark.parametrize(
    ("metric", "told", "drawn"),
    [
        ("top1", {"loss": 1.0, "top1": 0.5}, "top1"),
        ("loss", {"loss": 1.0, "top1": 0.5}, "top1"),
        ("loss", {"loss": 1.0, "age.loss": 0.5, "age.mae": 3.0, "tags.map": 0.1}, "age.mae"),
        ("tags.map", {"loss": 1.0, "age.mae": 3.0, "tags.map": 0.1}, "tags.map"),
    ],
)
def test_curves_of_the_winner_show_a_score_beside_the_loss(metric, told, drawn, tmp_path, monkeypatch):
    records = [{"kind": "val", "step": 4, "epoch": 1, **told}, {"kind": "epoch", "step": 4, "epoch": 1}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "config.yaml").write_text(dump(Train()))
    calls = []
    monkeypatch.setattr("fastimg.train.reporting.summary.draw_curves", lambda *given: calls.append(given))
    command._draw_curves(tmp_path, metric, print)
    ((_, _, shown, read, steps),) = calls
    assert (shown, read, steps) == (drawn, records, 4)
