"""Machine code that is compiled in the background, where a loader reads too little for its user to wait for it.

    a loader's threads do without some code, for a second -> another process compiles it into the machine's cache
        -> the threads load it from there: in the middle of an epoch, to the same pixels

The other process takes little time beside a training, and ends with this one. What it has compiled by then is kept.
FASTIMG_BACKGROUND=0 in the environment turns it off.
"""

import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from .loader import Loader

_AFTER = 1.0  # seconds of reading; a script that takes less is not slowed down
_OFTEN = 0.1  # seconds between two looks

# sys.path is the caller's: neither the working directory nor the script's own comes before it.
_COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from fastimg.loaders.background import main; main()"
)

_log = logging.getLogger("fastimg.loaders")


class Background:
    """What one loader has compiled in the background. `look` is called between its batches."""

    def __init__(self) -> None:
        self._began: float | None = None  # the first look
        self._looked = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False  # compiled, or not to be

    def look(self, loader: "Loader") -> None:
        """Start the other process once it is time, and use what it has compiled once it has ended."""
        now = time.perf_counter()
        if self._over or now - self._looked < _OFTEN:
            return
        self._looked = now
        if self._began is None:
            self._began = now
        elif self._process is not None:
            self._end(self._process)
        elif now - self._began >= _AFTER and lacks_code():
            self._process = _started(loader)
            if self._process is None:
                self._over = True
            else:
                weakref.finalize(self, _stop, self._process)

    @property
    def running(self) -> bool:
        """Whether the other process is at work."""
        return self._process is not None and not self._over

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            return
        self._over = True
        _stop(process)
        if process.returncode == 0:
            look_again()
            _log.info("the reading of images was compiled in the background")


def lacks_code() -> bool:
    """Whether threads of this process have had to do without compiled code."""
    compiled = sys.modules.get("fastimg.loaders.runtime.compiled")  # which texts do not need
    return compiled is not None and compiled.lacks_code()


def look_again() -> None:
    """Ask the machine's cache again for what it did not have: another process may have compiled it."""
    compiled = sys.modules.get("fastimg.loaders.runtime.compiled")
    if compiled is not None:
        compiled.look_again()


def _started(loader: "Loader") -> "subprocess.Popen[bytes] | None":
    """The process that compiles what `loader` reads with; None where there can be none."""
    local_rank = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    if os.environ.get("FASTIMG_BACKGROUND") == "0" or local_rank != "0" or not sys.executable:
        return None
    try:
        message = json.dumps(sys.path).encode() + b"\n" + pickle.dumps(loader.for_compiling())
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # an interrupt is for this process; in a session of its own, it would have a full share
        )
    except Exception as error:  # noqa: BLE001 - what cannot be pickled, too many processes: it is slower, no more
        _log.debug("nothing is compiled in the background: %r", error)
        return None
    assert process.stdin is not None
    threading.Thread(target=_send, args=(process.stdin, message), daemon=True).start()  # which waits for its imports
    _log.info("compiling the reading of images in the background, once per machine")
    return process


def _send(stdin: IO[bytes], message: bytes) -> None:
    with suppress(OSError):  # it has ended
        stdin.write(message)
        stdin.flush()


def _stop(process: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError):
        process.kill()
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):  # what is left to send
        process.stdin.close()


def main() -> None:
    """Compile what the loader on standard input reads with."""
    with suppress(AttributeError, OSError):
        os.nice(10)  # a tenth of the time beside a training on all cores
    kind, given = pickle.load(sys.stdin.buffer)  # written by the process that started this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with kind(**given) as loader:
        loader.compile()


def _end_with_parent() -> None:
    """End this process when the other end of its standard input is closed."""
    while os.read(0, 1024):
        pass
    os._exit(1)
