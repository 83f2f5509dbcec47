"""A process of a pool whose trials do what their settings say, without torch: for tests.

A trial's settings have `act`: report, die, die once, hang, deaf to SIGTERM, or linger, until the file LOG.go is there;
and `log`, a file that gets a line when it begins and when it ends.
"""

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from fastimg.search.messages import Arrived, Ended, HostFault, Reported, TrialProbe, TrialProbed, TrialVerdict
from fastimg.search.records import TrialRecord


def note(job, word):
    handle = os.open(job.settings["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{word} {job.number}\n".encode())
    os.close(handle)


def main():
    connection = Connection(int(sys.argv[1]))
    if node := os.environ.get("FAKE_NODE"):
        connection.send(HostFault(words=f"{node}: no room") if node == "full" else Arrived(node=node))
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if isinstance(message, TrialProbe):
            if "answer" in message.settings:
                connection.send(TrialProbed(**message.settings["answer"]))
            continue
        job = message.job
        note(job, "begin")
        reason = None
        act = job.settings["act"]
        if act == "die" or (act == "die once" and not os.path.exists(f"{job.settings['log']}.died")):
            open(f"{job.settings['log']}.died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        while act == "deaf":
            time.sleep(0.01)
        if act == "hang":
            while not ended.is_set():
                time.sleep(0.001)
            ended.clear()
            reason = "the time was over"
        for epoch in (1, 2):
            connection.send(Reported(number=job.number, epoch=epoch, value=job.parameters["value"] * epoch))
            verdict = connection.recv()
            assert isinstance(verdict, TrialVerdict)
            if verdict.stop:
                reason = "not promising"
                break
        while act == "linger" and not os.path.exists(f"{job.settings['log']}.go"):
            time.sleep(0.01)
        note(job, "end")
        record = TrialRecord(
            number=job.number,
            stage=job.stage,
            state="pruned" if reason else "complete",
            reason=reason,
            parameters=job.parameters,
            settings={"device": job.settings["device"], "cores": sys.argv[2], "process": os.getpid()}
            | {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "share": sys.argv[3], "here": os.getcwd()},
            values=(job.parameters["value"],),
        )
        connection.send(Ended(record=record))


if __name__ == "__main__":
    main()
