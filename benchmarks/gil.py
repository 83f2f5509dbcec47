"""How long the interpreter's lock (GIL) is held, measured from outside: a thread without the GIL samples the lock.

CPython keeps a word that is 1 while a thread holds the lock, at a fixed offset after the switch interval (3.11 to 3.13:
ceval_gil.h, `struct _gil_runtime_state`: interval, last_holder, locked). The interval can be set, so its address in the
exported `_PyRuntime` is found by setting it to two unusual values. A compiled thread then reads the word about every 50
us. `Sampler` first measures two programs with known shares, and raises an error if the result is wrong. A thread that
is preempted while it holds the lock keeps it, so measure on an idle machine; a calibration that this spoils is
repeated.

How often the lock is taken back after a thread gave it up: `takings` has the processor count the calls of
`PyEval_RestoreThread` by a breakpoint (Linux, perf_event_open). Each costs some microseconds more then, so nothing else
is measured at the same time.
"""

import contextlib
import ctypes
import os
import platform
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import njit

_SEARCHED = 1 << 20  # upper limit of the bytes of _PyRuntime to search; it is smaller
_ATTEMPTS = 5  # at a calibration, which a thread that is preempted with the lock spoils
_PAUSE = 20  # microseconds requested between two samples; the kernel adds about 50


class Sampler:
    """Samples the lock while a function runs. Raises RuntimeError if this is not possible with this interpreter."""

    def __init__(self) -> None:
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            raise RuntimeError("this interpreter has no GIL")
        self._word = _locked_word()
        self._end = np.zeros(1, np.int64)
        self._counts = np.zeros(2, np.int64)
        libc = ctypes.CDLL(None)
        pause = libc.usleep
        pause.argtypes = (ctypes.c_uint,)
        pause.restype = ctypes.c_int

        @njit(nogil=True)
        def sample(word: Any, end: Any, counts: Any) -> None:
            while end[0] == 0:
                counts[word[0] & 1] += 1
                pause(_PAUSE)  # a call that the compiler cannot inline, so that the word is read again after it

        self._sample = sample
        self._end[0] = 1
        sample(self._word, self._end, self._counts)  # compiled
        for _ in range(_ATTEMPTS):
            self.calibration = {name: self.share(program)[0] for name, program in _PROGRAMS.items()}
            if self.calibration["idle"] <= 0.05 and self.calibration["busy"] >= 0.95:
                return
        raise RuntimeError(f"the lock's word is not at the expected address: {self.calibration}")

    def share(self, work: Callable[[], object]) -> tuple[float, int, float]:
        """(share of the time with the lock held, samples, seconds) while `work` runs in this thread."""
        self._end[0] = 0
        self._counts[:] = 0
        thread = threading.Thread(target=self._sample, args=(self._word, self._end, self._counts))
        thread.start()
        began = time.perf_counter()
        try:
            work()
        finally:
            seconds = time.perf_counter() - began
            self._end[0] = 1
            thread.join()
        total = int(self._counts.sum())
        return float(self._counts[1]) / max(1, total), total, seconds


_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}  # the number of the system call
_BREAKPOINT, _EXECUTED = 5, 4  # PERF_TYPE_BREAKPOINT, HW_BREAKPOINT_X
_FLAGS = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv
_INHERIT = 1 << 1  # by the threads that begin later


@contextlib.contextmanager
def takings(others: bool = True) -> Iterator[Callable[[], int]]:
    """How often this thread, and `others` that begin inside the block, have taken the lock back so far.

    Raises OSError where the system does not allow to count that.
    """
    if sys.platform != "linux" or platform.machine() not in _PERF_EVENT_OPEN:
        raise OSError("breakpoints are counted on Linux only")
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.cast(ctypes.pythonapi.PyEval_RestoreThread, ctypes.c_void_p).value
    # struct perf_event_attr: type, size; config, sample_period, sample_type, read_format, flags; wakeup_events,
    # bp_type; bp_addr, bp_len
    flags = _FLAGS | (_INHERIT if others else 0)
    attributes = struct.pack("IIQQQQQIIQQ", _BREAKPOINT, 72, 0, 0, 0, 0, flags, 0, _EXECUTED, address, 8)
    file = libc.syscall(_PERF_EVENT_OPEN[platform.machine()], attributes, 0, -1, -1, 0)  # this process, any core
    if file < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield lambda: struct.unpack("Q", os.read(file, 8))[0]
    finally:
        os.close(file)


def _locked_word() -> np.ndarray:
    """A view of the lock's word, int32 [1]."""
    base = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    before = sys.getswitchinterval()
    places: set[int] | None = None
    try:
        for interval in (4321, 7654):  # microseconds
            sys.setswitchinterval(interval / 1e6)
            words = np.ctypeslib.as_array((ctypes.c_uint64 * (_readable(base) // 8)).from_address(base))
            found = set((np.flatnonzero(words == np.uint64(interval)) * 8).tolist())
            places = found if places is None else places & found
    finally:
        sys.setswitchinterval(before)
    if not places or len(places) != 1:
        raise RuntimeError(f"the switch interval is at {len(places or ())} places of _PyRuntime, not at one")
    address = base + places.pop() + 16  # follows the interval and the last holder
    return np.ctypeslib.as_array((ctypes.c_int32 * 1).from_address(address))


def _readable(base: int) -> int:
    """Bytes from `base` to the end of its mapping, at most `_SEARCHED`."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            if begin <= base < end:
                return min(end - base, _SEARCHED) & ~7
    raise RuntimeError("_PyRuntime is not in the memory map")


def _idle() -> None:
    time.sleep(0.3)


def _busy() -> None:
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        pass


def _half() -> None:
    """Be busy and asleep alternately, for equal times."""
    for _ in range(60):
        began = time.perf_counter()
        while time.perf_counter() < began + 0.0025:
            pass
        time.sleep(0.0025)


_PROGRAMS = {"idle": _idle, "busy": _busy, "half": _half}
