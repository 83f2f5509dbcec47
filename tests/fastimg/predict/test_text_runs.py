"""A checkpoint that reads texts needs no --arch and no folder: eval, predict and embed get everything from it."""

import json

import numpy as np
import pytest
import torch

from fastimg.train.checkpoints.format import load_model

from .text_models import save_text_run

TEXTS = ("good film", "the film was bad", "a very good film", "not a good film")
LABELS = ("good", "bad", "good", "bad")


@pytest.fixture
def run(tmp_path):
    return save_text_run(tmp_path / "run", num_classes=2)


@pytest.fixture
def shards(tmp_path, cli):
    lines = "".join(f"{text},{label}\n" for text, label in zip(TEXTS, LABELS, strict=True))
    (tmp_path / "set.csv").write_text("text,label\n" + lines)
    ran = cli("convert", tmp_path / "set.csv", tmp_path / "shards", "--no-shuffle")
    assert ran.code == 0, ran.err
    return tmp_path / "shards"


@pytest.fixture
def expected(run):
    """Probabilities [N, 2] and embeddings [N, 16] of TEXTS, computed one by one."""
    model = load_model(run)[0]
    tokens = [torch.from_numpy(model.text.tokenizer.tokens(text.encode()))[None] for text in TEXTS]
    inputs = []
    handle = model.module.classifier.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.inference_mode():
        shares = torch.cat([model.module.eval()(row).softmax(1) for row in tokens])
    handle.remove()
    return shares.numpy(), torch.cat(inputs).numpy()


def test_eval_and_predict(run, shards, expected, cli):
    shares, _ = expected
    ran = cli("eval", run, shards, "--split", "train", "--no-amp", "--json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    truth = [("bad", "good").index(label) for label in LABELS]
    assert result["images"] == 4 and result["top1"] == pytest.approx((shares.argmax(1) == truth).mean())
    ran = cli("predict", run, "--text", *TEXTS, "--no-amp", "--json")
    assert ran.code == 0, ran.err
    apart = cli("predict", run, "--text", TEXTS[0], "--json", "--text", *TEXTS[1:3], "--no-amp", f"--text={TEXTS[3]}")
    assert apart == ran  # all given texts, wherever they are
    for line, row in zip(ran.out.splitlines(), shares, strict=True):
        answer = json.loads(line)
        assert answer["classes"][0] == ("bad", "good")[row.argmax()]
        assert answer["probabilities"] == pytest.approx(sorted(row, reverse=True), abs=1e-5)


def test_embed(run, shards, expected, tmp_path, cli):
    flags = ("--weights", run, "--no-amp", "--dtype", "fp32", "--format", "npy", "--cache-dir", tmp_path / "cache")
    ran = cli("embed", shards, tmp_path / "out", *flags)
    assert ran.code == 0, ran.err
    assert "states --arch hf:tiny" in ran.err
    rows = {}
    for split in ("train", "val"):
        if (tmp_path / "out" / f"{split}.npy").exists():
            keys = json.loads((tmp_path / "out" / f"{split}.keys.json").read_text())
            rows |= dict(zip(keys, np.load(tmp_path / "out" / f"{split}.npy"), strict=True))
    assert np.stack([rows[key] for key in sorted(rows)]) == pytest.approx(expected[1], abs=1e-5)
    ran = cli("embed", shards, tmp_path / "other", *flags, "--arch", "resnet18")
    assert ran.code == 2 and "does not read texts" in ran.err
