"""A process of a pool whose second trial does nothing, until it is asked to end.

It says so by the file `began` in the folder that the search was started in.
"""

import time
from pathlib import Path

from fastimg.search import worker

train = worker._train
trials = 0


def waiting(config, watch):
    global trials
    trials += 1
    if trials == 2:
        Path("began").touch()
        while True:
            time.sleep(0.01)
    return train(config, watch)


if __name__ == "__main__":
    worker._train = waiting
    worker.main()
