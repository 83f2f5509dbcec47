"""Choices by measured rates: tables filled by the test, on given GPUs."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
import timm
import torch

from fastimg.config.commands import Train
from fastimg.errors import UserError
from fastimg.models.precision import Precision
from fastimg.models.registry import NO_PIXELS, Model, TextSide
from fastimg.models.tokenizer import Tokenizer
from fastimg.train.choices import step_rates
from fastimg.train.choices.step_rates import (
    StepRate,
    compile_gain,
    gpu_class,
    kind_of,
    machine_gains,
    machine_types,
    precision,
    read,
)
from fastimg.train.optimisers.construction import build_optimizer, has_fused, implementation

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
BF16 = Precision("cuda", torch.bfloat16, "bf16 autocast")
RATE = ("gpu", "torch", "arch", "dtype", "compile", "batch", "images_per_second", "ms", "memory_mib", "n")


def rate(images_per_second, dtype="bf16", compile=None, arch="resnet50", batch=256, gpu=H200, kind="convolutional"):
    return StepRate(
        gpu=gpu,
        torch="2.11.0+cu130",
        arch=arch,
        kind=kind,
        dtype=dtype,
        compile=compile,
        batch=batch,
        images_per_second=images_per_second,
        ms=1000 * batch / images_per_second,
        memory_mib=1000,
        n=5,
    )


def model(arch="resnet34", kind="convolutional"):
    module = torch.nn.Identity() if kind != "convolutional" else torch.nn.BatchNorm2d(1)
    return Model(module, arch, {}, ("fc",), NO_PIXELS, kind != "transformer")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """`table(rate, ...)`: the package's table contains these."""

    def fill(*rates):
        file = tmp_path / "step_rates.json"
        file.write_text(json.dumps([dataclasses.asdict(one) for one in rates]))
        monkeypatch.setattr(step_rates, "FILE", file)

    return fill


def chosen(config=None, gpu=H200, subject=None, scaled=None):
    return precision(BF16, config or Train(), subject or model(), gpu, scaled)


