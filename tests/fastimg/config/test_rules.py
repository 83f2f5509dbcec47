"""The table of rules between flags: it covers every flag, and all readers use the same rows."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from fastimg.config.commands import Train
from fastimg.config.rule_tables import conditions
from fastimg.config.rule_tables.reading import EVAL
from fastimg.config.rule_tables.training import TRAIN, TRAIN_DEVICE
from fastimg.config.rules import Excludes, Idle, Needs, Range, dropped, flag, refuse, refuse_device, without_effect
from fastimg.config.training import COMPILE_MODES, CUDA_GRAPH_MODES
from fastimg.errors import UsageError
from fastimg.loaders.backends.settings import IGNORED_SETTINGS

FROZEN_AT_RANDOM = conditions.frozen_at_random  # which other tests are without

# Fields of Train without a rule, and the reason.
WITHOUT_RULES = {
    "any text": ("data", "name", "train_split", "val_split", "weights"),
    "only certain values parse": ("classes", "opt_impl", "order", "head"),
    "judged with the model": ("model_kwargs",),
    "judged by the optimiser": ("opt", "opt_kwargs"),
    "judged with the data": ("targets", "target_weights"),
    "good with everything": ("channels_last", "deterministic", "evaluate_training_set"),
    "read before the rest": ("resume", "recipe", "config", "dry_run", "verbose"),
    "named by rules of other fields": ("arch", "amp", "bce_loss", "no_aug"),
}


def test_every_field_has_a_rule_or_a_reason():
    fields = {field.name for field in dataclasses.fields(Train)}
    ruled = {rule.field for rule in (*TRAIN, *TRAIN_DEVICE) if not hasattr(rule, "others")}
    reasoned = [name for names in WITHOUT_RULES.values() for name in names]
    assert len(reasoned) == len(set(reasoned))
    assert fields - ruled == set(reasoned)
    named = {getattr(rule, "other", rule.field) for rule in TRAIN}
    named |= {name for rule in TRAIN for name in getattr(rule, "others", ())}
    assert named | ruled <= fields


def test_loader_settings_have_the_names_of_flags():
    fields = {field.name for field in dataclasses.fields(Train)}
    assert {setting for settings in IGNORED_SETTINGS.values() for setting in settings} <= fields


def test_the_table_is_read_without_torch():
    code = "import sys, fastimg.config.rule_tables.reading; print('torch' in sys.modules, 'numpy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False False\n"


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"freeze": "backbone"}, True),
        ({"freeze": "2", "freeze_epochs": 1}, True),
        ({"freeze": "backbone", "pretrained": True}, False),
        ({"freeze": "backbone", "weights": Path("w")}, False),
        ({"freeze": "backbone", "resume": "runs/old"}, False),
        ({"freeze": "backbone", "resume": "auto"}, True),
        ({"freeze": "backbone", "arch": "hf:bert"}, False),
        ({"freeze": "image", "text_arch": "hf:bert"}, True),
        ({"freeze": "text", "text_arch": "hf:bert"}, False),
    ],
)
def test_random_weights_are_not_frozen(settings, refused, monkeypatch):
    monkeypatch.setattr(conditions, "frozen_at_random", FROZEN_AT_RANDOM)
    if not refused:
        refuse(Train(**settings), TRAIN)
        return
    with pytest.raises(UsageError, match=r"--freeze .*random weights .* add --pretrained or --weights"):
        refuse(Train(**settings), TRAIN)


@dataclasses.dataclass(frozen=True)
class Oven:
    """An example configuration for the rules."""

    degrees: float = 180.0
    fan: bool = False
    grill: str | None = None
    seconds: int | None = None
    minutes: int | None = None


RULES = (
    Range("degrees", lambda d: 0 < d <= 250, "a temperature up to 250"),
    Excludes("seconds", "minutes"),
    Idle("fan", lambda c: c.grill == "high", lambda c: f"with --grill {c.grill}"),
    Needs("grill", lambda c: c.seconds is not None, "--seconds"),
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"degrees": 300.0}, "--degrees 300: give a temperature up to 250"),
        ({"seconds": 5, "minutes": 1}, "--seconds has no effect with --minutes; leave one of them out"),
        (
            {"fan": True, "grill": "high", "seconds": 5},
            "--fan has no effect with --grill high; leave one of them out",
        ),
        ({"grill": "low"}, "--grill has no effect without --seconds; add that, or leave it out"),
    ],
)
def test_each_kind_refuses(settings, message):
    with pytest.raises(UsageError) as caught:
        refuse(Oven(**settings), RULES)
    assert str(caught.value) == message
    refuse(Oven(), RULES)


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [
        ({"seconds": 5}, {"minutes": 1}, {"seconds"}),
        ({"minutes": 1}, {"seconds": 5}, {"minutes"}),
        ({"fan": True, "seconds": 5}, {"grill": "high"}, {"fan"}),
        ({"fan": True, "seconds": 5}, {"grill": "low"}, set()),
        ({"seconds": 5, "grill": "low"}, {"minutes": 1}, {"seconds", "grill"}),  # grill needs seconds
        ({"grill": "low"}, {"fan": True}, set()),  # invalid by itself, so it is refused
        ({"seconds": 5, "grill": "high"}, {"fan": True}, set()),  # refused: the flag itself has no effect
        ({"seconds": 5, "minutes": 1}, {"seconds": 5}, set()),  # a repeated value is not new
    ],
)
def test_settings_that_give_way_to_overrides(below, above, expected):
    assert dropped(Oven, below, above, RULES) == expected


def test_settings_without_effect_become_their_defaults():
    assert without_effect(Oven(grill="high", seconds=1, fan=True), RULES) == {"fan": False}
    assert without_effect(Oven(), RULES) == {"grill": None}


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_settings_only_for_cuda_devices(device):
    values = {"compile": "reduce-overhead", "augment_stream": "own", "decode": "gpu", "numa_binding": "off"}
    values["cuda_graphs"] = "off"
    for field, value in values.items():
        refuse_device(Train(**{field: value}), "cuda", TRAIN_DEVICE)
        with pytest.raises(UsageError, match=f"^{flag(field)} {value}: .* {device}"):
            refuse_device(Train(**{field: value}), device, TRAIN_DEVICE)


@pytest.mark.parametrize("mode", CUDA_GRAPH_MODES)
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"grad_accum_steps": 4}, "memory holds the gradients: .* --grad-accum-steps 4"),
        ({"strategy": "fsdp"}, "moves"),
        ({"arch": "hf:bert"}, "each length"),
    ],
)
def test_settings_incompatible_with_cuda_graphs(mode, settings, reason):
    with pytest.raises(
        UsageError, match=rf"^--compile {mode}: .*{reason}.*; use --compile max-autotune-no-cudagraphs$"
    ):
        refuse(Train(compile=mode, **settings), TRAIN)
    refuse(Train(compile=mode), TRAIN)
    refuse(Train(compile=mode, arch="hf:bert", freeze="backbone"), TRAIN)  # kept embeddings have one length
    for other in {*COMPILE_MODES, None} - {*CUDA_GRAPH_MODES}:
        refuse(Train(compile=other, **settings), TRAIN)


def test_a_command_may_lack_fields_of_a_table():
    @dataclasses.dataclass
    class Command:
        loader: str = "ffcv"
        on_error: str | None = None

    refuse(Command(), EVAL)
    with pytest.raises(UsageError, match="--on-error has no effect with --loader ffcv"):
        refuse(Command(on_error="fail"), EVAL)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_fsdp_does_not_compress_gradients(dtype):
    refuse(Train(grad_compression=dtype), TRAIN)
    with pytest.raises(UsageError, match="--grad-compression has no effect with --strategy fsdp"):
        refuse(Train(grad_compression=dtype, strategy="fsdp"), TRAIN)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_type_of_mixed_precision_needs_it(dtype):
    with pytest.raises(UsageError, match="--amp-dtype has no effect with --no-amp; leave one of them out"):
        refuse(Train(amp=False, amp_dtype=dtype), TRAIN)


@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.9, 0.1), None), ((0.0, 1.0), None), ((0.1, 1.1), None), (None, (2.0, 1.0)), (None, (0, 1))]
)
def test_invalid_crops(scale, ratio):
    with pytest.raises(UsageError, match="--scale" if scale else "--ratio"):
        refuse(Train(scale=scale, ratio=ratio), TRAIN)
