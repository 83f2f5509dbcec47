"""--batch-size auto: the sizes tried, the size chosen, and no side effects."""

import os
import re
import subprocess
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from fastimg.config import yaml_file as configfile
from fastimg.config.commands import Train
from fastimg.errors import UserError
from fastimg.models.ranks import Ranks
from fastimg.train.choices import batch_size as autobatch
from fastimg.train.choices.batch_size import Trial, find_batch_size

ALONE = Ranks(0, 1, 1, torch.device("cpu"), None)


@pytest.fixture
def search(monkeypatch):
    """search(rates, samples): find a batch size, given the rate of each size; 0 means out of memory."""

    def call(rates, samples=10**6, multiple=None, host_bytes=0):
        tried = []

        def fake(_, size, device):
            tried.append(size)
            return Trial(size, rates(size), host_bytes * size)

        monkeypatch.setattr(autobatch, "_try", fake)
        quiet = Console(quiet=True)
        config = Train(ghost_bn=multiple)
        return find_batch_size(config, lambda size: pytest.fail("nothing is made"), samples, ALONE, quiet), tried

    return call


def test_it_doubles_while_that_is_faster(search):
    rates = {8: 100.0, 16: 180.0, 32: 300.0, 64: 305.0, 128: 1000.0}
    assert search(rates.get) == (32, [8, 16, 32, 64])


def test_it_stops_where_memory_runs_out(search):
    assert search(lambda size: float(size) if size < 256 else 0.0) == (128, [8, 16, 32, 64, 128, 256])


def test_it_takes_at_most_a_fifth_of_the_dataset(search):
    assert search(float, samples=200) == (32, [8, 16, 32])
    assert search(float, samples=12) == (2, [2])
    assert search(float, samples=1) == (1, [1])


def test_it_halves_if_the_first_size_does_not_fit(search):
    assert search(lambda size: 5.0 if size <= 2 else 0.0) == (2, [8, 4, 2, 4])


def test_it_keeps_to_multiples_of_the_ghost_batch(search):
    assert search(lambda size: float(min(size, 96)), multiple=24) == (96, [24, 48, 96, 192])


def test_no_batch_is_smaller_than_a_ghost(search):
    assert search(float, samples=120, multiple=24) == (24, [24])
    with pytest.raises(UserError, match=r"--ghost-bn 32: --batch-size auto tries up to 20% of the 100 images .* 20;"):
        search(float, samples=100, multiple=32)


def test_it_is_limited_by_host_memory(search, monkeypatch):
    monkeypatch.setattr(autobatch, "available", lambda: 10_000)
    assert search(float, host_bytes=100) == (64, [8, 16, 32, 64])  # 128 would take 12,800 of 8,000 bytes


def test_no_memory_for_a_single_image(monkeypatch):
    def trial(size):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(UserError, match=r"not even a batch of 1 fits.*--grad-checkpointing"):
        find_batch_size(Train(batch_size="auto"), trial, 5, ALONE, Console(quiet=True))


class Made:
    """A run with two loaders of six slots, on a GPU."""

    def __init__(self, size):
        self.closed = 0
        loaders = [SimpleNamespace(slots=6, slot_bytes=1000 * size, close=self.close) for _ in range(2)]
        module = torch.nn.Linear(2, 2)
        optimisation = SimpleNamespace(optimizer=torch.optim.SGD(module.parameters()))
        ranks = SimpleNamespace(device=torch.device("cuda"))
        data = SimpleNamespace(loaders=loaders)
        model = SimpleNamespace(module=module)
        self.setup = SimpleNamespace(data=data, model=model, optimisation=optimisation, ranks=ranks)

    def close(self):
        self.closed += 1


def test_memory_that_runs_out_while_a_trial_is_made_ends_only_that(monkeypatch):
    """The slots of a loader, say, which are pinned before the first step."""
    made = []

    def trial(size):
        if size > 16:
            raise torch.OutOfMemoryError("CUDA error: out of memory (cudaHostAlloc)")
        made.append(Made(size))
        return made[-1]

    monkeypatch.setattr(autobatch, "_rate", lambda run: float(len(made)))
    assert find_batch_size(Train(), trial, 10**6, ALONE, Console(quiet=True)) == 16
    assert [run.closed for run in made] == [2, 2]

    def broken(size):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        find_batch_size(Train(), broken, 10**6, ALONE, Console(quiet=True))


def test_it_is_limited_by_pinned_memory(monkeypatch):
    """16,000 bytes take 16,384; the next batch of 32 would take 2 x 6 x 32,768 bytes."""
    monkeypatch.setattr(autobatch, "_rate", lambda run: float(run.setup.data.loaders[0].slot_bytes))
    for free, size in ((2 * 6 * 32768 / 0.8 + 1, 32), (2 * 6 * 32768 / 0.8 - 1, 16)):
        monkeypatch.setattr(autobatch, "available", lambda free=free: int(free))
        assert find_batch_size(Train(), Made, 10**6, ALONE, Console(quiet=True)) == size


