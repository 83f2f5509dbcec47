"""The verdict's arithmetic for given rates: the bottleneck, the next one, and the predicted gain."""

import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from fastimg.bench import advice, benchmark, raw_pixels
from fastimg.bench.ranks_share import ranks_share
from fastimg.bench.verdict import Advice, Measured, NoVerdict, allowed, doubts, judge, together, widest
from fastimg.config.commands import Train
from fastimg.models.ranks import Ranks
from fastimg.system.machine_load import CpuTimes, Load, LoadWatch, read_cpu_times, share_of_others

FAST = 10_000.0


def measured(**changes: float | bool | None) -> Measured:
    """A GPU machine on which every part does 10,000 img/s, with changes."""
    whole = Measured(storage=FAST, decode=FAST, copy=FAST, augment=FAST * 9, step=FAST, synthetic=FAST, real=FAST)
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("part", "kind"),
    [("storage", "storage-bound"), ("decode", "decode-bound"), ("copy", "copy-bound"), ("synthetic", "compute-bound")],
)
def test_the_slowest_part_limits(part, kind):
    found = judge(measured(**{part: 2_000.0, "real": 1_900.0}))
    assert found.kind == kind and found.limit_rate == 2_000
    assert found.next_rate == FAST
    assert found.share == pytest.approx(1_900 / (2_000 if part == "synthetic" else FAST))


def test_similar_rates_are_balanced():
    assert judge(measured(decode=2_000.0, synthetic=2_150.0, real=1_900.0)).kind == "balanced"
    assert judge(measured(decode=2_000.0, synthetic=2_250.0, real=1_900.0)).kind == "decode-bound"
    assert judge(measured(decode=2_250.0, synthetic=2_000.0, real=1_900.0)).kind == "compute-bound"


def test_the_next_limit_is_the_second_slowest():
    found = judge(measured(decode=1_000.0, copy=3_000.0, synthetic=5_000.0, real=990.0))
    assert (found.limit, found.next, found.next_rate) == ("decode", "copy", 3_000)
    assert "decode-bound at 0.20: the loader allows 1,000 img/s" in found.sentence()
    assert "the copy to the device, the next limit, 3,000" in found.sentence()


def test_augmentation_that_takes_more_than_the_step_is_named():
    slow = measured(augment=1_500.0, step=6_000.0, synthetic=1_200.0, real=1_150.0)
    assert judge(slow).kind == "augment-bound"
    assert judge(dataclasses.replace(slow, augment=9_000.0)).kind == "compute-bound"


def test_a_gpu_that_waits_for_launches_is_named():
    """Unless another part is slower, whatever augmentation takes."""
    slow = measured(augment=1_500.0, step=6_000.0, synthetic=1_200.0, real=1_150.0, drained=0.8)
    assert judge(slow).kind == "launch-bound" and judge(slow).limit == "compute"
    assert judge(dataclasses.replace(slow, drained=0.5)).kind == "augment-bound"
    assert judge(dataclasses.replace(slow, decode=600.0, real=590.0)).kind == "decode-bound"


def test_what_helps_a_gpu_that_waits_for_launches(monkeypatch):
    slow = measured(synthetic=1_200.0, real=1_150.0, drained=0.8)
    compiling = Advice(change="--compile", factor=1.4, tried=False)
    monkeypatch.setattr(advice, "_compiling", lambda rig: compiling)

    def changes(graphs="off", **flags):
        rig: Any = SimpleNamespace(config=Train(**flags), device=torch.device("cuda"))
        rig.run = SimpleNamespace(setup=None)
        monkeypatch.setattr(advice, "why_not", lambda setup: "" if graphs == "auto" else "--cuda-graphs off")
        images: Any = None
        return [one.change for one in advice._estimates(images, rig, slow)]

    at_once = "--compile reduce-overhead, which launches a whole pass at once"
    assert changes() == ["a larger --batch-size", "--compile", at_once]
    assert changes(grad_accum_steps=2) == ["a larger --batch-size", "--compile"]
    assert changes(compile="default") == ["a larger --batch-size", at_once]
    assert changes(compile="max-autotune") == ["a larger --batch-size"]
    assert changes("auto") == ["a larger --batch-size", "--compile"]


