"""How ranks started by torchrun exit when one of them fails: the first to fail prints the reason, all others just exit.

Ranks coordinate through torchrun's store, not the process group: a failed rank no longer takes part in collectives that
the others wait for.
"""

import gc
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing torch takes seconds, and early failures need it only under torchrun
    from torch.distributed.distributed_c10d import Store

_REACHING = 5.0  # seconds
_CONNECTING = timedelta(seconds=30)  # torch's attempts take 5 seconds each, and single ones may fail
_SAYING = timedelta(seconds=30)  # limit for the rank that failed first to print its message


class LostRankError(Exception):
    """Another rank, which this one waits for, has failed, was killed or cannot be reached. The message says which."""


def several() -> bool:
    """Whether torchrun, or a launcher that sets the same variables, started more than one process."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and os.environ.keys() >= {"MASTER_ADDR", "MASTER_PORT"}


def first_rank() -> bool:
    """Whether this is rank 0, or the only process."""
    return int(os.environ.get("RANK") or 0) == 0


def end(code: int, say: Callable[[], None], message: str = "") -> int:
    """Let the first rank that fails print the reason. Returns the exit code for this rank, which is that rank's.

    If the store cannot be reached, every rank prints its own message. `message` is for torchrun's own report.
    """
    store = _store()
    if store is None:
        say()
        return code
    if store.add("failed", 1) > 1:
        return _code_of_first(store, code)
    try:
        say()
    finally:
        store.set("code", str(code))
    _report(message)
    return code


def lost_contact(error: BaseException) -> str | None:
    """Why the other ranks can no longer be reached, if that is what the error means."""
    from torch import distributed

    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, LostRankError):
        return text
    if isinstance(error, distributed.DistNetworkError | distributed.DistStoreError | distributed.DistBackendError):
        return text.partition(". ")[0]
    if isinstance(error, RuntimeError) and "/gloo/" in text:
        return text.partition("] ")[2].partition(". ")[0] or text
    return None


def leave(code: int) -> None:
    """Exit. After a failure, the destructor of a process group could wait for the other ranks, so it is skipped."""
    sys.stdout.flush()
    sys.stderr.flush()
    torch = sys.modules.get("torch")
    if code and torch is not None and torch.distributed.is_initialized():
        os._exit(code)
    if torch is None:
        gc.freeze()  # the last collection would take longer than a short command
    else:
        gc.unfreeze()  # what Triton's bindings do not see freed, they report as leaks
    sys.exit(code)


def connection() -> "Store | None":
    """A separate connection to the store of the launcher; None if there is no store."""
    from torch.distributed import DistError, TCPStore, is_initialized  # type: ignore[attr-defined]

    launcher_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not launcher_hosts and not is_initialized():
        return None  # rank 0 would host the store, but has not started it yet
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        socket.create_connection((host, port), _REACHING).close()  # torch would retry and print stack traces
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_CONNECTING)
    except (OSError, DistError):
        return None


def prefixed(store: "Store", prefix: str | None = None) -> "Store":
    """A part of the store: by default the one where failures are announced, which begins anew with each restart."""
    from torch.distributed.distributed_c10d import PrefixStore

    # torchrun keeps the store when it restarts ranks.
    own = f"fastimg failure {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return PrefixStore(own if prefix is None else prefix, store)


def _store() -> "Store | None":
    store = connection()
    return None if store is None else prefixed(store)


def _code_of_first(store: "Store", code: int) -> int:
    from torch.distributed import DistError

    try:
        store.wait(["code"], _SAYING)
        return int(store.get("code"))
    except DistError:
        return code


def _report(message: str) -> None:
    """Pass the message to torchrun, so that its failure report names the root cause."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file and message:
        extra = {"py_callstack": message, "timestamp": str(int(time.time()))}
        with open(file, "w", encoding="utf-8") as handle:
            json.dump({"message": {"message": message, "extraInfo": extra}}, handle)
