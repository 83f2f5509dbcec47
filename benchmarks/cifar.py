"""Compare `--recipe cifar-fast` with airbench's own script: same 32 x 32 pixels, alternating, in separate processes.

    python benchmarks/cifar.py --data FOLDER --airbench package           # `pip install airbench`, its `train94`
    python benchmarks/cifar.py --data FOLDER --airbench airbench94.py     # of KellerJordan/cifar10-airbench
    python benchmarks/cifar.py --device cuda --out FILE                   # fastimg alone, for benchmarks/gpu.py
    python benchmarks/cifar.py --device cuda --cuda-graphs off auto       # fastimg eager and as CUDA graphs, in turn

FOLDER is anything that `fastimg train` reads, or a folder with the two files that airbench's script makes of CIFAR-10,
train.pt and test.pt; the default is scikit-learn's digits. Images are resized to 32 pixels once, and both train on the
resized images. The time covers what airbench's script times: whitening, training, and the last evaluation, but not
imports, reading, or evaluations between epochs; of fastimg these three parts are recorded, too. On a CPU the script is
patched to make no CUDA calls and to use no float16, and runs under the autocast that fastimg chooses, each training in
its own process; on a GPU it runs unchanged, all trainings in one process, --warmups of each before time counts.
Accuracies are with the same test-time augmentation: mirrored and shifted images.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Train
from fastimg.config.recipes import settings
from fastimg.data.datasets import open_parts
from fastimg.data.digits import digits_folder
from fastimg.loaders import CenterCrop, LoaderConfig
from fastimg.loaders.backends.resident import ResidentImages
from fastimg.loaders.backends.selection import open_source
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.models.precision import choose

SIZE = 32
PACKAGE = Path("package")
Run = Callable[[int], dict[str, Any]]  # with a seed
Split = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]  # [N, 32, 32, 3], [N]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print, and append the results; return them."""
    args = _parsed(arguments)
    if args.one is not None:
        for found in _trainings(args):
            print(json.dumps(found), flush=True)
        return []
    console = Console(width=110)
    environment = measure.environment()
    with tempfile.TemporaryDirectory() as folder:
        counts = _write(args, Path(folder))
        names = [*_ours(args), *(["airbench"] if args.airbench else [])]
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for number in range(args.runs):
            order = names if number % 2 == 0 else names[::-1]
            first = args.seed + number
            # On a CPU, airbench's process is patched.
            for together in [[name] for name in order] if args.device == "cpu" else [names] * (number == 0):
                count = 1 if args.device == "cpu" else args.runs
                for found in _process(together, range(first, first + count), args, Path(folder)):
                    runs[found["by"]].append(found)
                    console.print(
                        f"{found['by']:15} {found['seconds']:8.2f} s   {found['accuracy']:.2%}", highlight=False
                    )
    rows = []
    for name, found in runs.items():
        row = {
            "by": name,
            "seconds": measure.Spread.of([one["seconds"] for one in found]),
            "accuracy": measure.Spread.of([one["accuracy"] for one in found]),
            "precision": found[0]["precision"],
        }
        numbers = [key for key, value in found[0].items() if isinstance(value, float)]
        raw = {f"{key}_of_each_run": [round(one[key], 4) for one in found] for key in numbers}
        if args.airbench:
            ratios = [ours["seconds"] / theirs["seconds"] for ours, theirs in zip(found, runs["airbench"], strict=True)]
            row["ratio"] = round(statistics.median(ratios), 3)  # its time divided by airbench's, for each pair
        rows.append(row)
        setting = {
            "data": args.data.name if args.data else "digits",
            "device": args.device,
            "width": args.width,
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "warmups": args.warmups,
            "first_seed": args.seed,
            **counts,
        }
        record = {"benchmark": "cifar", **measure.flat(row), **raw, **setting, "environment": environment}
        measure.append(args.out, record)
    shown = [{k: v.text() if isinstance(v, measure.Spread) else v for k, v in row.items()} for row in rows]
    measure.show(console, f"cifar-fast, {counts['images']:,} images, width {args.width}, {args.epochs} epochs", shown)
    return [measure.flat(row) for row in rows]


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="shards or a folder of images; default: scikit-learn's digits")
    parser.add_argument("--airbench", type=Path, help="airbench94.py, or `package`, to run beside it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--cuda-graphs", nargs="+", choices=("off", "auto"), default=[], help="fastimg with each of these settings"
    )
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage, for both")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=1, help="repeat every training image this many times, for timing")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others count on from it")
    parser.add_argument("--warmups", type=int, default=0, help="untimed trainings in each process before the timed one")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "cifar.jsonl")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seeds", default="0", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.data is not None and not args.data.exists():
        parser.error(f"--data {args.data}: no such file or folder")
    if args.airbench == PACKAGE and importlib.util.find_spec("airbench") is None:
        parser.error("--airbench package: not installed; `pip install airbench`, or give its script")
    if args.airbench not in (None, PACKAGE) and not args.airbench.is_file():
        parser.error(f"--airbench {args.airbench}: no such file")
    return args


