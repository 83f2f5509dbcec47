"""Text encoders use the same loader: a tiny BERT is trained on texts whose label depends on a word."""

import io
import json
import re
import shutil
import sys
import tarfile

import numpy as np
import pytest
import torch
import transformers
from rich.console import Console
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.embeddings.encoder import Encoder
from fastimg.errors import UserError
from fastimg.loaders import ImageError
from fastimg.loaders.extras import install
from fastimg.models import text_encoder as textmodel
from fastimg.models.blocks import blocks
from fastimg.models.recompute import checkpoint_blocks
from fastimg.models.registry import build
from fastimg.models.text_encoder import TextClassifier
from fastimg.models.tokenizer import Tokenizer as Tokens
from fastimg.train import step as training_step
from fastimg.train.checkpoints import run_directory as rundir

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = "good bad the film was seen by many people who then went home and slept".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder as saved by Hugging Face's library: BERT with two layers, seventeen words and random weights."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    engine = Tokenizer(WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    engine.pre_tokenizer = Whitespace()
    engine.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokens = transformers.PreTrainedTokenizerFast(tokenizer_object=engine, model_max_length=24, **names)
    tokens.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(SPECIAL + WORDS), max_position_embeddings=32, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def text(number, word):
    drawn = np.random.default_rng(number)
    words = drawn.choice(WORDS[2:], drawn.integers(2, 20)).tolist()
    return " ".join([*words[: len(words) // 2], word, *words[len(words) // 2 :]])


def write_texts(folder, splits):
    for split, numbers in splits.items():
        for word in WORDS[:2]:
            (folder / split / word).mkdir(parents=True)
            for number in numbers:
                (folder / split / word / f"{number}.txt").write_text(text(number, word))
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Shards of 80 texts for training and 20 for validation, half of them good. Do not change it."""
    root = tmp_path_factory.mktemp("texts")
    write_texts(root / "folder", {"train": range(40), "val": range(100, 110)})
    convert(Convert(src=root / "folder", dst=root / "shards"), Console(quiet=True))
    return root / "shards"


@pytest.fixture
def train(cli, bert, texts, tmp_path):
    """`train("name", *flags)`: the output of a training. Caches are in `cache`."""

    def run(name, *flags, code=0, data=texts, arch=None):
        own = ("--arch", arch or f"hf:{bert}", "-b", "8", "--epochs", "2", "--lr", "0.01", "-j", "2", "--no-amp")
        where = ("--log-interval", "1", "-o", tmp_path / "runs", "--name", name, "--cache-dir", tmp_path / "cache")
        ran = cli("train", data, *own, *where, *flags)
        assert ran.code == code, ran.out + ran.err
        return ran

    return run


@pytest.fixture
def records(tmp_path):
    def read(name, *kinds):
        found = rundir.read_log(tmp_path / "runs" / name)
        return [
            (r["step"], r["samples"], r["loss"], r["top1"]) for r in found if r["kind"] in (kinds or ("train", "val"))
        ]

    return read


def test_fine_tuning_learns_and_the_checkpoint_is_self_contained(train, records, bert, texts, tmp_path, cli):
    moved = shutil.copytree(bert, tmp_path / "moved")
    ran = train("run", "--epochs", "8", arch=f"hf:{moved}")
    shutil.rmtree(moved)
    losses = [row[2] for row in records("run", "train")]
    assert losses[-1] < 0.2 < 0.6 < losses[0] and records("run", "val")[-1][3] == 1.0
    assert "80 texts, 2 classes" in ran.out and "tokens, up to 24 a text" in ran.out
    run = tmp_path / "runs" / "run"
    assert (run / "last" / "tokenizer.json").is_file()
    told = json.loads(cli("eval", run / "last", texts, "--no-amp", "--json").out)
    assert told["top1"] == 1.0 and told["loss"] == pytest.approx(records("run", "val")[-1][2], rel=1e-4)
    file = tmp_path / "one.txt"
    file.write_text("many people slept and the film was good")
    (answer,) = map(json.loads, cli("predict", run, file, "--json").out.splitlines())
    assert answer["classes"][0] == "good" and answer["probabilities"][0] > 0.9


def test_tokens_are_made_once_and_batched_by_length(train, records, tmp_path, monkeypatch):
    ran = train("one")
    assert "80 texts tokenised, once, in" in ran.out and "20 texts tokenised" in ran.out
    monkeypatch.setattr(Tokens, "tokens", lambda *_: pytest.fail("they are kept"))
    widths, forward_backward = set(), training_step.forward_backward

    def noting(run, batch, *more):
        widths.add(batch.images.shape[1])
        return forward_backward(run, batch, *more)

    monkeypatch.setattr(training_step, "forward_backward", noting)
    assert "tokenised" not in train("two").out
    assert records("one") == records("two") and widths == {8, 16, 24}


def test_a_compiled_encoder_takes_any_length(bert, texts, tmp_path, cli, monkeypatch):
    """Two passes, one of them long, are compiled ahead; batches of other lengths, and validation, compile nothing."""
    compile_module, lengths = torch.nn.Module.compile, set()
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda module, mode, dynamic: compile_module(module, backend="eager", dynamic=dynamic),
    )
    backward = training_step.forward_backward

    def noted(run, batch, *rest):
        lengths.add(batch.images.shape[1])
        backward(run, batch, *rest)

    monkeypatch.setattr(training_step, "forward_backward", noted)
    for words in (3, 12, 20, 28):
        for split, count in (("train", 8), ("val", 2)):
            for number in range(count):
                folder = tmp_path / "texts" / split / ("good", "bad")[number % 2]
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{words}-{number}.txt").write_text(" ".join([("good", "bad")[number % 2]] * words))
    flags = ("--arch", f"hf:{bert}", "-b", "4", "--epochs", "1", "--compile", "--no-amp", "-j", "1")
    ran = cli("train", tmp_path / "texts", *flags, "-o", tmp_path, "--name", "run", "--cache-dir", tmp_path / "cache")
    assert ran.code == 0, ran.err
    assert len(lengths) >= 3
    assert re.findall(r"recompiled (\d+) time", ran.out) == ["0", "0"], ran.out  # ahead, and in the summary


def test_a_maximum_length(train, tmp_path):
    ran = train("run", "--max-length", "6", "--epochs", "1")
    assert "tokens, up to 6 a text, 6 on average" in ran.out and "texts are truncated or exactly that long" in ran.out
    assert train("long", "--max-length", "25", code=2).err.endswith(
        "accepts texts of up to 24 tokens; give that or less\n"
    )
    assert "--max-length 3: give 4 or more" in train("short", "--max-length", "3", code=2).err


@pytest.mark.parametrize("step", [3, 12])
def test_resuming_equals_an_uninterrupted_run(train, records, monkeypatch, tmp_path, step):
    class Killed(BaseException):
        pass

    average = training_step.average_gradients

    def dying(run, *rest):
        if run.progress.step == step:
            raise Killed
        return average(run, *rest)

    train("whole", "--save-interval", "1")
    with monkeypatch.context() as patch:
        patch.setattr(training_step, "average_gradients", dying)
        with pytest.raises(Killed):
            train("halves", "--save-interval", "1")
    assert f"after step {step} of 20" in train("halves", "--save-interval", "1", "--resume", "auto").out
    assert records("whole") == records("halves")
    one, two = (load_file(tmp_path / "runs" / name / "last" / "model.safetensors") for name in ("whole", "halves"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("more", [(), ("--head", "mlp", "--head-hidden", "8")])
def test_a_frozen_encoder_runs_once_and_loses_nothing(train, records, bert, tmp_path, monkeypatch, more):
    """The same losses to 1e-5 as without a cache, and every tensor of the encoder is unchanged."""
    ran = train("cached", "--freeze", "backbone", "--cache-dtype", "fp32", *more)
    assert "16 fp32, each sample once: 100 made now" in ran.out
    train("uncached", "--freeze", "backbone", "--cache-embeddings", "off", *more)
    one, two = records("cached"), records("uncached")
    np.testing.assert_allclose(np.array(one), np.array(two), rtol=1e-5)
    own = load_file(bert / "model.safetensors")
    saved = load_file(tmp_path / "runs" / "cached" / "last" / "model.safetensors")
    encoder = {name.removeprefix("encoder."): value for name, value in saved.items() if name.startswith("encoder.")}
    assert encoder.keys() == {name for name in own if not name.startswith("pooler")}
    assert all(torch.equal(encoder[name], own[name]) for name in encoder)
    monkeypatch.setattr(Encoder, "rows", lambda *_: pytest.fail("a forward pass"))
    train("again", "--freeze", "backbone", "--cache-dtype", "fp32", "--seed", "7", *more)


def test_a_checkpoint_of_a_frozen_encoder_reads_raw_texts(train, records, texts, tmp_path, cli):
    train("run", "--freeze", "backbone", "--epochs", "6")
    told = json.loads(cli("eval", tmp_path / "runs" / "run" / "last", texts, "--no-amp", "--json").out)
    assert told["loss"] == pytest.approx(records("run", "val")[-1][2], abs=2e-3)
    assert told["top1"] == records("run", "val")[-1][3] > 0.6


def test_other_words_or_another_length_make_another_key(train, bert, tmp_path):
    other = shutil.copytree(bert, tmp_path / "other")
    definition = json.loads((other / "tokenizer.json").read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary["slept"], vocabulary["went"] = vocabulary["went"], vocabulary["slept"]
    (other / "tokenizer.json").write_text(json.dumps(definition))
    frozen = ("--freeze", "backbone", "--epochs", "1")
    assert "100 made now" in train("one", *frozen).out
    assert "100 made now" in train("two", *frozen, arch=f"hf:{other}").out
    assert "100 made now" in train("three", *frozen, "--max-length", "16").out
    assert "100 made now" in train("four", *frozen, "--model-kwargs", "pooling=cls").out
    assert "0 made now" in train("five", *frozen).out


def test_a_dry_run_writes_nothing(train, tmp_path):
    for number, flags in enumerate([(), ("--freeze", "backbone")]):
        before = sorted(tmp_path.rglob("*"))
        assert "tokens, up to 24 a text" in train(f"dry{number}", "--dry-run", *flags).out
        assert sorted(tmp_path.rglob("*")) == before


def add(tar, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def test_texts_that_are_none_are_counted_and_named(train, tmp_path, records):
    """In a foreign tar; the same with and without cached embeddings."""
    data = tmp_path / "foreign"
    data.mkdir()
    bad = {3: b"\xff\xfe film", 7: b"  \n", 11: b""}
    with tarfile.open(data / "train-000.tar", "w") as tar:
        for number in range(40):
            add(tar, f"{number:04d}.txt", bad.get(number, text(number, WORDS[number % 2]).encode()))
            add(tar, f"{number:04d}.cls", str(number % 2).encode())
    for name, flags in {"plain": (), "kept": ("--freeze", "backbone"), "again": ("--freeze", "backbone")}.items():
        out = train(name, "--val-fraction", "0", *flags, data=data).out
        assert "3 training texts could not be decoded and were left out:" in out
        assert "0003" in out and "not UTF-8 text (invalid start byte at byte 0)" in out
        assert sum("an empty text" in line for line in out.splitlines()) == 2
        assert records(name)[-1][1] == 37
    assert (
        "not UTF-8"
        in train("fail", "--val-fraction", "0", "--on-error", "fail", "--order", "sequential", data=data, code=1).err
    )


@pytest.fixture
def refused(train):
    """`refused(*flags, **options)`: the one-line error of an invalid run."""

    def run(*flags, code=2, **options):
        ran = train("refused", *flags, code=code, **options)
        assert ran.err.startswith("fastimg: error: ") and ran.err.count("\n") == 1
        return ran.err

    return run


def test_encoders_with_the_wrong_kind_of_data(refused, image_folder):
    assert "reads texts, and" in refused(data=image_folder)
    assert "holds images; give a timm model" in refused(data=image_folder)
    assert "give one of Hugging Face's text encoders, such as --arch hf:FOLDER" in refused(
        "--freeze", "backbone", arch="resnet18"
    )


def test_a_runs_own_file_starts_the_same_run(train, cli, tmp_path):
    train("first")
    ran = cli("train", "--config", tmp_path / "runs" / "first" / "config.yaml", "--dry-run")
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("flags", [("--img-size", "32"), ("--tta",), ("--hflip", "0.5"), ("--mean", "0", "0", "0")])
def test_flags_of_images(refused, flags):
    assert f"{flags[0]} has no effect on texts" in refused(*flags)


def test_flags_without_effect(refused, bert):
    assert "comes with its weights; leave it out" in refused("--pretrained")
    assert "reads images; texts are read by fastimg's own" in refused("--loader", "torch")
    assert "pooling=sum: give mean, cls or last" in refused("--model-kwargs", "pooling=sum")
    words = refused("--max-length", "8", "--freeze", "backbone", arch="resnet18")
    assert "--max-length has no effect without a text encoder" in words
    assert "does not accept them" in refused("--model-kwargs", "nonsense=1")


def test_folders_that_are_not_encoders(refused, bert, tmp_path):
    assert "no such folder; give a model's folder" in refused(code=1, arch=f"hf:{tmp_path / 'nowhere'}")
    (tmp_path / "empty").mkdir()
    assert "cannot be loaded" in refused(code=1, arch=f"hf:{tmp_path / 'empty'}")
    torn = shutil.copytree(bert, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((bert / "model.safetensors").read_bytes()[:500])
    assert "cannot be loaded" in refused(code=1, arch=f"hf:{torn}")


def test_weights_that_are_missing_are_not_drawn(refused, train, bert, tmp_path):
    """Except for those of the pooler, which is not used."""
    part = shutil.copytree(bert, tmp_path / "part")
    tensors = load_file(bert / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if not name.startswith("pooler")}
    save_file(kept, part / "model.safetensors", {"format": "pt"})
    train("run", "--epochs", "1", arch=f"hf:{part}")
    gone = "encoder.layer.0.attention.self.query.weight"
    save_file(
        {name: value for name, value in kept.items() if name != gone}, part / "model.safetensors", {"format": "pt"}
    )
    words = refused(code=1, arch=f"hf:{part}")
    assert f"its weights lack 1 of the encoder's {len(kept)} tensors ({gone}, for example)" in words


def test_a_name_without_a_network_is_a_one_line_error(refused, monkeypatch):
    def unreachable(*_, **__):
        try:
            raise ConnectionError("[Errno -3] Temporary failure in name resolution")
        except ConnectionError as error:
            raise OSError("We couldn't connect to 'https://huggingface.co'\nto load the files") from error

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", unreachable)
    words = refused(code=1, arch="hf:someone/some-model")
    assert "could not be downloaded from Hugging Face's hub ([Errno -3] Temporary failure in name resolution)" in words
    assert "check the name, connect to the network once, or give a folder as hf:PATH" in words


def test_without_transformers_the_extra_is_named(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert install("text") in refused()


def test_pooling():
    states = torch.arange(24.0).reshape(2, 3, 4)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    pooled = {
        kind: TextClassifier(torch.nn.Identity(), 4, 2, kind, 0).pool(states, mask) for kind in ("mean", "cls", "last")
    }
    assert pooled["mean"].tolist() == [[2, 3, 4, 5], [16, 17, 18, 19]]
    assert pooled["cls"].tolist() == [[0, 1, 2, 3], [12, 13, 14, 15]]
    assert pooled["last"].tolist() == [[4, 5, 6, 7], [20, 21, 22, 23]]


def test_padding_changes_nothing_and_a_padding_row_is_finite(bert):
    model = build(f"hf:{bert}", 2, head_init="xavier").module.eval()
    tokens = torch.tensor([[2, 5, 6, 3], [2, 5, 3, -1]], dtype=torch.int32)
    padded = torch.cat([tokens, torch.full((2, 4), -1, dtype=torch.int32)], dim=1)
    padded = torch.cat([padded, torch.full((1, 8), -1, dtype=torch.int32)])
    with torch.inference_mode():
        logits = model(padded)
        assert logits.isfinite().all()
        torch.testing.assert_close(logits[:2], model(tokens))
        torch.testing.assert_close(logits[1:2], model(tokens[1:, :3]))


@pytest.fixture
def sentence(bert, tmp_path):
    """The same model as a sentence-transformers folder: the first token's state, truncated at 20, of length 1."""
    folder = shutil.copytree(bert, tmp_path / "sentence")
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": path}
        for name, path in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    return folder


def test_embeddings_of_texts_have_length_1_if_the_model_normalises(sentence, bert, texts, tmp_path, cli):
    for folder, name in ((sentence, "unit"), (bert, "plain")):
        cache = ("--cache-dir", tmp_path / "cache", "--format", "npy", "--dtype", "fp32", "--json")
        ran = cli("embed", texts, tmp_path / name, "--arch", f"hf:{folder}", "--no-amp", *cache)
        assert ran.code == 0 and json.loads(ran.out)["normalized"] == (name == "unit"), ran.err
    lengths = [np.linalg.norm(np.load(tmp_path / name / "val.npy"), axis=1) for name in ("unit", "plain")]
    assert lengths[0].shape == (20,) and np.abs(lengths[0] - 1).max() < 1e-6 < np.abs(lengths[1] - 1).min()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("modules.json", "[" * 100_000),
        ("modules.json", '{"0": {}}'),
        ("modules.json", "[1]"),
        ("1_Pooling/config.json", "[]"),
        ("sentence_bert_config.json", "7"),
    ],
)
def test_settings_of_sentence_transformers_that_are_none_are_named(file, content, sentence):
    (sentence / file).write_text(content)
    with pytest.raises(UserError, match=rf"--arch hf:.*: cannot be loaded \(its {file} .*\); give the folder"):
        build(f"hf:{sentence}", 2)


def test_pooling_of_sentence_transformers(sentence, bert):
    folder = sentence
    settings = build(f"hf:{folder}", 2).text.settings
    assert (settings["pooling"], settings["length"], settings["normalize"]) == ("cls", 20, True)
    assert build(f"hf:{folder}", 2, max_length=24).text.tokenizer.length == 24
    assert build(f"hf:{bert}", 2).text.settings["pooling"] == "mean"


def test_tokens_of_texts(bert):
    tokenizer = build(f"hf:{bert}", 2, max_length=6).text.tokenizer
    assert tokenizer.tokens(b"the film was").tolist() == [2, 6, 7, 8, 3]
    assert tokenizer.tokens(memoryview(b"the film was seen by many")).tolist() == [2, 6, 7, 8, 9, 3]
    for data, reason in ((b"a\xff", "not UTF-8 text"), (b" \n\t", "an empty text"), (b"", "an empty text")):
        with pytest.raises(ImageError, match=reason):
            tokenizer.tokens(data)
    definition = json.loads(tokenizer.definition)
    definition |= {"normalizer": {"type": "Replace", "pattern": {"String": "."}, "content": ""}, "post_processor": None}
    with pytest.raises(ImageError, match="a text without tokens"):
        Tokens(json.dumps(definition), 6).tokens(b"...")


def test_a_checkpoint_without_its_tokenizer(train, tmp_path, texts, cli):
    train("run", "--epochs", "1")
    (tmp_path / "runs" / "run" / "last" / "tokenizer.json").unlink()
    ran = cli("eval", tmp_path / "runs" / "run" / "last", texts)
    assert ran.code == 1 and "tokenizer.json: the checkpoint's tokenizer cannot be read" in ran.err


def test_names_that_are_folders(tmp_path):
    assert (
        textmodel.short_name("hf:/a/b/MiniLM") == "MiniLM" and textmodel.short_name("torchvision/x") == "torchvision-x"
    )
    with pytest.raises(UserError, match="no such folder"):
        textmodel.load_encoder("hf:./x", {}, None)


@pytest.mark.parametrize("kind", ["bert", "mpnet", "distilbert", "t5"])
def test_layers_of_an_encoder_are_its_blocks(kind):
    """Freezing, layer-wise learning rates, sharding and recomputation work on a transformer's layers."""
    sizes = {
        "bert": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16},
        "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16},
        "t5": {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 16, "d_kv": 8},
    }
    sizes["mpnet"] = sizes["bert"]
    values = transformers.AutoConfig.for_model(kind, vocab_size=9, **sizes[kind]).to_dict()
    model = TextClassifier(textmodel.empty_encoder({"config": values}), 16, 2, "mean", 0)
    stem, first, second, head = blocks(model)
    layers = [first.module, second.module]
    assert layers == model.transformer_layers()
    assert {"Layer", "Block"} & {type(layer).__name__[-5:] for layer in layers}
    assert any("embed" in name or "shared" in name for name in stem.parameters)
    assert head.parameters[-1] == "classifier.bias"
    assert sum(len(block.parameters) for block in (stem, first, second, head)) == len(list(model.parameters()))
    assert checkpoint_blocks(model) == 2


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_causal_encoders_keep_no_keys_and_values(kind):
    sizes = {
        "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
        "qwen2": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2},
    }
    values = transformers.AutoConfig.for_model(kind, vocab_size=9, bos_token_id=1, eos_token_id=2, **sizes[kind])
    assert values.use_cache
    encoder = textmodel.empty_encoder({"config": values.to_dict()}).eval()
    given = {"input_ids": torch.tensor([[4, 5, 6, 7], [3, 8, 0, 0]])}
    given["attention_mask"] = (given["input_ids"] > 0).long()
    made = encoder(**given)
    assert made.past_key_values is None
    kept = encoder(**given, use_cache=True)
    assert kept.past_key_values is not None and torch.equal(made.last_hidden_state, kept.last_hidden_state)