def test_the_packages_table_holds_what_was_measured():
    """The comparable rates in `benchmarks/results/gpu.jsonl`, and no others."""
    lines = (BENCHMARKS / "results/gpu.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [one for one in map(json.loads, lines) if one["section"] == "steps" and "images_per_second" in one]
    comparable = [{field: one[field] for field in RATE} for one in steps if "note" not in one]
    in_table = [{field: getattr(one, field) for field in RATE} for one in read()]
    assert sorted(in_table, key=str) == sorted(comparable, key=str) and len(comparable) == 12


@pytest.mark.parametrize(
    ("subject", "gpu", "dtype", "words"),
    [
        (("resnet50", "convolutional"), H200, torch.float16, "1.3x bf16 for resnet50 on NVIDIA H200"),
        (("resnet18", "convolutional"), H200, torch.float16, "1.4x bf16 for resnet18 on"),
        (("efficientnet_b0", "convolutional"), H200, torch.float16, "1.2x bf16 for efficientnet_b0 on"),
        (("vit_small_patch16_224", "transformer"), H200, torch.bfloat16, "fp16 is 0.99x bf16"),
        (("resnet34", "convolutional"), H200, torch.float16, "1.3x bf16 for convolutional models on"),
        (("resnet50", "convolutional"), H100, torch.float16, f"NVIDIA H200, the nearest to {H100}"),
        (("convnext_tiny", "convolutional without batch norm"), H200, torch.bfloat16, "not measured"),
        (("resnet50", "convolutional"), "NVIDIA A100-SXM4-80GB", torch.bfloat16, "not measured"),
        (("resnet50", "convolutional"), "NVIDIA of tomorrow", torch.bfloat16, "not measured"),
    ],
)
def test_choices_by_the_packages_table(subject, gpu, dtype, words):
    found = chosen(gpu=gpu, subject=model(*subject))
    assert found.dtype is dtype and words in found.reason


def test_what_doctor_says_of_the_type():
    assert machine_types(H200) == ["fp16 for convolutional models on NVIDIA H200, torch 2.11 (1.30x bf16)"]
    assert machine_types("NVIDIA of tomorrow") == []


def test_what_compiling_gains_by_the_packages_table():
    """bf16 compiled against the type that is chosen without; types were not compared with each other compiled."""
    assert chosen(Train(compile="default")).dtype is torch.bfloat16
    config = Train(batch_size=256)
    for arch, kind, about, gain in (
        ("resnet50", "convolutional", "resnet50", 1.12),
        ("vit_small_patch16_224", "transformer", "vit_small_patch16_224", 1.56),
        ("vit_base_patch16_224", "transformer", "transformers", 1.56),
    ):
        flag, found = compile_gain(config, chosen(subject=model(arch, kind)), model(arch, kind), H200)
        assert flag == "--compile" and round(found.ratio, 2) == gain and f"for {about} on NVIDIA H200" in found.about
    resnet18 = model("resnet18", "convolutional")
    assert compile_gain(config, chosen(subject=resnet18), resnet18, H200) is None  # 0.99 of fp16, not compiled
    convolutional, transformers = machine_gains(H200)
    assert "`train --compile` is 1.41x for convolutional models" in convolutional and "1.56x" in transformers


def test_fp16_if_measured_to_be_faster(table):
    table(rate(1000), rate(1300, "fp16"))
    found = chosen()
    assert found.dtype is torch.float16
    words = "1.3x bf16 for convolutional models on NVIDIA H200, torch 2.11: measured"
    assert found.reason == f"fp16 autocast with a gradient scaler ({words})"


@pytest.mark.parametrize(("fp16", "dtype"), [(1060, torch.float16), (1050, torch.bfloat16), (900, torch.bfloat16)])
def test_bf16_is_preferred_within_five_percent(table, fp16, dtype):
    table(rate(1000), rate(fp16, "fp16"))
    found = chosen()
    assert found.dtype is dtype and f"{fp16 / 1000:.{1 if dtype is torch.float16 else 2}f}x" in found.reason


def test_kinds_of_models_are_distinguished(table):
    table(
        *(rate(1000), rate(1300, "fp16")),
        *(rate(2000, arch="vit_small_patch16_224", kind="transformer"),),
        *(rate(2010, "fp16", arch="vit_small_patch16_224", kind="transformer"),),
    )
    assert chosen().dtype is torch.float16
    assert "fp16 is 1.00x bf16 for transformers" in chosen(subject=model(kind="transformer")).reason
    without = chosen(subject=model(kind="convolutional without batch norm"))
    assert without.dtype is torch.bfloat16
    assert "fp16 was not measured for convolutional models without batch norm on NVIDIA H200" in without.reason


def test_a_models_own_rates_count_before_those_of_its_kind(table):
    table(rate(1000), rate(1300, "fp16"), rate(1000, arch="resnet34"), rate(1000, "fp16", arch="resnet34"))
    assert "fp16 is 1.00x bf16 for resnet34 on" in chosen().reason
    assert "(1.1x bf16 for convolutional models" in chosen(subject=model("resnet101")).reason  # sqrt(1.3)


def test_the_nearest_batch_counts(table):
    table(rate(1000), rate(1000, "fp16"), rate(1000, batch=1024), rate(1500, "fp16", batch=1024))
    assert chosen(Train(batch_size=300)).dtype is torch.bfloat16
    assert chosen(Train(batch_size=800)).dtype is torch.float16


def test_compiled_rates_are_separate(table):
    """Inductor fuses bf16's batch norms, so the ratio in eager mode is not relevant."""
    table(rate(1000), rate(1300, "fp16"), rate(1600, compile="default"))
    found = chosen(Train(compile="default"))
    assert found.dtype is torch.bfloat16
    assert "(1.23x fp16 without --compile for convolutional models on NVIDIA H200" in found.reason
    other = chosen(Train(compile="reduce-overhead"))
    assert other.dtype is torch.bfloat16
    assert "fp16 was not measured for convolutional models with --compile reduce-overhead" in other.reason
    table(rate(1600, compile="default"), rate(2000, "fp16", "default"))
    assert chosen(Train(compile="default")).dtype is torch.float16 and chosen().dtype is torch.bfloat16


@pytest.mark.parametrize("gpu", ["NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X", "NVIDIA GeForce RTX 4090"])
def test_on_a_gpu_without_rates_the_rule_holds_and_is_named(table, gpu):
    table(rate(1000), rate(1300, "fp16"))
    found = chosen(gpu=gpu)
    assert found.dtype is torch.bfloat16 and found.reason.endswith(f"not measured for convolutional models on {gpu})")


def test_the_nearest_gpu(table):
    """Of the same model, or else of the same generation, but never a mixture of two GPUs."""
    table(rate(1000), rate(1300, "fp16"), rate(900, gpu="NVIDIA H100 PCIe"))
    found = chosen(gpu="NVIDIA GH200 480GB")
    assert "on NVIDIA H200, the nearest to NVIDIA GH200 480GB" in found.reason and found.dtype is torch.float16
    assert chosen(gpu=H100).dtype is torch.bfloat16  # the other H100 has no rate for fp16
    assert [gpu_class(name) for name in (H100, H200, "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090")] == [
        *("H100", "H200", "A100", "RTX 4090"),
    ]
    assert [gpu_class(name) for name in ("Tesla V100-SXM2-16GB", "NVIDIA L40S", "A GPU")] == ["V100", "L40S", None]


def test_the_newest_torch_if_this_one_was_not_measured(table):
    old = dataclasses.replace(rate(2000, "fp16"), torch="2.9.1")
    table(dataclasses.replace(rate(1000), torch="2.9.1"), old, rate(1000), rate(1000, "fp16"))
    assert "torch 2.11" in chosen().reason and chosen().dtype is torch.bfloat16


@pytest.mark.parametrize(
    "config",
    [
        Train(amp_dtype="bf16"),
        Train(strategy="fsdp"),  # has no gradient scaler
        Train(freeze="backbone"),  # the encoder runs without gradients
    ],
)
def test_without_a_choice(table, config):
    table(rate(1000), rate(1300, "fp16"))
    assert chosen(config) is BF16


def test_texts_were_not_measured(table):
    table(rate(1000, kind="transformer"), rate(1300, "fp16", kind="transformer"))
    text = dataclasses.replace(
        model(kind="transformer"), text=TextSide(tokenizer=Tokenizer.__new__(Tokenizer), settings={})
    )
    assert "not measured for text encoders on" in chosen(subject=text).reason


@pytest.mark.parametrize("rule", [Precision("cpu", torch.bfloat16, "x"), Precision("cuda", torch.float16, "x")])
def test_the_rule_decides_elsewhere(table, rule):
    """On CPUs, on GPUs without bf16, and with --no-amp."""
    table(rate(1000), rate(1300, "fp16"))
    assert precision(rule, Train(), model(), H200) is rule
    off = Precision("cuda", None, "float32 (--no-amp)")
    assert precision(off, Train(amp=False), model(), H200) is off


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            Train(opt="lamb"),
            "but with --opt lamb, which is not fused, its scaler would wait for the GPU in every step)",
        ),
        (Train(opt="muon"), "with --opt muon, which is not fused"),
        (Train(opt="schedule_free_adamw"), "with --opt schedule_free_adamw, which is not fused"),
        (Train(opt_impl="foreach"), "with --opt-impl foreach, which is not fused"),
        (Train(opt="sgd", opt_impl="foreach"), "with --opt-impl foreach, which is not fused"),
    ],
)
def test_fp16_only_where_the_optimiser_is_fused(table, config, words):
    table(rate(1000), rate(1300, "fp16"))
    found = chosen(config)
    assert found.dtype is torch.bfloat16 and words in found.reason
    assert found.reason.startswith("bf16 autocast (fp16 is 1.30x bf16 for convolutional models on NVIDIA H200")
    assert chosen(config, scaled=True).dtype is torch.float16  # a run that began with it
    table(rate(1000), rate(900, "fp16"))
    assert "not fused" not in chosen(config).reason


