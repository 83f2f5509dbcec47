"""`fastimg bench`: its output, its errors on bad input, and its verdicts for given rates."""

import dataclasses
import itertools
import json
import os
import re
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fastimg.bench import advice, budget, plots, request, tuning
from fastimg.bench import benchmark as bench
from fastimg.bench import training as trainbench
from fastimg.bench.budget import Effort, Timetable
from fastimg.bench.dataset import open_images
from fastimg.bench.peers.results import Comparison
from fastimg.bench.stage_table import Stage
from fastimg.loaders import FilesDataset
from fastimg.system.machine_load import Load
from fastimg.system.measurement import Spread

SMALL = (
    "--arch",
    "test_resnet",
    "--img-size",
    "32",
    "-b",
    "4",
    "-j",
    "1",
    "--images",
    "8",
    "--repeats",
    "1",
    "--no-amp",
)
TRIED = ("--full", "--stages", "none", "--loaders", "none", "--workers-curve", "none")


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Make rates quick to measure, and ignore the machine's real runs."""
    short = {"epoch": 0.01, "training": 0.01, "stage": 0.01, "nbytes": 1 << 16}
    monkeypatch.setattr(request, "QUICK", dataclasses.replace(budget.QUICK, **short))
    monkeypatch.setattr(request, "FULL", dataclasses.replace(budget.FULL, **short))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake(monkeypatch, cli, image_folder):
    """fake(read=, decode=, copy=, augment=, step=, synthetic=, real=): run bench with these rates; returns its json."""

    def run(*flags, **rates):
        def stages(images, decoder, rig, names, count, threads, effort):
            named = {"read, warm": rates["read"], **{n: rates.get(n) for n in ("copy", "augment", "step")}}
            return [Stage(name=n, rate=Spread.of([r]), threads=1) for n, r in named.items() if r is not None]

        monkeypatch.setattr(bench, "measure", stages)
        monkeypatch.setattr(trainbench, "loader_rate", lambda rig: rates["decode"])
        monkeypatch.setattr(trainbench, "synthetic_rate", lambda rig, budget: rates["synthetic"])
        monkeypatch.setattr(trainbench, "real_rate", lambda rig, warm, **_: rates["real"])
        ran = cli("bench", image_folder, *SMALL, "--json", *flags)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    return run


EVEN = {"read": 9e4, "decode": 5e3, "copy": 2e4, "augment": 8e4, "step": 5e3, "synthetic": 5e3, "real": 2e3}


@pytest.mark.parametrize(
    ("rates", "kind"),
    [
        ({"read": 1e3, "real": 950.0}, "storage-bound"),
        ({"decode": 1e3, "real": 950.0}, "decode-bound"),
        ({"copy": 1e3, "real": 950.0}, "copy-bound"),
        ({"step": 1e3, "synthetic": 1e3, "real": 980.0}, "compute-bound"),
        ({}, "balanced"),
    ],
)
def test_a_slow_part_is_the_verdict(fake, rates, kind):
    found = fake(**{**EVEN, **rates})
    verdict = found["training"][0]["verdict"]
    assert verdict["kind"] == kind and found["verdict"] == verdict["sentence"]
    if rates:
        assert verdict["limit_images_per_second"] == 1e3
    whole = {**EVEN, **rates}
    assert found["real_over_synthetic"] == pytest.approx(whole["real"] / whole["synthetic"])


@pytest.fixture
def busy(monkeypatch):
    """A machine that also runs other work."""
    load = Load(before=7.5, during=8.0, cores=2, others=0.6)
    monkeypatch.setattr(bench, "LoadWatch", lambda: SimpleNamespace(load=lambda: load))


def test_rates_that_contradict_each_other_are_no_verdict(fake, busy):
    found = fake(**{**EVEN, "step": 13.4, "synthetic": 124.0, "real": 79.0})
    verdict = found["training"][0]["verdict"]
    assert verdict["kind"] is None and verdict["sentence"] == found["verdict"]
    assert found["verdict"].startswith(
        "no verdict: the measurements disagree by more than 30% (the step alone 13.4 img/s"
    )
    assert "other processes used 60% of the processors" in found["verdict"]
    assert found["load"] == {"before": 7.5, "during": 8.0, "cores": 2, "others_share": 0.6}


