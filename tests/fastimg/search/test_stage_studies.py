"""The studies of a search by stages: what Optuna and its dashboard see of the journal."""

import dataclasses
import subprocess
from pathlib import Path

import optuna
import pytest
from optuna.storages import InMemoryStorage

from fastimg.errors import UsageError
from fastimg.search.staged import journal as journals
from fastimg.search.staged.studies import StageStudies

from . import killed_stages


def shown(storage):
    """What the studies of a storage have, by stage, as anybody reads them with Optuna: of trials that have ended."""
    found = {}
    for name in ("heads", "fine-tuning", "final"):
        study = optuna.load_study(study_name=name, storage=storage)
        assert study.direction.name == "MAXIMIZE"
        found[name] = [
            (
                *(trial.user_attrs[key] for key in ("number", "arch", "run", "seconds", "epochs")),
                trial.user_attrs.get("reason"),
                trial.state.name.lower(),
                trial.params,
                trial.intermediate_values,
                [] if trial.value is None or trial.state.name != "COMPLETE" else [trial.value],
            )
            for trial in study.trials
            if trial.state.name != "FAIL"
        ]
    return found


def expected(records):
    """The same, of the journal's records."""
    found = {"heads": [], "fine-tuning": [], "final": []}
    for each in records:
        found[each.stage].append(
            (
                *(each.number, each.settings["arch"], str(each.run), each.seconds, each.epochs),
                each.reason,
                each.state,
                each.parameters,
                each.reported,
                list(each.values),
            )
        )
    return found


@pytest.fixture
def storage():
    return InMemoryStorage()


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Studies in a storage under the names of their stages, as in the folder's own file."""

    def open_(storage, encoders=killed_stages.ENCODERS, folder=tmp_path):
        monkeypatch.setattr(StageStudies, "_name", lambda _, stage: stage)
        return StageStudies(folder, storage, encoders, "top1", largest=True)

    return open_


def test_every_trial_is_one_of_its_stages_study(tmp_path, storage, opened):
    opened(storage)
    journal = killed_stages.search(tmp_path, storage)
    seen = shown(storage)
    assert seen == expected(journal.records)
    assert [len(seen[stage]) for stage in seen] == [4, 2, 0]
    assert [each[6] for each in seen["heads"]] == ["complete", "complete", "pruned", "complete"]
    assert seen["heads"][2][5] == "out of memory"
    study = optuna.load_study(study_name="heads", storage=storage)
    assert study.metric_names == ["top1"]
    assert study.best_trial.user_attrs["number"] == 4
    assert study.trials[0].distributions["encoder"].choices == ("small", "large")
    taken = study.trials[0].datetime_complete - study.trials[0].datetime_start
    assert taken.total_seconds() == 2.0


def test_killed_after_any_write_the_studies_agree_with_the_journal_when_it_goes_on(
    tmp_path, storage, opened, monkeypatch
):
    opened(storage)
    left = 0

    def dying(real):
        def write(*arguments):
            nonlocal left
            real(*arguments)
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        return write

    monkeypatch.setattr(journals, "add_line", dying(journals.add_line))
    monkeypatch.setattr(StageStudies, "add", dying(StageStudies.add))
    moments = 0
    while True:
        moments += 1
        left = moments
        try:
            journal = killed_stages.search(tmp_path, storage)
        except KeyboardInterrupt:
            continue
        break
    assert shown(storage) == expected(journal.records)
    assert moments == 6


@pytest.mark.slow
def test_after_kill_9_the_file_of_studies_agrees_with_the_journal(tmp_path, python):
    script = Path(killed_stages.__file__)
    for writes in (3, 2, 5):
        killed = subprocess.run([python, str(script), str(tmp_path), str(writes)], check=False)
        assert killed.returncode != 0
    journal = killed_stages.search(tmp_path)
    seen = shown(f"sqlite:///{tmp_path / 'study.db'}")
    assert seen == expected(journal.records)
    assert [each[0] for stage in seen.values() for each in stage] == [1, 2, 3, 4, 5, 6]


def test_a_trial_that_the_clock_ended_has_failed_and_comes_again(tmp_path, storage, opened):
    studies = opened(storage)
    (first, *_) = killed_stages.search(tmp_path, InMemoryStorage()).records
    reason = "the time was over after 1 epoch"
    cut = dataclasses.replace(first, state="pruned", reason=reason)
    studies.add(cut)
    studies.agree([cut])
    (trial,) = optuna.load_study(study_name="heads", storage=storage).trials
    assert (trial.state.name, trial.user_attrs["reason"], trial.intermediate_values) == ("FAIL", reason, {1: 0.5})
    studies.add(first)
    studies.agree([first])
    assert shown(storage)["heads"] == expected([first])["heads"]


def test_studies_are_made_anew_for_other_encoders_and_for_trials_that_the_journal_has_not(tmp_path, storage, opened):
    opened(storage)
    records = killed_stages.search(tmp_path, storage).records
    opened(storage, ("huge", *killed_stages.ENCODERS)).agree(records)
    assert shown(storage) == expected(records)
    heads = optuna.load_study(study_name="heads", storage=storage)
    assert heads.trials[0].distributions["encoder"].choices == ("huge", "small", "large")
    opened(storage).agree(records[:2])
    assert shown(storage) == expected(records[:2])


def test_in_a_storage_of_several_searches_the_folder_tells_them_apart(tmp_path, storage):
    first = tmp_path / "a" / "digits"
    StageStudies(first, storage, ("x",), "loss", largest=False)
    assert {study.study_name for study in optuna.get_all_study_summaries(storage)} == {
        "digits: heads",
        "digits: fine-tuning",
        "digits: final",
    }
    StageStudies(first, storage, ("x",), "loss", largest=False)
    with pytest.raises(UsageError, match=r"study digits: heads of another search, in .*; give an --output of another"):
        StageStudies(tmp_path / "b" / "digits", storage, ("x",), "loss", largest=False)


def test_a_storage_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"--storage nonsense://x: .*; give a URL that Optuna takes"):
        StageStudies(tmp_path, "nonsense://x", ("x",), "top1", largest=True)
