"""Other projects' trainers with a loader in place of their DataLoader: on two ranks every image comes once an epoch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torchvision import transforms

from fastimg.loaders import ImageFolderLoader

# Each writes the pixels of its rank's images, of 1 x 1, by epoch; the loaders are made before the group is.
COMMON = """
import json, sys
import torch
from torchvision import transforms
from fastimg.loaders import ImageFolderLoader

PIXEL = transforms.Compose([transforms.Resize((1, 1)), transforms.ToTensor()])
SEEN = [[], []]
torch.manual_seed(int(__import__("os").environ.get("RANK", 0)))  # each rank otherwise, as many scripts do
loader = ImageFolderLoader(sys.argv[1], PIXEL, batch_size=8, shuffle=True)
evaluation = ImageFolderLoader(sys.argv[1], PIXEL, batch_size=8)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 3))

def see(epoch, images):
    SEEN[epoch] += (images * 255).round().int().flatten(1).tolist()

def finish(rank, counted):
    with open(f"{sys.argv[2]}/{rank}.json", "w") as file:
        json.dump({"seen": SEEN, "counted": counted, "steps": len(loader)}, file)
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, loader, evaluation = accelerator.prepare(model, optimizer, loader, evaluation)
for epoch in range(2):
    for images, targets in loader:
        see(epoch, images)
        accelerator.backward(torch.nn.functional.cross_entropy(model(images), targets))
        optimizer.step()
        optimizer.zero_grad()
finish(accelerator.process_index, sum(len(targets) for _, targets in evaluation))
accelerator.end_training()
"""
LIGHTNING = """
import lightning as L

class Module(L.LightningModule):
    counted = 0

    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        see(self.current_epoch, batch[0])
        return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch):
        self.counted += len(batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

module = Module()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "num_sanity_val_steps": 0}
ranks = int(__import__("os").environ.get("WORLD_SIZE", 1))
trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto",
    check_val_every_n_epoch=2, **quiet
)
trainer.fit(module, loader, evaluation)
finish(trainer.global_rank, module.counted)
"""
TRANSFORMERS = """
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, images, labels):
        see(int(trainer.state.epoch or 0), images)
        logits = self.model(images)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

class Named:
    # What a Trainer takes: batches as dicts.
    def __init__(self, batches):
        self.batches = batches
    def __len__(self):
        return len(self.batches)
    def __iter__(self):
        for images, labels in self.batches:
            yield {"images": images, "labels": labels}

class Ours(Trainer):
    def get_train_dataloader(self):
        return self.accelerator.prepare(Named(loader))

arguments = TrainingArguments(
    output_dir=sys.argv[2], num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
)
trainer = Ours(Model(), arguments)
trainer.train()
assert trainer.state.global_step == 2 * len(loader), trainer.state.global_step
finish(arguments.process_index, sum(len(targets) for _, targets in evaluation))
"""


@pytest.fixture
def folder(image_folder):
    """36 images, and their pixels as the trainers see them."""
    pixel = transforms.Compose([transforms.Resize((1, 1)), transforms.PILToTensor()])
    with ImageFolderLoader(image_folder, pixel, batch_size=36, rank=0, world_size=1) as loader:
        ((images, _),) = loader
    return image_folder, sorted(map(tuple, images.flatten(1).tolist()))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("trainer", ["accelerate", "lightning", "transformers"])
def test_every_image_once_an_epoch(trainer, ranks, folder, tmp_path):
    pytest.importorskip(trainer)
    images, expected = folder
    script = tmp_path / "train.py"
    script.write_text(COMMON + globals()[trainer.upper()])
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *launcher, str(script), str(images), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(Path(tmp_path, f"{rank}.json").read_text()) for rank in range(ranks)]
    for epoch in range(2):
        assert sorted(tuple(pixel) for part in found for pixel in part["seen"][epoch]) == expected
    assert [part["counted"] for part in found] == [36 // ranks] * ranks
    assert [part["steps"] for part in found] == [5 if ranks == 1 else 3] * ranks