def test_without_a_verdict_no_advice_is_tried(cli, image_folder, busy, monkeypatch):
    monkeypatch.setattr(trainbench, "synthetic_rate", lambda rig, budget: 1000.0)
    monkeypatch.setattr(trainbench, "real_rate", lambda rig, warm, **_: 700.0)
    monkeypatch.setattr(trainbench, "loader_rate", lambda rig: 310.0)
    monkeypatch.setattr(trainbench, "advise", None)
    ran = cli("bench", image_folder, *SMALL, *TRIED)
    assert ran.code == 0, ran.err
    assert (
        "no verdict: the measurements disagree by more than 30% (the loader alone 310 img/s, and training end"
        in ran.out
    )
    assert "verdict  " not in ran.out and "trying" not in ran.err


def test_the_load_of_the_machine_is_always_printed(cli, image_folder, busy, monkeypatch):
    for name, rate in (("synthetic_rate", 300.0), ("loader_rate", 310.0), ("real_rate", 290.0)):
        monkeypatch.setattr(trainbench, name, lambda *_, rate=rate, **__: rate)
    ran = cli("bench", image_folder, *SMALL, "--stages", "none")
    assert ran.code == 0, ran.err
    assert re.search(r"^load      load average [\d.]+ on the machine's \d+ cores, before measuring$", ran.out, re.M)
    assert "load      load average 7.5 before and 8.0 after, on 2 cores; other processes used 60%" in ran.out
    assert "verdict  " in ran.out


def test_the_noise_of_the_measurement(monkeypatch):
    speeds = itertools.chain([1.0], itertools.cycle([100.0, 110.0]))  # the first one is a warm-up
    monkeypatch.setattr(trainbench, "loader_rate", lambda rig: next(speeds))
    table = Timetable(expected={"the loader alone": 1.0}, progress=Console(quiet=True))
    effort = Effort(repeats=3, budget=budget.QUICK, timetable=table, advice=False)
    alone, noise = trainbench.loader_alone(None, effort)
    assert (noise["first"], noise["second"], noise["n"]) == (100.0, 110.0, 3)
    assert noise["difference"] == pytest.approx(1 / 11, abs=1e-4)
    assert alone.n == 6


def test_it_measures_prints_and_advises(cli, image_folder):
    ran = cli("bench", image_folder, *SMALL)
    assert ran.code == 0, ran.err
    for words in ("data      images: 36 images", "read, warm", "splice", "decode", "resize", "augment", "step"):
        assert words in ran.out
    assert "none: the CPU trains on the loader's buffer itself" in ran.out
    assert "real/synthetic" in ran.out
    assert ran.out.splitlines()[-1].startswith(("verdict  ", "no verdict"))
    assert "measured twice, it differs by" in ran.out


def test_the_plan_and_its_duration_come_first(cli, image_folder):
    ran = cli("bench", image_folder, *SMALL, "--stages", "decode")
    assert ran.code == 0, ran.err
    plan = re.search(r"^plan      --quick, about [\d.]+ s: (.*)$", ran.out, re.M)
    parts = [part.rsplit(" ", 2)[0] for part in plan.group(1).split(", ")]
    assert parts[:2] == ["decoding", "the loader alone"] and parts[-1] == "training test_resnet"
    for number, part in enumerate(parts, 1):
        assert re.search(rf"^\[{number}/{len(parts)}\] {part}: about [\d.]+ s$", ran.err, re.M)
    assert re.search(r"^          --full, about [\d.]+ (s|min): also tries what would be faster", ran.out, re.M)
    assert re.search(r"^took      [\d.]+ (s|min), where [\d.]+ s were expected$", ran.out, re.M)


def test_long_steps_reduce_the_default_batch_size(cli, image_folder, monkeypatch):
    monkeypatch.setattr(bench, "step_seconds", lambda rig: 0.3)  # for 8 images
    flags = ("--arch", "test_resnet", "--img-size", "32", "--stages", "none", "--repeats", "1", "--no-amp")
    ran = cli("bench", image_folder, *flags)
    assert ran.code == 0, ran.err
    assert "1 repeat, batch 8" in ran.out
    assert "batch 8, since a step with the usual 64 takes about 2 s; -b 64 measures that one" in ran.out
    ran = cli("bench", image_folder, *flags, "-b", "16", "--json")
    assert ran.code == 0 and json.loads(ran.out)["batch_size"] == 16


