"""The study: the same trials from the same seed, whatever interrupted them."""

import math
import statistics

import optuna
import pytest

from fastimg.errors import UsageError
from fastimg.search.parameters import read
from fastimg.search.records import TrialRecord
from fastimg.search.study import SearchStudy, StudyPlan

PARAMETERS = read(["lr=log:1e-4:1e-1", "smoothing=0:0.2", "aa=none,trivial"], {})
EPOCHS = 3


class Killed(BaseException):
    """The process ends here, whatever it does."""


def plan(sampler: str = "tpe", pruner: str = "none", seed: int = 0) -> StudyPlan:
    return StudyPlan(parameters=PARAMETERS, sampler=sampler, pruner=pruner, largest=(True,), seed=seed)


def goodness(lr: float) -> float:
    return -abs(math.log10(lr) + 2)


def search(study: SearchStudy, trials: int, ran: list[int]) -> list[TrialRecord]:
    """As a search goes about it. `ran` gets the numbers of trials that were run to their end."""
    study.recover()
    while study.waiting or study.begun < trials:
        draw = study.ask()
        for epoch in range(1, EPOCHS + 1):
            study.report(draw.number, epoch, goodness(draw.parameters["lr"]) * epoch / EPOCHS)
        value = goodness(draw.parameters["lr"])
        ran.append(draw.number)
        study.tell(
            TrialRecord(
                number=draw.number, stage="trials", state="complete", parameters=draw.parameters, values=(value,)
            )
        )
    return study.records


@pytest.fixture
def storage() -> optuna.storages.BaseStorage:
    return optuna.storages.InMemoryStorage()


@pytest.fixture
def open_study(storage, tmp_path):
    return lambda chosen=None: SearchStudy(tmp_path, storage, chosen or plan())


def test_the_same_seed_draws_the_same_trials(tmp_path):
    def drawn(seed: int) -> list[object]:
        study = SearchStudy(tmp_path, optuna.storages.InMemoryStorage(), plan(seed=seed))
        return [record.parameters for record in search(study, 13, [])]

    first = drawn(0)
    assert first == drawn(0)
    assert first != drawn(1)
    assert len({str(each) for each in first}) == 13


def test_the_first_trials_of_tpe_spread_evenly(open_study):
    """Of eight points of a Sobol sequence each eighth of a range has one, and of two choices each has four."""
    found = [record.parameters for record in search(open_study(), 8, [])]
    assert sorted(int((math.log10(each["lr"]) + 4) / 3 * 8) for each in found) == list(range(8))
    assert sorted(int(each["smoothing"] / 0.2 * 8) for each in found) == list(range(8))
    assert [each["aa"] for each in found].count("trivial") == 4


def test_a_search_that_is_killed_anywhere_is_the_search_that_was_not(tmp_path, monkeypatch):
    """Before every single write: no trial is lost, none that was told runs twice, and the draws are the same."""
    whole = search(SearchStudy(tmp_path, optuna.storages.InMemoryStorage(), plan()), 4, [])
    writes = [
        *("create_new_trial", "set_trial_param", "set_trial_intermediate_value", "set_trial_user_attr"),
        "set_trial_state_values",
    ]
    moments = 0
    while True:
        storage = optuna.storages.InMemoryStorage()
        SearchStudy(tmp_path, storage, plan())
        left = moments

        def dying(name, real, storage=storage):
            def write(*arguments, **named):
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                return real(*arguments, **named)

            return write

        for name in writes:
            monkeypatch.setattr(storage, name, dying(name, getattr(storage, name)))
        ran: list[int] = []
        told: list[int] = []
        try:
            study = SearchStudy(tmp_path, storage, plan())
            search(study, 4, ran)
        except Killed:
            left = -1
            told = [record.number for record in study.records]
        else:
            break
        after: list[int] = []
        assert search(SearchStudy(tmp_path, storage, plan()), 4, after) == whole
        assert not set(told) & set(after)
        moments += 1
    assert moments == 40  # writes of four trials


