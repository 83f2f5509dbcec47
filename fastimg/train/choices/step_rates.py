"""Measured rates of training steps, and what they decide: the type of mixed precision, and hints about --compile.

`step_rates.json` holds the rates; `benchmarks/step_rates.py` writes it from what `benchmarks/gpu.py` measured: so far
four models on an H200, three of them also compiled, most in batches of 256 (`benchmarks/results/gpu.jsonl`). Where it
has none for a GPU, nor for one of its generation, the rule of `models.precision` holds. Rates decide by kind of model,
GPU, torch and --compile.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import geometric_mean
from typing import Literal, NamedTuple, get_args

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from fastimg.config.commands import Train
from fastimg.config.intent import head_alone
from fastimg.errors import UserError
from fastimg.models.precision import Precision
from fastimg.models.registry import Model
from fastimg.train.optimisers.construction import has_fused

FILE = Path(__file__).with_name("step_rates.json")
GAIN = 1.05  # fp16 must be faster by this factor, since bf16 needs no gradient scaler; a hint must promise as much
Kind = Literal["convolutional", "convolutional without batch norm", "transformer"]
Dtype = Literal["bf16", "fp16", "float32"]
Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # these modes do not go with gradient accumulation

_PLURALS: dict[Kind, str] = {
    "convolutional": "convolutional models",
    "convolutional without batch norm": "convolutional models without batch norm",
    "transformer": "transformers",
}
_DTYPES: dict[torch.dtype | None, Dtype] = {torch.bfloat16: "bf16", torch.float16: "fp16", None: "float32"}
# GPUs of one generation have the same kernels and about the same ratios.
_GENERATIONS = (
    ("A100", "A800", "A30"),
    ("A2", "A10", "A16", "A40", "A4000", "A5000", "A6000", "RTX 3060", "RTX 3070", "RTX 3080", "RTX 3090"),
    ("L4", "L20", "L40", "L40S", "RTX 4060", "RTX 4070", "RTX 4080", "RTX 4090"),
    ("H20", "H100", "H200", "H800", "GH200"),
    ("B100", "B200", "B300", "GB200", "GB300"),
    ("RTX 5060", "RTX 5070", "RTX 5080", "RTX 5090"),
)


@dataclass(frozen=True, kw_only=True)
class StepRate:
    """The rate of training steps of one model in one way, median of `n`. `gpu` is the name that torch gives."""

    gpu: str
    torch: str
    arch: str
    kind: Kind
    dtype: Dtype
    compile: Mode | None
    batch: int
    images_per_second: float
    ms: float
    memory_mib: int
    n: int


class Trainee(NamedTuple):
    """What is going to train, and on what."""

    arch: str
    kind: Kind
    batch: int
    gpu: str


class Gain(NamedTuple):
    """How much faster one way is than another, and for what that was measured, in words."""

    ratio: float
    about: str  # "for convolutional models on NVIDIA H200, torch 2.11"


def read(file: Path | None = None) -> list[StepRate]:
    """The rates that were measured. Raises UserError for a file that does not hold such rates."""
    file = file or FILE
    try:  # without msgspec, which the machine of benchmarks/gpu.py may lack
        rows = json.loads(file.read_bytes())
        if not isinstance(rows, list):
            raise ValueError("not a list")
        rates = [StepRate(**row) for row in rows]
        for rate in rates:
            if rate.kind not in get_args(Kind) or rate.dtype not in get_args(Dtype):
                raise ValueError(f"{rate.kind} in {rate.dtype}")
            if not (rate.images_per_second > 0 and rate.ms > 0 and rate.batch > 0 and rate.n > 0 <= rate.memory_mib):
                raise ValueError(f"{rate.arch} on {rate.gpu} has a rate that cannot be")
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{file}: not the measured rates of training steps ({error}); install fastimg again, or make them "
            "with benchmarks/step_rates.py"
        ) from error
    return rates


def kind_of(model: Model) -> Kind:
    """By what decides how fast the types are: convolutions, and batch norms between them."""
    if not model.convolutional:
        return "transformer"
    normed = any(isinstance(module, _BatchNorm) for module in model.module.modules())
    return "convolutional" if normed else "convolutional without batch norm"


def precision(rule: Precision, config: Train, model: Model, gpu: str, scaled: bool | None = None) -> Precision:
    """The type of mixed precision for a run on `gpu`: what was measured to be faster, or that of the `rule`.

    Only --amp-dtype auto leaves a choice, where the GPU has both types, the step is a whole one, and gradients can be
    scaled. An optimiser that is not fused asks the GPU in every step whether a gradient overflowed, so it trains in
    bf16. `scaled` says of a run that goes on whether it had a scaler; its type stays, whatever was measured since.
    """
    if config.amp_dtype != "auto" or rule.device_type != "cuda" or rule.dtype is not torch.bfloat16:
        return rule
    if config.strategy == "fsdp" or head_alone(config):
        return rule
    if scaled is not None:
        if scaled:
            return Precision("cuda", torch.float16, "fp16 autocast with a gradient scaler, as the run began")
        return replace(rule, reason=f"{rule.reason}, as the run began")
    subject = _subject(config, model, gpu)
    mode = config.compile
    gain = None if model.text is not None else _gain(subject, ("fp16", mode), ("bf16", mode))
    with_mode = f" with --compile {mode}" if mode else ""
    if gain is None and mode and model.text is None and (ahead := _gain(subject, ("bf16", mode), ("fp16", None))):
        return replace(
            rule, reason=f"{rule.reason} ({ahead.ratio:.2f}x fp16 without --compile {ahead.about}: measured)"
        )
    if gain is None:
        what = "text encoders" if model.text is not None else _PLURALS[subject.kind]
        return replace(
            rule, reason=f"{rule.reason} (the default: fp16 was not measured for {what}{with_mode} on {gpu})"
        )
    about = f"bf16 {gain.about}: measured"
    if gain.ratio > GAIN and not (has_fused(config.opt) and config.opt_impl != "foreach"):
        how = "--opt-impl foreach" if config.opt_impl == "foreach" else f"--opt {config.opt}"
        waits = f"with {how}, which is not fused, its scaler would wait for the GPU in every step"
        return replace(rule, reason=f"{rule.reason} (fp16 is {gain.ratio:.2f}x {about}, but {waits})")
    if gain.ratio > GAIN:
        return Precision("cuda", torch.float16, f"fp16 autocast with a gradient scaler ({gain.ratio:.1f}x {about})")
    return replace(rule, reason=f"{rule.reason} (fp16 is {gain.ratio:.2f}x {about})")


def compile_gain(config: Train, chosen: Precision, model: Model, gpu: str) -> tuple[str, Gain] | None:
    """(flag, gain) of the fastest way to compile that was measured to be faster than not compiling; None for none.

    It may take another type than the run has, which --amp-dtype auto would then choose.
    """
    if config.compile is not None or chosen.device_type != "cuda" or model.text is not None:
        return None
    if config.strategy == "fsdp" or head_alone(config) or not isinstance(config.batch_size, int):
        return None
    now = _DTYPES[chosen.dtype]
    subject = _subject(config, model, gpu)
    found: list[tuple[str, Gain]] = []
    for mode in get_args(Mode):
        if mode in CUDA_GRAPHS and config.grad_accum_steps > 1:
            continue
        with_mode = replace(config, compile=mode)
        then = now
        if now != "float32" and config.amp_dtype == "auto":
            rule = Precision("cuda", torch.bfloat16, "")
            then = _DTYPES[precision(rule, with_mode, model, gpu).dtype]
        gain = _gain(subject, (then, mode), (now, None))
        if gain is not None and gain.ratio > GAIN:
            found.append(("--compile" if mode == "default" else f"--compile {mode}", gain))
    return max(found, key=lambda item: item[1].ratio, default=None)


def machine_gains(gpu: str, rates: Sequence[StepRate] | None = None) -> list[str]:
    """What --compile gains on a GPU, by kind of model: sentences for people, none where nothing was measured."""
    rates = read() if rates is None else rates
    sentences = []
    for kind in get_args(Kind):
        subject = Trainee("", kind, 256, gpu)
        gains = [(mode, _gain(subject, ("bf16", mode), ("bf16", None), rates)) for mode in get_args(Mode)]
        faster = [(mode, gain) for mode, gain in gains if gain is not None and gain.ratio > GAIN]
        if faster:
            mode, gain = max(faster, key=lambda item: item[1].ratio)
            flag = "--compile" if mode == "default" else f"--compile {mode}"
            sentences.append(f"`train {flag}` is {gain.ratio:.2f}x {gain.about}: measured in bf16; off by default")
    return sentences


def machine_types(gpu: str, rates: Sequence[StepRate] | None = None) -> list[str]:
    """The kinds of model for which `precision` chooses fp16 on a GPU that has bf16, in words for people."""
    rates = read() if rates is None else rates
    subjects = (Trainee("", kind, 256, gpu) for kind in get_args(Kind))
    gains = (_gain(subject, ("fp16", None), ("bf16", None), rates) for subject in subjects)
    return [f"fp16 {gain.about} ({gain.ratio:.2f}x bf16)" for gain in gains if gain is not None and gain.ratio > GAIN]


def gpu_class(name: str) -> str | None:
    """The model of a GPU in the name that torch gives: H100 in "NVIDIA H100 80GB HBM3"."""
    found = re.search(r"\b(RTX \d{4}|[A-Z]{1,2}\d{1,4}S?)\b", name)
    return found[1] if found else None


def _subject(config: Train, model: Model, gpu: str) -> Trainee:
    batch = config.batch_size
    return Trainee(model.arch, kind_of(model), batch if isinstance(batch, int) else 256, gpu)


_Way = tuple[str, str | None]  # type, compile mode


def _gain(subject: Trainee, fast: _Way, slow: _Way, rates: Sequence[StepRate] | None = None) -> Gain | None:
    """How much faster one way is, on this GPU or the nearest one; None where both were not measured.

    The model's own rates count, or else those of all models of its kind, at the batch that is nearest.
    """
    rates, where = _nearest(read() if rates is None else rates, subject.gpu)
    rates, version = _of_one_torch(rates)
    pairs = _pairs(rates, fast, slow)
    own = {key: ratio for key, ratio in pairs.items() if key[0] == subject.arch}
    kinds = {rate.arch: rate.kind for rate in rates}
    alike = own or {key: ratio for key, ratio in pairs.items() if kinds[key[0]] == subject.kind}
    if not alike:
        return None
    nearest = min((batch for _, batch in alike), key=lambda batch: abs(log(batch / subject.batch)))
    ratios = [ratio for (_, batch), ratio in alike.items() if batch == nearest]
    what = subject.arch if own else _PLURALS[subject.kind]
    return Gain(geometric_mean(ratios), f"for {what} on {where}, torch {version}")


def _pairs(rates: Sequence[StepRate], fast: _Way, slow: _Way) -> dict[tuple[str, int], float]:
    """The ratio of two ways, by model and batch, where both were measured."""
    by_way: dict[tuple[str, int, _Way], float] = {
        (rate.arch, rate.batch, (rate.dtype, rate.compile)): rate.images_per_second for rate in rates
    }
    return {
        (arch, batch): rate / by_way[arch, batch, slow]
        for (arch, batch, way), rate in by_way.items()
        if way == fast and (arch, batch, slow) in by_way
    }


def _nearest(rates: Sequence[StepRate], gpu: str) -> tuple[list[StepRate], str]:
    """The rates of this GPU, or else of one of its model or its generation, and in words which one it is.

    They are those of one GPU, since a ratio is of two rates of the same.
    """
    model = gpu_class(gpu)
    generation = next((models for models in _GENERATIONS if model in models), ())
    names = list(dict.fromkeys(rate.gpu for rate in rates))
    alike = [name for name in names if model is not None and gpu_class(name) == model]
    near = [name for name in names if gpu_class(name) in generation]
    for found in ([name for name in names if name == gpu], alike, near):
        if found:
            words = found[0] if found[0] == gpu else f"{found[0]}, the nearest to {gpu}"
            return [rate for rate in rates if rate.gpu == found[0]], words
    return [], gpu


def _of_one_torch(rates: Sequence[StepRate]) -> tuple[list[StepRate], str]:
    """The rates of this torch, or else of the newest one, and its version."""
    versions = {_version(rate.torch) for rate in rates}
    if not versions:
        return [], ""
    own = _version(torch.__version__)
    chosen = own if own in versions else max(versions)
    return [rate for rate in rates if _version(rate.torch) == chosen], ".".join(map(str, chosen))


def _version(text: str) -> tuple[int, ...]:
    """2.11 of 2.11.0+cu130."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
