"""A search whose trials are those of `fake_worker.py`, for a test that kills it: `killed_search.py FOLDER [ADDRESS]`.

ADDRESS: of a Ray cluster, whose nodes run the trials.

It prints a line after every step, and waits for a line before it goes on.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from fastimg.search.hosts.machine import LocalHosts
from fastimg.search.messages import TrialJob
from fastimg.search.parameters import read
from fastimg.search.places.folder import locked
from fastimg.search.pool import TrialPool
from fastimg.search.study import SearchStudy, StudyPlan

TRIALS = 6


def step(words):
    print(words, flush=True)
    sys.stdin.readline()


def hosts_of(folder, lock, address, stack):
    worker = str(Path(__file__).with_name("fake_worker.py"))
    if address is None:
        LocalHosts.command = (sys.executable, worker)
        return LocalHosts(["cpu"], (lock,))
    from fastimg.search.hosts.cluster import ClusterRequest, RayHosts, connected

    RayHosts.arguments = (worker,)
    return stack.enter_context(
        connected(
            ClusterRequest(
                address=address, amounts={"CPU": 1}, jobs=1, device="auto", memory=False, data=folder, folder=folder
            )
        )
    )


def main(folder, address=None):
    parameters = read(["lr=log:1e-4:1e-1"], {})
    plan = StudyPlan(parameters=parameters, sampler="random", pruner="none", largest=(True,), seed=0)
    with ExitStack() as stack:
        lock = stack.enter_context(locked(folder))
        pool = stack.enter_context(TrialPool(hosts_of(folder, lock, address, stack), "top1", lambda _: None))
        study = SearchStudy(folder, None, plan)
        study.recover()

        def jobs():
            while study.waiting or study.begun < TRIALS:
                draw = study.ask()
                step(f"asked {draw.number}")
                yield TrialJob(
                    number=draw.number,
                    stage="trials",
                    parameters={"value": draw.parameters["lr"]},
                    settings={"act": "report", "log": str(folder / "log")},
                )

        def report(number, epoch, value):
            stop = study.report(number, epoch, value)
            step(f"reported {number}")
            return stop

        for record in pool.run(jobs(), report):
            study.tell(record)
            step(f"told {record.number}")
        for record in study.records:
            print("record", record.number, record.values[0], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
