"""Other projects' trainers with a loader in place of their DataLoader: the scripts of benchmarks/clients."""

import importlib
import json
import subprocess

import pytest

from fastimg.augment import Policy
from fastimg.loaders import ImageFolderLoader, Loader

from .clients import CLIENTS, TRAIN, VAL, apart, evaluated_in, images_of, seen_in

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own
GATHER = ("accelerate_fit", "transformers_fit")  # equally many rows of all ranks, and leave out what is too much
TRAINERS = (*GATHER, "lightning_fit")
HOW = [  # how the ranks are started, and how often Lightning validates in an epoch
    *((client, 1, []) for client in TRAINERS),
    *((client, 2, []) for client in TRAINERS),
    ("lightning_fit", 1, ["--devices", 2]),
    ("lightning_fit", 1, ["--devices", 2, "--strategy", "ddp_spawn"]),
]


@pytest.fixture(autouse=True)
def installed(request):
    """Skip a client without its framework."""
    client = getattr(getattr(request.node, "callspec", None), "params", {}).get("client")
    if client is None:
        client = "accelerate" if request.cls is TestAccelerate else "lightning"
    pytest.importorskip(client.removesuffix("_fit"))


@pytest.mark.slow
@pytest.mark.parametrize(("client", "ranks", "options"), HOW)
def test_every_image_comes_in_an_epoch_and_once_in_an_evaluation(
    client, ranks, options, coloured, tmp_path, run_client
):
    files = 2 if options else ranks
    found = run_client(client, coloured, tmp_path / "run.json", *options, ranks=ranks, files=files)
    more = 1 if client in GATHER and len(found) == 2 else 0  # 45 images for two ranks with equally many rows
    for epoch in range(2):
        seen = seen_in(found, epoch, coloured)
        assert len(seen) == TRAIN and seen.total() == TRAIN + more
    assert [rank["steps"] for rank in found] == [12 // len(found)] * len(found)
    if client in GATHER:  # each rank has all of them
        assert [rank["counted"] for rank in found] == [VAL] * ranks
        found = found[:1]
    evaluated = evaluated_in(found, coloured)
    assert len(evaluated) == evaluated.total() == sum(rank["counted"] for rank in found) == VAL
    assert sum(rank["correct"] for rank in found) >= 12  # it has learned


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("client", TRAINERS)
def test_a_run_that_is_stopped_within_an_epoch_goes_on_exactly(client, ranks, coloured, tmp_path, run_client):
    def run(name, *options):
        return run_client(client, coloured, tmp_path / name, *options, ranks=ranks)

    kept = tmp_path / "checkpoint"
    runs = run("whole"), run("first", "--stop-after", 8 // ranks, "--checkpoint", kept), run("rest", "--resume", kept)
    for whole, first, rest in zip(*runs, strict=True):
        assert len(first["seen"][0]) == len(whole["seen"][0]) and len(first["seen"][1]) == 16 // ranks
        assert first["seen"][1] + rest["seen"][0] == whole["seen"][1]
        assert first["losses"] + rest["losses"] == whole["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("client", TRAINERS)
def test_losses_lie_within_the_spread_of_seeds(client, coloured, tmp_path, run_client):
    def losses(head, seed):
        options = ("--loader", head, "--seed", seed, "--workers", 0)
        return run_client(client, coloured, tmp_path / "run", *options)[0]["losses"]

    torchs, ours = ([losses(head, seed) for seed in range(3)] for head in ("torch", "fastimg"))
    assert apart(torchs, ours) < 2


def test_three_lines_make_the_difference():
    for client in TRAINERS:
        text = (CLIENTS / f"{client}.py").read_text()
        assert text.count("ImageFolderLoader") == 3, client  # the import, and a loader for training and evaluation


class TestAccelerate:
    """What an Accelerator does with a loader, in this process and on two ranks."""

    @pytest.fixture
    def accelerator(self):
        """Make an Accelerator: (options) -> it."""
        accelerate = importlib.import_module("accelerate")
        states = importlib.import_module("accelerate.state")

        def forget():
            for state in (states.AcceleratorState, states.GradientState, states.PartialState):
                state._reset_state()

        forget()
        yield lambda **options: accelerate.Accelerator(cpu=True, **options)
        forget()

    @pytest.fixture
    def loader(self, coloured):
        """Make a loader: (options) -> it."""
        transforms = importlib.import_module("torchvision.transforms")
        pixel = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
        return lambda **options: ImageFolderLoader(coloured / "train", pixel, batch_size=8, **options)

    def test_gradients_are_accumulated_until_the_last_batch(self, accelerator, loader):
        torch = importlib.import_module("torch")
        accelerator = accelerator(gradient_accumulation_steps=4)
        model, prepared = accelerator.prepare(torch.nn.Linear(3, 3), loader(shuffle=True))
        for _ in range(2):
            steps = []
            for _images, _targets in prepared:
                with accelerator.accumulate(model):
                    steps.append(accelerator.sync_gradients)
            assert steps == [False, False, False, True, False, True]

    def test_a_checkpoint_keeps_the_position(self, accelerator, loader, tmp_path):
        accelerator = accelerator()
        with loader(shuffle=True, seed=1) as first, loader(shuffle=True, seed=1) as second:
            accelerator.register_for_checkpointing(first)
            batches = iter(first)
            next(batches), next(batches)
            accelerator.save_state(tmp_path)
            rest = [targets.tolist() for _, targets in batches]
            accelerator._custom_objects.clear()
            accelerator.register_for_checkpointing(second)
            accelerator.load_state(tmp_path)
            assert [targets.tolist() for _, targets in second] == rest and len(rest) == 4

    def test_further_options_leave_the_samples(self, coloured, tmp_path, python):
        """Two ranks share the images, whatever accelerate would do with a DataLoader."""
        script = tmp_path / "script.py"
        script.write_text(SHARED)
        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
        done = subprocess.run([*command, str(coloured / "train"), str(tmp_path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for options in ("split_batches", "dispatch_batches", "uneven"):
            parts = [json.loads((tmp_path / f"{options}.{rank}").read_text()) for rank in range(2)]
            assert [len(part) for part in parts] == [23, 23]
            seen = images_of(parts[0] + parts[1], coloured / "train")
            assert len(seen) == TRAIN


SHARED = """
import json
import sys

import accelerate
import torch
from torchvision import transforms

from fastimg.loaders import ImageFolderLoader

pixel = transforms.Compose([transforms.Resize((8, 8)), transforms.PILToTensor()])
for options in ("split_batches", "dispatch_batches", "uneven"):
    given = {} if options == "uneven" else {options: True}
    accelerator = accelerate.Accelerator(
        cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(**given)
    )
    loader = ImageFolderLoader(sys.argv[1], pixel, batch_size=8, shuffle=True, num_workers=1)
    model, loader = accelerator.prepare(torch.nn.Linear(3, 3), loader)
    seen = []
    with accelerator.join_uneven_inputs([model], even_batches=options != "uneven"):
        for images, targets in loader:
            seen += images[:, :, 4, 4].tolist()
            accelerator.backward(model(images.float().mean((2, 3))).sum())
    with open(f"{sys.argv[2]}/{options}.{accelerator.process_index}", "w") as file:
        json.dump(seen, file)
accelerator.end_training()
"""


class TestLightning:
    """What Lightning's Trainer does with a loader, in this process."""

    @pytest.fixture
    def fit(self, coloured):
        """Train two epochs; returns the images of each step's batch by epoch, and of each validation."""
        L = importlib.import_module("lightning")
        torch = importlib.import_module("torch")
        colours = importlib.import_module("torchvision.transforms")
        pixel = colours.Compose([colours.Resize((8, 8)), colours.PILToTensor()])

        class Module(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 3)
                self.seen, self.evaluated, self.reloads = [[], []], [], 0

            def _step(self, batch, kept):
                images, targets = batch
                kept.append(images[:, :, 4, 4].tolist())
                self.log("loss", 0.0, on_epoch=True)
                return torch.nn.functional.cross_entropy(self.layer(images.float().mean((2, 3)) / 255), targets)

            def training_step(self, batch):
                return self._step(batch, self.seen[self.current_epoch])

            def validation_step(self, batch):
                self._step(batch, self.evaluated[-1])

            def on_validation_epoch_start(self):
                self.evaluated.append([])

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)

            def train_dataloader(self):
                self.reloads += 1
                return ImageFolderLoader(coloured / "train", pixel, batch_size=8, shuffle=True, seed=1)

            def val_dataloader(self):
                return ImageFolderLoader(coloured / "val", pixel, batch_size=8)

        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}

        def run(train=None, **options):
            module = Module()
            trainer = L.Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **quiet, **options)
            trainer.fit(module, train)
            return module

        run.module, run.pixel = Module, pixel
        return run

    @pytest.fixture
    def epochs(self, coloured, fit):
        """The batches of the first epochs, without Lightning."""
        with ImageFolderLoader(coloured / "train", fit.pixel, batch_size=8, shuffle=True, seed=1) as loader:
            return [[images[:, :, 4, 4].tolist() for images, _ in loader] for _ in range(2)]

    def test_validations_within_an_epoch_leave_its_order(self, fit, epochs, coloured):
        module = fit(val_check_interval=2)
        assert module.seen == epochs
        first, *others = module.evaluated  # the first is Lightning's sanity check, which stops early
        assert len(first) == 2 and len(others) == 6
        for each in others:
            assert each[:2] == first
            found = images_of([colour for batch in each for colour in batch], coloured / "val")
            assert len(found) == found.total() == VAL

    def test_fewer_batches_and_loaders_made_anew(self, fit, epochs):
        module = fit(limit_train_batches=3, limit_val_batches=1, reload_dataloaders_every_n_epochs=1)
        assert module.seen == [batches[:3] for batches in epochs] and module.reloads == 2

    def test_overfitting_takes_the_same_batches_in_order(self, fit, coloured):
        with ImageFolderLoader(coloured / "train", fit.pixel, batch_size=8) as loader:
            module = fit(loader, overfit_batches=2)
        assert module.seen[0] == module.seen[1] and len(module.seen[0]) == 2
        with (
            ImageFolderLoader(coloured / "train", fit.pixel, batch_size=8, shuffle=True) as loader,
            pytest.raises(ValueError, match="batches of 8, shuffled"),
        ):
            fit(loader, overfit_batches=2)

    @pytest.mark.parametrize("raw", [True, False])
    def test_a_loader(self, raw, fit, coloured):
        """Itself, whose batches are unpacked, and as tuples."""
        with Loader(str(coloured), split="train", batch_size=8, crop=8) as loader:
            module = fit(loader if raw else loader.tuples(Policy(hflip=0.5, mean=(0, 0, 0), std=(1, 1, 1))))
        scale = 1 if raw else 255
        for epoch in module.seen:
            found = images_of([[scale * x for x in pixel] for batch in epoch for pixel in batch], coloured / "train")
            assert len(found) == found.total() == TRAIN
