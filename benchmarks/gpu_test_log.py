"""A pytest plugin that notes every test as it ends, one JSON line each, so that results outlive a run that is stopped.

`pytest -p gpu_test_log` appends `{"collected": N}`, then `{"began": name}` and `{"test": name, "outcome": "passed",
"seconds": 1.2}` to the file that $FASTIMG_TEST_LOG names; `reason` is why a test failed. With pytest-xdist the process
that distributes the tests notes them.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "FASTIMG_TEST_LOG"


def pytest_collection_finish(session: Any) -> None:
    """Note how many tests there are."""
    worker = getattr(session.config, "workerinput", None)
    if session.items and (worker is None or worker["workerid"] == "gw0"):
        _note({"collected": len(session.items)})


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note a test that begins."""
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        _note({"began": nodeid})


def pytest_runtest_logreport(report: Any) -> None:
    """Note a test that has ended: passed, failed or skipped; an error in a fixture counts as failed."""
    distributed = os.environ.get("PYTEST_XDIST_WORKER") is not None and not hasattr(report, "node")
    if not distributed and (report.when == "call" or report.outcome != "passed"):
        noted = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
        crash = getattr(report.longrepr, "reprcrash", None)
        _note({**noted, **({"reason": _end_of(crash.message)} if report.failed and crash else {})})


@dataclass(frozen=True)
class TestLog:
    """What has been noted."""

    collected: int  # tests
    outcomes: dict[str, str]  # of those that have ended, by name
    running: list[str]  # those that began and have not ended
    reasons: dict[str, str]  # why tests failed, by name


def read(log: Path) -> TestLog:
    """What a file tells. A line that was cut short is left out."""
    collected = 0
    outcomes: dict[str, str] = {}
    reasons: dict[str, str] = {}
    began: list[str] = []
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            noted = json.loads(line)
        except ValueError:
            continue
        collected = noted.get("collected", collected)
        if "began" in noted:
            began.append(noted["began"])
        if "test" in noted and outcomes.get(noted["test"]) != "failed":
            outcomes[noted["test"]] = noted["outcome"]
        if "reason" in noted:
            reasons.setdefault(noted["test"], noted["reason"])
    return TestLog(collected, outcomes, [name for name in began if name not in outcomes], reasons)


def _end_of(message: str) -> str:
    """An error's last words, in one line: a compiler says there what is wrong."""
    return " ".join(message.split())[-300:]


def _note(values: dict[str, Any]) -> None:
    with Path(os.environ[VARIABLE]).open("a") as file:
        file.write(json.dumps(values) + "\n")
