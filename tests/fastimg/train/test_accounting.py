"""Accounting for training time: the sums, and whole runs limited by a slow disk, a slow decoder, or nothing."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fastimg.loaders import FilesDataset, ImageDecoder
from fastimg.loaders.backends import torch_loader
from fastimg.loaders.jpeg.decoding.crops import CropQueue
from fastimg.loaders.runtime.times import Backlog, LoaderTimes
from fastimg.train import run as train_run
from fastimg.train import step as training_step
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.reporting import accounting, waiting
from fastimg.train.reporting.accounting import Account, TrainingTime, overall
from fastimg.train.reporting.hints import Hint, WaitingFacts
from fastimg.train.reporting.summary import _time

RUN = ("--arch", "test_resnet", "--img-size", "32", "--no-amp", "--val-fraction", "0", "--epochs", "2", "-b", "6")
FACTS = WaitingFacts(wait=0.0, speed=100.0, data="D")
SHARES = {"seconds", "wait_share", "copy_share", "compute_share", "loader_busy_share", "loader_read_share"}


class Clock:
    """The time, and the counts of a loader with two threads at that time."""

    def __init__(self):
        self.now, self.spent = 100.0, LoaderTimes(5.0, 1.0, 2.0, 3.0)

    def __call__(self):
        return self.now

    def batch(self, account, seconds=1.0, wait=0.0, copy=0.0, read=0.0, busy=0.0, samples=10):
        """A batch that took this long."""
        self.now += seconds
        s = self.spent
        self.spent = LoaderTimes(s.wait + wait, s.copy + copy, s.read + read, s.busy + busy)
        account.add(samples)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def account(clock):
    return Account(lambda: clock.spent, 2, clock)


def test_shares_of_a_window(clock, account):
    account.begin()
    for _ in range(4):
        clock.batch(account, seconds=0.5, wait=0.1, copy=0.05, read=0.2, busy=0.8)
    window = account.read()
    assert (window.seconds, window.samples, window.threads) == (2.0, 40, 4.0) and window.speed == 20.0
    assert window.record() == {
        "seconds": 2.0,
        "wait_share": 0.2,
        "copy_share": 0.1,
        "compute_share": 0.8,
        "loader_busy_share": 0.8,
        "loader_read_share": 0.2,
    }
    assert window.wait_share + window.compute_share == 1.0
    clock.batch(account, seconds=1.0)
    assert account.read().record()["wait_share"] == 0.0  # the next window is independent of this one


def test_steps_in_which_a_gpu_had_nothing_left_to_do(clock, account):
    account.begin()
    for drained in (True, True, False, True, False):
        account.add(10, drained)
    window = account.read()
    assert (window.drained, window.batches) == (3, 5) and window.record()["drained_share"] == 0.6
    account.add(10, True)
    assert account.read().drained_share == 1.0
    assert account.steady.drained_share == pytest.approx(2 / 4)  # without the first two batches
    assert TrainingTime().drained_share is None and "drained_share" not in TrainingTime().record()


def test_shares_that_a_loader_does_not_count_are_left_out(clock):
    clock.spent = LoaderTimes(0.0, None, None, None)
    account = Account(lambda: clock.spent, 2, clock)
    clock.now, clock.spent = 102.0, LoaderTimes(0.5, None, None, None)
    assert account.read().record() == {"seconds": 2.0, "wait_share": 0.25, "compute_share": 0.75}


def test_shares_of_a_truncated_window_are_at_most_one(clock, account):
    clock.batch(account, seconds=1.0, wait=1.5, busy=3.0)  # chunks and batches are counted when they end
    window = account.read()
    assert window.wait_share == window.busy_share == 1.0 and window.compute_share == 0.0
    assert TrainingTime().record()["wait_share"] == 0.0 and TrainingTime().speed == 0.0


def test_time_between_epochs_is_not_counted(clock, account):
    account.begin()
    clock.batch(account, seconds=1.0)
    account.read()
    clock.now += 50.0  # a validation
    clock.spent = LoaderTimes(60.0, 9.0, 9.0, 9.0)
    account.begin()
    clock.batch(account, seconds=1.0, wait=0.5)
    assert account.read() == TrainingTime(1.0, 10, 0.5, 0.0, 0.0, 0.0, 2.0, 1)


def test_the_first_batches_of_an_epoch_are_not_evidence(clock, account):
    for _ in range(3):  # epochs: the loader starts with empty slots
        account.begin()
        clock.batch(account, seconds=3.0, wait=2.0)
        clock.batch(account, seconds=1.0)
        clock.batch(account, seconds=1.0, wait=0.02)
        assert account.read().seconds == 5.0
    assert account.steady == TrainingTime(3.0, 30, pytest.approx(0.06), 0.0, 0.0, 0.0, 6.0, 3)
    assert (account.starting.seconds, account.starting.wait, account.starts) == (8.0, 4.0, 2)  # not the first epoch
    account.begin()
    clock.batch(account)
    assert account.read().seconds == 1.0 and account.steady.seconds == 3.0  # a window within the first batches


def test_evidence_is_new_and_long_enough(clock, account):
    account.begin()
    clock.batch(account)
    clock.batch(account)
    clock.batch(account, seconds=accounting.SETTLED / 2)
    account.read()
    assert account.evidence() is None
    clock.batch(account, seconds=accounting.SETTLED, wait=1.0)
    account.read()
    assert account.evidence() is None  # two batches may be chance, too
    for _ in range(accounting.BATCHES - 2):
        clock.batch(account, seconds=0.0)
    account.read()
    found = account.evidence()
    assert found is not None and found.seconds == 1.5 * accounting.SETTLED and found.wait == 1.0
    assert account.evidence() is None
    clock.now += 9.0
    account.skip()
    for _ in range(accounting.BATCHES):
        clock.batch(account, seconds=accounting.SETTLED / 4)
    account.read()
    seconds = accounting.BATCHES * accounting.SETTLED / 4
    assert account.evidence() == TrainingTime(seconds, 50, 0.0, 0.0, 0.0, 0.0, 2 * seconds, accounting.BATCHES)


def test_bytes_from_a_store_are_counted_between_lines_and_none_is_left_out(clock):
    account = Account(lambda: clock.spent, 2, clock)
    records = []
    for fetched, again in ((100, 0), (250, 40)):
        clock.spent = replace(clock.spent, network=1.0, fetched=fetched, again=again)
        account.begin()  # as after a validation, whose time does not count
        clock.now += 1.0
        records.append(account.read().record())
    assert [(each["fetched_bytes"], each["fetched_again_bytes"]) for each in records] == [(100, 0), (150, 40)]
    whole = overall(records)
    assert (whole.fetched, whole.again) == (250, 40)
    assert "fetched_bytes" not in TrainingTime(seconds=1.0).record() and overall([]).fetched is None


def test_bytes_of_a_validation_are_of_its_epoch_and_add_up(clock):
    account = Account(lambda: clock.spent, 2, clock)
    records = []
    for fetched, validated in ((100, 130), (250, 300)):
        account.begin()
        clock.now += 1.0
        clock.spent = replace(clock.spent, network=1.0, fetched=fetched, again=0)
        records.append(account.read().record())
        clock.spent = replace(clock.spent, fetched=validated)
        records.append({"train_seconds": 1.0, **account.read_between().counts()})
    assert [each["fetched_bytes"] for each in records] == [100, 30, 120, 50]
    whole = overall(records)
    assert (whole.fetched, whole.seconds) == (300, 2.0)


def test_records_add_up_to_the_run_over_a_resume(clock):
    """Weighted by the length of windows, also over several processes; records of older versions have no windows."""
    records, whole = [{"kind": "train", "wait_share": 1.0}], TrainingTime()
    for _ in range(2):  # a process each
        account = Account(lambda: clock.spent, 2, clock)
        for seconds, wait in ((1.0, 0.5), (3.0, 0.0)):
            account.begin()
            clock.batch(account, seconds=seconds, wait=wait, copy=0.25, read=0.25, busy=0.5)
            window = account.read()
            records.append(window.record())
            whole += window
    found = overall(records)
    assert found.wait_share == pytest.approx(1.0 / 8) == pytest.approx(whole.wait_share, abs=1e-3)
    for name in ("copy_share", "busy_share", "read_share", "compute_share"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), abs=1e-3)
    assert overall([]).seconds == 0.0 and overall([{"seconds": 1.0, "wait_share": 0.5}]).busy_share is None


def test_the_summary_has_the_share_of_copies():
    class Ranks:
        class device:
            type = "cpu"

    window = TrainingTime(10.0, 0, 2.0, 0.0, None, None, 0.0)
    assert _time(window, Ranks) == "20.0% waiting for data, 0.0% copying, 80.0% computing"
    Ranks.device.type = "cuda"
    assert _time(replace(window, copy=3.0), Ranks) == (
        "20.0% waiting for data, 80.0% computing; copying (in parallel) 30.0%"
    )
    assert _time(replace(window, copy=None), Ranks) == (
        "20.0% waiting for data or for copies of it (measured together), 80.0% computing"
    )


@pytest.fixture
def soon(monkeypatch):
    """Judge windows of less than two seconds, too."""
    monkeypatch.setattr(accounting, "SETTLED", 0.3)


def verdicts(out, kind):
    """Lines with a verdict: (during training, in the summary)."""
    lines = [line for line in out.splitlines() if f"{kind}: " in line]
    return [line for line in lines if line.startswith(kind)], [line for line in lines if "verdict" in line]


def trained(cli, folder, tmp_path, *more):
    ran = cli("train", folder, *RUN, *more, "--output", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    return ran.out, rundir.train_records(tmp_path / "run")


def test_a_slow_disk(cli, image_folder, tmp_path, monkeypatch, soon, slower):
    monkeypatch.setattr(FilesDataset, "read", slower(FilesDataset.read, 0.05))
    out, records = trained(cli, image_folder, tmp_path, "--workers", "1")
    said, summed = verdicts(out, "storage-bound")
    assert len(said) == len(summed) == 1 and "without waiting" in said[0]
    assert f"`fastimg convert {image_folder} DST`" in said[0] and "of the loader's work" in said[0]
    assert all(record.keys() >= SHARES for record in records)
    assert records[-1]["loader_read_share"] > 0.5 and records[-1]["copy_share"] == 0.0  # the first loads the decoder
    assert "waiting for data, 0.0% copying, " in out


def test_a_slow_decoder(cli, image_folder, tmp_path, monkeypatch, soon, slower):
    monkeypatch.setattr(CropQueue, "add", lambda *given: False)  # what it takes is not slowed
    monkeypatch.setattr(CropQueue, "add_group", lambda *given: None)
    monkeypatch.setattr(ImageDecoder, "_decode_to_queue", slower(ImageDecoder._decode_to_queue, 0.05))
    out, records = trained(cli, image_folder, tmp_path, "--workers", "1")
    said, summed = verdicts(out, "decode-bound")
    assert len(said) == len(summed) == 1 and "without waiting" in said[0] and "tiled JPEG" in said[0]
    assert records[-1]["loader_busy_share"] > 0.5 > records[-1]["loader_read_share"]


def test_a_slow_loader_of_another_library(cli, image_folder, tmp_path, monkeypatch, soon, slower):
    monkeypatch.setattr(torch_loader, "_image", slower(torch_loader._image, 0.1))
    out, records = trained(cli, image_folder, tmp_path, "--workers", "1", "--loader", "torch")
    said, summed = verdicts(out, "loader-bound")
    assert len(said) == len(summed) == 1
    assert "waiting for the torch loader" in said[0] and "try --loader native; `fastimg bench " in said[0]
    assert records[-1]["wait_share"] > 0.1 and "loader_busy_share" not in records[-1]


def test_a_slow_model(cli, image_folder, tmp_path, monkeypatch, soon, slower):
    monkeypatch.setattr(training_step, "forward_backward", slower(training_step.forward_backward, 0.2))
    out, records = trained(cli, image_folder, tmp_path, "--workers", "1", "--log-interval", "3")
    assert "-bound: " not in out and "verdict" not in out and "computing" in out
    assert [record["step"] for record in records] == [3, 6, 9, 12]


def test_a_gpu_that_waits_for_launches(cli, image_folder, tmp_path, monkeypatch, soon, slower):
    """The device's part is played by a stand-in that is always done."""

    class Idle(Backlog):
        def drained(self):
            return True

    monkeypatch.setattr(train_run, "Backlog", Idle)
    monkeypatch.setattr(training_step, "forward_backward", slower(training_step.forward_backward, 0.2))
    out, records = trained(cli, image_folder, tmp_path, "--workers", "1", "--log-interval", "3")
    said, summed = verdicts(out, "launch-bound")
    assert len(said) == len(summed) == 1 and "in 100% of the steps" in said[0]
    assert "not counting" not in out and all(record["drained_share"] == 1.0 for record in records)


