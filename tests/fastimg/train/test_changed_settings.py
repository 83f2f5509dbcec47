"""Settings that a run is resumed with: what may be another one, and is said and kept, and what is refused."""

import dataclasses

import pytest
import torch
from rich.console import Console

from fastimg.config.commands import Train
from fastimg.config.rule_tables import resuming
from fastimg.config.yaml_file import load
from fastimg.errors import UsageError
from fastimg.models.ranks import Ranks
from fastimg.train.checkpoints.run_directory import begin
from fastimg.train.choices.changed_settings import check, keep
from fastimg.train.choices.resumption import without_exchange

BEGUN = Train(patience=2, workers="4", sched="cosine", strategy="ddp")
ONE = Ranks(0, 1, 1, torch.device("cpu"), None)


def resumed(tmp_path, before=BEGUN, ranks=1, **changes):
    """What is said of a run that was begun with `before`, and its settings afterwards."""
    begin(tmp_path / "run", before)
    effective = dataclasses.replace(before, **changes)
    words = check(tmp_path / "run", effective, ranks)
    keep(tmp_path / "run", effective)
    return words, load(tmp_path / "run/config.yaml", Train)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"patience": 6}, "--patience 2 -> 6"),
        ({"patience": None}, "--patience 2 -> none"),
        ({"workers": "7", "val_interval": 2}, "--workers 4 -> 7, --val-interval 1 -> 2"),
        ({"log_interval": 3}, "--log-interval 20 -> 3"),
        ({"checkpoint_hist": 5}, "--checkpoint-hist 1 -> 5"),
        ({"max_time": "2h"}, "--max-time none -> 2h"),
        ({"log": ("tensorboard", "mlflow")}, "--log none -> tensorboard mlflow"),
        ({"compile": "default"}, "--compile none -> default"),
        ({"grad_checkpointing": True}, "--grad-checkpointing off -> on"),
        ({"strategy": "fsdp"}, "--strategy ddp -> fsdp"),
        ({"on_error": "fail"}, "--on-error none -> fail"),
        ({"cache_limit": "1GB"}, "--cache-limit none -> 1GB"),
    ],
)
def test_what_leaves_the_past_as_it_is_may_change_is_said_and_kept(changes, words, tmp_path):
    said, kept = resumed(tmp_path, **changes)
    assert said == f"--resume: from here on {words}"
    assert kept == dataclasses.replace(BEGUN, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 8, "grad_accum_steps": 8},
        {"storage_option": ("endpoint=http://127.0.0.1:9000",)},
        {"verbose": True, "resume": "auto", "name": "other"},
    ],
)
def test_what_is_no_setting_of_the_run_is_neither_said_nor_kept(changes, tmp_path):
    assert resumed(tmp_path, **changes) == (None, BEGUN)


def test_another_length_is_kept(tmp_path):
    """What is said of it is `extension`'s."""
    assert resumed(tmp_path, epochs=30) == (None, dataclasses.replace(BEGUN, epochs=30))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.5}, "--lr was auto and is 0.5"),
        ({"seed": 1, "patience": 6}, "--seed was 0 and is 1"),
        ({"arch": "x", "hflip": 0.0}, "--arch was none and is x, --hflip was none and is 0.0"),
        ({"patience_metric": "top1"}, "--patience-metric was loss and is top1"),
        ({"metric": "top5"}, "--metric was none and is top5"),
        ({"in_chans": 1}, "--in-chans was 3 and is 1"),
    ],
)
def test_what_alters_the_past_is_refused_with_both_values_and_the_remedy(changes, words, tmp_path):
    with pytest.raises(UsageError) as refused:
        resumed(tmp_path, **changes)
    run = tmp_path / "run"
    assert str(refused.value) == (
        f"--resume: {run} was trained with other settings: {words}; --resume {run} alone keeps the run's own, and "
        f"--weights {run} without --resume starts a new run from its weights"
    )
    assert load(run / "config.yaml", Train) == BEGUN


def test_a_run_without_patience_may_be_given_some(tmp_path):
    before = Train(patience=None, patience_metric=None)
    assert (
        resumed(tmp_path, before, patience=3, patience_metric="loss")[0]
        == "--resume: from here on --patience none -> 3"
    )


def test_statistics_over_all_ranks_are_those_of_one_process(tmp_path):
    before = Train(strategy="ddp", sync_bn=True)
    assert resumed(tmp_path, before, ranks=1, sync_bn=False)[0] is None
    with pytest.raises(UsageError, match="--sync-bn was on and is off"):
        resumed(tmp_path, before, ranks=2, sync_bn=False)


def test_one_process_drops_what_only_several_share(tmp_path, capsys):
    """Where the run gave it: what is asked for beside --resume stays, and is refused by name."""
    run = tmp_path / "run"
    begin(run, Train(strategy="fsdp", sync_bn=True))
    console = Console(width=200)
    given = Train(strategy="fsdp", sync_bn=True, grad_compression="bf16", resume=str(run))
    alone = without_exchange(given, ONE, console)
    assert (alone.strategy, alone.sync_bn, alone.grad_compression) == ("auto", False, "bf16")
    assert "goes on without the run's --strategy fsdp, --sync-bn:" in capsys.readouterr().out
    several = dataclasses.replace(ONE, world_size=2, backend="gloo")
    by_torchrun = dataclasses.replace(ONE, backend="gloo")
    anew = dataclasses.replace(given, resume="auto")
    assert without_exchange(given, several, console) is given
    assert without_exchange(anew, ONE, console) is anew
    assert without_exchange(given, by_torchrun, console).strategy == "fsdp"


def test_each_setting_is_of_one_kind():
    kinds = (resuming.OF_A_COMMAND, resuming.MAY_CHANGE, resuming.OF_A_STEP, resuming.LENGTH)
    named = [name for kind in kinds for name in kind]
    assert len(named) == len(set(named))
    assert set(named) <= {field.name for field in dataclasses.fields(Train)}
