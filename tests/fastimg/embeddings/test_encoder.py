"""The frozen encoder: its embeddings, models that allow caching them, the digest of its weights, and its buffers."""

import json

import pytest
import torch
from torch import nn

from fastimg.embeddings import encoder as embedding
from fastimg.embeddings.encoder import Encoder, backbone_digest, why_not
from fastimg.errors import UserError
from fastimg.loaders import open_dataset
from fastimg.loaders.containers.npy import npy_array
from fastimg.models.freezing import freeze
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks, agree_on_buffers
from fastimg.models.registry import Model, build
from fastimg.predict import inference
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints.format import load_model

pytestmark = pytest.mark.usefixtures("own_cache")

FLOAT32 = Precision("cpu", None, "")


def test_the_checkpoint_on_images_equals_the_head_on_cached_embeddings(train, shards, tmp_path, cli):
    """Up to fp16 rounding; and `eval` reports the validation results of training."""
    train("run", "--lr", "0.01")
    run = tmp_path / "runs" / "run"
    engine = inference.load(run / "last", torch.device("cpu"), amp=False)
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
    engine = inference.load(trained.run, torch.device("cpu"), amp=False)
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