def test_raw_pixels_have_the_gain_of_the_table(monkeypatch):
    """Of training: beyond the loader's, other parts limit it."""
    raw = raw_pixels.RawPixels("--format beton --raw-below 14KB", {}, 50_000_000, 4.0)
    monkeypatch.setattr(advice, "as_raw_pixels", lambda *_: raw)
    config = Train(loader="native")
    rig: Any = SimpleNamespace(config=config, device=torch.device("cuda"), loader=SimpleNamespace(workers=64))
    images: Any = SimpleNamespace(path=Path("D"), jpegs=0.0, pngs=1.0, tiled=0.0, longer_side=64, area=4096.0)
    images.largest, images.dataset, images.epoch = 4096, range(10), range
    for synthetic, factor in ((FAST, 4.0), (4_000.0, 2.0)):
        slow = measured(decode=2_000.0, real=1_900.0, synthetic=synthetic)
        (found,) = advice.suggest(images, rig, 64, slow, Path("none"))
        assert found.text() == (
            f"fastimg convert D DST --format beton --raw-below 14KB ({factor:.2f}x, an estimate; "
            "all pixels take 50 MB, which memory holds)"
        )


def test_a_missing_part_is_not_the_limit():
    found = judge(measured(storage=None, copy=None, decode=500.0, real=480.0))
    assert (found.kind, found.next) == ("decode-bound", "compute")


def test_parts_run_at_the_same_time_on_a_gpu_and_share_the_cores_of_a_cpu():
    rates = {"decode": 300.0, "synthetic": 600.0, "storage": FAST}
    assert together(measured(**rates)) == 300
    assert together(measured(**rates, shared=True, copy=None)) == pytest.approx(200)
    assert together(measured(decode=300.0, synthetic=600.0, storage=50.0, shared=True)) == 50


def test_on_shared_cores_decoding_counts_even_if_it_is_faster():
    one = measured(decode=900.0, synthetic=700.0, real=340.0, shared=True, copy=None)
    assert judge(one).kind == "balanced"
    assert judge(dataclasses.replace(one, real=680.0)).kind == "compute-bound"
    assert judge(dataclasses.replace(one, shared=False)).kind == "compute-bound"


def test_advice_states_whether_it_was_measured():
    ways = [
        Advice(change="--loader native", factor=2.612, tried=True),
        Advice(change="--workers 16", factor=2.0, tried=False),
        Advice(change="--compile", factor=None, tried=False, note="takes a minute first"),
    ]
    found = judge(measured(decode=1_000.0, real=950.0), ways)
    assert found.sentence().endswith(
        "; --loader native (2.61x, tried) or --workers 16 (2.00x, an estimate) or --compile (not tried; takes a minute "
        "first)"
    )
    assert [one["tried"] for one in found.record()["advice"]] == [True, False, False]
    assert found.record()["sentence"] == found.sentence()


@pytest.mark.parametrize(
    ("changes", "ranges", "words"),
    [
        ({}, {"step": (100.0, 129.0)}, None),
        ({"synthetic": 5_000.0, "step": 5_000.0}, {"synthetic": (4_000.0, 9_000.0), "real": (8_000.0, 9_999.0)}, None),
        ({"step": 1.25 * FAST, "real": 1.25 * FAST}, {}, None),
        ({"step": None, "augment": None, "copy": None}, {}, None),
        (
            {"step": 13.4, "synthetic": 124.0, "real": 79.0},
            {},
            "the step alone 13.4 img/s, and the training step with its augmentation, which cannot be faster, 124",
        ),
        ({"augment": 5_000.0}, {}, "augmentation alone 5,000 img/s, and the training step with its augmentation"),
        ({"synthetic": 5_000.0, "step": 5_000.0}, {}, "training on synthetic data 5,000 img/s, and training"),
        ({"decode": 5_000.0}, {}, "the loader alone 5,000 img/s, and training end to end, which cannot be faster"),
    ],
)
def test_rates_that_contradict_each_other_are_doubted(changes, ranges, words):
    found = doubts(measured(**changes), ranges)
    assert found == () if words is None else len(found) == 1 and found[0].startswith(words)


def test_a_spread_that_allows_several_answers_is_uncertain():
    one = measured(decode=2_000.0, synthetic=3_000.0, real=1_900.0)
    sure = allowed(one, {"decode": (1_900.0, 2_100.0), "synthetic": (2_900.0, 3_100.0)}, (0.6, 0.7))
    assert sure == ("decode-bound",) and judge(one, (), sure) == judge(one)
    kinds = allowed(one, {"decode": (1_500.0, 3_500.0), "synthetic": (2_900.0, 3_100.0)}, (0.6, 0.7))
    assert kinds == ("decode-bound", "compute-bound")
    found = judge(one, (), kinds)
    words = "uncertain: decode-bound or compute-bound, by the spread of the repeats; at their medians, "
    assert found.sentence() == words + judge(one).sentence()
    assert found.record()["kind"] == "uncertain" and found.record()["possible"] == list(kinds)
    assert judge(one).record()["possible"] == ["decode-bound"]


