"""The commands as functions: the same settings, runs and errors, and no side effects unfit for a library."""

import ast
import base64
import dataclasses
import inspect
import pickle
import pydoc
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors.numpy import load_file

import fastimg
from fastimg import cli
from fastimg.config import recipes, yaml_file
from fastimg.config.benchmarking import Bench
from fastimg.config.commands import Convert, Embed, Eval, Export, Inspect, Predict, Train
from fastimg.config.flag_types import aliases
from fastimg.config.searching import Search, Suggest
from fastimg.errors import UsageError, UserError
from fastimg.loaders import DataError
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.predict.exporting.check import Agreement
from fastimg.torch_state import as_imported

ROOT = Path(__file__).parents[2]
FUNCTIONS = {
    "train": Train,
    "convert": Convert,
    "predict": Predict,
    "load": Predict,
    "eval": Eval,
    "export": Export,
    "embed": Embed,
    "inspect": Inspect,
    "search": Search,
    "suggest": Suggest,
    "bench": Bench,
}
OWN = {"progress", "train"}  # of the functions alone
PRINTED = {"json", "csv"}
LATER = {"sources", "text", "topk", "threshold", "sheet", "overwrite"}  # arguments of a Predictor's methods
LEFT_OUT = {
    **{name: {"json"} for name in FUNCTIONS},
    "train": set(),
    "convert": {"more", "json"},
    "predict": PRINTED,
    "load": PRINTED | LATER,
    "eval": {"more", "json"},
    "search": {"shared", "json"},
}
POSITIONAL = {
    "train": ["data"],
    "convert": ["src", "dst"],
    "predict": ["checkpoint", "sources"],
    "load": ["checkpoint"],
    "eval": ["checkpoint", "data"],
    "export": ["checkpoint"],
    "embed": ["data", "dst"],
    **{name: ["data"] for name in ("inspect", "search", "suggest", "bench")},
}
FAST = {"arch": "test_resnet", "img_size": 32, "batch_size": 8, "workers": 1, "amp": False}


# What they are


def test_the_names_of_the_package():
    assert fastimg.__all__ == sorted(["augment", "loaders", *FUNCTIONS])
    assert set(fastimg.__all__) <= set(dir(fastimg))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = fastimg.trian


@pytest.mark.parametrize("name", FUNCTIONS)
def test_examples_in_the_help_give_what_the_function_takes(name):
    code = re.findall(r"^        (.*fastimg\.\w+\(.*)$", getattr(fastimg, name).__doc__.expandtabs(), re.M)
    calls = [
        node for line in code for node in ast.walk(ast.parse(line.rstrip(":") if "for" not in line else f"{line} ..."))
    ]
    for call in (
        node for node in calls if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("fastimg.")
    ):
        taken = set(inspect.signature(getattr(fastimg, call.func.attr)).parameters)
        assert {keyword.arg for keyword in call.keywords} <= taken, ast.unparse(call)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_parameters_are_the_fields(name):
    parameters = dict(inspect.signature(getattr(fastimg, name)).parameters)
    assert name in ("load", "export") or parameters["progress"].default is False
    also = aliases(FUNCTIONS[name])  # model= for arch=
    assert all(parameters[alias].default == parameters[also[alias]].default for alias in also if alias in parameters)
    parameters = {key: parameter for key, parameter in parameters.items() if key not in also and key not in OWN}
    fields = {field.name: field for field in dataclasses.fields(FUNCTIONS[name])}
    assert set(fields) - set(parameters) == LEFT_OUT[name] and set(parameters) <= set(fields)
    for parameter, field in ((parameters[field], fields[field]) for field in parameters):
        given = field.default is not dataclasses.MISSING
        assert parameter.default == (field.default if given else inspect.Parameter.empty)
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == POSITIONAL[name]


def test_none_means_left_out():
    """So no field may have None among its values and another default."""
    for kind in FUNCTIONS.values():
        hints = get_type_hints(kind)
        for field in dataclasses.fields(kind):
            assert type(None) not in get_args(hints[field.name]) or field.default is None


