"""The recipe for small images that stay on the device, eager and as CUDA graphs, in turn with airbench where it is."""

import importlib.util
import tempfile
from pathlib import Path

import cifar as recipe  # loads the modules that the command line needs
from bench import Bench
from gpu_graphs import has_graphs


def cifar(bench: Bench) -> None:
    """benchmarks/cifar.py on CIFAR-10 if its folder was given, else on as many of scikit-learn's digits."""
    on_cuda = bench.device.type == "cuda"
    arguments = ["--device", bench.device.type, "--runs", "5" if on_cuda else "1"]
    if on_cuda:
        arguments += ["--warmups", "1", *(["--airbench", "package"] if _airbench() else [])]
        arguments += ["--data", str(bench.cifar)] if bench.cifar else ["--repeat", "35"]
    else:
        arguments += ["--width", "8", "--epochs", "1", "--batch-size", "128"]
    if on_cuda and has_graphs():
        arguments += ["--cuda-graphs", "off", "auto"]
    else:
        why = "train has no --cuda-graphs" if on_cuda else "they need CUDA"
        bench.console.print(f"{bench.section}: CUDA graphs: skipped: {why}")
    with tempfile.TemporaryDirectory(prefix="fastimg-cifar-") as folder:
        rows = recipe.main([*arguments, "--out", str(Path(folder) / "cifar.jsonl")])
    data = "CIFAR-10" if bench.cifar else "scikit-learn's digits"
    rows = [{**row, "images": data} for row in rows]
    bench.report("cifar-fast, seconds from whitening to the last evaluation", rows)


def _airbench() -> bool:
    return importlib.util.find_spec("airbench") is not None
