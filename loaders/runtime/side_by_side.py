"""Work for threads that somebody waits for, who may not need it any more."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from .stopping import Cancelled, cancelled_by, check, stop_of_thread

_POLL = 0.1  # seconds between two looks at whether it is still needed
_A = TypeVar("_A")
_B = TypeVar("_B")


def side_by_side(work: Callable[[_A], _B], items: Iterable[_A], threads: int, name: str) -> list[_B]:
    """What `work` returns for each item, in order; on the caller's thread and others of this call alone.

    None of them is left afterwards. Raises the first error, and Cancelled where the caller's thread is cancelled;
    within `work`, `check` does then, too.
    """
    shared = _Shared(work, items)
    stop = stop_of_thread()
    others = [
        threading.Thread(target=shared.work_on, name=f"{name}_{place}", daemon=True)
        for place in range(min(threads, len(shared.waiting)) - 1)
    ]
    begun = []
    try:
        for each in others:
            each.start()
            begun.append(each)
        shared.work_on(stop)
        for each in begun:
            while each.is_alive() and not shared.over.is_set():
                check()
                each.join(_POLL)
    finally:
        shared.over.set()
        for each in begun:
            each.join()
    if shared.error is not None:
        raise shared.error
    return [shared.found[place] for place in range(len(shared.found))]


class _Shared(Generic[_A, _B]):
    """What threads take their work from, and leave what comes of it in."""

    def __init__(self, work: Callable[[_A], _B], items: Iterable[_A]) -> None:
        self._work = work
        self.waiting = deque(enumerate(items))
        self.found: dict[int, _B] = {}
        self.error: BaseException | None = None  # the first
        self.over = threading.Event()

    def work_on(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Work until nothing waits, another thread has failed, or `stop` says so."""
        try:
            with cancelled_by(lambda: self.over.is_set() or stop()):
                while True:
                    check()
                    try:
                        place, item = self.waiting.popleft()
                    except IndexError:
                        return
                    self.found[place] = self._work(item)
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            if self.error is None and not (isinstance(error, Cancelled) and self.over.is_set()):
                self.error = error
            self.over.set()
