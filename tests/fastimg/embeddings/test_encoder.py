"""A frozen encoder runs once: what is cached, when the cache is valid, and when embeddings are computed again."""

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fastimg.embeddings import cache as cached
from fastimg.embeddings import encoder as embedding
from fastimg.embeddings.encoder import Encoder, backbone_digest, why_not
from fastimg.errors import UserError
from fastimg.loaders import open_dataset
from fastimg.loaders.containers.arrays import npy_array
from fastimg.models.freezing import freeze
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks, agree_on_buffers
from fastimg.models.registry import Model, build
from fastimg.predict import inference
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints.format import load_model

FLOAT32 = Precision("cpu", None, "")


@pytest.fixture
def shards(trained, tmp_path):
    """24 images to train on, 12 to validate."""
    return shutil.copytree(trained.shards, tmp_path / "shards")


@pytest.fixture
def train(cli, fast, shards, trained, tmp_path):
    """`train("name", *flags)`: the output of a frozen run on the trunk of the trained run."""

    def run(name, *flags, code=0, data=shards):
        frozen = ("--freeze", "backbone", "--weights", trained.run, "--log-interval", "1")
        ran = cli("train", data, *fast, "--epochs", "3", *frozen, "-o", tmp_path / "runs", "--name", name, *flags)
        assert ran.code == code, ran.out + ran.err
        return ran

    return run


@pytest.fixture
def losses(tmp_path):
    """`losses("name")`: (kind, step, samples, loss, top1) of every record with a loss."""

    def read(name):
        records = rundir.read_log(tmp_path / "runs" / name)
        return [(r["kind"], r["step"], r["samples"], r["loss"], r["top1"]) for r in records if "loss" in r]

    return read


@pytest.fixture
def weights(tmp_path):
    return lambda name: load_file(tmp_path / "runs" / name / "last" / "model.safetensors")


@pytest.fixture
def no_forward(monkeypatch):
    """Fail if anything is encoded."""
    return lambda: monkeypatch.setattr(Encoder, "rows", lambda *_: pytest.fail("a forward pass"))


def assert_close(one, two, rtol):
    assert [row[:3] for row in one] == [row[:3] for row in two] and len(one) > 5
    np.testing.assert_allclose([row[3] for row in one], [row[3] for row in two], rtol=rtol)
    assert [row[4] for row in one] == [row[4] for row in two]


