"""Generated test data, batches of any loader, and checks that tests neither hang nor leave anything running."""

import fcntl
import gc
import importlib
import inspect
import io
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # workers and processes of tests share compiled modules
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes, each of which imports torch
os.environ.setdefault("FASTIMG_BACKGROUND", "0")  # loaders start no processes that compile
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # workers share the cores: waiting threads must not spin
import torch
from hypothesis import settings
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from PIL import Image

from fastimg.loaders import Batch, BatchSource, Dataset, ImageDecoder, LoaderConfig, RandomResizedCrop
from fastimg.loaders.backends.selection import open_source
from fastimg.loaders.backends.settings import Backend
from fastimg.loaders.crop import CropRule
from fastimg.loaders.folders.formats import register_plugins
from fastimg.loaders.jpeg.decoding.crops import compile_for
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch

from .triton_interpreter import quicken

sys.dont_write_bytecode = False  # for this process, which has read the variable already
# No deadlines, since times depend on other processes on the machine; the same examples in every run, so that a run that
# fails can be repeated. `pytest --hypothesis-profile=explore` draws others.
settings.register_profile("explore", deadline=None)
settings.register_profile("fastimg", deadline=None, derandomize=True)
settings.load_profile("fastimg")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: one more worker than there are cores, since tests wait for the processes that they start."""
    return len(os.sched_getaffinity(0)) + 1


HEIC_START = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
COLOURS = {"blue": (40, 60, 200), "green": (50, 180, 60), "red": (210, 50, 40)}


def encoded_image(
    colour: Sequence[int] = (120, 120, 120),
    size: tuple[int, int] = (40, 32),
    seed: int = 0,
    kind: str = "JPEG",
    **options: Any,
) -> bytes:
    """An image of one colour, (width, height), with noise that `seed` gives; `options` are Pillow's."""
    noise = np.random.default_rng(seed).integers(-25, 26, (size[1], size[0], 3))
    pixels = np.clip(np.asarray(colour) + noise, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def write_image_folder(root: Path, per_class: int = 12, colours: dict[str, tuple[int, int, int]] = COLOURS) -> Path:
    """`root/<class>/<number>.jpg` and .png, one colour per class: a linear model learns it."""
    for label, (name, colour) in enumerate(colours.items()):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            kind, ext = ("PNG", "png") if i % 4 == 3 else ("JPEG", "jpg")
            content = encoded_image(colour, (40 + 3 * i, 32 + i), seed=100 * label + i, kind=kind)
            (root / name / f"{i:03d}.{ext}").write_bytes(content)
    return root


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """Each function is compiled by one worker, under a lock, and read from numba's cache by the others."""
    if worker_id == "master":
        yield
        return
    folder = tmp_path_factory.getbasetemp().parent
    compile, held = Dispatcher.compile, set()

    def compile_once(dispatcher: Any, signature: object) -> object:
        name = re.sub(r"\W", "_", f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}")
        with global_compiler_lock:  # first, as a thread that waits for the file lock holds this one
            if not getattr(dispatcher._cache, "cache_path", None) or name in held:
                return compile(dispatcher, signature)
            held.add(name)
            try:
                with (folder / f"{name}.lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    return compile(dispatcher, signature)
            finally:
                held.remove(name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Dispatcher, "compile", compile_once)
        yield


@pytest.fixture
def shared_locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Until the test ends, another process shares each lock that is taken, as one does that is forked right then."""
    flock, files = fcntl.flock, []

    def lock(file: Any, kind: int) -> None:
        flock(file, kind)
        if kind != fcntl.LOCK_UN:
            files.append(os.dup(file if isinstance(file, int) else file.fileno()))

    monkeypatch.setattr(fcntl, "flock", lock)
    yield
    for file in files:
        os.close(file)


@pytest.fixture(scope="session")
def compiled_decoder(compiled_once: None) -> None:
    """The decoder of JPEGs has been compiled, by one worker.

    Processes that a test starts find it in numba's cache; each of them would take half a minute to compile it again.
    """
    draws = RandomResizedCrop(size=16).draws * [0.5]
    plain = encoded_image(size=(96, 64))
    compile_for(plain)
    compile_for(encoded_image(size=(96, 64), progressive=True))
    for data in (plain, tile(plain).jpeg):
        for scaling in (False, True):
            decoder = ImageDecoder(RandomResizedCrop(size=16), dct_scaling=scaling)
            row = {field.name: np.zeros(field.shape, field.dtype) for field in decoder.fields}
            decoder.fill_row(memoryview(data), draws, row, Scratch())


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[Callable[[int], None]]:
    """Compute with one thread, whatever a training requests.

    With images as small as the tests', several threads mostly wait for each other. The value is torch's own
    `set_num_threads`.
    """
    set_num_threads = torch.set_num_threads
    set_num_threads(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "set_num_threads", lambda count: None)
        yield set_num_threads


@pytest.fixture
def threads(one_thread: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute with two threads, or as many as a test requests from torch."""
    one_thread(2)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "set_num_threads", one_thread)
        yield
    one_thread(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files that start processes first, so that none of the longest remains for the end."""
    starts = {"python", "interpreted"}
    long = {item.path for item in items if item.get_closest_marker("slow") or starts & set(item.fixturenames)}  # type: ignore[attr-defined]
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Freeze imported objects: `gc.collect` in a test then skips them, which saves half a second."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries warn about objects left at the interpreter's end."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def write_images() -> Callable[..., Path]:
    """`write_images(folder, per_class)`: an unsplit class folder, blue, green and red."""
    return write_image_folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """An unsplit class folder: blue, green and red, twelve small JPEG and PNG images each."""
    return write_image_folder(tmp_path / "images")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """A command that does what `python` does, but starts quickly: see forkserver.py.

    The workers of a session share the server, which ends with the last of them.
    """
    if not hasattr(os, "pidfd_open"):
        yield sys.executable
        return
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with (shared / "forkserver.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = shared / "python"
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.connect((shared / "forkserver.address").read_text())
        except OSError:
            address = start_forkserver(command)
            (shared / "forkserver.address").write_text(address)
            holder.connect(address)
        holder.sendall(bytes(8))
    with holder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHON_EXEC", str(command))  # torchrun starts its ranks with it
        yield str(command)


def start_forkserver(command: Path) -> str:
    """Start the server, and write the `command` of its clients. Returns its address."""
    script = Path(__file__).with_name("forkserver.py")
    address = str(Path(tempfile.mkdtemp(prefix="fastimg-")) / "forkserver")  # short: at most 107 characters
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # threads do not survive a fork
    server = subprocess.Popen(
        [sys.executable, str(script), address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **alone},
        start_new_session=True,
    )
    assert server.stdout is not None
    with server.stdout as said:
        assert said.readline() == "ready\n"
    server.returncode = 0  # it ends with its last holder; nobody waits for it
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS '{script}' '{address}' \"$@\"\n")
    command.chmod(0o755)
    return address


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """`encode(colour, (width, height), seed, kind)`: an encoded image."""
    return encoded_image


@pytest.fixture
def make_image_folder(tmp_path: Path) -> Callable[[int], Path]:
    """`make_image_folder(per_class)`: an unsplit folder of three classes with this many images each."""
    return lambda per_class: write_image_folder(tmp_path / "images", per_class)


@pytest.fixture
def heif_plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """`heif_plugin(installed)`: pillow-heif is missing, as by default, or replaced by a stub; see `heic`."""

    def provide(installed: bool) -> None:
        plugin = types.ModuleType("pillow_heif")
        plugin.register_heif_opener = register  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pillow_heif", plugin if installed else None)
        monkeypatch.setitem(sys.modules, "pillow_jxl", None)
        for name in ("HEIF", "JXL"):  # unregister real plugins, too
            monkeypatch.delitem(Image.OPEN, name, raising=False)
        monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name in Image.OPEN])
        register_plugins.cache_clear()

    def register() -> None:
        monkeypatch.setattr(Image, "ID", [*Image.ID, "HEIF"])
        monkeypatch.setitem(Image.OPEN, "HEIF", (open_heif, lambda start: start[4:12] == b"ftypheic"))
        monkeypatch.setitem(Image.EXTENSION, ".heic", "HEIF")
        monkeypatch.setitem(Image.EXTENSION, ".heif", "HEIF")

    def open_heif(file: io.BytesIO, name: str) -> Image.Image:
        file.seek(len(HEIC_START))
        image = Image.open(io.BytesIO(file.read()))
        image.format = "HEIF"
        return image

    Image.init()
    provide(False)
    yield provide
    register_plugins.cache_clear()


@pytest.fixture
def heic() -> Callable[[int], bytes]:
    """`heic(seed)`: begins like HEIC, and contains the PNG that the stub plugin decodes."""
    return lambda seed=0: HEIC_START + encoded_image(seed=seed, kind="PNG")


hung: list[float] = []  # after how many seconds tests were ended


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer, again each second, in case it is swallowed."""

    def ring(signum: int, frame: object) -> None:
        hung.append(seconds)
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def no_test_without_end() -> Iterator[None]:
    """Whatever hangs fails after fifteen minutes, so that the others are run: by another worker, where there are some.

    In this process a lock may be held for ever that other tests need.
    """
    with alarm(900):
        yield
    if hung and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(1)


@pytest.fixture
def watchdog(no_test_without_end: None) -> Iterator[None]:
    """Fail tests that hang after five minutes.

    A test may have to wait while another worker compiles, which takes minutes on a machine that is busy otherwise.
    """
    with alarm(300):
        yield


@pytest.fixture
def sync_debug_mode() -> Callable[[str], AbstractContextManager[None]]:
    """`with sync_debug_mode("error"):` synchronising with a CUDA device raises.

    torch warns once per process that this is a prototype; the warning is not an error here.
    """

    def choose(mode: str) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature", UserWarning)
            torch.cuda.set_sync_debug_mode(mode)

    @contextmanager
    def within(mode: str) -> Iterator[None]:
        choose(mode)
        try:
            yield
        finally:
            choose("default")

    return within


def left_running() -> list[str]:
    """Running threads and processes of loaders, including FFCV's."""
    threads = [t.name for t in threading.enumerate() if t.name.startswith("fastimg-") or "EpochIter" in str(type(t))]
    return threads + [child.name for child in multiprocessing.active_children()]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Every test ends its loaders' threads and processes."""
    yield
    if left_running():
        gc.collect()
    deadline = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left_running() == []


@pytest.fixture
def open_loader() -> Callable[..., BatchSource]:
    """`open_loader(backend, dataset, crop, indices, **options)`: batches of 4 by two workers, crops to 32 pixels."""

    def build(
        backend: Backend,
        dataset: Dataset,
        crop: CropRule | None = None,
        indices: npt.NDArray[np.int64] | None = None,
        **options: Any,
    ) -> BatchSource:
        config = LoaderConfig(**{"batch_size": 4, "workers": 2} | options)
        return open_source(backend, dataset, crop or RandomResizedCrop(size=32), config, indices=indices)

    return build


class Read(NamedTuple):
    """A copy of a batch that outlives its loader's memory."""

    ids: list[int]
    targets: list[int]
    weight: list[float]
    samples: int
    pixels: torch.Tensor  # uint8 [B, H, W, 3], on the host


def read_batch(b: Batch) -> Read:
    pixels = b.inputs.permute(0, 2, 3, 1).clone().cpu()
    return Read(b.ids.tolist(), b.targets.tolist(), b.weight.tolist(), b.samples, pixels)


@pytest.fixture
def read_pixels() -> Callable[[Iterable[Batch]], list[Read]]:
    """`read_pixels(loader)`: one epoch, or the rest of it."""
    return lambda loader: [read_batch(batch) for batch in loader]


@pytest.fixture
def plain() -> Callable[[list[Read]], list[tuple[Any, ...]]]:
    """`plain(batches)`: the batches without their pixels, for comparison."""
    return lambda batches: [batch[:4] for batch in batches]


@pytest.fixture
def difference() -> Callable[[list[Read], list[Read]], float]:
    """`difference(ours, theirs)`: mean absolute difference of pixels, 0 to 255."""

    def compare(ours: list[Read], theirs: list[Read]) -> float:
        pairs = [(a[4].int() - b[4].int()).abs().float().mean().item() for a, b in zip(ours, theirs, strict=True)]
        return sum(pairs) / len(pairs)

    return compare


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    """Make Triton's interpreter a few times as fast, where kernels are interpreted."""
    with pytest.MonkeyPatch.context() as patched:
        if os.environ.get("TRITON_INTERPRET") == "1":
            quicken(patched)
        yield


def _takes_loops() -> bool:
    """Whether Triton's interpreter runs loops with this NumPy: torch 2.11's uses a one-element array as a number."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    squeezed = "int(self.handle.data.squeeze())" in inspect.getsource(interpreter)
    return squeezed or np.lib.NumpyVersion(np.__version__) < "2.4.0"


@pytest.fixture
def interpreted(python: str) -> Callable[..., None]:
    """`interpreted(file, loops=False)`: its `TestInterpreted` passes in a process in which Triton interprets kernels.

    Triton decides that on import. `loops`: the kernels have loops whose bound is read from memory.
    """

    def check(file: str, loops: bool = False) -> None:
        if loops and not _takes_loops():
            pytest.skip("this Triton's interpreter needs NumPy < 2.4")
        imported = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")  # a fork has them
        alone = ("-q", "-n", "0", "-p", "no:cacheprovider", f"{file}::TestInterpreted")
        older = ("-W", "ignore:Conversion of an array with ndim:DeprecationWarning")  # NumPy's warning about the same
        command = [python, "-m", "pytest", *older, *imported, *alone]
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert re.search(r"\b[1-9]\d* passed", done.stdout) and "skipped" not in done.stdout

    return check