def test_type_checkers_see_the_same_signatures():
    """`uv run scripts/signatures.py` writes the file again."""
    expected = runpy.run_path(str(ROOT / "scripts/signatures.py"))["stub"]()
    assert ast.dump(ast.parse((ROOT / "fastimg/__init__.pyi").read_text())) == ast.dump(ast.parse(expected))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_is_a_page(name):
    page = pydoc.render_doc(getattr(fastimg, name), renderer=pydoc.plaintext)
    head, _, settings = page.partition("Settings:")
    assert f"function {name} in module fastimg" in head and f"{name}(" in head and "Raises" in head
    named = [line.strip().partition(":")[0] for line in settings.splitlines() if line[4:5].isalpha()]
    also = aliases(FUNCTIONS[name])
    assert named == [p for p in inspect.signature(getattr(fastimg, name)).parameters if p not in OWN and p not in also]
    flags = {flag.replace("-", "_") for flag in re.findall(r"(?<!`)--([a-z-]+)", settings)}
    assert flags.isdisjoint(named) and max(map(len, page.splitlines())) <= 120


# Each order of imports, in a process that has imported nothing
ORDERS = (
    "import fastimg; f = fastimg.train; import fastimg.train.checkpoints.model_files as m",
    "import fastimg.train.checkpoints.model_files as m; import fastimg; f = fastimg.train",
    "from fastimg.train.checkpoints import model_files as m; from fastimg import train as f; import fastimg",
    "from fastimg import train as f; from fastimg.train.checkpoints import model_files as m; import fastimg",
)
CHECK = """
import inspect, pickle, sys
assert inspect.isfunction(f) and fastimg.train is f and len(inspect.signature(f).parameters) > 100
assert fastimg.train.checkpoints.model_files is m and inspect.ismodule(m) and m.find
assert inspect.ismodule(sys.modules["fastimg.train"]) and pickle.loads(pickle.dumps(f)) is f
assert fastimg.convert.__name__ == "convert" and fastimg.predict.__doc__ and fastimg.load.__name__ == "load"
import fastimg.search, fastimg.suggest, fastimg.inspect as i, fastimg.bench.budget as b
assert [f.__name__ for f in (fastimg.search, fastimg.suggest, i, fastimg.eval)] == "search suggest inspect eval".split()
assert fastimg.bench.budget is b and inspect.isfunction(fastimg.bench)
print(sorted(n for n in vars(fastimg) if not n.startswith("_")), "torch" in sys.modules)
"""


@pytest.mark.parametrize("order", ORDERS)
def test_the_function_and_its_package_in_any_order(order):
    ran = subprocess.run([sys.executable, "-c", order + CHECK], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.split("] ")[-1].strip()) == (0, "False"), ran.stderr


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_can_be_pickled(name):
    function = getattr(fastimg, name)
    assert pickle.loads(pickle.dumps(function)) is function and inspect.isfunction(function)


# What they do


def test_a_run_is_that_of_the_command(trained, tmp_path, capsys, monkeypatch):
    """Bit for bit, in a thread, where no signal handlers can be set, and without a warning."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    torch.manual_seed(5)
    state, filters, threads = torch.get_rng_state(), list(warnings.filters), []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    results = []
    options = {**FAST, "epochs": 2, "lr": 3e-3, "no_aug": True, "output": tmp_path, "name": "run"}
    thread = threading.Thread(target=lambda: results.append(fastimg.train(str(trained.images), **options)))
    thread.start()
    thread.join()
    (result,) = results
    assert (capsys.readouterr().out, capsys.readouterr().err) == ("", "")
    assert torch.equal(torch.get_rng_state(), state) and threads == [available_cpus(), 7]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert list(warnings.filters) == filters

    assert (result.run, result.epochs, result.steps, result.unreadable) == (tmp_path / "run", 2, 6, 0)
    assert result.best.samples == 12 and 0 <= result.best.top1 <= 1
    weights, expected = load_file(result.checkpoint), load_file(trained.run / "best/model.safetensors")
    assert weights.keys() == expected.keys() and all((weights[name] == expected[name]).all() for name in weights)
    settings = [yaml_file.read(run / "config.yaml", Train) for run in (result.run, trained.run)]
    assert settings[0] | {"output": None} == settings[1] | {"output": None}


@pytest.mark.parametrize("before", [None, 0, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_the_current_gpu_stays(monkeypatch, before, fails):
    """Whichever a run chooses, also if it fails; `before`: the caller's, None if CUDA was not in use."""
    used = {"gpu": before}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used["gpu"] is not None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: used["gpu"])
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", lambda gpu: used.update(gpu=gpu))
    monkeypatch.setattr(torch.random, "fork_rng", lambda gpus: nullcontext())

    def runs(config, console, **options):
        used["gpu"] = 1  # as `--device cuda:1` does
        if fails:
            raise UserError("no images")

    monkeypatch.setattr("fastimg.train.loop.train", runs)
    with pytest.raises(UserError, match="no images") if fails else nullcontext():
        fastimg.train("images", device="cuda:1")
    assert used["gpu"] == (before or 0)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_run_on_another_gpu_leaves_the_current_one(trained, tmp_path):
    torch.cuda.set_device(0)
    fastimg.train(str(trained.images), **{**FAST, "device": "cuda:1", "output": tmp_path, "name": "other"})
    assert torch.cuda.current_device() == 0
    with pytest.raises(UserError):
        fastimg.train(tmp_path / "none", device="cuda:1")
    assert torch.cuda.current_device() == 0


