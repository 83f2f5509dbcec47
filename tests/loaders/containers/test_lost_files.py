"""Files that change, shrink or disappear while the loader runs: it ends soon, gives the reason, and leaves nothing."""

import gc
import io
import os
import resource
import shutil
import tarfile
import weakref
from pathlib import Path

import pytest

from fastimg.loaders import DataError, FilesDataset, ImageDecoder, RandomResizedCrop, ShardError, open_dataset
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.watch import EVERY

N = 24  # samples of a dataset on disk
BYTES = 3000  # of every image
IMAGES = ImageDecoder(RandomResizedCrop(size=16))
pytestmark = pytest.mark.usefixtures("watchdog", "nothing_left", "files_given_back")


def image(encode, seed):
    """A JPEG of BYTES bytes, with zeros after its end."""
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
    """(a shard, another shard with different pixels only)."""
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


def replace(ours, theirs):
    theirs.replace(ours)


def rewrite(ours, theirs):
    with ours.open("r+b") as file:
        file.write(theirs.read_bytes())


def backdate(ours, theirs):
    """Replace a file by one of the same size and modification time."""
    stat = ours.stat()
    os.utime(theirs, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    theirs.replace(ours)


def rewrite_and_restore(ours, theirs):
    """Write another content into a file, and restore its modification time."""
    stat = ours.stat()
    rewrite(ours, theirs)
    os.utime(ours, ns=(stat.st_atime_ns, stat.st_mtime_ns))


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
    (rewrite_and_restore, "was altered"),
    (grow, "was altered"),
    (cut, "shrank"),
    (empty, "shrank"),
    (lambda ours, theirs: ours.unlink(), "disappeared"),
    (lambda ours, theirs: shutil.rmtree(ours.parent), "disappeared"),
]


@pytest.mark.parametrize("on_error", ["skip", "fail"])
@pytest.mark.parametrize(("harm", "how"), HARMS)
def test_a_changed_shard_ends_the_run(shard, harm, how, on_error, build, real, read):
    dataset = open_dataset(shard[0].parent)
    loader = build(dataset, IMAGES, on_error=on_error)
    assert sorted(real(read(loader))) == list(range(N))
    harm(*shard)
    read_on = 0
    with pytest.raises(ShardError, match=f"^{shard[0]}: {how} while it was in use"):
        for _ in range(10):
            for batch in loader:
                read_on += batch.samples
    assert read_on <= EVERY and not loader.unreadable
    loader.close()
    dataset.close()


@pytest.mark.parametrize(("harm", "how"), HARMS[:7])
def test_a_shard_that_changes_before_it_is_first_read(shard, harm, how, build):
    dataset = open_dataset(shard[0].parent)
    harm(*shard)
    loader = build(dataset, IMAGES)
    read_on = 0
    with pytest.raises(ShardError, match=f"^{shard[0]}: {how} while it was in use"):
        for batch in loader:
            read_on += batch.samples
    assert read_on == 0 or (shard[0].suffix == ".beton" and read_on <= EVERY)  # a beton is already open
    loader.close()
    dataset.close()


def test_a_shard_whose_access_time_changes_is_accepted(shard, build, read):
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


