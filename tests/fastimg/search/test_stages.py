"""The stages of a search with invented trials and a clock that passes only in them: no second is spent."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from optuna.storages import InMemoryStorage

from fastimg.errors import UsageError
from fastimg.search.leaderboard import KeptModels
from fastimg.search.records import TrialRecord
from fastimg.search.staged import stages
from fastimg.search.staged.encoders import Candidate, DataFacts, Found, LeftOut, MeasuredEncoder
from fastimg.search.staged.journal import TrialJournal
from fastimg.search.staged.trials import StagedSearch

DATA = DataFacts(
    content="images",
    train=900,
    val=100,
    side=224,
    settings={"fold": "0/10"},
    validation="fold 0 of 10",
    val_split="train",
    untouched="test",
)


def measured(name, rate=100.0, tuned=True, small=128):
    settings = {"arch": name, "weights": f"/w/{name}"} if tuned else {"arch": name}
    return MeasuredEncoder(
        candidate=Candidate(name=name, settings=settings, tuned=tuned, origin="here"),
        rate=rate,
        parameters=1000,
        side=224,
        small=small,
        learning_rate=3e-4,
        head_rates={"linear": 1e-3, "mlp": 1e-3},
    )


class Workers:
    """Trials that cost what they should, and whose accuracy follows from their settings."""

    def __init__(self, encoders, heads=0.8, tuned=0.9):
        self.time = 0.0
        self.deadline = None
        self.encoders = {each.candidate.settings["arch"]: each for each in encoders}
        self.heads, self.tuned = heads, tuned
        self.jobs = []
        self.embedded = set()
        self.epochs = {}
        self.die_at = None

    def clock(self):
        return self.time

    def probe(self, settings):
        self.probed = settings
        return "top1"

    def run(self, jobs, report):
        for job in jobs:
            if self.time >= self.deadline:
                return
            if len(self.jobs) == self.die_at:
                raise KeyboardInterrupt
            self.jobs.append(job)
            yield self.trained(job)

    def trained(self, job):
        settings = job.settings
        encoder = self.encoders[settings["arch"]]
        frozen = settings.get("freeze") == "backbone"
        if frozen:
            seconds = 1.0 if settings["arch"] in self.embedded else 1000 / encoder.rate
            self.embedded.add(settings["arch"])
            top = self.heads
        else:
            share = (settings["img_size"] / 224) ** 2
            before = self.epochs.get(settings["name"], 0)
            seconds = (settings["epochs"] - before) * share * (3.5 * 900 + 100) / encoder.rate
            self.epochs[settings["name"]] = settings["epochs"]
            top = self.tuned - (0.05 if settings.get("sched") == "constant" else 0.0) - 0.01 * (share < 1)
        top -= 0.02 * list(self.encoders).index(settings["arch"])
        top -= 0.01 * abs(math.log10(settings["lr"] / (1e-3 if frozen else 9e-4)))  # the best rate
        left = self.deadline - self.time
        self.time += min(seconds, left)
        if seconds > left:
            return TrialRecord(
                number=job.number,
                stage=job.stage,
                state="pruned",
                reason="the time was over before its first step",
                parameters=job.parameters,
                settings=settings,
            )
        return TrialRecord(
            number=job.number,
            stage=job.stage,
            state="complete",
            parameters=job.parameters,
            settings=settings,
            values=(round(top, 6),),
            metrics={"loss": 1 - top, "top1": top},
            seconds=seconds,
            epochs=settings["epochs"],
            run=Path("runs") / settings["name"],
        )


@pytest.fixture(autouse=True)
def few_heads(monkeypatch):
    """Eight classifiers of the best encoder: drawing more takes longer than the rest of a test."""
    monkeypatch.setattr("fastimg.search.staged.rungs.MOST_HEADS", 8)


@pytest.fixture
def search(tmp_path, monkeypatch):
    """`search(encoders, seconds, workers)`: the leaderboard and what was said."""

    storages = {}

    def go(encoders, seconds=600.0, workers=None, skipped=(), data=DATA, folder="search", keep="best", missing=None):
        workers = workers or Workers(encoders)
        names = [each.candidate for each in encoders]
        found = Found(candidates=names, skipped=list(skipped), words="weights at hand")
        by_name = {each.candidate.name: each for each in encoders}
        monkeypatch.setattr(stages.candidates, "facts", lambda *_: data)
        monkeypatch.setattr(stages.candidates, "find", lambda *_: found)
        monkeypatch.setattr(stages.candidates, "measure", lambda candidate, *_: by_name[candidate.name])
        monkeypatch.setattr(stages, "missing_embeddings", lambda config: (missing or {}).get(config.arch))
        monkeypatch.setattr("fastimg.search.leaderboard.model_of", model_of)
        monkeypatch.setattr(stages, "prediction_speed", lambda *_: 50.0)
        said = []
        storage = storages.setdefault(folder, InMemoryStorage())
        asked = StagedSearch(
            data=tmp_path / "data", folder=tmp_path / folder, seconds=seconds, storage=storage, keep=keep
        )
        board = stages.search_by_stages(asked, workers, said.append, workers.clock)
        return board, said, workers

    return go


def model_of(run):
    """What a checkpoint says: those of `Saving` have a file for it."""
    file = run / "model.json"
    return json.loads(file.read_text()) if file.exists() else {"size": 224}


def of(jobs, stage):
    return [job for job in jobs if job.stage == stage]


def test_the_winner_is_trained_to_the_end_after_heads_and_halving(search, tmp_path):
    board, said, workers = search([measured("a"), measured("b")], seconds=3000)
    assert board.winner.stage == "final"
    assert workers.time <= 3000
    heads, tuning, final = (of(workers.jobs, stage) for stage in ("heads", "fine-tuning", "final"))
    assert len({job.settings["arch"] for job in heads}) == 2
    assert heads[0].parameters["lr"] == 1e-3  # the first is what `train` would choose
    assert all(job.settings["fold"] == "0/10" for job in workers.jobs)
    assert [job.settings["arch"] for job in final] == ["a"]
    assert final[0].settings["lr"] == 9e-4  # the best arm's
    assert "sched" not in final[0].settings
    assert all(job.settings["sched"] == "constant" for job in tuning)
    assert [line.split()[0] for line in said if not line.startswith("best")][:4] == [
        "data",
        "encoders",
        "heads",
        "fine-tuning",
    ]
    assert "the test split is not read by any trial" in said[0]
    best = tmp_path / "search" / "best"
    assert str(best.readlink()) == board.winner.run
    written = json.loads((tmp_path / "search" / "leaderboard.json").read_text())
    assert written["trials"][0]["run"] == board.winner.run and written["metric"] == "top1"


def test_fine_tuning_starts_from_the_searched_classifier_and_small_images(search):
    _, _, workers = search([measured("a")], seconds=3000)
    heads, tuning = of(workers.jobs, "heads"), of(workers.jobs, "fine-tuning")
    best = min(heads, key=lambda job: abs(math.log10(job.settings["lr"] / 1e-3)))
    assert tuning[0].settings["weights"].endswith(f"runs/{best.settings['name']}")
    assert tuning[0].settings["img_size"] == 128
    grown = [job for job in tuning if job.settings["img_size"] == 224]
    assert grown and all("runs/" in job.settings["weights"] for job in grown)


def test_rungs_of_one_size_resume_the_run_of_the_rung_below(search):
    _, said, workers = search([measured("vit", small=None)], seconds=6000)
    tuning = of(workers.jobs, "fine-tuning")
    names = [job.settings["name"] for job in tuning]
    longer = [job for job in tuning if names.count(job.settings["name"]) > 1]
    assert len(longer) >= 3
    last = [job.settings["epochs"] for job in tuning if job.settings["name"] == tuning[-1].settings["name"]]
    assert last == [1, 3, 9]
    assert any("resume exactly" in line or "resumes exactly" in line for line in said)


def test_without_time_to_fine_tune_all_of_it_is_for_heads(search):
    board, said, workers = search([measured("a", rate=100)], seconds=60)
    assert {job.stage for job in workers.jobs} == {"heads"}
    assert board.winner.stage == "heads"
    assert any(line.startswith("fine-tuning left out") for line in said)
    assert workers.time <= 60


def test_heads_win_where_fine_tuning_does_worse(search):
    encoders = [measured("a")]
    board, _, _ = search(encoders, seconds=3000, workers=Workers(encoders, heads=0.95, tuned=0.9))
    assert board.winner.stage == "heads"


def test_small_models_learn_from_random_weights_where_none_are_at_hand(search):
    board, said, workers = search([measured("a", tuned=False, rate=400), measured("b", tuned=False)], seconds=2000)
    assert not of(workers.jobs, "heads")
    assert board.winner.stage == "final"
    assert "weights" not in of(workers.jobs, "final")[0].settings
    assert any("from random weights" in line for line in said)


@pytest.mark.parametrize("seconds", [40, 100, 300, 1000, 5000])
@pytest.mark.parametrize("rate", [50, 300])
def test_the_time_is_never_exceeded(search, seconds, rate):
    encoders = [measured("a", rate=rate), measured("b", rate=rate / 4), measured("c", rate=rate / 40, small=None)]
    board, _, workers = search(encoders, seconds=seconds)
    assert workers.time <= seconds
    assert board.winner is not None


def test_a_time_too_short_for_one_trial_is_refused_with_what_is_needed(search):
    with pytest.raises(
        UsageError, match=r"--max-time: 0:05 is too short for one trial: .* a, needs about .* --max-time 20s"
    ):
        search([measured("a", rate=100)], seconds=5)


def test_embeddings_that_are_kept_cost_no_time(search):
    encoders = [measured("a", rate=100), measured("b", rate=50)]
    workers = Workers(encoders)
    workers.embedded.add("a")
    board, said, _ = search(encoders, seconds=9, workers=workers, missing={"a": 0, "b": 900})
    assert {job.settings["arch"] for job in workers.jobs} == {"a"}
    assert "embeddings  a: 1,000 of 1,000 are kept, and are not computed again" in said
    assert "embeddings  b: 100 of 1,000 are kept, and are not computed again" in said
    assert any("a: kept already" in line for line in said)
    assert board.as_json()["kept_embeddings"] == {"a": 1000, "b": 100}
    # One that goes on asks for the same trials, whatever is kept by then.
    again = Workers(encoders)
    board, said, _ = search(encoders, seconds=9, workers=again, missing={"a": 0, "b": 0})
    assert not of(again.jobs, "heads")[:-1] and board.as_json()["kept_embeddings"] == {"a": 1000, "b": 100}


class Slow(Workers):
    """Trials take three times as long as was measured."""

    def trained(self, job):
        self.time += 2 * 1000 / self.encoders[job.settings["arch"]].rate if not self.embedded else 0
        return super().trained(job)


def test_a_trial_that_takes_longer_than_was_thought_is_not_ended_at_once(search):
    encoders = [measured("a")]
    board, _, workers = search(encoders, seconds=60, workers=Slow(encoders))
    assert board.winner.stage == "heads" and workers.time <= 60


def test_a_trial_that_the_clock_ended_goes_on_when_there_is_more_time(search):
    encoders = [measured("a")]
    first = Workers(encoders)
    first.encoders["a"] = measured("a", rate=10)  # slower than it was measured
    with pytest.raises(UsageError, match=r"the time was over .*; give more --max-time, and the search goes on"):
        search(encoders, seconds=60, workers=first)
    second = Workers(encoders)
    board, _, _ = search(encoders, seconds=600, workers=second)
    assert second.jobs[0].settings == first.jobs[0].settings | {"resume": "auto"}
    assert second.jobs[0].number == first.jobs[0].number
    assert board.winner is not None


def test_encoders_that_cannot_embed_in_time_are_skipped_and_named(search):
    _, said, workers = search([measured("slow", rate=1), measured("fast", rate=200)], seconds=600)
    assert {job.settings["arch"] for job in of(workers.jobs, "heads")} == {"fast"}
    assert any(line.startswith("skipped     slow: would embed") for line in said)


def test_what_does_not_fit_is_named(search):
    _, said, _ = search([measured("a")], skipped=[LeftOut("w.pt", "not the weights of a")])
    assert "skipped     w.pt: not the weights of a" in said


@pytest.mark.parametrize("moment", [1, 5, 14, 20])
def test_an_interrupted_search_goes_on_and_runs_nothing_twice(search, moment):
    encoders = [measured("a"), measured("b")]
    first = Workers(encoders)
    first.die_at = moment
    with pytest.raises(KeyboardInterrupt):
        search(encoders, seconds=3000, workers=first)
    second = Workers(encoders)
    second.embedded = set(first.embedded)
    second.epochs = dict(first.epochs)
    board, _, _ = search(encoders, seconds=3000, workers=second)
    whole, _, unbroken = search(encoders, seconds=3000, folder="unbroken")
    asked = [job.settings for job in (*first.jobs, *second.jobs)]
    assert [each["lr"] for each in asked] == [job.settings["lr"] for job in unbroken.jobs]
    assert board.winner.value == whole.winner.value


class ByLoss(Workers):
    """Trials are compared by their loss. `interrupted`: whether that is found out."""

    interrupted = False

    def probe(self, settings):
        if self.interrupted:
            raise KeyboardInterrupt
        return "loss"

    def trained(self, job):
        record = super().trained(job)
        return dataclasses.replace(record, values=(record.metrics["loss"],))


def test_an_interrupt_before_the_metric_is_known_leaves_the_leaderboard_as_it_is(search, tmp_path):
    encoders = [measured("a"), measured("b")]
    first = ByLoss(encoders)
    first.die_at = 5
    with pytest.raises(KeyboardInterrupt):
        search(encoders, seconds=3000, workers=first)
    folder = tmp_path / "search"
    board, best = (folder / "leaderboard.json").read_text(), (folder / "best").readlink()
    values = [row["value"] for row in json.loads(board)["trials"]]
    assert json.loads(board)["metric"] == "loss" and values == sorted(values) and len(set(values)) > 1
    second = ByLoss(encoders)
    second.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        search(encoders, seconds=3000, workers=second)
    assert (folder / "leaderboard.json").read_text() == board and (folder / "best").readlink() == best


def test_an_interrupt_measures_no_speed_and_keeps_what_was_measured(search, tmp_path):
    encoders = [measured("a")]

    def speeds():
        rows = json.loads((tmp_path / "search" / "leaderboard.json").read_text())["trials"]
        return {row["images_per_second"] for row in rows[:10]}

    first = Workers(encoders)
    first.die_at = 3
    with pytest.raises(KeyboardInterrupt):
        search(encoders, seconds=60, workers=first)
    assert speeds() == {None}
    second = Workers(encoders)
    search(encoders, seconds=60, workers=second)
    assert speeds() == {50.0}
    third = Workers(encoders)
    third.die_at = 0
    with pytest.raises(KeyboardInterrupt):
        search(encoders, seconds=3000, workers=third)
    assert speeds() == {50.0}


def test_where_every_trial_fails_the_reason_is_the_error(search):
    encoders = [measured("a")]

    class Failing(Workers):
        def trained(self, job):
            self.time += 1
            return TrialRecord(
                number=job.number,
                stage=job.stage,
                state="pruned",
                reason="out of memory",
                parameters=job.parameters,
                settings=job.settings,
            )

    with pytest.raises(UsageError, match="no trial ended well: out of memory"):
        search(encoders, workers=Failing(encoders))


class Saving(Workers):
    """Trials leave checkpoints, and need those that they start from."""

    def trained(self, job):
        settings = job.settings
        runs = Path(settings["output"])
        origin = Path(settings.get("weights", "/"))
        assert origin.parent != runs or (origin / "best").exists()
        run = runs / settings["name"]
        if not (run / "last").exists():
            self.epochs.pop(settings["name"], None)  # from its beginning
        record = super().trained(job)
        saved = run / "checkpoints" / f"{settings.get('epochs', 1):08d}"
        saved.mkdir(parents=True, exist_ok=True)
        model = {"arch": settings["arch"], "size": settings.get("img_size", 224)}
        (run / "model.json").write_text(json.dumps(model))
        (saved / "model.safetensors").write_bytes(bytes(500_000))
        for name in ("best", "last"):
            (run / name).unlink(missing_ok=True)
            (run / name).symlink_to(saved)
        return record


def saved(folder):
    return {run.name for run in (folder / "runs").iterdir() if (run / "best").exists()}


@pytest.mark.parametrize("small", [128, None])
def test_only_models_that_may_win_or_go_on_keep_their_checkpoints(search, tmp_path, small):
    encoders = [measured("a", rate=200, small=small), measured("b", rate=200, small=small)]
    board, said, workers = search(encoders, seconds=600, workers=Saving(encoders))
    folder = tmp_path / "search"
    best = {job.settings["arch"] for job in of(workers.jobs, "heads") if job.settings["name"] in saved(folder)}
    assert best == {"a", "b"}  # more time would fine-tune them
    assert len(workers.jobs) > 15 and len(saved(folder)) <= 5  # those, the winner, and the best arm in one size or two
    final = of(workers.jobs, "final")[-1].settings
    assert {final["name"], Path(final["weights"]).name} <= saved(folder)
    assert {row.run for row in board.rows if not row.freed} == {f"runs/{name}" for name in saved(folder)}
    assert json.loads((folder / "leaderboard.json").read_text()) == json.loads(json.dumps(board.as_json()))
    (line,) = (line for line in said if line.startswith("deleted"))
    assert "other models" in line

    more, _, second = search(encoders, seconds=1200, workers=Saving(encoders))
    assert not {job.number for job in second.jobs} & {job.number for job in of(workers.jobs, "heads")}
    assert more.winner.value >= board.winner.value and Path(folder / more.winner.run / "best").exists()


def test_all_checkpoints_stay_where_that_is_asked_for(search, tmp_path):
    encoders = [measured("a")]
    _, said, workers = search(encoders, seconds=60, workers=Saving(encoders), keep="all")
    assert len(saved(tmp_path / "search")) == len({job.settings["name"] for job in workers.jobs}) > 3
    assert not any(line.startswith("deleted") for line in said)


@pytest.mark.parametrize("small", [128, None])
def test_an_interrupted_search_that_deletes_checkpoints_comes_to_the_same(search, tmp_path, small):
    encoders = [measured("a", rate=200, small=small)]
    whole, _, unbroken = search(encoders, seconds=600, workers=Saving(encoders), folder="unbroken")
    stages = [job.stage for job in unbroken.jobs]
    tuning = stages.index("fine-tuning")
    for moment in (tuning // 2, tuning + 1, len(stages) - 2):
        folder = f"died at {moment}"
        first = Saving(encoders)
        first.die_at = moment
        with pytest.raises(KeyboardInterrupt):
            search(encoders, seconds=600, workers=first, folder=folder)
        second = Saving(encoders)
        second.embedded, second.epochs = set(first.embedded), dict(first.epochs)
        board, _, _ = search(encoders, seconds=600, workers=second, folder=folder)
        assert board.as_json() == whole.as_json()
        assert saved(tmp_path / folder) == saved(tmp_path / "unbroken")


@pytest.mark.parametrize("small", [128, None])
def test_a_run_that_is_needed_again_is_trained_again(search, tmp_path, small):
    """As in a search that is given more time, and would now go on with an arm that had lost."""
    encoders = [measured("a", rate=200, small=small)]
    first = Saving(encoders)
    sizes = []

    def trained(job):
        """Die before the first arm whose images grow; where they never do, before the first run that is made longer."""
        if job.stage == "fine-tuning":
            sizes.append(job.settings["img_size"])
            if sizes[-1] > sizes[0] or (small is None and job.settings["epochs"] > 1):
                first.asked = job.settings
                raise KeyboardInterrupt
        return Saving.trained(first, job)

    first.trained = trained
    with pytest.raises(KeyboardInterrupt):
        search(encoders, seconds=600, workers=first)
    folder = tmp_path / "search"
    records = TrialJournal(folder, None).records
    KeptModels(folder).free(records, set())
    assert not saved(folder)
    _, said, second = search(encoders, seconds=600, workers=Saving(encoders))
    ran = [job.settings["name"] for job in second.jobs]
    place = ran.index(first.asked["name"])
    assert second.jobs[place].settings == first.asked
    again = [Path(first.asked["weights"]).name] if small else []  # the arm, as it was with small images
    assert ran[1:place] == again and second.jobs[0].stage == "heads"  # the classifier that arms start from
    assert sum(line.startswith("again       trial ") for line in said) == 1 + len(again)
    assert second.jobs[-1].stage == "final"