@pytest.mark.parametrize("more", [(), ("--head", "mlp", "--head-hidden", "16"), ("--evaluate-training-set",)])
def test_cached_and_uncached_training_have_the_same_losses(train, losses, weights, more):
    """To 1e-5, since samples are encoded in different batches."""
    train("cached", "--cache-dtype", "fp32", *more)
    train("uncached", "--cache-embeddings", "off", *more)
    assert_close(losses("cached"), losses("uncached"), 1e-5)
    one, two = weights("cached"), weights("uncached")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_of_two_processes_at_once_only_one_encodes(train, fast, shards, trained, tmp_path, python):
    """They meet at the lock, which this process holds until both wait for it."""
    train("before", "--epochs", "1")
    (lock,) = shards.glob(".fastimg/embeddings/*/.lock")
    for file in [*lock.parent.glob("0*"), lock.parent / "shards.jsonl"]:
        file.unlink()
    frozen = ("--epochs", "1", "--freeze", "backbone", "--weights", trained.run, "-o", tmp_path / "runs")
    runs = []
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for name in ("a", "b"):
            command = [python, "-m", "fastimg", "train", shards, *fast, *frozen, "--name", name]
            runs.append(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True))
        for run in runs:
            assert any("waiting for it" in line for line in iter(run.stdout.readline, ""))
    said = "".join(run.communicate()[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    made = [json.loads(line)["samples"] for line in (lock.parent / "shards.jsonl").read_text().splitlines()]
    assert sum(made) == 36
    assert said.count("12 images with test_resnet, once") == said.count("24 images with test_resnet, once") == 1


def test_every_tensor_of_the_backbone_keeps_its_bits(train, weights, trained):
    loaded = load_file(trained.run / "best" / "model.safetensors")
    for name, flags in {"cached": (), "uncached": ("--cache-embeddings", "off"), "ema": ("--model-ema",)}.items():
        train(name, "--lr", "0.1", *flags)
        after = weights(name)
        moved = {tensor for tensor in loaded if not torch.equal(loaded[tensor], after[tensor])}
        assert moved == {"fc.weight", "fc.bias"}
        assert any("running_mean" in tensor for tensor in after)


def test_the_checkpoint_on_images_equals_the_head_on_cached_embeddings(train, shards, tmp_path, cli):
    """Up to fp16 rounding; and `eval` reports the validation results of training."""
    train("run", "--lr", "0.01")
    run = tmp_path / "runs" / "run"
    precision = FLOAT32
    engine = inference.load(run / "last", torch.device("cpu"), precision)
    dataset = open_dataset(shards, "val")
    logits, hook = [], engine.model.module.register_forward_hook(lambda _, __, out: logits.append(out))
    loader = engine.loader(dataset, 8, 1, None, None)
    embeddings = []
    with embedding.captured(engine.model) as found:
        for _ in engine.answers(loader):
            embeddings.append(found[-1].clone())
    loader.close()
    hook.remove()
    head = engine.model.module.get_submodule(engine.model.classifier[0])
    with torch.inference_mode():
        kept = head(torch.cat(embeddings)[:12].half().float())
    assert (kept - torch.cat(logits)[:12]).abs().max() < 2e-3 * torch.cat(logits).abs().max()
    (stored,) = {tuple(p.parent.glob("*.tar")) for p in shards.rglob("shards.jsonl")}
    arrays = {name: value for tar in stored for name, value in _members(tar)}
    own = {value.tobytes() for value in torch.cat(embeddings)[:12].half().numpy()}
    assert len(own & {value.tobytes() for value in arrays.values()}) >= 6  # other batches differ in the last bit
    told = json.loads(cli("eval", run / "last", shards, "--no-amp", "--json").out)
    last = [r for r in rundir.read_log(run) if r["kind"] == "val"][-1]
    assert told["top1"] == last["top1"] and told["loss"] == pytest.approx(last["loss"], abs=2e-3)


def _members(tar):
    import tarfile

    with tarfile.open(tar) as file:
        for member in file:
            yield member.name, npy_array(file.extractfile(member).read())


def test_a_second_run_encodes_nothing(train, no_forward, losses):
    assert "36 made now, kept in" in train("one").out
    no_forward()
    assert "0 made now, kept in" in train("two").out
    assert losses("one") == losses("two")


@pytest.mark.parametrize(
    "flags",
    [("--img-size", "48"), ("--cache-dtype", "fp32"), ("--interpolation", "bicubic"), ("--mean", "0", "0", "0")],
)
def test_another_option_makes_another_key(train, encoded, flags):
    train("one")
    train("two", *flags)
    train("three", *flags, "--seed", "3", "--head", "mlp", "--lr", "0.5", "-b", "4", "-j", "2")  # irrelevant
    assert encoded == [24, 12, 24, 12]


def test_other_weights_make_another_key(train, encoded, trained, tmp_path):
    tensors = load_file(trained.run / "best" / "model.safetensors")
    tensors["bn1.running_mean"][0] += 1e-6
    torch.save({"state_dict": tensors}, tmp_path / "other.pt")
    train("one")
    train("two", "--weights", tmp_path / "other.pt")
    assert encoded == [24, 12, 24, 12]


def test_a_changed_image_is_encoded_again(train, encoded, trained, tmp_path):
    data = shutil.copytree(trained.images, tmp_path / "images")
    train("one", data=data)
    image = data / "train" / "red" / "3.png"
    image.write_bytes(image.read_bytes() + b"\0")
    train("two", data=data)
    assert encoded == [24, 12, 1]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def test_after_an_append_only_new_images_are_encoded(train, encoded, trained, shards, tmp_path, cli, encode):
    train("one")
    for name in ("blue", "green", "red"):
        for split in ("train", "val"):
            folder = tmp_path / "more" / split / name
            folder.mkdir(parents=True)
            (folder / "new.jpg").write_bytes(encode((9, 200, 90), seed=10 * len(name) + len(split)))
    ran = cli("convert", tmp_path / "more", shards, "--append")
    assert ran.code == 0, ran.err
    assert "6 made now" in train("two").out
    assert encoded == [24, 12, 3, 3]


def test_augmentation_disables_it_and_the_output_says_why(train, shards):
    ran = train("run", "--hflip", "0.5")
    assert "in every epoch: augmentation is on; --cache-embeddings K caches K augmented views" in ran.out
    assert not list(shards.rglob("shards.jsonl"))


def test_k_views_are_the_first_k_epochs_in_turn(train, losses, encoded, monkeypatch):
    """Equal to uncached training with the same crops and flips; epoch 2 uses the views of epoch 0."""
    seen, begin = [], cached.Views.set_epoch
    monkeypatch.setattr(cached.Views, "set_epoch", lambda self, epoch: seen.append(epoch) or begin(self, epoch))
    flags = ("--hflip", "0.5", "--scale", "0.3", "1", "--lr", "1e-12", "--sched", "constant", "--warmup", "0ep")
    ran = train("cached", *flags, "--cache-embeddings", "2", "--cache-dtype", "fp32", "--order", "sequential")
    assert "2 augmented views of each: 60 made now" in ran.out and encoded == [24, 24, 12] and seen[-3:] == [0, 1, 2]
    train("uncached", *flags, "--cache-embeddings", "off", "--order", "sequential")
    one, two = losses("cached"), losses("uncached")
    assert_close([row for row in one if row[1] <= 6], [row for row in two if row[1] <= 6], 1e-5)
    steps = {epoch: [row[3] for row in one if row[0] == "train"][3 * epoch : 3 * epoch + 3] for epoch in range(3)}
    assert steps[0] == pytest.approx(steps[2], rel=1e-5) and steps[0] != pytest.approx(steps[1], rel=1e-4)
    train("again", *flags, "--cache-embeddings", "3")  # in fp16: different embeddings
    assert encoded[3:] == [24, 24, 24, 12]
    train("more", *flags, "--cache-embeddings", "4", "--seed", "0")
    assert encoded[7:] == [24]


def test_views_equal_uncached_training_when_weights_move(train, losses):
    flags = ("--hflip", "0.5", "--aa", "trivial", "--reprob", "0.5", "--epochs", "2")
    train("cached", *flags, "--cache-embeddings", "2", "--cache-dtype", "fp32")
    train("uncached", *flags, "--cache-embeddings", "off")
    assert_close(losses("cached"), losses("uncached"), 1e-5)


def test_views_depend_on_dct_scaling(train, encoded):
    train("one", "--hflip", "0.5", "--cache-embeddings", "1")
    train("two", "--hflip", "0.5", "--cache-embeddings", "1", "--dct-scaling", "off")
    assert encoded == [24, 12, 24]


@pytest.fixture
def spoiled(trained, tmp_path):
    """A folder of images, two of which cannot be decoded."""
    data = shutil.copytree(trained.images, tmp_path / "spoiled")
    for name in ("train/red/2.jpg", "val/blue/1.png"):
        (data / name).write_bytes((data / name).read_bytes()[:60])
    (data / "train/blue/4.jpg").unlink()
    (data / "train/blue/4.jpg").symlink_to("nowhere")
    return data


def test_unreadable_images_are_reported_as_without_a_cache(train, losses, spoiled, tmp_path):
    said = {}
    for name, flags in {"off": ("--cache-embeddings", "off"), "first": (), "second": ()}.items():
        lines = train(name, "--cache-dtype", "fp32", *flags, data=spoiled).out if flags == () else None
        lines = lines or train(name, *flags, data=spoiled).out
        said[name] = [line for line in lines.splitlines() if "left out" in line or line.startswith("  /")]
    assert len(said["off"]) == 5 and said["off"][0].startswith("2 training images could not be decoded")
    assert sorted(said["off"]) == sorted(said["first"]) == sorted(said["second"])
    assert_close(losses("off"), losses("first"), 1e-5)
    assert losses("first") == losses("second")
    ran = train("fails", "--on-error", "fail", "--cache-dtype", "fp32", data=spoiled, code=1)
    assert "repair or remove it" in ran.err


def test_a_dry_run_writes_nothing(train, shards, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    ran = train("dry", "--dry-run")
    assert "computed once by the frozen encoder (not in a dry run)" in ran.out
    assert sorted(tmp_path.rglob("*")) == before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("flags", [(), ("--hflip", "0.5", "--cache-embeddings", "2"), ("--head", "mlp", "--model-ema")])
def test_resuming_within_an_epoch_equals_an_uninterrupted_run(train, losses, weights, monkeypatch, flags, tmp_path):
    from fastimg.train import step as module

    train("whole", *flags, "--save-interval", "1")
    average = module.average_gradients

    def dying(run, *rest):
        if run.progress.step == 4:  # the second step of the second epoch
            raise Killed
        return average(run, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(module, "average_gradients", dying)
        with pytest.raises(Killed):
            train("halves", *flags, "--save-interval", "1")
    moved = tmp_path / "elsewhere"
    ran = train("halves", *flags, "--save-interval", "1", "--resume", "auto", "--cache-dir", moved)
    assert "after step 4 of 9" in ran.out and moved.is_dir()
    assert losses("whole") == losses("halves")
    one, two = weights("whole"), weights("halves")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_config_of_a_run_runs_again(train, losses, cli, tmp_path):
    train("one", "--hflip", "0.5", "--cache-embeddings", "2", "--head", "mlp", "--ghost-bn", "4")
    config = tmp_path / "runs" / "one" / "config.yaml"
    ran = cli("train", "--config", config, "--name", "two")
    assert ran.code == 0, ran.err
    assert losses("one") == losses("two")


def test_ghost_batch_norm_in_the_head(train, losses, weights):
    """Statistics over four samples: different from eight, and the same as without a cache."""
    mlp = ("--head", "mlp", "--head-hidden", "8", "--cache-dtype", "fp32")
    train("whole", *mlp)
    train("ghost", *mlp, "--ghost-bn", "4")
    train("uncached", *mlp[:4], "--cache-embeddings", "off", "--ghost-bn", "4")
    assert losses("whole") != losses("ghost")
    assert_close(losses("ghost"), losses("uncached"), 1e-5)
    assert any("running_var" in name and name.startswith("fc.") for name in weights("ghost"))


def test_the_batch_size_search(train):
    ran = train("run", "-b", "auto")
    assert "36 made now" in ran.out and "chosen:" in ran.out


REFUSED = {
    "fsdp": (("--strategy", "fsdp"), "run torchrun --nproc-per-node N"),
    "mixup": (("--mixup", "0.2", "--cache-embeddings", "2"), "mixed images have no embeddings of their own"),
    "tta": (("--tta",), "--cache-embeddings 1: --tta also evaluates mirror images"),
    "dropout": (("--model-kwargs", "drop_rate=0.5"), "has dropout before its classifier"),
    "views": (("--cache-embeddings", "3"), "without augmentation all views are the same"),
    "none": (("--cache-embeddings", "0"), "a number of views, 1 or more, or off"),
    "progressive": (("--hflip", "0.5", "--progressive", "32:48"), "--progressive changes the images"),
    "off": (("--cache-embeddings", "off", "--cache-dtype", "fp32"), "--cache-dtype has no effect with"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_uncacheable_settings_are_refused(train, name):
    flags, words = REFUSED[name]
    asked = () if "--cache-embeddings" in flags else ("--cache-embeddings", "1")
    if name == "progressive":
        flags = (*flags, "--epochs", "8")
    assert words in train("run", *asked, *flags, code=2).err


def test_synthetic_pixels_are_refused(cli, shards):
    flags = ("--arch", "test_resnet", "--img-size", "32", "--freeze", "backbone", "--loader", "synthetic")
    ran = cli("train", shards, *flags, "--cache-embeddings")
    assert ran.code == 2 and "--cache-embeddings 1: --loader synthetic makes up its pixels" in ran.err


def test_kornia_is_refused(train, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("kornia: [{RandomInvert: {p: 0.3}}]")
    assert (
        "Kornia's augmentation depends on the whole batch"
        in train("run", "--config", file, "--cache-embeddings", "1", code=2).err
    )


def test_by_default_it_is_off_with_a_reason(train):
    ran = train("tta", "--tta")
    assert "not cached, the encoder runs in every epoch: --tta also evaluates mirror images" in ran.out
    assert "has dropout before its classifier" in train("dropout", "--model-kwargs", "drop_rate=0.5").out


@pytest.mark.parametrize("flags", [(), ("--freeze", "1"), ("--freeze", "backbone", "--freeze-epochs", "1")])
def test_flags_without_a_frozen_backbone(cli, fast, shards, flags):
    for more in (("--cache-embeddings",), ("--cache-dtype", "fp32"), ("--cache-dir", "x")):
        ran = cli("train", shards, *fast, *flags, *more)
        assert ran.code == 2 and f"{more[0]} has no effect without --freeze backbone" in ran.err


class Toy(nn.Module):
    """A backbone without biases, which maps a blank image to zeros, and a head that begins at zero."""

    def __init__(self, drop=0.0, scale=1.0, calls=1):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.drop, self.scale, self.calls = nn.Dropout(drop), scale, calls
        self.fc = nn.Linear(4, 2)
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, images):
        features = self.drop(self.conv(images).mean((2, 3)))
        return sum(self.fc(features) for _ in range(self.calls)) * self.scale


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"drop": 0.5}, "has dropout before its classifier"),
        ({"scale": 2.0}, "has further layers after its classifier"),
        ({"calls": 2}, "has further layers after its classifier"),
    ],
)
def test_zero_features_do_not_hide_problems(options, words):
    model = Model(Toy(**options), "toy", {}, ("fc",), None, True)
    freeze(model, "backbone")
    state = torch.get_rng_state()
    reason = why_not(model, torch.zeros(1, 3, 8, 8))
    assert reason.endswith(words) and bool(reason) == bool(words)
    assert torch.equal(torch.get_rng_state(), state) and model.module.training
    assert model.module(torch.zeros(1, 3, 8, 8)).abs().sum() == 0  # nothing is left behind


def test_real_models(monkeypatch):
    """Not cacheable: a convolution before pooling as the classifier, or two classifiers. Cacheable: one classifier."""
    for arch, words in {
        "torchvision/squeezenet1_1": "has further layers after its classifier",
        "torchvision/mobilenet_v3_small": "has dropout before its classifier",
        "torchvision/shufflenet_v2_x0_5": "",
        "test_vit": "",
    }.items():
        model = build(arch, 3)
        freeze(model, "backbone")
        reason = why_not(model, model.example(model.preprocessing.val_size))
        assert reason.endswith(words) and bool(reason) == bool(words), (arch, reason)
    assert (
        why_not(Model(Toy(), "toy", {}, ("fc", "conv"), None, True), torch.zeros(1, 3, 8, 8)) == "toy has 2 classifiers"
    )


def test_the_digest_of_a_backbone():
    one, two = (build("test_resnet", 3) for _ in range(2))
    two.module.load_state_dict(one.module.state_dict())
    with torch.no_grad():
        two.module.fc.weight += 1
    assert backbone_digest(one) == backbone_digest(two)
    two.module.bn1.num_batches_tracked += 1
    assert backbone_digest(one) != backbone_digest(two)


def test_overflow_of_fp16_ends_the_run(shards, trained):
    model, _ = load_model(trained.run)
    engine = inference.load(trained.run, torch.device("cpu"), FLOAT32)
    dataset = open_dataset(shards, "val")
    loader = engine.loader(dataset, 8, 1, None, None)
    feed = lambda batch: torch.full_like(batch.inputs, 1, dtype=torch.float32) * 1e6  # noqa: E731
    try:
        with pytest.raises(UserError, match="its embedding overflows float16; use --cache-dtype fp32"):
            list(Encoder(model, FLOAT32.autocast, feed, "float16").rows(loader, 12, lambda _: None))
    finally:
        loader.close()


class Three(Ranks):
    """One of three ranks with equal values."""

    def sum(self, tensor):
        return tensor.mul_(3)


def test_buffers_of_frozen_modules_are_not_averaged():
    """The mean of three equal numbers may differ from the number."""
    ranks = Three(0, 3, 3, torch.device("cpu"), "gloo")
    frozen, learning = nn.BatchNorm1d(1000), nn.BatchNorm1d(1000)
    values = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 0.7
    assert not torch.equal((values * 3) / 3, values)
    for norm in (frozen, learning):
        norm.running_mean = values.clone()
    frozen.requires_grad_(False)
    agree_on_buffers(nn.Sequential(frozen, nn.ModuleList([learning])), ranks)
    assert torch.equal(frozen.running_mean, values) and not torch.equal(learning.running_mean, values)
    agree_on_buffers(frozen.requires_grad_(True), ranks)
    assert not torch.equal(frozen.running_mean, values)


@pytest.mark.slow
def test_two_ranks_on_cached_embeddings(shards, trained, train, losses, tmp_path, fast, two_ranks):
    """Each rank makes its shards, and together they train like one process."""
    frozen = ["--freeze", "backbone", "--weights", trained.run, "--log-interval", "1"]
    more = ["--epochs", "3", "-b", "4", "--cache-dtype", "fp32", "--cache-dir", tmp_path / "ranks"]
    flags = ["train", shards, *fast, *frozen, *more, "-o", tmp_path / "runs", "--name", "two"]
    assert two_ranks(flags).out.count("36 made now") == 1
    train("one", "--cache-dtype", "fp32")
    assert_close(losses("one"), losses("two"), 2e-5)
    before = {path.name: path.read_bytes() for path in Path(tmp_path / "ranks").rglob("*.tar")}
    train("again", "--cache-dtype", "fp32", "--cache-dir", tmp_path / "ranks")
    assert {path.name: path.read_bytes() for path in Path(tmp_path / "ranks").rglob("*.tar")} == before