def test_a_corrupt_image_in_a_shard_is_skipped_and_named_or_ends_the_run(
    tmp_path, encode, monkeypatch, build, read, real
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = [image(encode, seed) for seed in range(N)]
    images[5] = images[5][:400] + bytes(BYTES - 400)  # its pixels are destroyed, its header is intact
    write_tar(tmp_path / "train.tar", images)
    write_beton(tmp_path / "train.beton", images)
    for name, said in (("train.tar", "train.tar: 005.jpg"), ("train.beton", "train.beton: sample 5")):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (tmp_path / name).rename(folder / name)
        dataset = open_dataset(folder)
        loader = build(dataset, IMAGES)
        batches = read(loader)
        assert sorted(real(batches)) == sorted(set(range(N)) - {5}) and list(loader.unreadable) == [5]
        assert dataset.sample_name(5) == f"{folder}/{said}"
        loader.close()
        loader = build(dataset, IMAGES, on_error="fail")
        with pytest.raises(DataError, match=f"^{folder}/{said}: .*; repair or remove it, or use on_error=skip"):
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


def test_a_file_that_is_replaced_is_read_as_what_it_is(files, encode, build, read):
    """Only the file's name is known: no index can mislead the reader."""
    loader = build(files, IMAGES, order="sequential", batch_size=N)
    ((*_, before),) = read(loader)
    new = Path(files.sample_name(3))
    new.unlink()
    new.write_bytes(Path(files.sample_name(4)).read_bytes())
    loader.set_epoch(0)
    ((_, _, weight, _, after),) = read(loader)
    row = 16 * 16 * 3
    assert weight == [1.0] * N
    assert [i for i in range(N) if before[i * row : (i + 1) * row] != after[i * row : (i + 1) * row]] == [3]
    loader.close()


def test_a_folder_that_disappears_ends_the_run(files, build, read):
    loader = build(files, IMAGES)
    read(loader)
    shutil.rmtree(files.name)
    with pytest.raises(
        DataError, match=f"^{files.name}: disappeared while it was in use; bring it back and use resume=True"
    ):
        read(loader)
    assert loader.unreadable == {}
    loader.close()


def test_too_many_open_files_are_not_skipped_images(files, build, read, real):
    loader = build(files, IMAGES)
    read(loader)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(used)]  # no unused descriptors below the limit
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare) + 1, hard))
        with pytest.raises(DataError, match=f"^{files.name}/.*: Too many open files; raise `ulimit -n`"):
            read(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in spare:
            os.close(file)
    assert loader.unreadable == {}
    assert sorted(real(read(loader))) == list(range(N))
    loader.close()


def test_an_unreferenced_dataset_closes_its_files(shard, build, read, open_files):
    loader = build(open_dataset(shard[0].parent), IMAGES)
    read(loader)
    assert str(shard[0]) in open_files()
    gone = weakref.ref(loader.dataset)
    del loader
    gc.collect()
    assert gone() is None and str(shard[0]) not in open_files()


@pytest.fixture
def shards(tmp_path, encode, monkeypatch):
    """A folder of two foreign tars of 12 images each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "tars"
    folder.mkdir()
    for number in range(2):
        with tarfile.open(folder / f"train-{number}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for i in range(12):
                for ext, content in (("jpg", encode(seed=12 * number + i)), ("cls", b"%d" % (i % 2))):
                    info = tarfile.TarInfo(f"{12 * number + i:03d}.{ext}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return folder


@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_a_shard_truncated_during_reading_ends_the_run_and_is_named(shards, on_error, build, real, read, threads):
    dataset = open_dataset(shards)
    loader = build(dataset, IMAGES, batch_size=2, on_error=on_error)
    assert sorted(real(read(loader))) == list(range(24))
    with pytest.raises(ShardError, match=f"^{shards}/train-1.tar: shrank while it was in use"):
        for number, _ in enumerate(loader):
            if number == 1:
                os.truncate(shards / "train-1.tar", 1000)
    loader.close()
    dataset.close()
    assert threads() == []


def test_a_shard_that_disappears_before_it_is_opened(shards, build, read):
    dataset = open_dataset(shards)
    (shards / "train-0.tar").unlink()
    loader = build(dataset, IMAGES)
    for _ in range(2):
        with pytest.raises(ShardError, match=f"^{shards}/train-0.tar: No such file"):
            read(loader)
    loader.close()
    dataset.close()


def test_two_loaders_at_once(shard, build, read, frozen):
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
                together[number].append(frozen(batch))
    assert together == expected
    for loader in alone:
        loader.close()
    dataset.close()
