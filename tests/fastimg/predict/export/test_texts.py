"""`export` of models that read texts."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from fastimg.train.checkpoints.format import find, load_model, read_card

from ..text_models import save_text_run
from .exports import FORMATS, opened, stated_in


def test_preprocessing_that_cannot_be_exported(trained, text_run, tmp_path, cli):
    ran = cli("export", trained.run, "--format", "safetensors", "--with-preprocessing", "-o", tmp_path)
    assert (ran.code, ran.out) == (2, "") and not list(tmp_path.iterdir())
    assert "--with-preprocessing: --format safetensors holds only weights; leave it out" in ran.err
    ran = cli("export", text_run, "--format", "onnx", "--with-preprocessing", "-o", tmp_path)
    assert (ran.code, ran.out) == (2, "") and not list(tmp_path.iterdir())
    assert "reads texts, and its tokenizer is written next to the file; leave it out" in ran.err


@pytest.fixture(scope="module")
def text_run(tmp_path_factory):
    return save_text_run(tmp_path_factory.mktemp("texts") / "run", num_classes=3)


@pytest.mark.parametrize("kind", FORMATS)
def test_texts(kind, text_run, tmp_path, cli):
    """Token ids and a mask of any size; the tokenizer next to the file; padding changes nothing."""
    texts = ["good film", "the film was not very good", "bad", "a " * 30, "film the bad was a not"]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    out = tmp_path / "out"
    out.mkdir()
    arguments = ("export", text_run, "--format", kind, "-o", out)
    ran = cli(*arguments, "--check", "--check-data", tmp_path, "--json")
    assert (ran.code, ran.err) == (0, "")
    told = json.loads(ran.out)
    assert told["check"]["origin"] == f"texts from {tmp_path}" and told["check"]["samples"] == 5
    assert told["beside"] == [str(out / "tokenizer.json")] and told["preprocessing"]["length"] == 12
    assert sorted(path.name for path in out.iterdir()) == sorted(["tokenizer.json", f"run.{kind}"])
    if kind == "safetensors":
        ran = cli(*arguments, "--check", "--overwrite")
        assert ran.code == 0 and "texts of random letters" in ran.out and "tokenizer.json" in ran.out
        assert load_model(out / "run.safetensors")[1] == read_card(find(text_run))
        return
    stated = json.loads(stated_in(out / f"run.{kind}")["preprocessing"])
    engine = Tokenizer.from_file(str(out / stated["tokenizer"]))
    engine.enable_truncation(stated["length"])
    engine.enable_padding(pad_id=stated["pad"])
    model, run = load_model(text_run)[0], opened(out / f"run.{kind}")
    for chosen in (texts, texts[:1], texts[1:4]):
        encoded = engine.encode_batch(chosen)
        logits = run(*(np.array([getattr(e, name) for e in encoded]) for name in ("ids", "attention_mask")))
        assert logits.shape == (len(chosen), 2)
        for text, row in zip(chosen, logits, strict=True):
            tokens = torch.from_numpy(model.text.tokenizer.tokens(text.encode()))[None]
            assert row.tolist() == pytest.approx(model.module(tokens)[0, :2].tolist(), abs=1e-5)


def test_another_tokenizer_is_not_replaced(text_run, tmp_path, cli):
    (tmp_path / "tokenizer.json").write_text("another's")
    ran = cli("export", text_run, "--format", "safetensors", "-o", tmp_path, "--overwrite")
    assert ran.code == 1 and "tokenizer.json: exists and is not the checkpoint's" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("reads", ["images", "texts"])
def test_data_of_the_other_kind(reads, trained, text_run, tmp_path, cli):
    rows = "".join(f"a film,{label}\n" for label in ("good", "bad") * 4)
    (tmp_path / "set.csv").write_text("text,label\n" + rows)
    assert cli("convert", tmp_path / "set.csv", tmp_path / "texts").code == 0
    run, data = (trained.run, tmp_path / "texts") if reads == "images" else (text_run, trained.shards)
    ran = cli("export", run, "--format", "safetensors", "-o", tmp_path, "--check", "--check-data", data)
    assert ran.code == 1 and f"but the checkpoint reads {reads}" in ran.err
    assert not (tmp_path / "run.safetensors").exists()
    if reads == "texts":
        ran = cli("export", run, "--format", "safetensors", "-o", tmp_path, "--check", "--check-data", trained.images)
        assert ran.code == 1 and "no .txt files" in ran.err
