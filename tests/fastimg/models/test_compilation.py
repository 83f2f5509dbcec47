"""--compile: graphs are compiled before the first step and counted, and compilation never fails silently."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fastimg.data import decoder_compilation
from fastimg.errors import UserError
from fastimg.loaders import FilesDataset
from fastimg.models import compilation
from fastimg.models.compilation import ahead, compile_modules
from fastimg.train import setup as prepare
from fastimg.train.metrics import answer


class Net(torch.nn.Module):
    """torch 2.11 does not compile modules that consist only of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(images))


@pytest.fixture(autouse=True)
def forgotten():
    """Do not reuse graphs that torch compiled for another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def eager(module: torch.nn.Module) -> None:
    """Trace and count calls but run them eagerly, without waiting for the C++ compiler."""
    module.compile(backend="eager", dynamic=False)


def test_early_and_late_graphs_are_counted_separately():
    module = Net()
    found = compilation.Compilation("default")
    eager(module)
    weights, statistics = module.conv.weight.clone(), module.norm.running_mean.clone()
    ahead(found, module, [lambda s=s: module(torch.ones(2, 3, s, s)).sum().backward() for s in (8, 12)])
    assert (found.graphs, found.recompiled, found.breaks) == (2, 0, 0)
    assert torch.equal(module.conv.weight, weights) and torch.equal(module.norm.running_mean, statistics)
    assert module.norm.num_batches_tracked == 0 and module.conv.weight.grad is None
    module(torch.ones(2, 3, 8, 8))
    assert found.recompiled == 0
    module(torch.ones(2, 3, 16, 16))
    assert found.recompiled == 1
    assert "2 graphs" in found.describe() and found.describe().endswith("recompiled 1 time")


def test_nothing_compiled_is_an_error(monkeypatch):
    module = torch.nn.Linear(2, 2)
    found = compilation.Compilation("default")
    with pytest.raises(UserError, match=r"torch compiled nothing.*TORCHDYNAMO_DISABLE"):
        ahead(found, module, [lambda: module(torch.ones(1, 2))])


def test_a_compiler_failure_is_a_one_line_error():
    module = Net()

    def broken(*_):
        raise RuntimeError("No working C++ compiler found")

    module.compile(backend=broken)
    with pytest.raises(UserError, match=r"cannot be compiled.*leave --compile out"):
        ahead(compilation.Compilation("default"), module, [lambda: module(torch.ones(2, 3, 8, 8))])


def test_too_many_graphs_are_an_error():
    compile_modules([torch.nn.Linear(2, 2)], "default")
    assert torch._dynamo.config.fail_on_recompile_limit_hit
    assert torch._dynamo.config.recompile_limit >= 64


class Small(Net):
    """Compiling C++ is slow, so there is little of it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(super().forward(images).relu().mean((2, 3)))


@pytest.fixture
def traced(monkeypatch):
    """Models are traced as for a compiler, and run eagerly."""
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda module, mode, dynamic: compile_module(module, backend="eager", dynamic=dynamic),
    )


def test_a_second_run_in_one_process_compiles_its_own_model(trained, fast, tmp_path, cli, monkeypatch, traced):
    """As the trials of a search do, and calls of `fastimg.train`. torch's settings are given back."""
    monkeypatch.setattr("timm.create_model", lambda arch, num_classes, **options: Small(num_classes))
    before = torch._dynamo.config.recompile_limit, torch._dynamo.config.fail_on_recompile_limit_hit
    for name in ("first", "second"):
        ran = cli("train", trained.images, *fast, "--compile", "-o", tmp_path, "--name", name)
        assert ran.code == 0, ran.err
        assert "compiled    default: 2 graphs in " in ran.out
        assert re.findall(r"recompiled (\d+) time", ran.out) == ["0", "0"], ran.out
        assert (torch._dynamo.config.recompile_limit, torch._dynamo.config.fail_on_recompile_limit_hit) == before


