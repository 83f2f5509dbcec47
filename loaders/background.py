"""Machine code that is compiled in the background, where a loader reads too little for its user to wait for it.

    a loader's threads do without some code, for a second -> another process compiles it into the machine's cache
        -> another thread loads it from there -> the loader's go on with it, in the middle of an epoch: the same pixels

The other process takes little time beside a training, or a fair share where the training waits for batches, and ends
with this one. What it has compiled by then is kept.
FASTIMG_BACKGROUND=0 in the environment turns it off.
"""

import gc
import importlib
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
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loader import Loader

_AFTER = 1.0  # seconds of reading; a script that takes less is not slowed down
_OFTEN = 0.1  # seconds between two looks
# Seconds after which the other process no longer makes way, where batches are waited for this share of the time: beside
# threads that are always busy it would take minutes.
_PATIENCE = 10.0
_SHARE = 0.5

# It makes way from its first instruction on: its imports alone take a second. sys.path is the caller's: neither the
# working directory nor the script's own comes before it.
_COMMAND = (
    "import os; hasattr(os, 'nice') and os.nice({niceness}); "
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from fastimg.loaders.background import main; main()"
)

_log = logging.getLogger("fastimg.loaders")


class Background:
    """What one loader has compiled, and loaded, in the background. `look` is called between its batches."""

    def __init__(self) -> None:
        self._began: float | None = None  # the first look
        self._looked = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._makes_way = True  # the process
        self._over = False  # compiled, or not to be
        self._loading: threading.Thread | None = None

    def look(self, loader: "Loader", compiles: bool = True) -> None:
        """Load what threads do without and the machine has compiled; if it `compiles`, start the other process."""
        now = time.perf_counter()
        if now - self._looked < _OFTEN or (self._loading is not None and self._loading.is_alive()):
            return
        self._looked = now
        if self._began is None:
            self._began = now
        if self.running:
            self._watch(loader, now - self._began)
        elif has_to_load():
            _log.info("loading the reading of images, as compiled on this machine before")
            self._loading = threading.Thread(target=load_missed, name="fastimg-loading", daemon=True)
            self._loading.start()
        elif compiles and not self._over and now - self._began >= _AFTER and lacks_code():
            self._start(loader)

    @property
    def running(self) -> bool:
        """Whether the other process is at work."""
        return self._process is not None and not self._over

    def _start(self, loader: "Loader") -> None:
        self._process = _started(loader, self._makes_way)
        if self._process is None:
            self._over = True
        else:
            weakref.finalize(self, _stop, self._process)

    def _watch(self, loader: "Loader", seconds: float) -> None:
        """See whether the process has ended. `seconds` after the first look it may be time for another, with more time.

        What the first has compiled is kept.
        """
        assert self._process is not None
        if self._process.poll() is None:
            if self._makes_way and seconds >= _PATIENCE and loader.waits.seconds >= _SHARE * seconds:
                _stop(self._process)
                self._makes_way = False
                self._start(loader)
            return
        self._over = True
        _stop(self._process)
        if self._process.returncode == 0:
            look_again()
            _log.info("the reading of images was compiled in the background")


def lacks_code() -> bool:
    """Whether threads of this process have had to do without code that is not compiled."""
    compiled = _compiled()
    return compiled is not None and compiled.lacks_code()


def has_to_load() -> bool:
    """Whether threads of this process have had to do without code that is in the machine's cache."""
    compiled = _compiled()
    return compiled is not None and compiled.has_to_load()


def load_missed() -> None:
    """Load what threads of this process have had to do without from the machine's cache."""
    from .runtime.compiled import load_missed

    load_missed()


def look_again() -> None:
    """Ask the machine's cache again for what it did not have: another process may have compiled it."""
    compiled = _compiled()
    if compiled is not None:
        compiled.look_again()


def _compiled() -> Any:
    """The module `runtime.compiled`; None where nothing has needed it, as with texts."""
    name = "fastimg.loaders.runtime.compiled"
    return importlib.import_module(name) if name in sys.modules else None  # waits for a thread that imports it


def _started(loader: "Loader", makes_way: bool) -> "subprocess.Popen[bytes] | None":
    """The process that compiles what `loader` reads with; None where there can be none.

    One that makes way takes a tenth of the time beside a training on all cores.
    """
    local_rank = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    if os.environ.get("FASTIMG_BACKGROUND") == "0" or local_rank != "0" or not sys.executable:
        return None
    try:
        message = json.dumps(sys.path).encode() + b"\n" + pickle.dumps(loader.for_compiling())
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _COMMAND.format(niceness=10 if makes_way else 0)],
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
    gc.set_threshold(100_000, 20, 20)  # compiling makes many objects that stay: a tenth of its time
    kind, given = pickle.load(sys.stdin.buffer)  # written by the process that started this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with kind(**given) as loader:
        loader.compile()


def _end_with_parent() -> None:
    """End this process when the other end of its standard input is closed."""
    while os.read(0, 1024):
        pass
    os._exit(1)
