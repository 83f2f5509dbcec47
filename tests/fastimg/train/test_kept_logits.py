"""A teacher's kept logits: the same training as with a teacher that runs, on as many views as are kept."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file

from fastimg.config.commands import Train
from fastimg.errors import UsageError
from fastimg.loaders import DataError
from fastimg.loaders.containers.targets import Target
from fastimg.train.checkpoints.run_directory import read_log
from fastimg.train.choices import refusals
from fastimg.train.distillation.kept_logits import KeptLogits, Labelling
from fastimg.train.distillation.loss import Distillation
from fastimg.train.tasks.classification import ClassTask
from fastimg.train.tasks.joint import Tasks
from fastimg.train.tasks.task import Truth


@pytest.fixture
def train(cli: Callable[..., Any], fast: tuple[str, ...], trained: Any, tmp_path: Path) -> Callable[..., Any]:
    """`train("name", *flags)`: a run with a teacher, whose rate does not depend on its length."""

    def run(name: str, *flags: object, data: Path = trained.images) -> Any:
        steady = ("--sched", "constant", "--warmup", "1ba", "--log-interval", "1", "--seed", "1")
        teacher = ("--teacher", trained.run, "--cache-dir", tmp_path / "cache") if "--cache-teacher" in flags else ()
        teacher = teacher or ("--teacher", trained.run)
        ran = cli("train", data, *fast, *steady, *teacher, "-o", tmp_path / "runs", "--name", name, *flags)
        assert ran.code == 0, ran.out + ran.err
        return ran

    return run


@pytest.fixture
def losses(tmp_path: Path) -> Callable[[str], list[float]]:
    """`losses("name")`: that of every step."""
    return lambda name: [r["loss"] for r in read_log(tmp_path / "runs" / name) if r["kind"] == "train"]


def test_kept_logits_train_as_the_teacher_does(
    train: Any, losses: Any, cli: Any, tmp_path: Path, trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two views are two epochs of a teacher that runs. The third epoch shows the first view again.

    On some processors the last bit of a logit depends on the batch that its image is in; runs from the same logits are
    equal to the bit.
    """
    ran = train("kept", "--epochs", "3", "--cache-teacher", "2")
    assert ran.out.count("labelling   24 images with test_resnet, once") == 2
    assert "2 views of each image: 48 made now" in ran.out and "bytes of float32 in" in ran.out
    (record,) = [r for r in read_log(tmp_path / "runs/kept") if r["kind"] == "cache"]
    files = (tmp_path / "cache").glob("teachers/*/*.tar")
    assert record["made"] == 48 and record["bytes"] == sum(file.stat().st_size for file in files)
    train("live", "--epochs", "2")
    assert losses("kept")[:6] == pytest.approx(losses("live"), rel=1e-6)
    monkeypatch.setattr(Labelling, "rows", lambda *_: pytest.fail("the teacher ran"))
    assert "0 made now" in train("short", "--cache-teacher", "2").out
    assert cli("train", trained.images, "--resume", tmp_path / "runs/short", "--epochs", "3").code == 0
    one, two = (load_file(tmp_path / "runs" / name / "last/model.safetensors") for name in ("kept", "short"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert losses("kept") == losses("short")


def test_another_crop_type_or_seed_is_kept_apart(train: Any, tmp_path: Path) -> None:
    """And a dry run keeps nothing."""
    assert "over 1 view of each image (not in a dry run)" in train("dry", "--cache-teacher", "1", "--dry-run").out
    assert not (tmp_path / "cache").exists()
    for number, more in enumerate(((), ("--cache-dtype", "fp16"), ("--seed", "2"), ("--hflip", "0.1"))):
        ran = train(f"run{number}", "--cache-teacher", "1", *more)
        assert "24 made now" in ran.out and f"of float{16 if 'fp16' in more else 32} in" in ran.out
    assert len(list((tmp_path / "cache/teachers").iterdir())) == 4


def test_images_that_cannot_be_decoded_have_no_logits(train: Any, trained: Any, tmp_path: Path) -> None:
    data = shutil.copytree(trained.images, tmp_path / "spoiled")
    spoiled = data / "train/red/2.jpg"
    spoiled.write_bytes(spoiled.read_bytes()[:60])
    assert "1 training image could not be decoded" in train("run", "--cache-teacher", "1", data=data).out


def test_an_image_without_logits_that_is_decoded_ends_the_run() -> None:
    """It was repaired while the run went on, for example."""
    kept = Sparse()
    logits = KeptLogits(views=[kept], classes=2, dtype="float32", about=(), where="C", made=0, seconds=0.0)  # type: ignore[list-item]
    batch = SimpleNamespace(ids=torch.tensor([5, 1, 7]), inputs=torch.zeros(3))
    assert logits.rows(batch, 3, {1: "torn"}).tolist() == [[5, 5], [0, 0], [7, 7]]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="image 1: was decoded, but not when the teacher saw it; remove C"):
        logits.rows(batch, 3, {})  # type: ignore[arg-type]


class Sparse:
    """Logits that are the ids; of image 1 there are none."""

    def read_rows(self, ids: list[int], head: bytes, out: npt.NDArray[np.float32]) -> list[int]:
        out[:] = np.array(ids)[:, None]
        return [row for row, index in enumerate(ids) if index == 1]

    def sample_name(self, index: int) -> str:
        return f"image {index}"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"mixup": 0.2}, "images that --mixup or --cutmix mixes differ in every epoch; leave one out"),
        ({"augmentation": [{"mixup": {"alpha": 0.2}}]}, "images that --mixup or --cutmix mixes"),
        ({"kornia": [{"RandomSnow": {}}]}, "Kornia's augmentation depends on the whole batch"),
        ({"progressive": "32:64"}, "--progressive changes the images from epoch to epoch"),
        ({"sampler": "balanced"}, "--sampler shows an image several times in an epoch"),
        ({"loader": "synthetic"}, "--loader synthetic makes crops that cannot be made again"),
        ({"no_aug": True}, "without augmentation all views are the same; give 1"),
        ({"text_arch": "hf:MINI"}, "keeps what a teacher says of images alone; leave it out, or --text-arch"),
        ({"teacher": None}, "--cache-teacher has no effect without --teacher"),
        ({"cache_teacher": 0}, "--cache-teacher 0: give 1 or more"),
    ],
)
def test_refusals(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        refusals.check(Train(**{"teacher": "runs/large", "cache_teacher": 2} | asked))


def test_a_sample_without_a_label_learns_from_the_teacher() -> None:
    """What stands in place of its label makes no difference, and its gradient is the divergence's alone."""
    task = ClassTask(target=Target(name="label", kind="class", classes=("a", "b", "c")), outputs=3)
    tasks = Tasks.one_class(task)
    torch.manual_seed(0)
    logits, theirs = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
    blend = Distillation(source=None, temperature=2.0, weight=0.25)  # type: ignore[arg-type]
    truth = Truth(torch.tensor([2, 0]), torch.tensor([True, False]))
    total = blend.blended(tasks.losses(logits, (truth,)), logits, theirs).total
    (slope,) = torch.autograd.grad(total.sum(), logits)
    expected = 0.25 * 2 * ((logits / 2).softmax(1) - (theirs / 2).softmax(1)).detach()  # T^2 times the slope at T
    torch.testing.assert_close(slope[1], expected[1])
    assert not torch.allclose(slope[0], expected[0])


def test_unlabelled_data_is_trained_on(trained: Any, cli: Any, train: Any, tmp_path: Path) -> None:
    """With --kd-weight 1 no label counts: the same weights with a third of them missing."""
    files = sorted((trained.images / "train").rglob("*.[jp][pn]g"))
    made = []
    for name, missing in (("whole", 0), ("partly", 3)):
        rows = [f"{file},{'' if missing and i % missing == 0 else file.parent.name}" for i, file in enumerate(files)]
        table = tmp_path / f"{name}.csv"
        table.write_text("\n".join(["path,color", *rows]))
        ran = cli("convert", table, tmp_path / name, "--target", "color:class", "--val-fraction", "0")
        assert ran.code == 0, ran.err
        train(name, "--kd-weight", "1", "--val-fraction", "0", "--cache-teacher", "1", data=tmp_path / name)
        made.append(load_file(tmp_path / "runs" / name / "last/model.safetensors"))
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


@pytest.mark.slow
def test_two_ranks_keep_and_read_the_same(two_ranks: Any, trained: Any, fast: tuple[str, ...], tmp_path: Path) -> None:
    flags = ("train", trained.images, *fast, "-o", tmp_path / "runs", "--teacher", trained.run)
    kept = ("--cache-teacher", "1", "--cache-dir", tmp_path / "cache")
    ran = two_ranks((*flags, "--name", "live"), (*flags, *kept, "--name", "kept"))
    assert "24 made now" in ran.out
    one, two = (load_file(tmp_path / "runs" / name / "last/model.safetensors") for name in ("live", "kept"))
    assert all(torch.equal(one[name], two[name]) for name in one)
