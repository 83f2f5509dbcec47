"""A process of a pool whose second trial says that it has begun, by the file `began`, and waits for the file `go`.

Both are in the folder that the search was started in.
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
        while not Path("go").exists():
            time.sleep(0.01)
    return train(config, watch)


if __name__ == "__main__":
    worker._train = waiting
    worker.main()