@pytest.mark.parametrize("opt", ["adamw", "sgd", "adam", "nadam", "lamb", "muon", "adagrad", "lion"])
def test_what_is_said_to_be_fused_is(opt):
    """As the optimiser that is built says, and torch's gradient scaler sees."""
    built = build_optimizer(timm.create_model("test_vit"), opt, 0.1, 0.0, None)
    fused = implementation(built) == "fused"
    assert has_fused(opt) == fused == bool(getattr(built, "_step_supports_amp_scaling", False))


@pytest.mark.parametrize("scaled", [True, False])
def test_a_resumed_run_keeps_its_type(table, scaled):
    table(rate(1000), rate(1300 if not scaled else 900, "fp16"))
    found = chosen(scaled=scaled)
    assert found.dtype is (torch.float16 if scaled else torch.bfloat16) and found.reason.endswith("as the run began")


def test_the_gain_of_compiling(table):
    table(
        *(rate(1000), rate(1100, "fp16"), rate(1400, compile="default"), rate(1500, compile="reduce-overhead")),
        rate(1450, compile="max-autotune-no-cudagraphs"),
    )
    fp16 = Precision("cuda", torch.float16, "")
    config = Train(batch_size=256)
    flag, gain = compile_gain(config, fp16, model(), H200)
    assert flag == "--compile reduce-overhead" and gain.ratio == pytest.approx(1500 / 1100)
    assert gain.about == "for convolutional models on NVIDIA H200, torch 2.11"
    accumulating = dataclasses.replace(config, grad_accum_steps=4)  # CUDA graphs do not go with it
    flag, gain = compile_gain(accumulating, fp16, model(), H200)
    assert flag == "--compile max-autotune-no-cudagraphs" and gain.ratio == pytest.approx(1450 / 1100)
    assert compile_gain(dataclasses.replace(config, amp_dtype="fp16"), fp16, model(), H200) is None  # not measured
    assert compile_gain(dataclasses.replace(config, compile="default"), BF16, model(), H200) is None
    assert compile_gain(config, Precision("cpu", None, ""), model(), H200) is None
    assert compile_gain(config, BF16, model(kind="transformer"), H200) is None
    assert machine_gains(H200) == [
        "`train --compile reduce-overhead` is 1.50x for convolutional models on NVIDIA H200, torch 2.11: measured in "
        "bf16; off by default"
    ]
    assert machine_gains("NVIDIA of tomorrow") == []


