"""How the ranks that torchrun started end when one of them fails: the first to fail says why, the others leave with it.

Ranks meet at the store that torchrun announces, not in the process group: a rank that has failed takes part in nothing
that the others wait for.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it takes seconds, and what fails before a command begins needs it under torchrun alone
    from torch.distributed.distributed_c10d import Store

_REACHING = 5.0  # seconds
_CONNECTING = timedelta(seconds=30)  # torch's attempts take 5 seconds each, of which single ones come to nothing
_SAYING = timedelta(seconds=30)  # at most, until the rank that failed first has printed its message


def several() -> bool:
    """Whether torchrun, or what sets the same variables, started more than this process."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and os.environ.keys() >= {"MASTER_ADDR", "MASTER_PORT"}


def first_rank() -> bool:
    """Whether this is rank 0, or the only process."""
    return int(os.environ.get("RANK") or 0) == 0


def end(code: int, say: Callable[[], None], message: str = "") -> int:
    """Let the first rank that fails say why. Returns the exit code for this one: the first rank's.

    Where the store cannot be reached, each rank speaks for itself. `message` is for torchrun's own report.
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


def follow(code: int) -> int:
    """Wait until rank 0 has said what all ranks find wrong. Returns the exit code."""
    store = _store()
    return code if store is None else _code_of_first(store, code)


def lost_contact(error: BaseException) -> str | None:
    """Why the other ranks cannot be reached any more, where that is what the error says."""
    from torch import distributed

    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, distributed.DistNetworkError | distributed.DistStoreError | distributed.DistBackendError):
        return text.partition(". ")[0]
    if isinstance(error, RuntimeError) and "/gloo/" in text:
        return text.partition("] ")[2].partition(". ")[0] or text
    return None


def leave(code: int) -> None:
    """End this process. A process group that a failure left behind could wait for the other ranks in its destructor."""
    sys.stdout.flush()
    sys.stderr.flush()
    torch = sys.modules.get("torch")
    if code and torch is not None and torch.distributed.is_initialized():
        os._exit(code)
    sys.exit(code)


def _store() -> "Store | None":
    """A connection of its own to the store, None where there is none."""
    from torch.distributed import DistError, TCPStore, is_initialized  # type: ignore[attr-defined]
    from torch.distributed.distributed_c10d import PrefixStore

    launcher_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not launcher_hosts and not is_initialized():
        return None  # rank 0 would host it, and has not begun to
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        socket.create_connection((host, port), _REACHING).close()  # torch would try again and again, and print stacks
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_CONNECTING)
    except (OSError, DistError):
        return None
    # torchrun keeps the store of ranks that it restarts.
    return PrefixStore(f"fastimg failure {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _code_of_first(store: "Store", code: int) -> int:
    from torch.distributed import DistError

    try:
        store.wait(["code"], _SAYING)
        return int(store.get("code"))
    except DistError:
        return code


def _report(message: str) -> None:
    """Tell torchrun, whose report of the failure names its root cause."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file and message:
        extra = {"py_callstack": message, "timestamp": str(int(time.time()))}
        with open(file, "w", encoding="utf-8") as handle:
            json.dump({"message": {"message": message, "extraInfo": extra}}, handle)
