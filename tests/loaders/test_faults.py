"""What breaks under the loader: files, threads, processes, consumers. It ends soon, says why, and leaves nothing.

test_loader.py has the plain cases; here are those that come from outside.
"""

import ctypes
import gc
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from fastimg.loaders import (
    DataError,
    FilesDataset,
    ImageDecoder,
    Loader,
    LoaderConfig,
    RandomResizedCrop,
    ShardError,
    WorkerError,
    open_dataset,
)
from fastimg.loaders import pool as pool_module
from fastimg.loaders.beton import BetonWriter
from fastimg.loaders.beton_fields import Field as BetonField
from fastimg.loaders.pool import Pool
from fastimg.loaders.sample import Field
from fastimg.loaders.watch import EVERY

N = 24  # samples of a dataset on disk
BYTES = 3000  # of every image
IMAGES = ImageDecoder(RandomResizedCrop(size=16))


@pytest.fixture(autouse=True)
def watchdog():
    """What hangs, fails: an alarm after a minute, and again in case it was swallowed."""

    def ring(signum, frame):
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 60, 1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def nothing_left():
    """Every test gives back its threads and its files."""
    gc.collect()
    before = open_files()
    yield
    gc.collect()
    assert threads() == [] and open_files() == before


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fastimg-loader")]


def open_files():
    """Paths of the open descriptors, those of pytest and of this listing left out."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return sorted(path for path in found if path.startswith("/") and not path.startswith(("/proc", "/dev")))


class Numbers:
    """A dataset whose sample i holds the number i."""

    name = fingerprint = "numbers"
    classes = ()

    def __init__(self, n):
        self.labels = np.arange(n) * 10

    def __len__(self):
        return len(self.labels)

    def read(self, index, scratch):
        view = scratch.encoded(8)
        view[:] = int(index).to_bytes(8, "little")
        return view

    def will_need(self, indices):
        pass

    def sample_name(self, index):
        return f"numbers/{index}"

    def close(self):
        pass


class Stamp:
    """A decoder that writes the sample's number."""

    fields = (Field("inputs", (1, 2, 3), np.dtype(np.uint8)),)

    def draw(self, seed, epoch, ids):
        return np.zeros((len(ids), 1))

    def fill(self, data, draws, row, scratch):
        row["inputs"][...] = int.from_bytes(data, "little") % 256


def build(dataset, decoder=None, **options):
    return Loader(dataset, decoder or Stamp(), LoaderConfig(**{"batch_size": 4, "workers": 2} | options))


def read(loader):
    """(ids, weights, pixels) of one epoch's batches."""
    return [(batch.ids.tolist(), batch.weight.tolist(), batch.inputs.numpy().tobytes()) for batch in loader]


def real(batches):
    return sorted(i for ids, weight, _ in batches for i, w in zip(ids, weight, strict=True) if w)


def image(encode, seed):
    """A JPEG of BYTES bytes, zeros behind its end."""
    data = encode((10 * seed, 90, 200), (40, 32), seed=seed)
    assert len(data) < BYTES
    return data + bytes(BYTES - len(data))


