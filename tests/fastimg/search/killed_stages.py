"""A search by stages of invented trials, which kills itself: `killed_stages.py FOLDER [WRITES]`.

WRITES: after so many lines of the journal and trials of the studies.
"""

import os
import signal
import sys
from pathlib import Path

from fastimg.search.pool import Job
from fastimg.search.records import TrialRecord
from fastimg.search.staged import journal as journals
from fastimg.search.staged.studies import StageStudies

ENCODERS = ("small", "large")


def jobs():
    """Classifiers of both encoders, then a run that is made longer."""
    for number in range(4):
        drawn = {"encoder": ENCODERS[number % 2], "lr": 0.1 / (number + 1), "head": "linear"}
        yield Job(number=0, stage="heads", parameters=drawn, settings={"arch": drawn["encoder"], "lr": drawn["lr"]})
    for epochs in (1, 3):
        drawn = {"encoder": "small", "lr": 0.01, "aa": "trivial"}
        settings = {"arch": "small", "name": "0005", "epochs": epochs}
        yield Job(number=0, stage="fine-tuning", parameters=drawn, settings=settings)


def trials(asked, report):
    """The third one fails."""
    for job in asked:
        failed = job.number == 3
        yield TrialRecord(
            number=job.number,
            stage=job.stage,
            state="pruned" if failed else "complete",
            reason="out of memory" if failed else None,
            parameters=job.parameters,
            settings=job.settings,
            values=() if failed else (0.5 + job.number / 100,),
            reported={1: 0.5},
            seconds=2.0,
            epochs=1,
            run=Path("runs") / job.settings["name"],
        )


def search(folder, storage=None):
    """Run all of it, or go on with it. Returns the journal."""
    journal = journals.TrialJournal(folder, trials)
    studies = StageStudies(folder, storage, ENCODERS, "top1", largest=True)
    studies.agree(journal.records)
    journal.listener = studies.add
    list(journal.run(jobs(), lambda *_: False))
    return journal


def main(folder, writes):
    def counted(real):
        def write(*arguments):
            nonlocal writes
            real(*arguments)
            writes -= 1
            if writes == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        return write

    journals.add_line = counted(journals.add_line)
    StageStudies.add = counted(StageStudies.add)
    search(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
