"""`fastimg search` against `train` as it is, `suggest`, and random search; judged on a split that no trial saw.

    python benchmarks/search.py --part seconds --data dogs-vs-cats --shared FOLDER --weights mobilenetv2.safetensors
    python benchmarks/search.py --part tpe --data flowers --shared FOLDER --weights FILE [--trials 80] [--seeds 5]
    python benchmarks/search.py --part medians [--trials 80]
    python benchmarks/search.py --part time --data sst2 --shared FOLDER --encoder hf:FOLDER [--time 5m] [--only search]

seconds: trials of a linear head on kept embeddings; the first one, which embeds, and the median of the others.
tpe: trials by TPE and at random; how many of TPE's it takes to reach the best of the random ones, by the validation
loss, since accuracies of a few hundred samples tie. medians: of what
tpe has recorded with so many trials, the best so far after each trial, its median over the seeds: how many trials of
TPE reach that of all random ones. time: the accuracy on the test split of what each way finds in the same time: `train`
with its defaults and the same weights, `suggest` and its file, `search --max-time`, and search over the same flags at
random.

FOLDER holds dogs-vs-cats/, flowers/ (class folders), text/sst2/train.tsv and text/imdb/ (pos, neg). `small` is made of
the photographs: seven classes of 32 x 32 pixels. Of each class a sixth is the test split, a sixth validates; with
`time`, each seed takes another sixth as its test split, and `--held-out` says how small the parts are.
"""

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
from PIL import Image, ImageOps
from rich.console import Console

from fastimg.cli import run

DATA = ("dogs-vs-cats", "flowers", "small", "sst2", "imdb")
TEXTS = ("sst2", "imdb")
SIDE = 32  # pixels of `small`
SPACE = ("lr=log:1e-4:1e-1", "weight-decay=log:1e-5:1e-1", "smoothing=0:0.2")
HEADS = (*SPACE, "head=linear,mlp")
WAYS = ("train", "suggest", "search", "random")


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("seconds", "tpe", "medians", "time"), required=True)
    parser.add_argument("--data", choices=DATA)
    parser.add_argument("--shared", type=Path, help="the folder that holds the data")
    parser.add_argument("--weights", type=Path, help="of an image model; they state what they are of")
    parser.add_argument("--encoder", help="of texts: hf:FOLDER")
    parser.add_argument("--samples", type=int, default=1000, help="of each class, at most")
    parser.add_argument("--held-out", type=float, default=1 / 6, help="the share of each class in test, and in val")
    parser.add_argument("--trials", type=int, default=80)
    parser.add_argument("--tpe-trials", type=int, help="of TPE, with --part tpe; default: as many as at random")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="with --part tpe")
    parser.add_argument("--epochs", type=int, default=20, help="of a trial on kept embeddings")
    parser.add_argument("--time", default="5m", help="for each way")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--img-size", type=int, help="of all ways; default: each one's own")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "search.jsonl")
    args = parser.parse_args()
    if args.part == "medians":
        measure.show(Console(width=140), "medians", list(medians(args.out, args.trials)))
        return
    if args.data is None or args.shared is None:
        parser.error(f"--part {args.part} needs --data and --shared")
    if (args.encoder if args.data in TEXTS else args.weights) is None and args.part != "time":
        parser.error("--part seconds and tpe need --weights, or --encoder for texts")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / args.data
        split(args, data)
        part = {"seconds": seconds_of_trials, "tpe": tpe_and_random, "time": equal_time}[args.part]
        rows = []
        for row in part(args, data, Path(folder)):
            rows.append({name: value for name, value in row.items() if name != "values"})
            record = {"benchmark": "search", "part": args.part, "data": args.data, **measure.flat(row)}
            measure.append(args.out, {**record, "environment": measure.environment()})
    measure.show(Console(width=140), f"{args.part}, {args.data}", [shown(row) for row in rows])