@contextmanager
def default_float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("switched_on", [torch.no_grad, torch.inference_mode, default_float64, autocast])
def test_what_the_caller_has_switched_on_in_torch_changes_nothing(switched_on, trained, tmp_path, capsys):
    """Trained, predicted, evaluated, embedded and exported are the same values; afterwards it is as before."""
    options = {**FAST, "epochs": 2, "lr": 3e-3, "no_aug": True, "output": tmp_path, "name": "run"}
    image = trained.images / "val/red/0.jpg"
    commands = [
        ["eval", trained.run, trained.images, "--no-amp", "--json", "--output", tmp_path / "plot.png", "--overwrite"],
        ["embed", trained.images, tmp_path / "embedded", "--weights", trained.run, "--format", "npy", "--split", "val"],
        ["export", trained.run, "-o", tmp_path / "m.pt2"],
    ]

    def values():
        answers = [*fastimg.predict(trained.run, image), *fastimg.load(trained.run).predict(image)]
        done = []
        for command in commands:
            capsys.readouterr()
            assert fastimg.cli.run([str(argument) for argument in command]) == 0, capsys.readouterr().err
            done.append(capsys.readouterr().out)
        embedded = [np.load(file).tolist() for file in sorted((tmp_path / "embedded").rglob("*.npy"))]
        return [answer.probabilities for answer in answers], done[0], embedded

    expected = values()
    shutil.rmtree(tmp_path / "embedded")
    (tmp_path / "m.pt2").unlink()
    with switched_on():
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        result = fastimg.train(trained.images, **options)
        found = values()
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == modes
    weights, others = load_file(result.checkpoint), load_file(trained.run / "best/model.safetensors")
    assert all((weights[name] == others[name]).all() for name in others)
    assert found == expected


def test_a_default_device_of_the_caller_changes_nothing():
    torch.set_default_device("meta")
    try:
        with as_imported():
            assert torch.zeros(1).device.type == "cpu"
        assert torch.zeros(1).device.type == "meta"
    finally:
        torch.set_default_device(None)


def test_progress_prints_what_the_command_prints(trained, capsys):
    result = fastimg.train(trained.images, **FAST, dry_run=True, progress=True)
    assert (result.run, result.checkpoint, result.best) == (None, None, None)
    assert "24 images, 3 classes" in capsys.readouterr().out


@pytest.fixture
def configured(monkeypatch):
    """`configured(**settings)`: the configuration that `train` runs with, before it looks for DATA."""
    seen = []
    monkeypatch.setattr("fastimg.train.choices.data_left_out.with_data", lambda config, _tell: config)
    monkeypatch.setattr("fastimg.train.loop.train", lambda config, console, signals: seen.append(config))

    def call(*arguments, **settings):
        fastimg.train(*arguments, **settings)
        return seen.pop()

    return call


def test_values_may_be_what_yaml_has(configured, tmp_path):
    config = configured(
        tmp_path, lr=1, scale=[0.2, 1], workers=3, compile=True, model_kwargs={"a": 1}, weights="w.pt", save_interval=9
    )
    assert config == Train(
        data=tmp_path,
        lr=1.0,
        scale=(0.2, 1.0),
        workers="3",
        compile="default",
        model_kwargs=("a=1",),
        weights=Path("w.pt"),
        save_interval="9",
    )
    assert configured(epochs=None, sched=None) == Train()
    assert configured(augmentation=["hflip"]).augmentation == ["hflip"]