def run_with(account):
    return SimpleNamespace(
        setup=SimpleNamespace(directory=None), accounting=SimpleNamespace(account=account, warned=False)
    )


def test_a_waiting_run_gets_advice_once(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(waiting, "_facts", lambda run, window: replace(FACTS, wait=window.wait_share, backend="torch"))
    run = run_with(SimpleNamespace(evidence=lambda: TrainingTime(9.0, 9, 9.0)))
    for _ in range(3):
        waiting.warn(run, SimpleNamespace(say=said.append))
    assert len(said) == 1 and "try --loader native" in said[0] and run.accounting.warned


@pytest.mark.parametrize(("steady", "told"), [(0.3, False), (0.2, True)])
def test_a_share_states_what_it_leaves_out(monkeypatch, steady, told):
    monkeypatch.setattr(waiting.rundir, "train_records", lambda _: [{"seconds": 10.0, "wait_share": 0.3}])
    monkeypatch.setattr(waiting, "_facts", lambda run, window: replace(FACTS, wait=window.wait_share))
    monkeypatch.setattr(waiting, "hint", lambda facts: Hint("decode-bound", f"{facts.wait:.0%}"))
    account = SimpleNamespace(steady=TrainingTime(seconds=8.0, wait=8.0 * steady, batches=40))
    said = waiting.verdict(run_with(account))
    assert said.startswith(f"{steady:.0%}") and ("not counting the first batches" in said) == told


@pytest.mark.parametrize(
    ("epochs", "seconds", "each", "told"),
    [
        (9, 1.0, 1.0, True),
        (9, 1.0, 0.05, False),  # next to no waiting
        (3, 9.0, 5.0, False),  # too few starts
        (1, 3.0, 0.4, False),  # a run of three seconds
        (5, 0.5, 0.4, False),  # a short run of several epochs
    ],
)
def test_short_epochs(clock, account, monkeypatch, epochs, seconds, each, told):
    """The first epoch compiles, and reads everything for the first time: its start is not evidence for the others'."""
    for epoch in range(epochs):
        account.begin()
        wait = 30.0 if epoch == 0 else each
        clock.batch(account, seconds=wait + 0.1, wait=wait)
        for _ in range(9):
            clock.batch(account, seconds=seconds / 5)
        account.read()
    monkeypatch.setattr(waiting.rundir, "train_records", lambda _: [{"seconds": 99.0, "wait_share": 0.5}])
    monkeypatch.setattr(waiting, "_facts", lambda run, window: replace(FACTS, wait=window.wait_share))
    said = waiting.verdict(run_with(account))
    if not told:
        assert said is None
        return
    assert said.startswith("start-up: not counting the first epoch's start, 32% of the time was spent waiting for data")
    assert "for the first batches of each epoch (1.0 s per epoch)" in said


def test_synthetic_pixels_have_no_verdict(cli, image_folder, tmp_path, soon):
    out, records = trained(cli, image_folder, tmp_path, "--loader", "synthetic")
    assert "-bound: " not in out and all("wait_share" in record for record in records)


def test_a_short_run_has_no_verdict(cli, image_folder, tmp_path, monkeypatch, slower):
    """It waits, but not longer than may be chance."""
    monkeypatch.setattr(accounting, "SETTLED", float("inf"))
    monkeypatch.setattr(FilesDataset, "read", slower(FilesDataset.read, 0.1))
    out, records = trained(cli, image_folder, tmp_path, "--epochs", "1", "--workers", "1")
    assert max(record["wait_share"] for record in records) > 0.1 and "-bound: " not in out and "start-up" not in out
