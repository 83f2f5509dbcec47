"""A search that is killed, and killed again, as often as it likes: with real processes and a real database."""

import subprocess
import sys
from pathlib import Path

import pytest
from optuna.storages import InMemoryStorage

from fastimg.search.parameters import read
from fastimg.search.study import SearchStudy, StudyPlan

SCRIPT = Path(__file__).with_name("killed_search.py")
KILLS = 10
TRIALS = 6
PLAN = StudyPlan(parameters=read(["lr=log:1e-4:1e-1"], {}), sampler="random", pruner="none", largest=(True,), seed=0)


def run(folder, steps):
    """Let a search take so many steps, then kill it; None: let it end. Returns what it said."""
    command = [sys.executable, str(SCRIPT), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as search:
        said = []
        while line := search.stdout.readline().strip():
            said.append(line)
            if len(said) == steps:
                search.kill()
                break
            if not line.startswith("record"):
                search.stdin.write("\n")
                search.stdin.flush()
    return said


@pytest.mark.slow
def test_no_trial_is_lost_and_none_that_was_told_runs_again(tmp_path):
    study = SearchStudy(tmp_path, InMemoryStorage(), PLAN)
    values = [study.ask().parameters["lr"] for _ in range(TRIALS)]  # at random: they do not depend on each other
    expected = [f"record {number} {value}" for number, value in enumerate(values)]
    folder = tmp_path / "killed"
    told = []
    for kill in range(KILLS):
        said = run(folder, 1 + kill % 5)
        again = {line.split()[1] for line in said if line.startswith("asked")}
        assert not again & set(told)
        told += [line.split()[1] for line in said if line.startswith("told")]
    said = run(folder, None)
    assert [line for line in said if line.startswith("record")] == expected
    ended = [line for line in (folder / "log").read_text().splitlines() if line.startswith("end")]
    assert {line.split()[1] for line in ended} == set("012345")