def test_no_hint_for_a_small_gain(table):
    table(rate(1000), rate(1040, compile="default"))
    assert compile_gain(Train(batch_size=256), BF16, model(), H200) is None and machine_gains(H200) == []


@pytest.mark.parametrize(
    ("arch", "kind"),
    [
        ("test_resnet", "convolutional"),
        ("test_vit", "transformer"),
        ("test_convnext", "convolutional without batch norm"),
    ],
)
def test_kind_of(arch, kind):
    module = timm.create_model(arch)
    convolutions = sum(isinstance(layer, torch.nn.Conv2d) for layer in module.modules())
    assert kind_of(Model(module, arch, {}, (), NO_PIXELS, convolutions > 1)) == kind


@pytest.mark.parametrize(
    "text", ["", "{}", '[{"gpu": "x"}]', json.dumps([{**dataclasses.asdict(rate(1)), "images_per_second": -1.0}])]
)
def test_an_invalid_table(tmp_path, text):
    (tmp_path / "rates.json").write_text(text)
    with pytest.raises(UserError, match=r"rates\.json"):
        read(tmp_path / "rates.json")


def record(images_per_second=1000.0, **changes):
    """As written by `gpu.py`."""
    return {
        "section": "steps",
        "arch": "test_resnet",
        "dtype": "bf16",
        "compile": None,
        "batch": 256,
        "images_per_second": images_per_second,
        "ms": 5.0,
        "n": 3,
        "memory_mib": 9000,
        "gpu": H200,
        "torch": "2.11.0+cu130",
        "title": "more keys",
        "environment": {},
        **changes,
    }


def make(python, tmp_path, *records, arguments=()):
    results = tmp_path / "gpu.jsonl"
    results.write_text("".join(json.dumps(one) + "\n" for one in records))
    command = [python, str(BENCHMARKS / "step_rates.py"), str(results), "--out", str(tmp_path / "rates.json")]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_table_is_made_from_the_results_of_gpu_py(tmp_path, python):
    failed = {"section": "steps", "arch": "test_vit", "dtype": "fp16", "gpu": H200, "error": "OutOfMemoryError"}
    noted = record(900, dtype="fp16", arch="test_vit", note="beside other sections")
    done = make(
        python,
        tmp_path,
        *(record(), record(1300, dtype="fp16"), record(1500, compile="default"), record(2000, arch="test_vit")),
        *(failed, noted, record(gpu=None), {"section": "loader", "images_per_second": 1}),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 rates added, 3 records skipped" in done.stdout
    assert "`train --compile` is 1.50x for convolutional models on NVIDIA H200" in done.stdout
    rates = read(tmp_path / "rates.json")
    assert [(one.arch, one.dtype, one.compile, one.kind) for one in rates] == [
        ("test_resnet", "bf16", None, "convolutional"),
        ("test_resnet", "bf16", "default", "convolutional"),
        ("test_resnet", "fp16", None, "convolutional"),
        ("test_vit", "bf16", None, "transformer"),
    ]
    again = make(python, tmp_path, record(1700, dtype="fp16"))  # replaces the older rate, and keeps the rest
    assert again.returncode == 0 and "1 rates added" in again.stdout
    assert [one.images_per_second for one in read(tmp_path / "rates.json")] == [1000, 1500, 1700, 2000]
    before = (tmp_path / "rates.json").read_bytes()
    for wrong, words in (({"dtype": "int8"}, "dtype"), ({"images_per_second": 0.0}, "0.0 images per second")):
        done = make(python, tmp_path, {**record(), **wrong})
        assert done.returncode == 1 and "gpu.jsonl:1" in done.stdout and words in done.stdout
    done = make(python, tmp_path, {key: value for key, value in record().items() if key != "n"})
    assert done.returncode == 1 and "without n" in done.stdout
    assert (tmp_path / "rates.json").read_bytes() == before
