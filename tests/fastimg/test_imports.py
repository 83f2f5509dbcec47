"""Commands that need no tensors, and early errors, import neither torch nor other slow modules."""

import json
import subprocess
import sys

import pytest

SLOW_MODULES = ("torch", "torchvision", "timm", "sklearn", "matplotlib", "transformers", "onnx", "kornia", "ray")

# Runs commands one after the other, and prints the exit code of each and the slow modules that it imported.
SCRIPT = """
import contextlib, io, json, sys
from fastimg import cli
from fastimg.doctor import torch_facts
from fastimg.system import disks

def fail():
    raise RuntimeError("not asked in this test")

torch_facts._ask = fail  # the process that doctor starts does import torch
disks.FILE = 16 << 20
slow, commands = json.loads(sys.argv[1])
results = {}
for name, arguments in commands.items():
    before = set(sys.modules)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.run(arguments)
    results[name] = code, sorted(set(slow) & (set(sys.modules) - before)), said.getvalue()[-2000:]
print(json.dumps(results))
"""

DONE = {
    "help": ("--help",),
    "help of train": ("train", "--help"),
    "convert": ("convert", "{}/images", "{}/tar"),
    "convert to beton": ("convert", "{}/tar", "{}/beton", "--format", "beton"),
    "verify": ("verify", "{}/tar", "--deep"),
    "inspect": ("inspect", "{}/tar", "--no-pictures"),
    "convert texts": ("convert", "{}/texts.csv", "{}/texts"),
    "inspect texts": ("inspect", "{}/texts"),
    "doctor": ("doctor", "{}", "--json"),
    "recipe": ("recipe", "list"),
    "cluster": ("cluster", "example"),
}
REFUSED = {
    "no such command": ("trian",),
    "no workers without a cluster": ("train", "{}/tar", "--num-workers", "2"),
    "no such flag": ("train", "{}/tar", "--lrx", "1"),
    "not a number": ("train", "{}/tar", "--lr", "much"),
    "out of range": ("train", "{}/tar", "--epochs", "0"),
    "without effect": ("train", "{}/tar", "--no-aug", "--mixup", "1"),
    "a list that cannot be": ("train", "{}/tar", "--config", "{}/list.yaml"),
    "eval": ("eval", "{}/run", "{}/tar", "--batch-size", "0"),
    "predict": ("predict", "{}/run", "{}/images", "--topk", "0"),
    "embed": ("embed", "{}/tar", "{}/out", "--img-size", "0"),
    "export": ("export", "{}/run", "--format", "jpeg"),
    "export without a format": ("export", "{}/run", "--output", "{}/model.bin"),
    "bench": ("bench", "{}/tar", "--repeats", "0"),
    "inspect's flag": ("inspect", "{}/tar", "--samples", "0"),
    "what search has no flag for": ("search", "{}/images", "--param", "lrr=0:1", "--trials", "1"),
    "a cluster that cannot be": ("search", "{}/images", "--trials", "1", "--backend", "ray", "--address", "ray://h:1"),
    "convert's flag": ("convert", "{}/images", "{}/other", "--quality", "0"),
}
MISSING = {
    "train": ("train", "{}/nowhere"),
    "eval": ("eval", "{}/nowhere", "{}/tar"),
    "predict": ("predict", "{}/nowhere", "{}/images"),
    "export": ("export", "{}/nowhere", "--format", "onnx"),
    "embed": ("embed", "{}/nowhere", "{}/out", "--pretrained"),
    "bench": ("bench", "{}/nowhere"),
    "verify": ("verify", "{}/nowhere"),
    "search": ("search", "{}/nowhere", "--max-time", "1m"),
    "inspect": ("inspect", "{}/nowhere"),
    "convert": ("convert", "{}/nowhere", "{}/other"),
}
COMMANDS = {
    **{name: (arguments, 0) for name, arguments in DONE.items()},
    **{f"refused: {name}": (arguments, 2) for name, arguments in REFUSED.items()},
    **{f"missing: {name}": (arguments, 1) for name, arguments in MISSING.items()},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory, write_images):
    folder = tmp_path_factory.mktemp("imports")
    write_images(folder / "images", 4)
    (folder / "texts.csv").write_text("text,label\n" + "".join(f"some words {i},{'ab'[i % 2]}\n" for i in range(8)))
    (folder / "list.yaml").write_text("augmentation: [{rotate: {degrees: much}}]\n")
    commands = {name: [a.replace("{}", str(folder)) for a in arguments] for name, (arguments, _) in COMMANDS.items()}
    script = [sys.executable, "-c", SCRIPT, json.dumps([SLOW_MODULES, commands])]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_starts_without_torch(results, name):
    code, imported, said = results[name]
    assert (code, imported) == (COMMANDS[name][1], []), said