def test_an_interrupted_trial_keeps_what_it_had_reported(open_study):
    study = open_study()
    draw = study.ask()
    study.report(draw.number, 1, 0.5)
    again = open_study()
    assert again.recover() == 1
    assert again.ask() == draw
    assert again._open[draw.number]._cached_frozen_trial.intermediate_values == {1: 0.5}


def test_a_trial_whose_record_was_written_is_never_run_again(open_study, monkeypatch):
    study = open_study()
    draw = study.ask()
    monkeypatch.setattr(study, "_tell", lambda *_: None)  # killed between the record and the state
    record = TrialRecord(number=draw.number, stage="trials", state="complete", values=(0.5,), reported={1: 0.5})
    study.tell(record)
    again = open_study()
    assert again.recover() == 0
    assert again.records == [record]


def test_a_trial_that_the_clock_ended_goes_on_first_and_says_nothing_about_its_values(open_study, storage):
    study = open_study()
    draw = study.ask()
    study.report(draw.number, 1, 0.5)
    reason = "the time was over after 1 epoch"
    cut = TrialRecord(
        number=0, stage="trials", state="pruned", reason=reason, values=(0.5,), metrics={"loss": 1.0}, reported={1: 0.5}
    )
    study.tell(cut)
    study.spend(60.0)
    (failed, waiting) = optuna.load_study(study_name=study._study.study_name, storage=storage).trials
    assert (failed.state.name, failed.user_attrs["reason"], waiting.state.name) == ("FAIL", reason, "WAITING")
    again = open_study()
    assert (again.recover(), again.records, again.seconds, again.begun) == (1, [cut], 60.0, 1)
    assert again.ask() == draw
    killed = open_study()  # while it went on
    assert (killed.recover(), killed.records, killed.ask()) == (1, [cut], draw)
    assert killed._open[0]._cached_frozen_trial.intermediate_values == {1: 0.5}
    whole = TrialRecord(number=0, stage="trials", state="complete", values=(0.7,), reported={1: 0.5, 2: 0.7})
    killed.tell(whole)
    assert killed.records == [whole] and killed.ask().number == 1


def test_a_grid_is_drawn_in_order_and_ends(tmp_path, storage):
    parameters = read(["smoothing=0:0.2:0.1", "aa=none,trivial"], {})
    chosen = StudyPlan(parameters=parameters, sampler="grid", pruner="none", largest=(True,), seed=0)
    study = SearchStudy(tmp_path, storage, chosen)
    drawn = []
    while not study.exhausted:
        draw = study.ask()
        drawn.append(tuple(draw.parameters.values()))
        study.tell(TrialRecord(number=draw.number, stage="trials", state="complete", values=(0.5,)))
    assert drawn == [(s, aa) for s in (0.0, 0.1, 0.2) for aa in ("none", "trivial")]
    assert study.combinations == 6


def test_a_trial_below_the_median_is_ended(tmp_path, storage):
    study = SearchStudy(tmp_path, storage, plan(pruner="median"))
    for _ in range(5):
        draw = study.ask()
        assert not study.report(draw.number, 1, 0.9)
        study.tell(TrialRecord(number=draw.number, stage="trials", state="complete", values=(0.9,)))
    draw = study.ask()
    assert study.report(draw.number, 1, 0.1)