def test_settings_have_the_other_names_of_the_flags(configured):
    assert configured(model="resnet18", imgsz=64, epochs=3) == Train(arch="resnet18", img_size=64, epochs=3)
    with pytest.raises(TypeError, match="got arch under two names"):
        configured(model="resnet18", arch="resnet50")


def test_numbers_may_be_numpys(configured):
    config = configured(epochs=np.int64(3), lr=np.float32(0.5), no_aug=np.bool_(True), scale=[np.float64(0.5), 1])
    assert config == Train(epochs=3, lr=0.5, no_aug=True, scale=(0.5, 1.0)) and type(config.epochs) is int


def test_arguments_override_files_which_override_recipes(configured, tmp_path):
    name = next(iter(recipes.RECIPES))
    assert configured(recipe=name) == yaml_file.combined({"recipe": name})
    (tmp_path / "config.yaml").write_text("epochs: 7\nseed: 3\n")
    for given in ({"config": tmp_path / "config.yaml"}, {"resume": str(tmp_path)}):
        config = configured(**given, seed=4)
        assert (config.epochs, config.seed) == (7, 4)
    config = configured(recipe="resnet50-short", opt="adamw", lr=1.7)  # the recipe's own rate, asked for
    assert (config.opt, config.lr) == ("adamw", 1.7)


def test_refusals_are_exceptions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # nothing is there that could be meant by data that is left out
    cases = {
        r"train\(\) has no setting 'learning_rate'; did you mean lr\?": (TypeError, {"learning_rate": 1}),
        "--mixup has no effect with --no-aug": (UsageError, {"mixup": 0.2, "no_aug": True}),
        "epochs: expected a whole number, not the text 'x'": (UsageError, {"epochs": "x"}),
        "nowhere: no such folder": (DataError, {"data": tmp_path / "nowhere"}),
    }
    for message, (kind, settings) in cases.items():
        with pytest.raises(kind, match=message):
            fastimg.train(**settings)


def test_convert_and_predict_return_values(trained, tmp_path, capsys):
    report = fastimg.convert(trained.images, tmp_path / "D", workers=2)
    assert (report.images, report.splits) == (36, {"train": 24, "val": 12})
    both = fastimg.convert([trained.images, str(tmp_path / "D")], tmp_path / "both", merge=True)
    assert both.images == 72
    files = [trained.images / "val/red/0.jpg", tmp_path / "none.jpg"]
    first, missing = fastimg.predict(trained.run, files, topk=2)
    assert first.error is None and len(first.classes) == 2 and first.probabilities[0] >= first.probabilities[1]
    assert missing.classes == [] and missing.error
    assert fastimg.predict(str(trained.run), str(files[0]), topk=2) == [first]
    assert (capsys.readouterr().out, capsys.readouterr().err) == ("", "")