def test_out_of_memory_ends_only_a_trial(trained, fast, tmp_path, cli, monkeypatch):
    """torch's own error in the forward pass of 4 or more images: 2 are used, and training continues with them."""
    inner = autobatch.optimiser_step

    def short(run, *rest):
        if run.setup.batch_size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        inner(run, *rest)

    monkeypatch.setattr(autobatch, "optimiser_step", short)
    monkeypatch.setattr(autobatch, "START", 4)
    flags = [*fast[: fast.index("--batch-size")], *fast[fast.index("--batch-size") + 2 :]]
    ran = cli("train", trained.shards, *flags, "--batch-size", "auto", "-o", tmp_path / "runs", "--name", "run")
    assert ran.code == 0, ran.err
    assert re.search(r"batch size +4 +out of memory", ran.out)
    assert re.search(r"batch size +2 +chosen: memory ran out", ran.out)


def test_a_run_prints_the_trials_and_trains_as_with_a_given_size(trained, fast, tmp_path, cli):
    flags = [*fast[: fast.index("--batch-size")], *fast[fast.index("--batch-size") + 2 :], "-o", tmp_path / "runs"]
    ran = cli("train", trained.shards, *flags, "-b", "auto", "--lr", "0.1", "--name", "auto")
    assert ran.code == 0, ran.err
    size = int(re.search(r"batch size +(\d+) +chosen", ran.out)[1])
    assert 1 <= size <= 24 * 0.2
    assert re.search(rf"batch size +{size} +[\d,.]+ img/s", ran.out)
    rate = configfile.load(tmp_path / "runs/auto/config.yaml", Train).lr
    assert rate == pytest.approx(0.1 * (size / 256) ** 0.5, rel=5e-3)  # scaled by the square root for AdamW
    assert f"0.1 at batch 256, sqrt to {size}" in ran.out
    given = cli("train", trained.shards, *flags, "-b", size, "--lr", rate, "--name", "given")
    assert given.code == 0, given.err
    one, two = (load_file(tmp_path / f"runs/{name}/last/model.safetensors") for name in ("auto", "given"))
    assert all(torch.equal(one[name], two[name]) for name in one)  # the search does not change the weights


@pytest.mark.parametrize("more", [(), ("--opt", "sgd"), ("--lr-scale", "none"), ("--lr-scale", "linear")])
def test_a_run_with_a_found_batch_is_resumed_by_its_own_flags(trained, fast, tmp_path, cli, more):
    """Its rate was scaled with the batch, which is not searched for again."""
    flags = [*fast[: fast.index("--batch-size")], *fast[fast.index("--batch-size") + 2 :], "-o", tmp_path, *more]
    flags += ["-b", "auto", "--lr", "0.01", "--min-lr", "0.001"]
    assert cli("train", trained.shards, *flags, "--epochs", "1", "--name", "run").code == 0
    rate = configfile.load(tmp_path / "run/config.yaml", Train).lr
    ran = cli("train", trained.shards, *flags, "--epochs", "2", "--name", "run", "--resume", "auto")
    assert ran.code == 0, ran.err
    assert configfile.load(tmp_path / "run/config.yaml", Train).lr == rate


def test_a_given_learning_rate_is_kept(trained, fast, tmp_path, cli):
    flags = [*fast[: fast.index("--batch-size")], *fast[fast.index("--batch-size") + 2 :], "-o", tmp_path / "runs"]
    ran = cli("train", trained.shards, *flags, "-b", "auto", "--lr", "0.1", "--lr-scale", "none", "--dry-run")
    assert ran.code == 0 and "lr 0.1," in ran.out


UNEVEN = """
import os, sys
from torch import nn
from fastimg import cli
from fastimg.models.sync_norm import _SharedNorm
from fastimg.train.choices import batch_size

batch_size.SECONDS = 60.0 if os.environ["RANK"] == "0" else 0.0
rate = batch_size._rate

def checked(run):
    shared = [layer for layer in run.setup.model.module.modules() if isinstance(layer, (_SharedNorm, nn.SyncBatchNorm))]
    found = rate(run)
    said = f"rank {os.environ['RANK']}: {run.progress.step} steps, {len(shared)} norms are shared"
    os.write(1, f"{said}\\n".encode())  # one write: two ranks share the pipe
    return found

batch_size._rate = checked
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_ranks_search_before_their_norms_are_shared(trained, tmp_path, python):
    """Trials end by each rank's clock, after eight steps on rank 0, two on rank 1: communicating steps would hang."""
    (tmp_path / "uneven.py").write_text(UNEVEN)
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    flags = ["--arch", "test_efficientnet", "--img-size", "32", "-b", "auto", "--sync-bn", "--workers", "1", "--no-amp"]
    more = ["--epochs", "1", "-o", tmp_path / "runs", "--name", "run", "--verbose"]
    command = map(str, [*launcher, tmp_path / "uneven.py", "train", trained.shards, *flags, *more])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = set(re.findall(r"rank \d: \d+ steps, \d+ norms are shared", done.stdout))
    assert trials == {"rank 0: 10 steps, 0 norms are shared", "rank 1: 4 steps, 0 norms are shared"}
    assert re.search(r"batch size +\d+ +chosen", done.stdout) and "last checkpoint" in done.stdout