def seconds_of_trials(args: argparse.Namespace, data: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Trials of a linear head on kept embeddings: the first one, and those after it."""
    board = searched(args, data, folder / "seconds", SPACE, "tpe", 0)
    taken = [row["seconds"] for row in sorted(board["trials"], key=lambda row: row["trial"])]
    train = sum(len(list(each.iterdir())) for each in (data / "train").iterdir())
    yield {"train": train, "epochs": args.epochs, "first": taken[0], "seconds": measure.Spread.of(taken[1:])}


def tpe_and_random(args: argparse.Namespace, data: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """For each seed the best loss of random search, and how many trials TPE took to get there."""
    counts = {"random": args.trials, "tpe": args.tpe_trials or args.trials}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        found = {}
        for sampler, trials in counts.items():
            home = folder / f"{sampler}{seed}"
            board = searched(args, data, home, HEADS, sampler, seed, "--metric", "loss", trials=trials)
            rows = sorted(board["trials"], key=lambda row: row["trial"])
            found[sampler] = [row["value"] for row in rows]
        target = min(found["random"])
        reached = next((number for number, value in enumerate(found["tpe"], 1) if value <= target), None)
        yield {
            "seed": seed,
            "trials": args.trials,
            "tpe_trials": counts["tpe"],
            "random_best": target,
            "random_needed": found["random"].index(target) + 1,
            "tpe_best": min(found["tpe"]),
            "tpe_needed": reached,
            "values": found,
        }


def medians(results: Path, trials: int) -> Iterator[dict[str, Any]]:
    """For each data set, how many trials of TPE it takes for the median over the seeds of the best so far."""
    seeds: dict[str, dict[int, Any]] = {}
    for line in results.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["part"] == "tpe" and record["trials"] == trials:
            seeds.setdefault(record["data"], {})[record["seed"]] = record
    for data, records in seeds.items():
        found = [record["values"] for record in records.values()]
        target = statistics.median(min(each["random"]) for each in found)
        most = min(len(each["tpe"]) for each in found)
        best = [statistics.median(min(each["tpe"][:count]) for each in found) for count in range(1, most + 1)]
        yield {
            "data": data,
            "seeds": len(found),
            "random": f"{target:.4g} after {trials}",
            "tpe": f"{best[-1]:.4g} after {most}",
            "tpe_needed": next((count for count, value in enumerate(best, 1) if value <= target), None),
            "of_each_seed": ", ".join(str(record.get("tpe_needed")) for record in records.values()),
        }


def equal_time(args: argparse.Namespace, data: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """The accuracy on the test split of what each way finds in the same time; a way that is refused says why."""
    for seed in range(args.seeds):
        if seed:
            data = folder / f"{args.data}{seed}"
            split(args, data, seed)
        for way in args.only:
            row: dict[str, Any] = {"seed": seed, "way": way, "budget": args.time}
            began = time.perf_counter()
            try:
                best = found_by(way, args, data, folder / f"{way}{seed}", seed)
                row["test_top1"] = judged(best, data, args.device)
            except RuntimeError as error:
                row["refused"] = str(error).replace(str(folder), "FOLDER").replace(str(args.encoder), "ENCODER")
            yield {**row, "seconds": time.perf_counter() - began}


def found_by(way: str, args: argparse.Namespace, data: Path, home: Path, seed: int) -> Path:
    """The run that one way finds in the time. Raises RuntimeError where it is refused."""
    starts = started_with(args)
    size = ["--img-size", args.img_size] if args.img_size else []
    common = ["--seed", seed, "--device", args.device]
    training = ["--max-time", args.time, *common, "--output", home, "--name", "run"]
    if way == "train":
        command("train", data, *starts, *size, *training)
        return home / "run"
    if way == "suggest":
        command("suggest", data, "--max-time", args.time, *starts, "-o", home.with_suffix(".yaml"))
        command("train", data, "--config", home.with_suffix(".yaml"), *training)
        return home / "run"
    space: list[object] = []
    behind = list(size)
    if way == "random":
        space = [word for text in HEADS for word in ("--param", text)] + ["--algorithm", "random", "--pruner", "none"]
        behind = ["--freeze", "backbone", "--epochs", args.epochs, *size]
    command(
        "search",
        data,
        *starts,
        *space,
        "--max-time",
        args.time,
        *common,
        "-o",
        home,
        *(["--", *behind] if behind else []),
    )
    return home / "best"


def started_with(args: argparse.Namespace) -> list[object]:
    """The flags of what every way starts from."""
    if args.data in TEXTS:
        return [] if args.encoder is None else ["--arch", args.encoder]
    return [] if args.weights is None else ["--weights", args.weights]


def searched(
    args: argparse.Namespace,
    data: Path,
    home: Path,
    space: tuple[str, ...],
    sampler: str,
    seed: int,
    *more: object,
    trials: int | None = None,
) -> dict[str, Any]:
    """The leaderboard of a search over the settings of a classifier on kept embeddings."""
    params = [word for text in space for word in ("--param", text)]
    size = ["--img-size", args.img_size] if args.img_size else []
    shared = ["--", "--freeze", "backbone", "--epochs", args.epochs, *size]
    given = ["--trials", trials or args.trials, "--algorithm", sampler, "--pruner", "none", "--seed", seed]
    given += ["--device", args.device]
    text = command("search", data, *started_with(args), *params, *given, *more, "-o", home, "--json", *shared)
    found: dict[str, Any] = json.loads(text)
    return found


def judged(best: Path, data: Path, device: str) -> float:
    """The accuracy on the test split."""
    score = json.loads(command("eval", best, data, "--split", "test", "--json", "--device", device))
    return float(score["top1"])


def command(*words: object) -> str:
    """What a command prints. Raises RuntimeError where it fails."""
    said, refused = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(refused):
        code = run([str(word) for word in words])
    if code:
        reason = refused.getvalue().strip() or said.getvalue()
        raise RuntimeError(f"fastimg {words[0]} ended with exit code {code}: {reason[-500:]}")
    return said.getvalue()


def split(args: argparse.Namespace, target: Path, turn: int = 0) -> None:
    """Make train, val and test of class folders; `turn` says how many test splits come before this one."""
    for name, samples in classes(args).items():
        chosen = samples[: args.samples]
        few = max(1, round(len(chosen) * args.held_out))
        start = turn * few % len(chosen)
        turned = chosen[start:] + chosen[:start]
        parts = {"test": turned[:few], "val": turned[few : 2 * few], "train": turned[2 * few :]}
        for part, members in parts.items():
            folder = target / part / name
            folder.mkdir(parents=True)
            for number, sample in enumerate(members):
                write(sample, folder / f"{number:05d}", args.data == "small")


def classes(args: argparse.Namespace) -> dict[str, list[Path | str]]:
    """The samples of each class, files or texts, in an order that depends on nothing."""
    if args.data == "sst2":
        lines = (args.shared / "text" / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()
        pairs = [line.rpartition("\t") for line in lines if line]
        return {label: [text for text, _, own in pairs if own == label] for label in sorted({own for *_, own in pairs})}
    names = ("dogs-vs-cats", "flowers") if args.data == "small" else (args.data,)
    homes = [args.shared / "text" / "imdb"] if args.data == "imdb" else [args.shared / name for name in names]
    return {
        folder.name: sorted(file for file in folder.iterdir() if file.is_file())
        for home in homes
        for folder in sorted(home.iterdir())
        if folder.is_dir()
    }


def write(sample: Path | str, place: Path, small: bool) -> None:
    """Link a file, write a text, or make an image small."""
    if isinstance(sample, str):
        place.with_suffix(".txt").write_text(sample, encoding="utf-8")
    elif small:
        with Image.open(sample) as image:
            ImageOps.fit(image.convert("RGB"), (SIDE, SIDE)).save(place.with_suffix(".png"))
    else:
        place.with_suffix(sample.suffix.lower()).symlink_to(sample.resolve())


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """For the table."""
    words = {name: f"{value:.4g}" for name, value in row.items() if isinstance(value, float)}
    return {**row, **words, **{name: v.text() for name, v in row.items() if isinstance(v, measure.Spread)}}


if __name__ == "__main__":
    main()
