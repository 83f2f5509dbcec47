"""What a loader takes from the process that it runs in: ranks, the seed, worker processes, pickles and forks."""

import copy
import io
import json
import os
import pickle
import signal
import subprocess
import tarfile
import time
from itertools import chain

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from fastimg.loaders import Crop, DataError, ImageFolderLoader, Loader, open_dataset
from fastimg.loaders.epochs import surroundings

pytestmark = pytest.mark.usefixtures("watchdog")
OPTIONS = {"batch_size": 8, "crop": 8, "workers": 1}


@pytest.fixture
def image_folder(tmp_path):
    """36 images in three classes, each of a colour of its own."""
    for number in range(36):
        path = tmp_path / f"images/{number % 3}/{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), (7 * number, 255 - number, number)).save(path)
    return tmp_path / "images"


@pytest.fixture
def ranks(monkeypatch):
    """`ranks(rank, world_size)`: torch.distributed as if it were initialised; `ranks(None, None)`: as if not."""

    def become(rank, world_size):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: rank is not None)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world_size)

    return become


@pytest.fixture
def launched(monkeypatch):
    """`launched(rank, world_size)`: the environment that torchrun gives a process."""

    def launch(rank, world_size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return launch


def ids(loader):
    """The ids of weight 1 of an epoch, or of the rest of one."""
    return [i for batch in loader for i, w in zip(batch.ids.tolist(), batch.weight.tolist(), strict=True) if w]


@pytest.fixture(params=["Loader", "ImageFolderLoader"])
def samples(request, image_folder):
    """`samples(**options)`: a loader of 36 images; and what an epoch of it has read, as numbers."""
    if request.param == "Loader":
        return lambda **options: Loader(image_folder, **OPTIONS | options), ids
    from torchvision import transforms

    crop = transforms.Compose([transforms.Resize((1, 1)), transforms.PILToTensor()])

    def make(**options):
        options = {"shuffle": True, "batch_size": 8, "num_workers": 1} | options
        return ImageFolderLoader(image_folder, crop, **options)

    with make(shuffle=False, rank=0, world_size=1) as every:
        pixels = torch.cat([images for images, _ in every]).flatten(1).tolist()
    number = {tuple(values): i for i, values in enumerate(pixels)}
    assert len(number) == 36
    return make, lambda loader: [number[tuple(v)] for images, _ in loader for v in images.flatten(1).tolist()]


class TestRanks:
    @pytest.mark.parametrize("how", ["group", "torchrun", "explicit"])
    def test_ranks_share_an_epoch(self, how, samples, ranks, launched):
        make, read = samples
        parts, lengths = [], []
        for rank in range(2):
            given = {}
            if how == "group":
                launched(0, 3)  # the group has the last word
                ranks(rank, 2)
            elif how == "torchrun":
                launched(rank, 2)
            else:
                ranks(0, 5)
                given = {"rank": rank, "world_size": 2}
            with make(**given) as loader:
                parts.append(read(loader))
                lengths.append(len(loader))
        assert [len(part) for part in parts] == [18, 18] and sorted(chain(*parts)) == list(range(36))
        assert lengths == [3, 3]

    def test_one_alone_is_refused(self, samples):
        for given in ({"rank": 0}, {"world_size": 2}):
            with pytest.raises(TypeError, match="rank and world_size go together; give both, or neither"):
                samples[0](**given)

    def test_a_loader_that_was_made_before_the_group(self, samples, ranks):
        make, read = samples
        parts = []
        for rank in range(2):
            ranks(None, None)
            with make() as loader:
                assert len(loader) == 5
                ranks(rank, 2)
                assert len(loader) == 3
                parts.append(read(loader))
        assert sorted(chain(*parts)) == list(range(36))

    def test_one_that_has_read_before_the_group_is_told(self, samples, ranks):
        make, read = samples
        with make() as loader:
            read(loader)
            ranks(1, 2)
            assert len(loader) == 5  # of the ranks that have read
            with pytest.raises(RuntimeError, match=r"read as rank 0 of 1, but this process is now rank 1 of 2: create"):
                read(loader)
            assert loader.state_dict()["epoch"] == 0
            loader.set_epoch(1)
            assert len(loader) == 3 and len(read(loader)) == 18

    def test_a_group_that_ends_changes_nothing_that_torchrun_has_said(self, samples, ranks, launched):
        make, read = samples
        launched(1, 2)
        ranks(1, 2)
        with make() as loader:
            first = read(loader)
            ranks(None, None)
            loader.set_epoch(0)
            assert read(loader) == first

    def test_an_environment_that_makes_no_sense(self, image_folder, launched, monkeypatch):
        for rank, world_size in ((2, 2), ("two", 2), (0, 0), (-1, 2)):
            launched(rank, world_size)
            with pytest.raises(ValueError, match=f"RANK={rank} and WORLD_SIZE={world_size}, which are no ranks"):
                Loader(image_folder, **OPTIONS)
        monkeypatch.delenv("RANK")  # a launcher's own variable, alone
        with Loader(image_folder, **OPTIONS) as loader:
            assert (loader.config.rank, loader.config.world_size) == (0, 1)

    def test_more_ranks_than_samples_are_refused_when_they_are_known(self, image_folder, ranks):
        with Loader(image_folder, **OPTIONS, indices=range(2)) as loader:
            ranks(0, 3)
            with pytest.raises(DataError, match="2 samples for 3 ranks; every rank needs at least one"):
                ids(loader)


class TestLastBatches:
    """150 samples, batches of 32, two ranks: 75 each, in three steps; an evaluation counts every sample once."""

    @pytest.mark.parametrize("order", ["sequential", "random"])
    @pytest.mark.parametrize(("n", "sizes"), [(150, [75, 75]), (129, [65, 64]), (65, [33, 32])])
    def test_ranks_have_even_shares_and_no_batch_of_padding_alone(self, n, sizes, order, numbers, stamp, read, real):
        parts, steps = [], []
        for rank in range(2):
            loader = Loader(numbers(n), stamp(), order=order, batch_size=32, rank=rank, world_size=2)
            batches = read(loader)
            loader.close()
            assert all(batch.samples > 0 and len(batch.ids) == 32 for batch in batches)
            parts.append(real(batches))
            steps.append(len(batches))
        assert [len(part) for part in parts] == sizes and sorted(chain(*parts)) == list(range(n))
        assert len(set(steps)) == 1

    def test_an_image_folder_has_every_image_once(self, image_folder):
        from torchvision import transforms

        crop = transforms.Compose([transforms.Resize((1, 1)), transforms.PILToTensor()])
        for batch_size, counts in ((8, [[8, 8, 2]] * 2), (7, [[7, 7, 4]] * 2), (5, [[5, 5, 5, 3]] * 2)):
            found = []
            for rank in range(2):
                with ImageFolderLoader(image_folder, crop, batch_size=batch_size, rank=rank, world_size=2) as loader:
                    found.append([len(targets) for _, targets in loader])
            assert found == counts

    def test_a_batch_is_empty_for_no_rank(self, image_folder):
        """Batches of one, and a sample more than full steps: a rank has one again, as with a DistributedSampler."""
        from torchvision import transforms

        crop = transforms.Compose([transforms.Resize((1, 1)), transforms.PILToTensor()])
        for rank in range(5):
            with ImageFolderLoader(image_folder, crop, batch_size=1, rank=rank, world_size=5) as loader:
                assert [len(targets) for _, targets in loader] == [1] * 8  # 36 of 40

    @pytest.mark.parametrize(("n", "steps"), [(40, 3), (35, 2), (11, 0), (12, 1)])
    def test_drop_last_leaves_out_what_is_not_full(self, n, steps, numbers, build, read):
        for rank in range(3):
            loader = build(numbers(n), batch_size=4, rank=rank, world_size=3, drop_last=True)
            for epoch in range(2):
                batches = read(loader)
                assert len(batches) == len(loader) == steps and all(batch.samples == 4 for batch in batches)
                state = loader.state_dict()
                assert (state["epoch"], state["position"]) == (epoch, n)  # the epoch is over
            loader.close()


class TestPositions:
    @pytest.mark.parametrize("epoch", [0, 1, 2])
    def test_set_epoch_keeps_a_position_in_the_same_epoch(self, samples, epoch):
        """Everyone's loop: load_state_dict, then set_epoch of the epoch that goes on."""
        make, read = samples
        with make(seed=3) as loader:
            read(loader)
            batches = iter(loader)
            next(batches), next(batches)
            state = loader.state_dict()
            rest = read(batches)
            others = {}
            for number in (2, 0):
                loader.set_epoch(number)
                others[number] = read(loader)
        with make(seed=3) as loader:
            loader.load_state_dict(state)
            loader.set_epoch(epoch)
            assert read(loader) == (rest if epoch == 1 else others[epoch])
        assert len(rest) == 20


class TestSeeds:
    def test_torchs_seed_is_the_loaders(self, samples):
        make, read = samples
        orders = []
        for seed in (1, 1, 2):
            with make() as loader:  # before the script seeds, as often
                torch.manual_seed(seed)
                orders.append([read(loader), read(loader)])
        assert orders[0] == orders[1] and orders[0][0] != orders[2][0] and orders[0][0] != orders[0][1]
        with make(seed=1) as loader:
            assert [read(loader), read(loader)] == orders[0]
            torch.manual_seed(5)  # a number is what it is
            loader.set_epoch(0)
            assert read(loader) == orders[0][0]

    def test_that_two_loaders_read_the_same_is_said_once(self, samples, monkeypatch, caplog):
        make, read = samples
        for name in ("_begun", "_said"):
            monkeypatch.setattr(surroundings, name, type(getattr(surroundings, name))())
        torch.manual_seed(3)
        with make() as loader:
            read(loader), read(loader)
            loader.set_epoch(0)
            read(loader)
        with make(seed=3) as given:
            read(given)
        assert not caplog.messages
        for _ in range(3):  # as with a loader for each epoch
            with make() as loader:
                read(loader)
        assert [message.split(": ")[1] for message in caplog.messages] == [
            "another loader of this process has read epoch 0 with the same order and crops, as the seed of both is "
            "torch's, 3; give one of them seed=, or keep one loader for all epochs"
        ]

    def test_a_seed_of_64_bits_is_folded(self, image_folder):
        torch.manual_seed(-1)
        with Loader(image_folder, **OPTIONS) as loader:
            assert loader.config.seed == (1 << 63) - 1

    def test_a_state_has_the_seed(self, samples):
        make, read = samples
        torch.manual_seed(7)
        with make() as loader:
            batches = iter(loader)
            next(batches)
            state = loader.state_dict()
            expected = [read(batches), read(loader)]
        torch.manual_seed(8)
        with make() as loader:
            loader.load_state_dict(state)
            assert [read(loader), read(loader)] == expected
        with make(seed=8) as loader, pytest.raises(ValueError, match="made with seed 7, but the loader has 8"):
            loader.load_state_dict(state)

    def test_ranks_have_one_seed_though_scripts_seed_each_otherwise(self, samples):
        make, read = samples
        parts = []
        for rank in range(2):
            torch.manual_seed(rank)
            with make(rank=rank, world_size=2) as loader:
                parts += read(loader)
        assert sorted(parts) == list(range(36))


class Wrapped(IterableDataset):
    """What some trainers ask for."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for batch in self.loader:
            yield batch.ids.clone()


class TestDataLoaders:
    @pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
    def test_a_worker_process_is_refused(self, image_folder):
        with Loader(image_folder, **OPTIONS) as loader:
            wrapped = DataLoader(Wrapped(loader), batch_size=None, num_workers=1)
            with pytest.raises(RuntimeError, match="every worker would read all samples, and every epoch in the order"):
                list(wrapped)

    def test_without_workers_epochs_move(self, image_folder):
        with Loader(image_folder, **OPTIONS, order="random", padding="zeros") as loader:
            wrapped = DataLoader(Wrapped(loader), batch_size=None)
            first, second = (torch.cat(list(wrapped))[:36].tolist() for _ in range(2))
        assert sorted(first) == sorted(second) == list(range(36)) and first != second


class TestPickles:
    def test_a_loader_is_its_arguments_and_its_position(self, samples):
        make, read = samples
        torch.manual_seed(4)
        with make() as loader:
            batches = iter(loader)
            next(batches), next(batches)
            stored = pickle.dumps(loader)
            expected = [read(batches), read(loader)]
        torch.manual_seed(5)
        with pickle.loads(stored) as loader:
            assert [read(loader), read(loader)] == expected

    def test_arguments_that_are_not_the_defaults(self, image_folder):
        torch.manual_seed(4)
        options = {"crop": Crop.letterbox(16), "channels": 1, "indices": np.arange(3, 20), "order": "sequential"}
        with Loader(image_folder, batch_size=4, copy=True, rank=0, world_size=2, **options) as loader:
            loader.set_size(8)
            with copy.deepcopy(loader) as other:
                assert (other.config, other.epoch, len(other)) == (loader.config, loader.epoch, len(loader))
                for batch, again in zip(loader, other, strict=True):
                    assert torch.equal(batch.ids, again.ids) and torch.equal(batch.inputs, again.inputs)
                    assert batch.inputs.shape == (4, 1, 8, 8)

    def test_a_child_takes_its_own_ranks(self, samples, ranks):
        make, read = samples
        with make() as loader:
            stored = pickle.dumps(loader)
        parts = []
        for rank in range(2):
            with pickle.loads(stored) as loader:
                ranks(rank, 2)
                parts += read(loader)
            ranks(None, None)
        assert sorted(parts) == list(range(36))

    def test_an_open_dataset_is_refused(self, tmp_path, encode):
        with tarfile.open(tmp_path / "train-00000.tar", "w") as tar:
            for name, content in (("0.jpg", encode()), ("0.cls", b"1")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        dataset = open_dataset(tmp_path)
        with Loader(dataset, **OPTIONS) as loader, pytest.raises(TypeError, match="its files are open; give the path"):
            pickle.dumps(loader)
        dataset.close()


@pytest.mark.slow
def test_a_spawned_process_reads_the_same(image_folder, tmp_path, python):
    script = "import pickle, sys; print([batch.ids.tolist() for batch in pickle.load(open(sys.argv[1], 'rb'))])"
    with Loader(image_folder, **OPTIONS, seed=2) as loader:
        first = ids(loader)
        (tmp_path / "loader").write_bytes(pickle.dumps(loader))
        ran = subprocess.run([python, "-c", script, str(tmp_path / "loader")], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout) == [batch.ids.tolist() for batch in loader]
        assert ids(loader) != first


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
class TestForks:
    def test_between_epochs_a_child_has_threads_of_its_own(self, samples):
        make, read = samples
        with make(seed=1) as loader:
            first = read(loader)

            def reads_the_same():
                loader.set_epoch(0)
                return read(loader) == first

            assert in_child(reads_the_same)
            loader.set_epoch(0)
            assert read(loader) == first

    def test_within_one_a_child_is_refused(self, samples):
        """Its threads may have held locks, which nobody gives back in the child."""
        make, read = samples
        with make() as loader:
            batches = iter(loader)
            next(batches)

            def refused():
                for each in (batches, loader):
                    with pytest.raises(RuntimeError, match=r"forked.*create the loader in this process"):
                        read(each)
                with make() as another:
                    return sorted(read(another)) == list(range(36))

            assert in_child(refused)
            assert len(read(batches)) == 28


def in_child(check, seconds=20):
    """Whether `check` says True in a forked process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")
