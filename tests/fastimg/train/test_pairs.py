"""Images and texts together: what neither tells alone is learned from both, wherever either is missing, and kept."""

import csv
import io
import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import fastimg
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError
from fastimg.models.networks.pairs import COMBINERS, PairClassifier
from fastimg.models.registry import build
from fastimg.search.staged import rungs
from fastimg.search.staged.stages import search_by_stages
from fastimg.search.staged.trials import StagedSearch
from fastimg.train import opening
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.choices.weights_at_hand import KeptWeights

WORDS = ["[PAD]", "[UNK]", "good", "bad", "a", "film", "that", "was", "seen"]
COLOURS = {"red": (190, 50, 50), "blue": (50, 50, 190)}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder as Hugging Face's library saves one: BERT of one layer, nine words, weights drawn."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    engine = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    engine.pre_tokenizer = Whitespace()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=engine, model_max_length=16, **names).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def posts(tmp_path_factory):
    """Shards of 48 pairs to train on and 16 to validate: good red and bad blue ones are `yes`, the others `no`.

    Four more of each split lack their image, and four their text: those are `no`. Not to be changed.
    """
    from tests.conftest import encoded_image

    root = tmp_path_factory.mktemp("posts")
    drawn = np.random.default_rng(0)
    rows = [("image", "caption", "label", "split")]
    for split, count in (("train", 48), ("val", 16)):
        for number in range(count):
            (colour, rgb), word = list(COLOURS.items())[number % 2], ("good", "bad")[number // 2 % 2]
            (root / f"{split}{number}.jpg").write_bytes(encoded_image(rgb, (40, 40), number))
            text = " ".join(drawn.permutation([*drawn.choice(WORDS[4:], drawn.integers(1, 6)), word]))
            rows.append((f"{split}{number}.jpg", text, "yes" if (colour == "red") == (word == "good") else "no", split))
        rows += [("", f"{word} film", "no", split) for word in ("good", "bad") for _ in range(2)]
        rows += [(f"{split}{number}.jpg", "", "no", split) for number in range(4)]
    with (root / "posts.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    convert(Convert(src=root / "posts.csv", dst=root / "shards", text_column="caption"), Console(file=io.StringIO()))
    return root / "shards"


@pytest.fixture(scope="module")
def several(posts, tmp_path_factory):
    """The posts with a mood, topics and a number of words, each missing for some: as pairs, and as texts alone."""
    root = tmp_path_factory.mktemp("several")
    with (posts.parent / "posts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for place, row in enumerate(rows):
        words = row["caption"].split()
        row["image"] = row["image"] and str(posts.parent / row["image"])
        row["mood"] = "" if place % 5 == 0 else row["label"]
        row["topics"] = "" if place % 7 == 0 else json.dumps([word for word in ("film", "seen") if word in words])
        row["length"] = "" if place % 6 == 0 else len(words) / 2
    targets = ("mood", "topics:multilabel", "length:number")
    for name, left_out in (("pairs", ("label",)), ("texts", ("label", "image"))):
        written = [row for row in rows if "image" not in left_out or row["caption"]]
        with (root / f"{name}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, [key for key in rows[0] if key not in left_out], extrasaction="ignore")
            table.writeheader()
            table.writerows(written)
        command = Convert(src=root / f"{name}.csv", dst=root / name, text_column="caption", target=targets)
        convert(command, Console(file=io.StringIO()))
    return root


@pytest.fixture
def train(cli, bert, posts, tmp_path):
    """`train("name", *flags)`: what a training said. What is kept is kept in `cache`."""

    resnet = ("--arch", "test_resnet", "--img-size", "32")

    def run(name, *flags, code=0, data=posts, image=resnet, text=("--text-arch", f"hf:{bert}")):
        own = (*image, "-b", "14", "--epochs", "2", "--lr", "0.01", "-j", "1")
        where = ("--log-interval", "1", "-o", tmp_path / "runs", "--name", name)
        where += ("--cache-dir", tmp_path / "cache") if text or "backbone" in flags else ()
        ran = cli("train", data, *own, *text, "--no-amp", "--smoothing", "0", *where, *flags)
        assert ran.code == code, ran.out + ran.err
        return ran

    return run


@pytest.fixture
def weights(tmp_path):
    return lambda name: load_file(tmp_path / "runs" / name / "last/model.safetensors")


@pytest.fixture
def accuracy(tmp_path):
    """Top-1 of the last validation of a run."""
    return lambda name: [r["top1"] for r in rundir.read_log(tmp_path / "runs" / name) if r["kind"] == "val"][-1]


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("frozen", [(), ("--freeze", "image"), ("--freeze", "backbone")])
def test_a_sampler_draws_pairs(train, monkeypatch, frozen):
    samplings = []

    class Recorded(opening.PairedLoader):
        def __init__(self, images, texts, device):
            samplings.append(images.config.sampling)
            super().__init__(images, texts, device)

    monkeypatch.setattr(opening, "PairedLoader", Recorded)
    train("sampled", "--sampler", "balanced", *frozen)
    *told, training, validation = samplings  # before an encoder runs, the configuration is told from loaders of its own
    assert training is not None and validation is None
    assert [sampling is None for sampling in told] == ([False, True] if frozen else [])


def test_a_pair_begins_at_another_image_size(train, tmp_path):
    vit = ("--arch", "test_vit", "--img-size")
    train("small", "--epochs", "1", image=(*vit, "32"))
    ran = train("large", "--weights", tmp_path / "runs/small", "--dry-run", image=(*vit, "64"), text=())
    assert "1 tensor resampled: pos_embed [1, 5, 64] to [1, 17, 64]" in ran.out and "its classifier kept" in ran.out


@pytest.mark.parametrize("combiner", ["concat", "gated"])
def test_both_together_tell_what_neither_tells_alone(train, accuracy, cli, posts, tmp_path, combiner):
    """With both encoders frozen; each input alone is right about the samples that lack one, and half of the others."""
    head = ("--head", "mlp", "--head-hidden", "32") if combiner == "concat" else ()
    flags = ("--freeze", "backbone", "--epochs", "60", "--lr", "0.01", "--val-interval", "60")
    ran = train("both", *flags, "--combiner", combiner, *head)
    assert accuracy("both") == 1.0
    assert "of texts 16 fp16: " in ran.out and "both encoders" in ran.out
    train("image", *flags, text=())
    assert accuracy("image") < 0.8
    told = json.loads(cli("eval", tmp_path / "runs/both", posts, "--no-amp", "--json").out)
    assert told["top1"] == 1.0 and told["images"] == 24
    image = posts.parent / "val0.jpg"  # a red one
    for word, label in (("good", "yes"), ("bad", "no")):
        ran = cli("predict", tmp_path / "runs/both", image, "--text", f"{word} film", "--no-amp", "--json")
        assert json.loads(ran.out)["classes"][0] == label
    every = cli("predict", tmp_path / "runs/both", posts, "--no-amp", "--json").out.splitlines()
    assert len(every) == 80 and all(json.loads(line)["error"] is None for line in every)
    assert "as many --text" in cli("predict", tmp_path / "runs/both", image, "--text", "a", "--text", "b").err
    model = fastimg.load(tmp_path / "runs/both", amp=False)
    with Image.open(image) as red:
        good, bad, alone = model.predict([red, red], text=["good film", "bad film"]) + model.predict(red)
    assert (good.classes[0], bad.classes[0], alone.error) == ("yes", "no", None)
    with pytest.raises(UsageError, match="give as many texts as images \\(1 image, 2 texts\\)"):
        model.predict(image, text=["a", "b"])


def test_a_frozen_encoder_runs_once_and_the_run_is_that_without_a_cache(train, weights):
    for what in ("backbone", "image", "text"):
        flags = ("--freeze", what, "--no-aug", "--opt", "sgd")
        train(f"kept-{what}", *flags, "--cache-dtype", "fp32")
        train(f"fresh-{what}", *flags, "--cache-embeddings", "off")
        one, other = weights(f"kept-{what}"), weights(f"fresh-{what}")
        assert {name for name in one if not torch.allclose(one[name], other[name], atol=1e-4)} == set()


def test_freezing_one_encoder_trains_the_other(train, weights):
    train("start", "--epochs", "1", "--freeze", "backbone")
    before = weights("start")
    for what, other in (("image", "text"), ("text", "image")):
        train(what, "--freeze", what)
        after = weights(what)
        still = {name for name in before if torch.equal(before[name], after[name])}
        assert {name for name in before if name.startswith(f"{what}.")} <= still
        assert any(name.startswith(f"{other}.") and name.endswith("weight") and name not in still for name in before)


@pytest.mark.parametrize("flags", [(), ("--freeze", "image"), ("--freeze", "backbone", "--model-ema")])
def test_an_interrupted_run_goes_on_to_the_same_bits(train, weights, monkeypatch, flags):
    train("whole", *flags)
    from fastimg.train import loop

    step = loop.optimiser_step

    def stop(run, *rest):
        if run.progress.step == 5:
            raise KeyboardInterrupt
        return step(run, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "optimiser_step", stop)
        train("parts", *flags, "--save-interval", "3", code=130)
    train("parts", *flags, "--save-interval", "3", "--resume")
    assert equal(weights("whole"), weights("parts"))


def test_accumulated_batches_are_one_batch(train, weights):
    flags = ("--freeze", "backbone", "--opt", "sgd", "--no-aug")
    train("one", *flags)
    train("two", *flags, "-b", "7", "--grad-accum-steps", "2")
    one, two = weights("one"), weights("two")
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)


@pytest.mark.slow
def test_two_ranks_train_like_one_process(train, weights, two_ranks, posts, bert, tmp_path):
    """Each reads its share of images and texts; the combiner's gradients are exchanged."""
    flags = ("--freeze", "backbone", "--opt", "sgd", "--no-aug")
    train("one", *flags)
    own = ("--arch", "test_resnet", "--img-size", "32", "--text-arch", f"hf:{bert}", "-b", "7", "--epochs", "2")
    rest = ("--lr", "0.01", "-j", "1", "--no-amp", "--smoothing", "0", "-o", tmp_path / "runs", "--name", "two")
    two_ranks(("train", posts, *own, *rest, "--cache-dir", tmp_path / "ranks", *flags))
    one, two = weights("one"), weights("two")
    assert {name for name in one if not torch.allclose(one[name], two[name], atol=1e-5)} == set()


def test_the_checkpoint_rebuilds_both_encoders(train, tmp_path, cli, posts, bert):
    train("run", "--combiner", "concat")
    with safe_open(tmp_path / "runs/run/last/model.safetensors", "pt") as file:
        pair = json.loads(file.metadata()["fastimg"])["pair"]
    assert pair["arch"] == f"hf:{bert}" and pair["combiner"] == "concat" and pair["text"]["length"] == 16
    train("more", "--weights", tmp_path / "runs/run", text=())  # both encoders, from the checkpoint
    ran = cli("eval", tmp_path / "runs/run", tmp_path / "runs/more", posts, "--json", "--no-amp")
    assert json.loads(ran.out)["ensemble"]["images"] == 24
    ran = cli("export", tmp_path / "runs/run", "--output", tmp_path / "x.onnx")
    assert ran.code == 2 and "a model of images and texts" in ran.err
    ran = cli("embed", posts, tmp_path / "out", "--weights", tmp_path / "runs/run")
    assert ran.code == 1 and "a model of images and texts" in ran.err


def test_models_of_one_input_do_without_the_other(train, cli, posts, bert, tmp_path):
    said = train("image", text=())
    assert "4 samples of the training split without an image: the model sees a grey one" in said.out
    ran = cli("train", posts, "--arch", f"hf:{bert}", "--epochs", "1", "--no-amp", "-o", tmp_path / "runs")
    assert ran.code == 0 and "52 texts" in ran.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--mixup", "0.2"), "texts cannot be mixed"),
        (("--compile",), "for models of one input"),
        (("--freeze", "2"), "give backbone (both encoders), image or text"),
        (("--layer-decay", "0.7"), "for models of one input"),
    ],
)
def test_what_does_not_go_with_texts_is_refused(train, flags, message):
    assert message in train("run", *flags, code=2).err


def test_data_and_flags_must_go_together(train, image_folder):
    assert "has no texts beside its images" in train("run", code=2, data=image_folder).err
    assert "--combiner has no effect without --text-arch" in train("run", "--combiner", "concat", code=2, text=()).err
    assert "reads no texts" in train("run", code=2, text=("--text-arch", "resnet18")).err


@pytest.mark.parametrize("combiner", list(COMBINERS))
def test_a_missing_input_does_not_influence_the_logits(combiner):
    torch.manual_seed(0)
    model = PairClassifier(torch.nn.Identity(), torch.nn.Identity(), COMBINERS[combiner](6, 4), 3)
    torch.nn.init.normal_(model.combiner.no_image)
    torch.nn.init.normal_(model.combiner.no_text)
    present = torch.tensor([[True, True], [False, True], [True, False]])
    image, text = torch.randn(3, 6), torch.randn(3, 4)
    other = model(torch.randn(3, 6) + 3, text, present)
    same = (model(image, text, present) == other).all(dim=1)
    assert same.tolist() == [False, True, False]
    same = (model(image, text, present) == model(image, torch.randn(3, 4) + 3, present)).all(dim=1)
    assert same.tolist() == [False, False, True]


@pytest.mark.parametrize("data", ["texts", "pairs"])
def test_several_targets(train, weights, cli, several, bert, posts, tmp_path, data):
    """Kept embeddings train as fresh ones do; eval and predict tell what the last validation told of each target."""
    flags = ("--freeze", "backbone", "--opt", "sgd", "--epochs", "1", "--metric", "topics.map")
    own = {"image": ("--arch", f"hf:{bert}"), "text": ()} if data == "texts" else {}
    if data == "pairs":
        flags += ("--no-aug",)
    train("kept", *flags, "--cache-dtype", "fp32", data=several / data, **own)
    train("fresh", *flags, "--cache-embeddings", "off", data=several / data, **own)
    one, other = weights("kept"), weights("fresh")
    assert {name for name in one if not torch.allclose(one[name], other[name], atol=1e-4)} == set()
    run = tmp_path / "runs/kept"
    (validated,) = (record for record in rundir.read_log(run) if record["kind"] == "val")
    told = json.loads(cli("eval", run, several / data, "--no-amp", "--json").out)
    assert set(told["targets"]) == {"mood", "topics", "length"} and told["images"] == validated["samples"]
    for name, scores in told["targets"].items():
        assert scores == pytest.approx({metric: validated[f"{name}.{metric}"] for metric in scores}, rel=1e-3, abs=1e-5)
    image = (posts.parent / "val0.jpg",) if data == "pairs" else ()
    answer = json.loads(cli("predict", run, *image, "--text", "a good film", "--no-amp", "--json").out)
    assert set(answer["targets"]) == {"mood", "topics", "length"} and answer["error"] is None


def test_a_search_by_stages_reads_images_and_their_texts(posts, bert, tmp_path, monkeypatch):
    from tests.fastimg.search.test_stages_for_real import InProcess

    monkeypatch.setattr("fastimg.search.staged.encoders.model_speed", lambda *_: 10.0)
    monkeypatch.setattr("fastimg.search.staged.stages.prediction_speed", lambda *_: 77.0)
    monkeypatch.setattr("fastimg.search.staged.heads.head_epochs", lambda _: 4)
    monkeypatch.setattr("fastimg.search.staged.encoders.kept_texts", lambda: [KeptWeights(f"hf:{bert}", None, "bert")])
    monkeypatch.setattr(
        "fastimg.search.staged.encoders.kept_images", lambda: [KeptWeights("test_resnet", weights, "t")]
    )
    monkeypatch.setattr("fastimg.search.staged.rungs.MOST_ARMS", 1)
    monkeypatch.setitem(rungs.MOST_EPOCHS, True, 2)
    weights = tmp_path / "small.safetensors"
    torch.manual_seed(0)
    save_file(build("test_resnet", 4).module.state_dict(), weights, {"arch": "test_resnet"})
    shared = {"batch_size": 16, "workers": "1", "amp": False, "img_size": 32, "device": "cpu", "no_aug": True}
    workers, said = InProcess(), []
    asked = StagedSearch(data=posts, folder=tmp_path / "S", seconds=500.0, shared=shared, device="cpu")
    board = search_by_stages(asked, workers, said.append, workers.clock)
    assert "texts       those beside the images are read by bert, which is at hand" in said
    assert {job.settings["text_arch"] for job in workers.jobs} == {f"hf:{bert}"}
    assert [job.stage for job in workers.jobs][-2:] == ["fine-tuning", "final"]
    assert board.pruned == {}
    head, tuned = workers.jobs[0], workers.jobs[-2]
    assert head.parameters["combiner"] == tuned.settings["combiner"] == "gated"
    with safe_open(tmp_path / "S" / board.winner.run / "best" / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["fastimg"])["pair"]["arch"] == f"hf:{bert}"