def _process(
    names: Sequence[str], seeds: Sequence[int], args: argparse.Namespace, folder: Path
) -> Iterator[dict[str, Any]]:
    """Trainings in their own process, each when it has ended: each name with each seed, alternating."""
    own = ["--one", ",".join(names), "--folder", str(folder), "--seeds", ",".join(map(str, seeds))]
    own += ["--device", args.device, "--width", str(args.width), "--epochs", str(args.epochs)]
    own += ["--batch-size", str(args.batch_size), "--warmups", str(args.warmups)]
    own += ["--airbench", str(args.airbench)] if args.airbench else []
    own += ["--cuda-graphs", *args.cuda_graphs] if args.cuda_graphs else []
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            [sys.executable, __file__, *own], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as ran:
            assert ran.stdout is not None
            yield from (json.loads(line) for line in ran.stdout if line.startswith("{"))
        if ran.returncode:
            errors.seek(0)
            raise SystemExit(f"{' and '.join(names)} failed:\n{errors.read()}")


def _trainings(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The results of what --one and --seeds name, after the warm-ups."""
    makers: dict[str, Callable[[argparse.Namespace], Run]] = {"airbench": _airbench}
    makers |= {name: partial(_fastimg, cuda_graphs=graphs) for name, graphs in _ours(args).items()}
    with contextlib.redirect_stdout(sys.stderr):  # what airbench prints
        runs = {name: makers[name](args) for name in args.one.split(",")}
        for number in range(args.warmups):
            for run in runs.values():
                run(-1 - number)
    for number, seed in enumerate(map(int, args.seeds.split(","))):
        for name, run in list(runs.items())[:: -1 if number % 2 else 1]:
            with contextlib.redirect_stdout(sys.stderr):
                found = run(seed)
            yield {"by": name, **found}


def _ours(args: argparse.Namespace) -> dict[str, str | None]:
    """fastimg's trainings by name, and their setting of --cuda-graphs; None: the default."""
    names = {None: "fastimg", "off": "fastimg eager", "auto": "fastimg graphs"}
    return {names[graphs]: graphs for graphs in args.cuda_graphs or [None]}


def _write(args: argparse.Namespace, folder: Path) -> dict[str, int]:
    """Write the same pixels for both: a folder of PNGs, and the two files that airbench's script makes of CIFAR-10."""
    count = {}
    for split, (images, labels) in _splits(args.data).items():
        repeat = args.repeat if split == "train" else 1
        images, labels = np.tile(images, (repeat, 1, 1, 1)), np.tile(labels, repeat)
        count[split] = len(labels)
        root = folder / "images" / split
        for label in np.unique(labels):
            (root / f"{label:02d}").mkdir(parents=True)
        files = [root / f"{label:02d}" / f"{number:06d}.png" for number, label in enumerate(labels)]
        with ThreadPoolExecutor(available_cpus()) as threads:
            list(threads.map(lambda image, file: Image.fromarray(image).save(file, compress_level=1), images, files))
        content = {"images": torch.from_numpy(images), "labels": torch.from_numpy(labels), "classes": []}
        (folder / "cifar10").mkdir(exist_ok=True)
        torch.save(content, folder / "cifar10" / ("train.pt" if split == "train" else "test.pt"))
    return {"images": count["train"], "validated": count["val"]}


def _splits(data: Path | None) -> dict[str, Split]:
    """The images of `train` and `val`, resized to 32 pixels."""
    if data is not None and (data / "train.pt").is_file():
        files = {"train": data / "train.pt", "val": data / "test.pt"}
        loaded = {split: torch.load(file, weights_only=True) for split, file in files.items()}
        return {split: (one["images"].numpy(), one["labels"].numpy()) for split, one in loaded.items()}
    train, val = open_parts(data or digits_folder(), "train", None, None, 0)
    assert val is not None
    return {split: _pixels(part.dataset, part.indices) for split, part in (("train", train), ("val", val))}


def _pixels(dataset: Any, indices: npt.NDArray[np.int64] | None) -> Split:
    crop = CenterCrop(size=SIZE, resize=SIZE)
    with contextlib.closing(
        open_source("native", dataset, crop, LoaderConfig(batch_size=100, order="sequential"), indices=indices)
    ) as loader:
        kept = [(b.inputs.permute(0, 2, 3, 1)[b.weight > 0].clone(), b.targets[b.weight > 0].clone()) for b in loader]
    return torch.cat([i for i, _ in kept]).numpy(), torch.cat([t for _, t in kept]).numpy()


def _fastimg(args: argparse.Namespace, cuda_graphs: str | None) -> Run:
    """`fastimg train --recipe cifar-fast`, in this process."""
    from fastimg.train import setup
    from fastimg.train.loop import train

    spent = 0.0
    whiten = setup.whiten

    def timed(*given: Any) -> None:
        nonlocal spent
        began = time.perf_counter()
        whiten(*given)
        spent = time.perf_counter() - began

    _read_once()
    values = settings("cifar-fast") | {
        "data": args.folder / "images",
        "model_kwargs": (f"width={args.width}",),
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "val_interval": args.epochs,
        "device": args.device,
        "output": args.folder / "runs",
        "log_interval": 1000,
        **({"cuda_graphs": cuda_graphs} if cuda_graphs else {}),
    }

    def run(seed: int) -> dict[str, Any]:
        setup.whiten = timed
        config = Train(**values, seed=abs(seed), name=f"seed {seed} {cuda_graphs or ''}".strip())
        said = io.StringIO()
        result = train(config, Console(file=said, width=1000))
        precision = re.search(r"((?:bf16|fp16) autocast|float32)[^,]*", said.getvalue())
        assert precision is not None, said.getvalue()
        assert result.run is not None and result.best is not None
        records = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
        epochs = [record for record in records if record["kind"] == "epoch"]
        parts = {
            "whitening_seconds": spent,
            "train_seconds": sum(record["train_seconds"] for record in epochs),
            "val_seconds": epochs[-1]["val_seconds"],
        }
        return {"seconds": sum(parts.values()), "accuracy": result.best.top1, "precision": precision[0], **parts}

    return run


def _read_once() -> None:
    """Keep the images that one training has read for the next: reading does not count."""
    anything: Any = ResidentImages
    if anything.load.__name__ == "loaded":  # by another of these trainings
        return
    read, load = anything._read_sizes, anything.load
    sizes: dict[int, Any] = {}
    pixels: dict[int, torch.Tensor] = {}

    def read_sizes(images: Any) -> Any:
        count = len(images.dataset) if images.indices is None else len(images.indices)
        if count not in sizes:
            sizes[count] = read(images)
        return sizes[count]

    def loaded(images: Any) -> torch.Tensor:
        if len(images) not in pixels:
            pixels[len(images)] = load(images)
        images.pixels = pixels[len(images)]
        return pixels[len(images)]

    anything._read_sizes, anything.load = read_sizes, loaded


class _Clock:
    """Replaces a CUDA event."""

    def __init__(self, enable_timing: bool = True) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: "_Clock") -> float:
        return 1e3 * (end.at - self.at)