def test_what_is_evaluated_embedded_inspected_and_exported_comes_back(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = fastimg.eval(trained.run, trained.images, output=tmp_path / "plot.png")
    assert 0 <= found.top1 <= 1 and found.images == 12 and [score.name for score in found.classes] == found_classes()
    html = found._repr_html_()
    assert html.count("data:image/png;base64,") == 2 and "<td>red</td>" in html  # the matrix, and the mistakes
    both = fastimg.eval([trained.run, trained.run / "last"], trained.images)
    assert [run.images for run in both.runs] == [12, 12] and "deviation" in both._repr_html_()
    embedded = fastimg.embed(trained.images, "E", weights=trained.run, knn=3)
    assert embedded.folder == "E" and embedded.splits["train"]["samples"] == 24 and embedded.knn["k"] == 3
    assert "kNN (k 3" in embedded._repr_html_()
    looked = fastimg.inspect(trained.images, no_pictures=True)
    assert looked.images == 36 and looked.pictures is None and "36 of 3 classes" in looked._repr_html_()
    exported = fastimg.export(trained.run, output="m.safetensors", check=True)
    assert (
        exported.file == "m.safetensors" and exported.check.agrees and "agrees with predict" in exported._repr_html_()
    )
    answers = fastimg.predict(trained.run, [trained.images / "val/red/0.jpg", "<b>.jpg"])
    assert "data:image/jpeg" in answers._repr_html_() and "&lt;b&gt;.jpg" in answers._repr_html_()
    loaded = fastimg.load(trained.run).predict(trained.images / "val/red/0.jpg")
    assert loaded == answers[:1] and loaded._repr_html_() == answers[0]._repr_html_()
    assert (capsys.readouterr().out, capsys.readouterr().err) == ("", "")


def found_classes():
    return ["blue", "green", "red"]


def test_a_file_that_does_not_agree_with_its_checkpoint_is_an_error(trained, tmp_path, monkeypatch):
    disagreement = Agreement(
        samples=1, origin="image", unreadable=0, logits=9.0, probabilities=0.5, numbers=None, top1=0, bound=1e-3,
        agrees=False,
    )  # fmt: skip
    monkeypatch.setattr("fastimg.predict.export.compare", lambda *_arguments: disagreement)
    with pytest.raises(UserError, match=r"m\.safetensors: does NOT agree .*differ by at most 5\.0e-01.*do not use it"):
        fastimg.export(trained.run, output=tmp_path / "m.safetensors", check=True)


@pytest.mark.parametrize(
    ("name", "module"),
    [("search", "search.command"), ("suggest", "suggest.command"), ("bench", "bench.benchmark")],
)
def test_commands_that_take_long_are_called_with_the_same_settings(name, module, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(f"fastimg.{module}.{name}", lambda config, *consoles: seen.append((config, consoles)))
    shared = {"train": {"imgsz": 64, "no_aug": True, "amp": False, "scale": [0.5, 1]}} if name == "search" else {}
    getattr(fastimg, name)(tmp_path, model="resnet18", **shared)
    ((config, consoles),) = seen
    assert (config.data, config.arch) == (tmp_path, "resnet18") and all(console.quiet for console in consoles)
    if shared:
        assert config.shared == ("--img-size=64", "--no-aug", "--no-amp", "--scale", "0.5", "1.0")
        given = cli._parse("train", ["D", *config.shared])
        assert (given.img_size, given.no_aug, given.amp, given.scale) == (64, True, False, (0.5, 1.0))
    with pytest.raises(TypeError, match=rf"{name}\(\) has no setting 'json'"):
        getattr(fastimg, name)(tmp_path, json=True)
    if shared:
        with pytest.raises(TypeError, match=r"no setting 'imgsz'; all trials share it as train=\{'imgsz': \.\.\.\}"):
            fastimg.search(tmp_path, imgsz=64)


def test_errors_are_printable_and_quote_no_whole_cells(tmp_path, cli):
    jpeg = bytes(range(256)) * 24
    for name, image, label in (("bytes", [[jpeg]], ["a"]), ("text", [base64.b64encode(jpeg).decode()], ["a"])):
        table = tmp_path / f"{name}\x1b[31m.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"image": image, "label": label}), table)
        with pytest.raises((DataError, UserError)) as raised:
            fastimg.convert(table, tmp_path / "D")
        ran = cli("convert", table, tmp_path / "D")
        assert ran.code in (1, 2) and ran.err == f"fastimg: error: {raised.value}\n"
        assert f"{name}\\x1b[31m.parquet: " in ran.err and len(ran.err) < len(str(table)) + 500
        assert ran.err.rstrip("\n").isprintable()


def test_convert_and_predict_refuse(trained, tmp_path):
    for call, kind, message in (
        (lambda: fastimg.convert(trained.images, tmp_path, json=True), TypeError, "no setting 'json'"),
        (lambda: fastimg.convert([], tmp_path), TypeError, "src is empty"),
        (lambda: fastimg.convert([tmp_path, tmp_path], tmp_path / "D"), UsageError, "--merge"),
        (lambda: fastimg.predict(trained.run, csv="x"), TypeError, "no setting 'csv'"),
        (lambda: fastimg.predict(trained.run), UsageError, "no images given"),
        (lambda: fastimg.predict(trained.run, "a.jpg", topk=0), UsageError, "--topk"),
        (lambda: fastimg.predict(tmp_path, "a.jpg"), UserError, str(tmp_path)),
    ):
        with pytest.raises(kind, match=message):
            call()