def test_on_shared_cores_the_share_decides_between_compute_and_balanced():
    """As measured in pairs, independent of the machine's speed at the time."""
    one = measured(decode=90_000.0, synthetic=700.0, real=690.0, shared=True, copy=None)
    ranges = {"synthetic": (300.0, 1_400.0), "real": (290.0, 1_390.0)}
    assert allowed(one, ranges, (0.95, 0.99)) == ("compute-bound",)
    assert allowed(one, ranges, (0.5, 0.99)) == ("compute-bound", "balanced")


def test_repeats_that_differ_much_are_named():
    assert widest({"real": (100.0, 129.0), "alone": (100.0, 110.0)}) is None
    assert widest({"real": (100.0, 131.0), "alone": (100.0, 180.0)}) == "alone"


def test_doubts_about_the_loaders_rate_in_training():
    """Its rate on all cores, on which the verdict is based, does not apply to training with fewer threads."""
    assert doubts(measured(), {}, alone=FAST / 2) and not doubts(measured(decode=FAST / 2), {}, alone=FAST)


def test_no_verdict_says_why_and_how_busy_the_machine_was():
    load = Load(before=7.46, during=8.1, cores=2, others=0.612)
    none = NoVerdict(share=0.64, doubts=("the step from 13.4 to 124 img/s",), load=load)
    assert none.sentence() == (
        "no verdict: the measurements disagree by more than 30% (the step from 13.4 to 124 img/s); the machine was "
        "busy, or its speed changed (load average 7.5 before and 8.1 after, on 2 cores; other processes used 61% of "
        "the processors); run again when it is idle"
    )
    record = none.record()
    assert (record["kind"], record["advice"], record["real_over_synthetic"]) == (None, [], 0.64)
    assert record.keys() >= judge(measured()).record().keys()
    nowhere = Load(before=None, during=None, cores=2, others=None)
    assert nowhere.text() == "not known on this system"


@pytest.mark.parametrize(
    ("after", "share"),
    [
        (CpuTimes(200.0, 100.0, 60.0), 0.4),  # 90 of 100 seconds are in use, 50 of them by this process
        (CpuTimes(200.0, 30.0, 60.0), 0.0),  # counted a moment later
        (CpuTimes(100.0, 10.0, 10.0), None),
        (None, None),
    ],
)
def test_cpu_time_of_other_processes(after, share):
    before = CpuTimes(100.0, 10.0, 10.0)
    assert share_of_others(before, after) == (share if share is None else pytest.approx(share))
    watch = LoadWatch(iter([before, after]).__next__, iter([1.5, 2.5]).__next__, cores=4)
    load = watch.load()
    assert (load.before, load.during, load.cores) == (1.5, 2.5, 4) and load.record()["others_share"] == load.others


def test_the_systems_cpu_time(tmp_path):
    assert read_cpu_times(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "stat").write_text("cpu  100 200 300 4000 500 10 20 30 7 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
    found = read_cpu_times(tmp_path)
    assert found is not None and found.busy / found.total == pytest.approx(660 / 5160)
    (tmp_path / "proc" / "stat").write_text("cpu  ?\n")
    assert read_cpu_times(tmp_path) is None


def test_the_rate_with_a_ranks_share_of_the_cores() -> None:
    trained: Any = SimpleNamespace(arch="resnet18", synthetic=SimpleNamespace(median=9000.0))
    share = ranks_share(16, 8, 2006.0, trained)
    assert share.text() == (
        "16 cores over 8 GPUs are 2 threads a rank: about 4,012 img/s each, at the 2,006 of a thread measured here; "
        "a step of resnet18 takes 9,000, which decoding would limit (an estimate)"
    )
    assert share.record() == {
        "cores": 16,
        "gpus": 8,
        "threads_per_rank": 2,
        "images_per_second_per_thread": 2006.0,
        "images_per_second_per_rank": 4012.0,
    }
    assert "which is enough" in ranks_share(64, 4, 2006.0, trained).text()
    assert ranks_share(2, 8, 2006.0, trained).threads == 1


def test_bench_prints_the_share_with_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: Any = SimpleNamespace(arch="resnet18", synthetic=SimpleNamespace(median=9000.0))
    monkeypatch.setattr(benchmark, "available_cpus", lambda: 16)
    for device, gpus, told in (("cuda", 8, True), ("cuda", 1, False), ("cpu", 8, False)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        record: dict[str, Any] = {}
        said = io.StringIO()
        ranks = Ranks(0, 1, 1, torch.device(device), None)
        benchmark._tell_share(record, ranks, 2006.0, trained, Console(file=said, width=300))
        assert ("ranks" in record, "ranks     16 cores over 8 GPUs" in said.getvalue()) == (told, told)