@pytest.mark.slow
def test_two_ranks_fine_tune_like_one_process(train, records, bert, texts, tmp_path, cli, two_ranks):
    """Every parameter gets a gradient, as DDP requires. FSDP leaves an ordinary checkpoint."""
    flags = ["train", texts, "--arch", f"hf:{bert}", "-b", "4", "--epochs", "2", "--lr", "0.01", "-j", "1", "--no-amp"]
    where = ["--log-interval", "1", "-o", tmp_path / "runs", "--cache-dir", tmp_path / "ranks"]
    still = ["--model-kwargs", "hidden_dropout_prob=0.0", "attention_probs_dropout_prob=0.0"]
    strategies = ("ddp", "fsdp")
    two_ranks(*([*flags, *where, "--name", name, "--strategy", name, *still] for name in strategies))
    train("one", *still)
    for name in strategies:
        np.testing.assert_allclose(np.array(records(name)), np.array(records("one")), rtol=1e-3, atol=1e-5)
        assert (tmp_path / "runs" / name / "last/sharded").is_dir() == (name == "fsdp")
        evaluated = cli("eval", tmp_path / "runs" / name, texts, "--json")  # the best
        assert json.loads(evaluated.out)["top1"] == pytest.approx(max(top1 for *_, top1 in records(name, "val")))
