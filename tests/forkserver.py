"""Python processes that start quickly: forks of one process that has imported torch, timm and fastimg.

    python forkserver.py ADDRESS             serves until its last holder ends; prints a line when ready. The modules
                                             that FORKSERVER_IMPORTS names are imported, too
    python -IS forkserver.py ADDRESS ...     a client: what `python ...` does, in a fork that has this one's streams,
                                             environment and directory; ends as the fork ends, and takes it along

A fork is an ordinary process: it may be killed, signalled, and be a rank of torchrun, which starts ranks by the command
in PYTHON_EXEC. Modules that read the environment on import do not see a fork's environment. Triton is the exception: a
fork imports it anew to interpret kernels.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing.spawn
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import NoReturn

LENGTH, STATUS = struct.Struct("<q"), struct.Struct("<i")
MOST = 64  # descriptors that a client may have
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
IMPORTED = (
    "timm",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "torchvision",
    "scipy.linalg",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "fastimg.cli",
    "fastimg.augment.cpu",
    "fastimg.bench.rig",
    "fastimg.train.reporting.plots",
    "fastimg.train.run",
    "numba.np.arraymath",
    "numba.typed",
)


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def pass_on(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the fork may just have ended
        os.kill(pid, number)


def _inherited(number: int) -> bool:
    """Whether it is a descriptor that this process was started with, as multiprocessing's are."""
    with contextlib.suppress(OSError):  # that of the listing
        return os.get_inheritable(number)
    return False


def end_group(pid: int) -> None:
    """Kill a fork and what it started; alone where it does not lead a group yet."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)


def run_client(address: str, arguments: Sequence[str]) -> NoReturn:
    """Ask the server to start `python arguments`, forward signals, and end with the same status."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    numbers = sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) != connection.fileno())
    numbers = [number for number in numbers if _inherited(number)]
    uninterrupted = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    asked = json.dumps([arguments, os.getcwd(), dict(os.environ), uninterrupted, numbers]).encode()
    socket.send_fds(connection, [LENGTH.pack(len(asked))], numbers)
    connection.sendall(asked)
    (pid,) = LENGTH.unpack(receive(connection, LENGTH.size))
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: pass_on(pid, number))
    (status,) = STATUS.unpack(receive(connection, STATUS.size))
    if os.WIFSIGNALED(status):
        for number in FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def serve(address: str) -> list[str]:
    """Fork for each client. Returns in the forks, with the arguments to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    forks: dict[int, tuple[int, socket.socket]] = {}  # by the connection's descriptor, and by the process's
    holders = 0
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listener:
                connection = listener.accept()[0]
                start, streams, *_ = socket.recv_fds(connection, LENGTH.size, MOST)
                waiting.register(connection, selectors.EVENT_READ)
                if not streams:  # it only keeps the server alive
                    holders += 1
                    continue
                asked = json.loads(receive(connection, *LENGTH.unpack(start)))
                if not (pid := os.fork()):
                    for open_file in list(waiting.get_map().values()):
                        os.close(open_file.fd) if isinstance(open_file.fileobj, int) else open_file.fileobj.close()
                    waiting.close()
                    return become(*asked, streams)
                for stream in streams:
                    os.close(stream)
                connection.sendall(LENGTH.pack(pid))
                handle = os.pidfd_open(pid)
                waiting.register(handle, selectors.EVENT_READ)
                forks[handle] = forks[connection.fileno()] = pid, connection
            elif key.fd not in forks and key.fd in waiting.get_map():  # a holder has ended
                waiting.unregister(key.fileobj)
                holders -= 1
                if not holders:
                    os.unlink(address)
                    os.rmdir(os.path.dirname(address))
                    end(0)
            elif key.fd in forks and isinstance(key.fileobj, socket.socket):  # a client has ended: end its fork, too
                end_group(forks.pop(key.fd)[0])
                waiting.unregister(key.fileobj)
            elif key.fd in forks:  # a fork has ended
                pid, connection = forks.pop(key.fd)
                _, status = os.waitpid(pid, 0)
                waiting.unregister(key.fd)
                os.close(key.fd)
                if forks.pop(connection.fileno(), None):
                    waiting.unregister(connection)
                    connection.sendall(STATUS.pack(status))
                connection.close()


def become(
    arguments: list[str],
    directory: str,
    environment: dict[str, str],
    uninterrupted: bool,
    numbers: Sequence[int],
    streams: Sequence[int],
) -> list[str]:
    """Take over the client's descriptors, environment, working directory, and whether it ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN if uninterrupted else signal.default_int_handler)
    if "--multiprocessing-fork" not in arguments:  # its own processes may do so themselves
        os.setsid()
    beyond = [fcntl.fcntl(stream, fcntl.F_DUPFD, max(numbers) + 1) for stream in streams]
    for stream in streams:
        os.close(stream)
    for number, stream in zip(numbers, beyond, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    if "PYTHON_EXEC" in environment:
        multiprocessing.spawn.set_executable(environment["PYTHON_EXEC"])
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("TRITON_INTERPRET") == "1":  # Triton decides that when it is imported
        for name in [name for name in sys.modules if f"{name}.".startswith("triton.") and "._C" not in name]:
            del sys.modules[name]
    import torch

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
    return arguments


def run(arguments: list[str]) -> None:
    """Run what `python arguments` runs."""
    while arguments[0][:2] in ("-u", "-B", "-W"):
        option = arguments.pop(0)
        if option == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        elif option == "-B":
            sys.dont_write_bytecode = True
        else:
            warnings.simplefilter(option[2:] or arguments.pop(0))  # type: ignore[arg-type]
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


def end(code: int) -> NoReturn:
    """Exit as the interpreter does, but without clearing imported modules, which would copy all their pages."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def main(arguments: list[str]) -> NoReturn:
    try:
        run(arguments)
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
            end(1)
        end(ended.code or 0)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - the interpreter prints all of them, too
        sys.excepthook(*sys.exc_info())
        end(1)
    end(0)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run_client(sys.argv[1], sys.argv[2:])
    del sys.path[0]  # next to this file is another folder named fastimg
    for name in (*IMPORTED, *os.environ.get("FORKSERVER_IMPORTS", "").split()):
        importlib.import_module(name)
    gc.freeze()  # a collection in a fork would copy every page
    main(serve(sys.argv[1]))