def test_full_compares_loaders_and_threads(cli, image_folder, tmp_path, monkeypatch):
    """The loaders are not started; the test checks that all are requested."""
    asked = {}

    def compare(dataset, source, names, setting, *_):
        asked.update(names=names, threads=setting.threads)
        return Comparison(setting=setting, data="", images=8, samples=8, left_out={}, about={}, missing={"ffcv": "pip"})

    monkeypatch.setattr(bench, "compare", compare)
    monkeypatch.setattr(request, "available_cpus", lambda: 3)
    flags = ("--full", "--stages", "none", "--no-advice", "--json", "--output", tmp_path / "x.png")
    ran = cli("bench", image_folder, *SMALL, *flags)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert asked == {"names": tuple(request.PEERS), "threads": (1, 2, 3)}
    assert [row["threads"] for row in found["scaling"]] == [1, 2, 3] and found["missing"] == {"ffcv": "pip"}
    assert found["mode"] == "full" and (tmp_path / "x.png").is_file()
    assert [part["part"] for part in found["plan"]][-3:] == ["training test_resnet", "numbers of threads", "loaders"]
    assert all(part["seconds"] >= 0 and part["expected_seconds"] >= 0 for part in found["plan"])


def test_json_is_complete(cli, trained):
    ran = cli("bench", trained.shards, *SMALL, "--json", "--workers-curve", "1,2", "--arch", "test_resnet,test_vit")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert {"environment", "stages", "training", "real_over_synthetic", "verdict", "noise", "scaling"} <= found.keys()
    assert {"cpu", "cores", "torch", "commit"} <= found["environment"].keys()
    stages = {row["stage"]: row for row in found["stages"]}
    assert set(stages) == {"read, cold", "read, warm", "splice", "decode", "resize", "copy", "augment", "step"}
    for name in ("read, warm", "splice", "decode", "resize"):
        row = stages[name]
        assert row["n"] == 1 and row["per_core"] == pytest.approx(row["images_per_second"] / row["threads"], rel=0.01)
        ratio = row["images_per_second"] / row["ceiling_images_per_second"]
        assert row["ratio"] == pytest.approx(ratio, rel=0.05, abs=1e-4) and row["ceiling"]  # it is rounded
    assert [one["arch"] for one in found["training"]] == ["test_resnet", "test_vit"]
    one = found["training"][0]
    share = one["real_images_per_second"] / one["synthetic_images_per_second"]
    assert one["real_over_synthetic"] == pytest.approx(share, rel=0.01, abs=1e-4)
    assert [row["threads"] for row in found["scaling"]] == [1, 2]


def test_one_image_and_images_without_classes(cli, tmp_path, encode):
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.jpg").write_bytes(encode())
    ran = cli("bench", tmp_path / "flat", *SMALL, "--stages", "read,decode", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert {row["stage"] for row in found["stages"]} >= {"read, warm", "decode"}
    assert found["images"] == 8  # the same image repeated


def test_a_batch_too_small_for_batch_norm(cli, image_folder, tmp_path):
    flags = ("--arch", "test_resnet", "--img-size", "32", "-b", "1")
    words = "--batch-size 1: a batch norm of test_resnet sees a single value per channel"
    for command, more in (("bench", ("--stages", "none", "--repeats", "1")), ("train", ("-o", tmp_path / "runs"))):
        ran = cli(command, image_folder, *flags, *more)
        assert ran.code == 2 and words in ran.err.replace("\n", " ")


def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_measured(cli, image_folder, tmp_path, monkeypatch):
    """Nobody makes files in /proc. Where one can be made, it is not left behind."""
    monkeypatch.setattr(bench, "_measure", None)
    ran = cli("bench", image_folder, *SMALL, "--workers-curve", "1", "--output", "/proc/x.png")
    assert ran.code == 1 and "--output /proc/x.png: No such file or directory; choose a file that can be" in ran.err
    plots.check_file(tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_unreadable_images_are_named(cli, image_folder):
    (image_folder / "red" / "000.jpg").write_bytes(b"nothing")
    ran = cli("bench", image_folder, *SMALL, "--stages", "none")
    assert ran.code == 0, ran.err
    assert "of the sampled images, 1 cannot be read" in ran.out and "red/000.jpg" in ran.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--stages", "decoding"), "--stages decoding: no such stage; did you mean decode? choose from network, read"),
        (("--stages", "read,x"), "--stages x: no such stage"),
        (("--workers-curve", "1,two"), "--workers-curve 1,two: two is not a number of threads"),
        (("--batch-size", "0"), "--batch-size 0: give 1 or more"),
        (("--repeats", "0"), "--repeats 0: give 1 or more"),
        (("--output", "x.png"), "--output has no effect without --loaders or --workers-curve"),
        (("--quick", "--full"), "--quick has no effect with --full; leave one of them out"),
        (("--no-advice",), "--no-advice has no effect without --full"),
        (("--arch", ","), "--arch ',': give the name of a model"),
        (("--scratch", "nowhere"), "--scratch nowhere: no such folder"),
        (("--loaders", "native,tensorflow"), "tensorflow"),
        (("--arch", "hf:nowhere"), "hf:nowhere"),
        (("--decode", "gpu"), "--decode gpu"),
        (("--hflip", "2"), "--hflip"),
        (("--loader", "ffcv"), "ffcv"),
    ],
)
def test_impossible_flags(cli, image_folder, flags, words):
    ran = cli("bench", image_folder, *SMALL, *flags)
    assert ran.code == 2, ran.err
    assert words in ran.err and "Traceback" not in ran.err