@pytest.mark.slow
def test_a_compiled_run_trains_like_a_plain_one(trained, fast, tmp_path, cli, monkeypatch):
    """With progressive sizes: one graph for each size and one for validation, before the first step; none later."""
    monkeypatch.setattr("timm.create_model", lambda arch, num_classes, **options: Small(num_classes))
    flags = [*fast, "--epochs", "2", "--lr", "0.01", "--progressive", "32:64", "--progressive-epochs", "0:1"]
    runs = {}
    for name, more in (("plain", ()), ("compiled", ("--compile",))):
        ran = cli("train", trained.shards, *flags, *more, "-o", tmp_path / "runs", "--name", name)
        assert ran.code == 0, ran.err
        runs[name] = re.findall(r"validation +loss ([\d.]+)", ran.out)
    assert re.search(r"compiled +default: 3 graphs in \d+ s, recompiled 0 times", ran.out)
    assert [float(x) for x in runs["plain"]] == pytest.approx([float(x) for x in runs["compiled"]], abs=2e-3)
    assert len(set(runs["plain"])) == 2  # it learns, so the losses tell something


@pytest.mark.parametrize("missing", ["", "tiled"])
def test_the_decoder_is_compiled_before_the_first_step(missing, trained, fast, tmp_path, cli, monkeypatch):
    """The duration is printed afterwards, without an estimate before."""
    ticks = iter([100.0, 134.56])
    monkeypatch.setattr(decoder_compilation, "missing_decoder", lambda data: missing)
    monkeypatch.setattr(decoder_compilation, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    ran = cli("train", trained.shards, *fast, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    said = [line for line in ran.out.splitlines() if "decoder of tiled JPEGs" in line]
    assert said == bool(missing) * [
        "compiling the decoder of tiled JPEGs, once per machine",
        "compiled    the decoder of tiled JPEGs in 34.6 s",
    ]


@pytest.mark.parametrize("worth", [True, False])
def test_that_of_untiled_jpegs_is_compiled_for_long_runs(worth, image_folder, fast, tmp_path, cli, monkeypatch):
    compiled: list[int] = []
    monkeypatch.setattr(decoder_compilation, "missing_decoder", lambda data: "untiled")
    monkeypatch.setattr(decoder_compilation, "compile_for", lambda data: compiled.append(len(data)))
    monkeypatch.setattr(decoder_compilation, "is_worth_compiling", lambda crops: crops == 40 and worth)
    ran = cli("train", image_folder, *fast, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    assert ("compiling the decoder of untiled JPEGs, once per machine" in ran.out) == worth == bool(compiled)
    said = "decoder      libjpeg-turbo, with the same pixels: 40 crops would not make up for compiling"
    assert (said in ran.out) != worth


def test_each_kind_in_a_folder_is_compiled_once(tmp_path, monkeypatch):
    """Images from the first to the last are looked at, and unreadable ones are left to the loader."""
    kinds = {"a": "", "b": "untiled", "c": "progressive", "d": "untiled", "e": "tiled"}
    for name in kinds:
        (tmp_path / f"{name}.jpg").write_text(name)
    dataset = FilesDataset(tmp_path, [f"{name}.jpg" for name in ("a", "a", "b", "x", "c", "d", "e")])
    compiled = []
    monkeypatch.setattr(decoder_compilation, "missing_decoder", lambda data: kinds[bytes(data).decode()])
    monkeypatch.setattr(decoder_compilation, "compile_for", lambda data: compiled.append(bytes(data).decode()))
    said = []
    assert decoder_compilation.compile_decoders(dataset, None, said.append, crops=10_000)
    assert compiled == ["b", "c", "e"] and len(said) == 6
    assert decoder_compilation.compile_decoders(dataset, np.array([0, 1]), said.append, crops=10_000)
    assert not decoder_compilation.compile_decoders(dataset, None, said.append, crops=9_999)
    assert compiled == ["b", "c", "e", "e"]


@pytest.mark.parametrize("command", ["eval", "eval runs", "predict", "embed"])
@pytest.mark.parametrize(("missing", "worth"), [("", True), ("tiled", True), ("tiled", False), ("untiled", True)])
def test_what_reads_a_dataset_once_says_that_it_compiles(command, missing, worth, trained, cli, monkeypatch, tmp_path):
    ran, compiled = reading(command, missing, worth, trained, cli, monkeypatch, tmp_path)
    said = [line for line in ran.err.splitlines() if "the decoder of" in line]
    assert len(compiled) == bool(missing) * (2 if command == "eval runs" else 1) == len(said) // 2
    if missing:
        assert said[0] == f"compiling the decoder of {missing} JPEGs, once per machine"
        assert re.fullmatch(rf"compiled    the decoder of {missing} JPEGs in \d+\.\d s", said[1])


@pytest.mark.parametrize("command", ["eval", "predict", "embed"])
def test_what_reads_little_compiles_no_decoder_of_untiled_jpegs(command, trained, cli, monkeypatch, tmp_path):
    ran, compiled = reading(command, "untiled", False, trained, cli, monkeypatch, tmp_path)
    assert "decoder" not in ran.out + ran.err and not compiled


def reading(command, missing, worth, trained, cli, monkeypatch, tmp_path):
    """A command on images, of which this machine lacks a decoder that is or is not worth compiling."""
    compiled: list[int] = []
    monkeypatch.setattr(decoder_compilation, "missing_decoder", lambda data: missing)
    monkeypatch.setattr(decoder_compilation, "compile_for", lambda data: compiled.append(len(data)))
    monkeypatch.setattr(decoder_compilation, "is_worth_compiling", lambda crops: worth)
    more = {
        "eval": (trained.run, trained.images, "--output", tmp_path / "plot.png", "--overwrite"),
        "eval runs": (trained.run, trained.run / "last", trained.images),
        "predict": (trained.run, trained.images),
        "embed": (trained.images, tmp_path / "E", "--weights", trained.run, "--split", "train"),
    }[command]
    cache = ("--cache-dir", tmp_path / "cache") if command == "embed" else ()
    ran = cli(command.partition(" ")[0], *more, *cache, "--no-amp")
    assert ran.code == 0, ran.err
    return ran, compiled


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--compile", "fast"), "--compile fast: give default, reduce-overhead"),
        (("--compile", "reduce-overhead"), "has no effect on cpu"),
    ],
)
def test_refused(flags, words, trained, fast, tmp_path, cli):
    ran = cli("train", trained.shards, *fast, *flags, "-o", tmp_path / "runs")
    assert ran.code == 2 and words in ran.err, ran.err


def test_a_resumed_run_accumulates_no_gradients_in_the_memory_of_cuda_graphs(trained, fast, tmp_path, cli, monkeypatch):
    """Fewer ranks accumulate gradients to keep the batch size, without a flag."""
    flags = (*fast, "-o", tmp_path / "runs", "--name", "run")
    assert cli("train", trained.shards, *flags).code == 0
    monkeypatch.setattr(prepare.rundir, "batch_of_before", lambda *_: (4, 2))
    ran = cli("train", trained.shards, *flags, "--resume", "auto", "--compile", "max-autotune")
    assert ran.code == 2 and "--compile max-autotune: replays CUDA graphs, whose memory holds the gradients" in ran.err
    assert "--grad-accum-steps 2" in ran.err and "use --compile max-autotune-no-cudagraphs" in ran.err


def test_two_answers_of_a_model_that_writes_both_to_the_same_memory():
    """Models with CUDA graphs do this. Logits are float32, which `float` does not copy."""
    memory = torch.zeros(2, 3)

    def graph(images):
        return memory.copy_(images[:, 0, 0, :3])

    def eager(images):
        return graph(images).clone()

    images = torch.rand(2, 1, 1, 4)
    assert torch.equal(answer(graph, images, tta=True), answer(eager, images, tta=True))
    images = torch.rand(2, 1, 3, 4)
    assert torch.equal(answer(graph, images, "mirror-shift"), answer(eager, images, "mirror-shift"))