def write_tar(path, images):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for i, data in enumerate(images):
            for ext, content in (("jpg", data), ("cls", b"%d" % (i % 2))):
                info = tarfile.TarInfo(f"{i:03d}.{ext}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def write_beton(path, images):
    with BetonWriter(path, {"image": BetonField("rgb"), "label": BetonField("int")}, page_size=1 << 21) as beton:
        for i, data in enumerate(images):
            beton.add({"image": data, "label": i % 2})


WRITERS = {"tar": write_tar, "beton": write_beton}


@pytest.fixture(params=list(WRITERS))
def shard(request, tmp_path, encode, monkeypatch):
    """(a shard, another one that differs in the pixels alone)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = [image(encode, seed) for seed in range(N)]
    paths = []
    for folder, content in (("data", images), ("other", images[::-1])):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / f"train.{request.param}")
        WRITERS[request.param](paths[-1], content)
    ours, theirs = paths
    assert ours.stat().st_size == theirs.stat().st_size and ours.read_bytes() != theirs.read_bytes()
    return ours, theirs


# Files


def replace(ours, theirs):
    theirs.replace(ours)


def rewrite(ours, theirs):
    with ours.open("r+b") as file:
        file.write(theirs.read_bytes())


def backdate(ours, theirs):
    """Replaced by a file of the same size and the same time."""
    stat = ours.stat()
    os.utime(theirs, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    theirs.replace(ours)


def cut(ours, theirs):
    os.truncate(ours, ours.stat().st_size // 2)


def empty(ours, theirs):
    os.truncate(ours, 0)


def grow(ours, theirs):
    with ours.open("ab") as file:
        file.write(bytes(512))


HARMS = [
    (replace, "was replaced"),
    (backdate, "was replaced"),
    (rewrite, "was altered"),
    (grow, "was altered"),
    (cut, "shrank"),
    (empty, "shrank"),
    (lambda ours, theirs: ours.unlink(), "disappeared"),
    (lambda ours, theirs: shutil.rmtree(ours.parent), "disappeared"),
]


@pytest.mark.parametrize("on_error", ["skip", "fail"])
@pytest.mark.parametrize(("harm", "how"), HARMS)
def test_a_shard_that_is_not_what_it_was_ends_the_run(shard, harm, how, on_error):
    dataset = open_dataset(shard[0].parent)
    loader = build(dataset, IMAGES, on_error=on_error)
    assert real(read(loader)) == list(range(N))
    harm(*shard)
    read_on = 0
    with pytest.raises(ShardError, match=f"^{shard[0]}: {how} while it was in use"):
        for _ in range(10):
            for batch in loader:
                read_on += batch.samples
    assert read_on <= EVERY and not loader.unreadable
    loader.close()
    dataset.close()


@pytest.mark.parametrize(("harm", "how"), HARMS[:6])
def test_a_shard_that_changes_before_it_is_first_read(shard, harm, how):
    dataset = open_dataset(shard[0].parent)
    harm(*shard)
    loader = build(dataset, IMAGES)
    read_on = 0
    with pytest.raises(ShardError, match=f"^{shard[0]}: {how} while it was in use"):
        for batch in loader:
            read_on += batch.samples
    assert read_on == 0 or (shard[0].suffix == ".beton" and read_on <= EVERY)  # a beton is open already
    loader.close()
    dataset.close()


def test_a_shard_that_is_only_read_by_others_is_left_alone(shard):
    dataset = open_dataset(shard[0].parent)
    loader = build(dataset, IMAGES)
    expected = read(loader)
    shutil.copy(shard[0], shard[1])
    os.chmod(shard[0], 0o444)
    os.link(shard[0], shard[0].with_suffix(".link"))
    loader.set_epoch(0)
    assert read(loader) == expected
    loader.close()
    dataset.close()


def test_a_corrupt_image_of_a_shard_is_skipped_and_named_or_ends_the_run(tmp_path, encode, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = [image(encode, seed) for seed in range(N)]
    images[5] = images[5][:400] + bytes(BYTES - 400)  # its pixels are gone, its header is not
    write_tar(tmp_path / "train.tar", images)
    write_beton(tmp_path / "train.beton", images)
    for name, said in (("train.tar", "train.tar: 005.jpg"), ("train.beton", "train.beton: sample 5")):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (tmp_path / name).rename(folder / name)
        dataset = open_dataset(folder)
        loader = build(dataset, IMAGES)
        batches = read(loader)
        assert real(batches) == sorted(set(range(N)) - {5}) and list(loader.unreadable) == [5]
        assert dataset.sample_name(5) == f"{folder}/{said}"
        loader.close()
        loader = build(dataset, IMAGES, on_error="fail")
        with pytest.raises(DataError, match=f"^{folder}/{said}: .*; repair or remove it, or use --on-error skip"):
            read(loader)
        loader.close()
        dataset.close()


@pytest.fixture
def files(tmp_path, encode):
    folder = tmp_path / "files"
    folder.mkdir()
    for i in range(N):
        (folder / f"{i:02d}.jpg").write_bytes(image(encode, i))
    return FilesDataset(folder, [f"{i:02d}.jpg" for i in range(N)])


def test_a_file_that_is_replaced_is_read_as_what_it_is(files, encode):
    """Nothing is known of a file but its name: no index can mislead the reader."""
    loader = build(files, IMAGES, order="sequential", batch_size=N)
    ((_, _, before),) = read(loader)
    new = Path(files.sample_name(3))
    new.unlink()
    new.write_bytes(Path(files.sample_name(4)).read_bytes())
    loader.set_epoch(0)
    ((_, weight, after),) = read(loader)
    row = 16 * 16 * 3
    assert weight == [1.0] * N
    assert [i for i in range(N) if before[i * row : (i + 1) * row] != after[i * row : (i + 1) * row]] == [3]
    loader.close()


def test_a_folder_that_disappears_is_no_matter_of_single_images(files):
    loader = build(files, IMAGES)
    read(loader)
    shutil.rmtree(files.name)
    with pytest.raises(DataError, match=f"^{files.name}: disappeared while it was in use; bring it back and --resume"):
        read(loader)
    assert loader.unreadable == {}
    loader.close()


def test_too_many_open_files_are_not_skipped_images(files):
    loader = build(files, IMAGES)
    read(loader)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(used)]  # no gaps below the limit
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare) + 1, hard))
        with pytest.raises(DataError, match=f"^{files.name}/.*: Too many open files; raise `ulimit -n`"):
            read(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in spare:
            os.close(file)
    assert loader.unreadable == {}
    assert real(read(loader)) == list(range(N))
    loader.close()


def test_a_dataset_that_is_forgotten_closes_its_files(shard):
    loader = build(open_dataset(shard[0].parent), IMAGES)
    read(loader)
    assert str(shard[0]) in open_files()
    gone = weakref.ref(loader.dataset)
    del loader
    gc.collect()
    assert gone() is None and str(shard[0]) not in open_files()


# Threads


def test_memory_that_a_sample_cannot_get_is_told_by_its_name():
    class Greedy(Stamp):
        def fill(self, data, draws, row, scratch):
            if data[0] == 7:
                raise MemoryError("9 TB")
            super().fill(data, draws, row, scratch)

    loader = build(Numbers(50), Greedy())
    with pytest.raises(WorkerError, match=r"^a loader thread failed on numbers/7: MemoryError\('9 TB'\)"):
        read(loader)
    loader.close()


def check_that_it_ends_and_begins_anew(loader, match, cause):
    with pytest.raises(WorkerError, match=match) as caught:
        for _ in range(20):
            read(loader)
    assert isinstance(caught.value.__cause__, cause)
    assert real(read(loader)) == list(range(len(loader.dataset)))
    assert len(threads()) == loader.workers  # all anew, none of the old
    loader.close()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError])
def test_a_thread_that_dies_while_it_waits(error):
    loader = build(Numbers(50), workers=3)
    read(loader)
    victim = next(thread for thread in threading.enumerate() if thread.name == "fastimg-loader-1")
    struck = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim.ident), ctypes.py_object(error))
    assert struck == 1
    check_that_it_ends_and_begins_anew(loader, f"^a loader thread died: {error.__name__}", error)


@pytest.mark.parametrize("method", ["_take", "_settle"])
def test_a_thread_that_dies_between_two_samples(monkeypatch, method):
    calls, whole = [], getattr(Pool, method)

    def failing(self, *args):
        calls.append(args)
        if len(calls) == 5:
            raise MemoryError
        return whole(self, *args)

    monkeypatch.setattr(Pool, method, failing)
    check_that_it_ends_and_begins_anew(build(Numbers(50)), "^a loader thread died: MemoryError", MemoryError)


def test_no_memory_for_a_threads_scratch(monkeypatch):
    whole, made = pool_module.Scratch, []

    def scratch():
        made.append(threading.current_thread().name)
        if len(made) <= 2:
            raise MemoryError
        return whole()

    monkeypatch.setattr(pool_module, "Scratch", scratch)
    check_that_it_ends_and_begins_anew(build(Numbers(50)), "^a loader thread died: MemoryError", MemoryError)


def test_no_more_threads_are_to_be_had(monkeypatch):
    whole, started = threading.Thread.start, []

    def start(self):
        if self.name.startswith("fastimg-loader"):
            started.append(self.name)
            if len(started) == 3:
                raise RuntimeError("can't start new thread")
        whole(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    loader = build(Numbers(50), workers=5)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        read(loader)
    assert threads() == []
    assert real(read(loader)) == list(range(50))
    loader.close()


@pytest.mark.parametrize("method", ["will_need", "draw"])
def test_an_error_in_the_midst_of_handing_out_work(method):
    class Failing(Stamp, Numbers):
        calls, bad = 0, True

        def _now_and_then(self):
            self.calls += 1
            if self.bad and self.calls == 6:
                raise ShardError("gone")

        def will_need(self, indices):
            if method == "will_need":
                self._now_and_then()

        def draw(self, seed, epoch, ids):
            if method == "draw":
                self._now_and_then()
            return super().draw(seed, epoch, ids)

    both = Failing(50)
    loader = build(both, both)
    with pytest.raises(ShardError, match=r"^gone$"):
        read(loader)
    both.bad = False
    assert real(read(loader)) == list(range(50))
    loader.close()


# Consumers


def test_two_loaders_at_once(shard):
    dataset = open_dataset(shard[0].parent)
    alone = build(dataset, IMAGES, seed=1), build(dataset, IMAGES, seed=2, batch_size=7)
    expected = [read(loader) for loader in alone]
    for loader in alone:
        loader.set_epoch(0)
    together: list[list] = [[], []]
    iterators = [iter(loader) for loader in alone]
    while iterators[0] or iterators[1]:
        for number, batches in enumerate(iterators):
            batch = next(batches, None) if batches else None
            if batch is None:
                iterators[number] = None
            else:
                together[number].append((batch.ids.tolist(), batch.weight.tolist(), batch.inputs.numpy().tobytes()))
    assert together == expected
    for loader in alone:
        loader.close()
    dataset.close()


def test_iterations_that_are_left_leave_no_memory():
    class Large(Stamp):
        fields = (Field("inputs", (128, 128, 3), np.dtype(np.uint8)),)

    loader = build(Numbers(64), Large(), batch_size=16)  # a slot has 0.8 MB
    sizes, objects = [], []
    for number in range(300):
        for _ in loader:
            break
        if number % 100 == 99:
            gc.collect()
            sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
            objects.append(len(gc.get_objects()))
    assert sizes[-1] - sizes[0] < 16 << 20  # 200 slots would be 160 MB
    assert objects[-1] - objects[0] < 100
    loader.close()


def test_interrupts_at_any_time_leave_the_loader_whole():
    """Ctrl-C 200 times, at times that differ: never a hang, never another error, never a thread or a sample lost.

    By a timer of the kernel's: a thread that sent the signal would hold the GIL, and main stand at a few places only.
    """
    loader = build(Numbers(96), batch_size=32, workers=8)  # 32 chunks a batch: the consumer is often handing them out
    caught = 0
    before = signal.signal(signal.SIGPROF, signal.default_int_handler)
    try:
        for delay in np.random.default_rng(0).uniform(0.0005, 0.006, 200):
            try:
                signal.setitimer(signal.ITIMER_PROF, delay)
                while True:
                    for _ in loader:
                        pass
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert caught == 200
    assert real(read(loader)) == list(range(96)) and len(threads()) == 8
    loader.close()


# Processes


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_that_is_forked_off_reads_for_itself():
    loader = build(Numbers(50))
    expected = read(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:  # no thread is here: whoever waits for one hangs
        status = 1
        try:
            try:
                for _ in batches:
                    pass
            except RuntimeError as error:
                status = 2 if "before the process was forked off; iterate anew" in str(error) else 3
            batches.close()
            loader.set_epoch(0)
            if status == 2 and read(loader) == expected and len(threads()) >= 2:
                loader.close()
                status = 0
        finally:
            os._exit(status)
    assert wait_for(child) == 0
    rest = [frozen.ids.tolist() for frozen in batches]
    assert rest == [ids for ids, _, _ in expected[1:]]  # the parent goes on as if nothing were
    loader.close()


def wait_for(child, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


SCRIPT = """
    import sys
    from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset

    dataset = open_dataset(sys.argv[1])
    loader = Loader(dataset, ImageDecoder(RandomResizedCrop(size=16)), LoaderConfig(batch_size=2, workers=2))
    print("0", flush=True)
    number = 0
    while True:
        for batch in loader:
            number += 1
            print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 3, 30])
def test_ctrl_c_ends_a_program_at_once(tmp_path, encode, batch):
    write_tar(tmp_path / "train.tar", [image(encode, seed) for seed in range(N)])
    signal.setitimer(signal.ITIMER_REAL, 200, 1)  # it imports torch: on a busy machine that takes a while
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    try:
        for line in process.stdout:
            if int(line) >= batch:
                break
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt") and stderr.count("Traceback") == 1