def _airbench(args: argparse.Namespace) -> Run:
    """Airbench's own training with the given settings."""
    precision = choose(torch.device(args.device), True, "auto")
    seen: dict[str, Any] = {}

    def note(variables: dict[str, Any], is_final_entry: bool) -> None:
        seen.update(seconds=variables["total_time_seconds"], accuracy=variables.get("tta_val_acc"))

    prepare = partial(_take_cuda_out, autocast=precision.autocast) if args.device == "cpu" else lambda module: None
    script = _package if args.airbench == PACKAGE else _script
    with contextlib.chdir(args.folder):
        train = script(args, note, prepare)

    def run(seed: int) -> dict[str, Any]:
        torch.manual_seed(abs(seed))
        with contextlib.chdir(args.folder):
            train()
        return {**seen, "precision": precision.reason if args.device == "cpu" else "fp16 weights"}

    return run


def _script(
    args: argparse.Namespace, note: Callable[..., None], prepare: Callable[[Any], None]
) -> Callable[[], object]:
    """`main` of the script."""
    spec = importlib.util.spec_from_file_location("airbench", args.airbench)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.hyp["net"]["base_width"] = args.width
    module.hyp["opt"]["train_epochs"] = args.epochs
    module.hyp["opt"]["batch_size"] = args.batch_size
    module.print_training_details = note
    prepare(module)
    return partial(module.main, 0)


def _package(
    args: argparse.Namespace, note: Callable[..., None], prepare: Callable[[Any], None]
) -> Callable[[], object]:
    """`train94` of the package that its author publishes."""
    utils: Any = importlib.import_module("airbench.utils")
    recipe: Any = importlib.import_module("airbench.lib_airbench94")
    utils.print_training_details = note
    widths = {"block1": args.width, "block2": 4 * args.width, "block3": 4 * args.width}
    utils.make_net = partial(recipe.make_net94, widths)
    prepare(utils)

    def run() -> None:
        loader = utils.CifarLoader("cifar10", True, args.batch_size, recipe.hyp["aug"], altflip=True)
        recipe.train94(loader, epochs=args.epochs, make_net=utils.make_net)

    return run


def _take_cuda_out(module: Any, autocast: Callable[[], Any]) -> None:
    """Replace its CUDA calls by no-ops, and float16 by float32 under `autocast`."""
    anything: Any = torch
    anything.cuda.Event = _Clock
    anything.cuda.synchronize = lambda: None
    anything.Tensor.half = lambda tensor: tensor.float()
    anything.nn.Module.half = lambda network: network
    anything.nn.Module.cuda = lambda network: network
    defaults = module.CifarLoader.__init__.__defaults__
    module.CifarLoader.__init__.__defaults__ = (*defaults[:-1], "cpu")  # the last argument is gpu=0
    make = module.make_net

    def autocasting() -> Any:
        network = make()
        forward = network.forward

        def called(inputs: torch.Tensor) -> torch.Tensor:
            with autocast():
                output: torch.Tensor = forward(inputs)
            return output.float()

        network.forward = called
        return network

    module.make_net = autocasting


if __name__ == "__main__":
    main()