def test_a_combination_is_never_tried_twice_and_a_search_ends_when_all_are(tmp_path, monkeypatch):
    parameters = read(["smoothing=0:0.3:0.1", "aa=none,trivial", "epochs=1:3"], {})
    chosen = StudyPlan(parameters=parameters, sampler="tpe", pruner="none", largest=(True,), seed=0)

    def drawn(study: SearchStudy, trials: int) -> list[tuple[object, ...]]:
        found = []
        while len(found) < trials and not study.exhausted:
            draw = study.ask()
            found.append(tuple(draw.parameters.values()))
            value = draw.parameters["epochs"] - draw.parameters["smoothing"]
            study.tell(TrialRecord(number=draw.number, stage="trials", state="complete", values=(value,)))
        return found

    every = drawn(SearchStudy(tmp_path, optuna.storages.InMemoryStorage(), chosen), 100)
    assert len(every) == len(set(every)) == 24
    storage = optuna.storages.InMemoryStorage()
    first = drawn(SearchStudy(tmp_path, storage, chosen), 20)
    study = SearchStudy(tmp_path, storage, chosen)
    tell = study._study.tell

    def killed(number: int, **state: object) -> None:
        tell(number, **state)
        raise Killed  # between a draw that was tried and another one

    monkeypatch.setattr(study._study, "tell", killed)
    with pytest.raises(Killed):
        drawn(study, 4)
    again = SearchStudy(tmp_path, storage, chosen)
    again.recover()
    assert len({*first, *drawn(again, 100)}) == 24
    assert [record.number for record in again.records] == list(range(24))


def draws(tmp_path, sampler: str, trials: int) -> list[float]:
    """The learning rates of trials that are the better the nearer they are to 0.01."""
    parameters = read(["lr=log:1e-4:1e-1"], {})
    chosen = StudyPlan(parameters=parameters, sampler=sampler, pruner="none", largest=(True,), seed=0)
    study = SearchStudy(tmp_path, optuna.storages.InMemoryStorage(), chosen)
    found = []
    for _ in range(trials):
        draw = study.ask()
        found.append(draw.parameters["lr"])
        study.tell(
            TrialRecord(number=draw.number, stage="trials", state="complete", values=(goodness(draw.parameters["lr"]),))
        )
    return found


def test_a_gaussian_process_draws_near_what_did_well(tmp_path):
    """The first ten are at random, by Optuna's own rule."""
    random, process = (draws(tmp_path, sampler, 12) for sampler in ("random", "gp"))
    assert random[:10] == process[:10] and random[10:] != process[10:]
    assert max(map(goodness, process[10:])) > statistics.median(map(goodness, process[:10]))


def test_hyperband_ends_trials_and_never_the_best(tmp_path, storage):
    study = SearchStudy(tmp_path, storage, plan(pruner="hyperband"))
    ended = []
    for number in range(20):
        draw = study.ask()
        value = number * 7 % 20  # the best is the 17th
        stop = any(study.report(draw.number, epoch, value * epoch / 9) for epoch in range(1, 10))
        ended += [value] if stop else []
        state, reason = ("pruned", "not promising") if stop else ("complete", None)
        study.tell(TrialRecord(number=draw.number, stage="trials", state=state, reason=reason, values=(float(value),)))
    assert 5 < len(ended) < 20 and 19 not in ended
    states = [trial.state.name for trial in study._study.trials]
    assert states.count("PRUNED") == len(ended)


def test_a_database_of_other_objectives_is_refused(tmp_path, storage):
    SearchStudy(tmp_path, storage, plan())
    with pytest.raises(UsageError, match="its study has other objectives"):
        SearchStudy(
            tmp_path,
            storage,
            StudyPlan(parameters=PARAMETERS, sampler="tpe", pruner="none", largest=(True, True), seed=0),
        )


def test_the_study_is_a_file_of_sqlite_in_the_folder(tmp_path):
    folder = tmp_path / "with blanks & 100%?#"
    folder.mkdir()
    study = SearchStudy(folder, None, plan())
    draw = study.ask()
    record = TrialRecord(number=draw.number, stage="trials", state="pruned", reason="diverged", reported={1: 0.5})
    study.tell(record)
    assert (folder / "study.db").stat().st_size > 0
    assert SearchStudy(folder, None, plan()).records == [record]


def test_a_storage_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"--storage nonsense://x: .*; give a URL that Optuna takes"):
        SearchStudy(tmp_path, "nonsense://x", plan())