def test_unusable_data(cli, tmp_path, encode):
    (tmp_path / "empty").mkdir()
    (tmp_path / "zero").mkdir()
    for i in range(3):
        (tmp_path / "zero" / f"{i}.jpg").write_bytes(b"")
    for name in ("good", "bad"):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "a.txt").write_text("a text")
    for path, code, words in (
        ("nowhere", 1, "no such folder"),
        ("empty", 1, "no images in it"),
        ("zero", 1, "none of 3 images can be read"),
        ("texts", 2, "contains texts; bench measures images"),
    ):
        ran = cli("bench", tmp_path / path, *SMALL)
        assert ran.code == code and words in ran.err and "Traceback" not in ran.err, ran.err


def test_advice_to_use_the_native_loader(cli, image_folder, monkeypatch):
    """The advice is measured: its factor is the ratio of the measured rates."""

    def real(one, warm, **_):
        return 900.0 if one.config.loader == "native" else 300.0

    monkeypatch.setattr(trainbench, "real_rate", real)
    monkeypatch.setattr(trainbench, "synthetic_rate", lambda rig, budget: 1000.0)
    monkeypatch.setattr(trainbench, "loader_rate", lambda rig: 310.0)
    ran = cli("bench", image_folder, *SMALL, *TRIED, "--loader", "torch", "--json")
    assert ran.code == 0, ran.err
    verdict = json.loads(ran.out)["training"][0]["verdict"]
    assert verdict["kind"] == "decode-bound"
    assert verdict["advice"] == [{"change": "--loader native", "factor": 3.0, "tried": True, "note": ""}]


def test_restart_markers_alone_do_not_make_a_jpeg_tiled(tmp_path):
    """Crops can be decoded alone only if restart intervals divide the block rows: in the first and the third image."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8))
    for number, flags in enumerate(
        ({"restart_marker_rows": 1}, {"restart_marker_blocks": 5}, {"restart_marker_blocks": 2}, {})
    ):
        noise.save(tmp_path / f"{number}.jpg", **flags)
    images = open_images(tmp_path, "train", 0)
    assert (images.jpegs, images.tiled) == (1.0, 0.5)
    images.dataset.close()


def test_converting_is_tried_if_data_is_not_tiled(cli, tmp_path, monkeypatch):
    for i in range(6):
        (tmp_path / "data" / "one").mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(i).integers(0, 256, (48, 700, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "data" / "one" / f"{i}.jpg")

    def real(one, warm, **_):
        return 100.0 if isinstance(one.loader.dataset, FilesDataset) else 170.0

    monkeypatch.setattr(trainbench, "real_rate", real)
    monkeypatch.setattr(trainbench, "synthetic_rate", lambda rig, budget: 1000.0)
    monkeypatch.setattr(trainbench, "loader_rate", lambda rig: 110.0)
    monkeypatch.setattr(advice, "available_cpus", lambda: 1)
    ran = cli("bench", tmp_path / "data", *SMALL, *TRIED, "--json", "--scratch", tmp_path)
    assert ran.code == 0, ran.err
    ways = {one["change"]: one for one in json.loads(ran.out)["training"][0]["verdict"]["advice"]}
    assert ways["fastimg convert data DST, which tiles JPEGs"]["factor"] == 1.7
    assert ways["fastimg convert --max-size 500"]["tried"]
    assert [one.name for one in tmp_path.iterdir()] == ["data"]  # nothing is left behind


def test_data_with_several_targets(cli, tmp_path, encode, monkeypatch):
    """The stages, the step with all heads and, with --full, what is tried. No image of the epoch need have a target."""
    rows = ["path,kind,tags,age"]
    for i in range(12):
        (tmp_path / f"{i}.jpg").write_bytes(encode(seed=i))
        rows.append(f"{i}.jpg,{'abc'[i % 3] if i % 5 else ''},{'x|y' if i % 2 else 'x'},{i / 2 if i < 2 else ''}")
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    targets = ("--target", "kind", "--target", "tags:multilabel", "--target", "age:number", "--tile", "off")
    assert cli("convert", tmp_path / "t.csv", tmp_path / "D", *targets).code == 0
    built = []
    seconds = bench.step_seconds
    monkeypatch.setattr(bench, "step_seconds", lambda rig: built.append(rig.run.setup) or seconds(rig))
    ran = cli("bench", tmp_path / "D", *SMALL, "--json")
    assert ran.code == 0, ran.err
    assert "step" in [row["stage"] for row in json.loads(ran.out)["stages"]]
    assert built[0].tasks.schema() == "3 targets: kind (3 classes), tags (2 labels), age (a number)"
    monkeypatch.setattr(trainbench, "real_rate", lambda one, warm, **_: len(one.loader.dataset) and 100.0)
    monkeypatch.setattr(trainbench, "synthetic_rate", lambda rig, budget: 1000.0)
    monkeypatch.setattr(trainbench, "loader_rate", lambda rig: 110.0)
    ran = cli("bench", tmp_path / "D", *SMALL, *TRIED, "--json")
    assert ran.code == 0, ran.err
    assert "fastimg convert D DST, which tiles JPEGs" in [
        one["change"] for one in json.loads(ran.out)["training"][0]["tried"]
    ]


def test_advice_without_gain_is_reported(cli, image_folder, monkeypatch):
    monkeypatch.setattr(trainbench, "real_rate", lambda one, warm, **_: 100.0)
    monkeypatch.setattr(trainbench, "synthetic_rate", lambda rig, budget: 1000.0)
    monkeypatch.setattr(trainbench, "loader_rate", lambda rig: 110.0)
    ran = cli("bench", image_folder, *SMALL, *TRIED)
    assert ran.code == 0, ran.err
    assert "tried without gain: fastimg convert images DST, which tiles JPEGs (1.00x)" in ran.out
    assert "fastimg convert images DST --format beton --raw-below " in ran.out


def test_tuning_writes_what_train_reads(cli, image_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def real(one, warm):
        return 100.0 + 50 * (one.loader.workers == 2) + 10 * (one.run.setup.batch_size == 32)

    monkeypatch.setattr(tuning, "real_rate", real)
    monkeypatch.setattr(tuning, "available_cpus", lambda: 4)
    monkeypatch.setattr(tuning, "BATCHES", (4, 16))
    ran = cli("bench", image_folder, *SMALL, "--stages", "none", "--tune")
    assert ran.code == 0, ran.err
    file = tmp_path / "fastimg" / "machine.json"
    assert "\n  --workers 2 --prefetch 2 --batch-size 4\n" in ran.out
    assert "\n  workers: 2\n  prefetch: 2\n  batch_size: 4\n" in ran.out
    assert f"written to {file}: `fastimg train DATA --profile` takes these settings" in ran.out
    ran = cli("train", image_folder, "--arch", "test_resnet", "--dry-run")
    assert ran.code == 0 and "profile" not in ran.out
    ran = cli("train", image_folder, "--arch", "test_resnet", "--dry-run", "--profile")
    assert ran.code == 0 and "profile     --workers 2, --prefetch 2" in ran.out


def test_the_smaller_of_two_similar_settings_wins():
    assert tuning.smallest_of_the_best({1: 100.0, 2: 101.0, 4: 102.0}) == 1
    assert tuning.smallest_of_the_best({1: 100.0, 2: 110.0, 4: 0.0}) == 2
    assert tuning.candidates(6) == [1, 2, 3, 4, 6, 7]


def test_fields_of_a_stage_row():
    row = Stage(name="decode", rate=Spread.of([90.0, 110.0, 100.0]), threads=2, ceiling=200.0, how="2 x one")
    assert row.record()["ratio"] == 0.5 and row.record()["per_core"] == 50.0
    assert row.row()["of ceiling"] == "0.50" and row.words() == "decode: ceiling: 2 x one"
    above = dataclasses.replace(row, ceiling=80.0, above="two threads read")
    assert above.row()["of ceiling"] == "1.25"
    assert above.words() == "decode: ceiling: 2 x one; 1.25 of it, since two threads read"
    assert Stage(name="copy", note="none").record() == {"stage": "copy", "note": "none"}


def test_sigterm_leaves_nothing_behind(cli, image_folder, tmp_path, monkeypatch):
    def ended(rig):
        assert any(one.name.startswith("fastimg-bench-") for one in (tmp_path / "scratch").iterdir())
        os.kill(os.getpid(), signal.SIGTERM)

    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(trainbench, "loader_rate", ended)
    ran = cli("bench", image_folder, *SMALL, "--stages", "none", "--scratch", tmp_path / "scratch")
    assert ran.code == 143
    assert not list((tmp_path / "scratch").iterdir())
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
