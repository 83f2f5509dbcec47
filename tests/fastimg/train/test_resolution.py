"""Requested and effective settings: flags without effect and impossible values are refused, defaults are resolved."""

from pathlib import Path

import pytest
import torch

from fastimg.config.commands import Train
from fastimg.errors import UsageError
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Preprocessing
from fastimg.train.choices import resolution
from fastimg.train.choices.refusals import check, check_resumed
from fastimg.train.choices.resolution import preprocessing, resolve, scales, schedule

OWN = Preprocessing(
    train_size=160, val_size=224, val_resize=256, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)
)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--momentum", "0.9"), "--momentum"),
        (("--opt", "adamw", "--momentum", "0.9"), "--momentum"),
        (("--decay-epochs", "2"), "--decay-epochs"),
        (("--sched", "cosine", "--decay-epochs", "2"), "--decay-epochs"),
        (("--sched", "linear", "--decay-rate", "0.5"), "--decay-rate"),
        (("--sched", "step", "--min-lr", "0.1"), "--min-lr"),
        (("--sched", "constant", "--min-lr", "0.1"), "--min-lr"),
        (("--warmup-epochs", "1", "--warmup-fraction", "0.1"), "--warmup-fraction"),
        (("--pretrained", "--weights", "x.pt"), "--weights"),
        (("--crop-pct", "0.9", "--val-resize-size", "40"), "--val-resize-size"),
        (("--patience", "2", "--val-fraction", "0"), "--patience"),
        (("--val-interval", "2", "--val-fraction", "0"), "--val-interval"),
        (("--img-size", "64", "--train-crop-size", "32", "--val-crop-size", "32"), "--img-size"),
        (("--order-window", "100"), "--order-window has no effect with --order random"),
        (("--order", "sequential", "--order-window", "100"), "--order-window has no effect with --order sequential"),
        (("--epochs", "3", "--duration", "300ba"), "--epochs"),
        (("--warmup", "1ep", "--warmup-epochs", "1"), "--warmup"),
        (("--warmup", "1ep", "--warmup-fraction", "0.1"), "--warmup"),
        (("--decay", "1ep"), "--decay"),
        (("--sched", "step", "--decay", "1ep", "--decay-epochs", "1"), "--decay"),
        (("--lr-base-size", "64"), "--lr-base-size has no effect with --lr auto"),
        (("--lr", "0.1", "--lr-scale", "none", "--lr-base-size", "64"), "--lr-base-size"),
        (("--freeze", "backbone", "--layer-decay", "0.7"), "--layer-decay"),
        (("--freeze", "backbone", "--grad-checkpointing"), "--grad-checkpointing"),
        (("--ghost-bn", "64", "--batch-size", "64"), "--ghost-bn has no effect with --batch-size 64"),
        (("--ghost-bn", "16", "--sync-bn"), "--sync-bn"),
        (("--freeze", "backbone", "--sync-bn"), "--sync-bn has no effect with --freeze backbone"),
        (("--tta", "--val-fraction", "0"), "--tta"),
        (("--no-aug", "--scale", "0.5", "1"), "--scale"),
        (("--no-aug", "--ratio", "0.5", "1"), "--ratio"),
        (("--no-aug", "--hflip", "0.5"), "--hflip"),
        (("--no-aug", "--vflip", "0.5"), "--vflip"),
    ],
)
def test_flags_without_effect(flags, named, tmp_path, cli):
    ran = cli("train", tmp_path / "nowhere", *flags)
    assert ran.code == 2, ran.err
    assert named in ran.err and "no effect with" in ran.err and "leave one of them out" in ran.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--freeze-epochs", "2"), "--freeze-epochs has no effect without --freeze"),
        (("--model-ema-decay", "0.9"), "--model-ema-decay has no effect without --model-ema"),
        (("--head-init", "he"), "--head-init has no effect without --pretrained or --weights"),
        (
            ("--patience-metric", "top1"),
            "--patience-metric has no effect without --patience; add that",
        ),
        (("--progressive-epochs", "1:2"), "--progressive-epochs has no effect without --progressive"),
        (
            ("--lr", "0.1", "--lr-base-size", "1024"),
            "--lr-base-size has no effect without --lr-scale; add that, or leave it out",
        ),
        (("--ghost-bn", "24", "-b", "64"), "--ghost-bn 24: does not divide the batch of 64; choose a divisor"),
        (("--freeze", "2", "--freeze-epochs", "10"), "--freeze-epochs 10: the run has 10 epochs"),
        (("--freeze", "2", "--freeze-epochs", "7", "--duration", "5ep"), "--freeze-epochs 7: the run has 5 epochs"),
        (("--progressive", "32:64", "--duration", "2ep"), "--progressive 32:64 has no effect: all 2 epochs"),
        (("--batch-size", "auto", "--strategy", "fsdp"), "--batch-size auto: is found by one process for itself"),
        (("--duration", "0.5dur"), "--duration 0.5dur: a run cannot be a share of itself"),
        (("--warmup-lr", "0.1", "--warmup", "0ep"), "--warmup-lr has no effect without warmup"),
        (("--warmup-lr", "0.1", "--warmup-epochs", "0"), "--warmup-lr has no effect without warmup"),
        (("--warmup", "soon"), "--warmup soon: write a number and its unit"),
    ],
)
def test_flags_that_need_or_exclude_something(flags, named, tmp_path, cli):
    ran = cli("train", tmp_path / "nowhere", *flags)
    assert ran.code == 2 and named in ran.err, ran.err


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("--batch-size", "0"),
        ("--num-classes", "0 -3"),
        ("--grad-accum-steps", "0"),
        ("--epochs", "0"),
        ("--seed", "-1"),
        ("--prefetch", "1"),
        ("--order-window", "31 0"),
        ("--max-pixels", "0"),
        ("--log-interval", "0"),
        ("--save-interval", "0"),
        ("--val-interval", "0"),
        ("--checkpoint-hist", "-1"),
        ("--patience", "0"),
        ("--lr", "0 -1 nan inf"),
        ("--weight-decay", "-0.1 nan"),
        ("--momentum", "1 -0.1"),
        ("--clip-grad", "0"),
        ("--smoothing", "1 -0.1"),
        ("--hflip", "1.1 -0.1"),
        ("--vflip", "1.1 -0.1"),
        ("--crop-pct", "0 1.1"),
        ("--warmup-epochs", "-1"),
        ("--warmup-fraction", "-0.1 1.1"),
        ("--warmup-lr", "-1"),
        ("--min-lr", "-1"),
        ("--decay-epochs", "0"),
        ("--decay-rate", "0 1.1"),
        ("--drop-path", "1 -0.1"),
        ("--ghost-bn", "1 0"),
        ("--freeze-epochs", "0"),
        ("--layer-decay", "0 1.1"),
        ("--lr-base-size", "0"),
        ("--norm-weight-decay", "-1"),
        ("--model-ema-decay", "1 -0.1"),
        ("--img-size", "0 16385"),
        ("--train-crop-size", "0"),
        ("--val-crop-size", "0"),
        ("--val-resize-size", "0"),
        ("--val-fraction", "-0.1 1 1.5"),
    ],
)
def test_values_out_of_range(flag, values, tmp_path, cli):
    beside = {
        "--momentum": ("--opt", "sgd"),
        "--decay-epochs": ("--sched", "step"),
        "--decay-rate": ("--sched", "step"),
        "--freeze-epochs": ("--freeze", "2"),
        "--lr-base-size": ("--lr", "1", "--lr-scale", "linear"),
        "--model-ema-decay": ("--model-ema",),
        "--order-window": ("--order", "quasi-random"),
    }
    for value in values.split():
        ran = cli("train", tmp_path / "nowhere", f"{flag}={value}", *beside.get(flag, ()))
        assert ran.code == 2, (value, ran.err)
        assert f"{flag} {value}: give " in ran.err


@pytest.mark.parametrize(
    "flags", [("--std", "0", "1", "1"), ("--std", "58", "57", "57"), ("--mean", "124", "116", "104")]
)
def test_means_and_deviations_are_between_0_and_1(flags, tmp_path, cli):
    """ImageNet's mean is often given for 0 to 255."""
    ran = cli("train", tmp_path / "nowhere", *flags)
    assert ran.code == 2 and f"{' '.join(flags)}: give " in ran.err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--scale", "0.9", "0.1"), "--scale 0.9 0.1"),
        (("--scale", "0", "1"), "--scale"),
        (("--scale", "0.5", "1.5"), "--scale"),
        (("--ratio", "2", "1"), "--ratio 2"),
        (("--ratio", "0", "1"), "--ratio"),
        (("--val-resize-size", "20"), "--val-resize-size 20"),
        (("--num-classes", "2"), "--num-classes 2"),
        (("--workers", "0"), "--workers 0"),
        (("--workers", "some"), "--workers some"),
        (("--val-fraction", "0.5"), "--val-fraction"),
        (("--sync-bn",), "--sync-bn"),
        (("--strategy", "fsdp"), "torchrun --nproc-per-node"),
        (("--freeze", "99"), "--freeze 99"),
        (("--freeze", "some"), "--freeze some"),
        (("--arch", "test_vit", "--ghost-bn", "4"), "--ghost-bn has no effect: test_vit has no batch norm"),
        (("--amp-dtype", "fp16", "--amp"), "--amp-dtype fp16"),
        (("--amp-dtype", "bf16"), "--amp-dtype has no effect with --no-amp"),
        (("--device", "tpu"), "--device tpu"),
        (("--device", "cuda:99"), "--device cuda:99"),
        (("--device", "meta"), "--device meta"),
        (("--no-aug", "--train-crop-size", "24"), "--train-crop-size 24"),
        (("--freeze", "backbone", "--train-crop-size", "24"), "--train-crop-size 24"),
    ],
)
def test_flags_that_do_not_fit_the_data_or_the_machine(flags, named, trained, tmp_path, fast, cli):
    ran = cli("train", trained.images, *fast, *flags, "-o", tmp_path / "runs")
    assert ran.code == 2, ran.err
    assert named in ran.err and "Traceback" not in ran.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("duration", "code"), [("4ba", 2), ("48sp", 2), ("7ba", 0)])
def test_a_freeze_that_a_run_of_so_many_steps_never_ends(duration, code, trained, tmp_path, fast, cli):
    flags = [*fast[: fast.index("--epochs")], "--freeze", "1", "--freeze-epochs", "2", "--duration", duration]
    ran = cli("train", trained.images, *flags, "--dry-run", "-o", tmp_path / "runs")  # three steps an epoch
    assert ran.code == code, ran.err
    assert code == 0 or "--freeze-epochs 2: the run has 2 epochs, so nothing would be unfrozen" in ran.err


def test_a_plain_train_passes():
    check(Train())


@pytest.mark.parametrize(("duration", "frozen"), [("20ep", 12), ("2.5ep", 2), ("300ba", 12), ("1000sp", 12)])
def test_a_freeze_ends_before_the_duration(duration, frozen):
    check(Train(freeze="2", freeze_epochs=frozen, duration=duration))


@pytest.mark.parametrize("beside", [{"lr_scale": "linear"}, {"batch_size": "auto"}])
def test_a_rate_that_follows_the_batch_has_a_base(beside):
    check(Train(lr=0.1, lr_base_size=1024, **beside))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (160, 224, 256)),
        ({"img_size": 64}, (64, 64, 73)),
        ({"img_size": 64, "crop_pct": 1.0}, (64, 64, 64)),
        ({"val_crop_size": 96}, (160, 96, 109)),
        ({"img_size": 64, "train_crop_size": 48}, (48, 64, 73)),
        ({"val_resize_size": 240}, (160, 224, 240)),
        ({"crop_pct": 0.5}, (160, 224, 448)),
    ],
)
def test_sizes(given, expected):
    pre = preprocessing(Train(**given), OWN)
    assert (pre.train_size, pre.val_size, pre.val_resize) == expected
    assert (pre.mean, pre.interpolation) == (OWN.mean, "bicubic")


def test_the_users_normalisation_wins():
    pre = preprocessing(Train(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), interpolation="bilinear"), OWN)
    assert (pre.mean, pre.std, pre.interpolation) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bilinear")


def test_a_resize_below_the_crop():
    with pytest.raises(UsageError, match="--val-resize-size 200 is smaller than the crop of 224"):
        preprocessing(Train(val_resize_size=200), OWN)


def resolved(convolutional=True, world_size=1, new_head=None, samples=None, **given):
    model = Model(torch.nn.Identity(), "x", {}, ("fc",), OWN, convolutional, new_head=new_head)
    ranks = Ranks(0, world_size, 1, torch.device("cpu"), None)
    return resolve(Train(**{"batch_size": 64} | given), Path("data"), model, OWN, None, ranks, samples=samples)


@pytest.mark.parametrize(
    ("given", "lr"),
    [
        ({"batch_size": 256}, 1e-3),
        ({"batch_size": 64}, 5e-4),  # by the square root
        ({"batch_size": 16, "grad_accum_steps": 4}, 5e-4),
        ({"batch_size": 16, "world_size": 4}, 5e-4),
        ({"batch_size": 1024, "opt": "sgd"}, 0.5),
        ({"batch_size": 256, "opt": "sgd"}, 0.125),  # linearly
        ({"pretrained": True}, 3e-4),
        ({"weights": Path("w"), "convolutional": False}, 5e-5),
        ({"pretrained": True, "freeze": "backbone"}, 1e-3),
        ({"pretrained": True, "freeze": "2"}, 3e-4),
        ({"pretrained": True, "freeze": "backbone", "freeze_epochs": 1}, 3e-4),
        ({"pretrained": True, "batch_size": 256}, 6e-4),
        ({"pretrained": True, "batch_size": 256, "lr_scale": "none"}, 3e-4),
        ({"pretrained": True, "batch_size": 256, "lr_scale": "linear"}, 1.2e-3),
        ({"lr": 0.1, "lr_scale": "linear", "batch_size": 512}, 0.2),
        ({"lr": 0.1, "lr_scale": "sqrt", "batch_size": 64, "lr_base_size": 16}, 0.2),
        ({"lr": 0.1, "batch_size": 512}, 0.1),
        ({"pretrained": True, "opt": "sgd"}, 1.5e-2),
        ({"lr": 0.7}, 0.7),
        ({"batch_size": 2000, "samples": 256}, 1e-3),  # no step has more images than there are
        ({"batch_size": 64, "grad_accum_steps": 4, "world_size": 2, "samples": 64}, 5e-4),
        ({"batch_size": 64, "samples": 600}, 5e-4),
        ({"lr": 0.1, "lr_scale": "linear", "batch_size": 2000, "samples": 512}, 0.2),
    ],
)
def test_learning_rate(given, lr):
    assert resolved(**given).lr == pytest.approx(lr, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "lowest"),
    [
        ({"lr": 0.1, "lr_scale": "linear", "batch_size": 512, "min_lr": 0.01}, 0.02),
        ({"lr": 1.5, "lr_scale": "linear", "lr_base_size": 1024, "batch_size": 64, "min_lr": 0.105}, 0.00656),
        ({"lr": 0.1, "batch_size": 512, "min_lr": 0.01}, 0.01),
        ({"batch_size": 512, "min_lr": 1e-5}, 1e-5),  # the rate is fastimg's, the lowest rate is the user's
        ({"lr": 0.1, "lr_scale": "linear", "batch_size": 512}, 0.0),
    ],
)
def test_the_lowest_rate_follows_the_rate(given, lowest):
    assert resolved(**given).min_lr == pytest.approx(lowest, rel=1e-2)
    first = {name if name != "min_lr" else "warmup_lr": value for name, value in given.items()}
    assert resolved(**first).warmup_lr == pytest.approx(lowest, rel=1e-2)


@pytest.mark.parametrize(
    ("given", "rate"),
    [({"min_lr": 0.105, "batch_size": 256}, "0.001"), ({"lr": 0.1, "min_lr": 0.2, "opt": "sgd"}, "0.1")],
)
def test_a_schedule_that_would_end_above_its_peak_is_refused(given, rate):
    with pytest.raises(UsageError, match=f"^--min-lr {given['min_lr']}: the learning rate is {rate}, and would rise"):
        resolved(**given)
    assert resolved(**{**given, "lr": "find"}).min_lr == given["min_lr"]  # the rate is not known yet


def test_choices_by_the_source_of_the_weights():
    scratch, tuned = resolved(), resolved(pretrained=True, new_head="zeros")
    assert (scratch.sched, scratch.warmup, scratch.head_init) == ("cosine", "0.05dur", None)
    assert (tuned.sched, tuned.warmup, tuned.head_init) == ("linear", "0.2dur", "zeros")
    assert resolved(pretrained=True).head_init is None  # the published classifier is kept
    assert resolved(warmup_epochs=1.5).warmup == "1.5ep"
    assert resolved(warmup_fraction=0.1).warmup == "0.1dur"
    assert resolved(warmup="300ba").warmup == "300ba"
    assert (scratch.epochs, resolved(duration="300ba").epochs) == (10, None)
    assert (resolved().weight_decay, resolved(opt="sgd").weight_decay, resolved(weight_decay=0.0).weight_decay) == (
        *(0.05, 5e-5, 0.0),
    )
    assert (resolved().momentum, resolved(opt="sgd").momentum, resolved(opt="sgd", momentum=0.0).momentum) == (
        *(None, 0.9, 0.0),
    )


def test_a_frozen_backbone_is_not_augmented_unless_asked():
    assert resolved(freeze="backbone").no_aug and resolved(freeze="backbone").hflip is None
    asked = resolved(freeze="backbone", hflip=0.5)
    assert (asked.no_aug, asked.hflip, asked.scale) == (False, 0.5, (0.08, 1.0))
    assert (resolved(hflip=0.0).hflip, resolved().hflip, resolved().vflip) == (0.0, 0.5, 0.0)


@pytest.mark.parametrize("given", [{}, {"opt": "sgd", "sched": "step"}, {"no_aug": True}, {"freeze": "backbone"}])
def test_resolved_settings_are_valid_and_stable(given):
    once = resolved(**given)
    check(once)
    again = resolved(**{name: getattr(once, name) for name in once.__dataclass_fields__})
    assert again == once


def test_a_duration_in_samples_does_not_depend_on_a_large_batch():
    chosen = resolved(duration="6000sp", batch_size=2000, samples=600)
    ranks = Ranks(0, 1, 1, torch.device("cpu"), None)
    assert schedule(chosen, 1, ranks, 600).steps == 10  # epochs
    assert schedule(resolved(duration="6000sp", batch_size=100, samples=600), 6, ranks, 600).steps == 60


def test_a_batch_larger_than_the_data_is_reported(trained, cli):
    flags = ("--arch", "test_resnet", "--img-size", "32", "-b", "2000", "--dry-run")
    ran = cli("train", trained.images, *flags)
    assert ran.code == 0, ran.err
    assert "2000, more than the 24 images there are: each step takes all of them, as a batch of 24" in ran.out
    assert "(0.001 at batch 256, sqrt to 24)" in ran.out
    assert "more than" not in cli("train", trained.images, *flags, "-b", "8").out


@pytest.mark.parametrize(
    ("given", "scaling"),
    [
        ({}, True),
        ({"dct_scaling": "low"}, "low"),
        ({"dct_scaling": "eighths"}, "eighths"),
        ({"dct_scaling": "off"}, False),
        ({"dct_scaling": "low", "loader": "torch"}, False),
        ({"dct_scaling": "low", "no_aug": True}, False),
    ],
)
def test_how_crops_are_scaled(given, scaling):
    assert scales(Train(**given)) == scaling


def test_the_batch_of_other_ranks_is_checked_anew():
    """A run that is resumed on more ranks divides its step among them: 32 images of 4 ghosts become 4."""
    check_resumed(Train(ghost_bn=8, batch_size=32))
    with pytest.raises(UsageError, match="--ghost-bn 8: does not divide the batch of 4"):
        check_resumed(Train(ghost_bn=8, batch_size=4))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"warmup_epochs": 0.0}, "0ep"),
        ({"warmup_epochs": 2.0}, "2ep"),
        ({"warmup_epochs": 0.5}, "0.5ep"),
        ({"warmup_fraction": 0.0}, "0dur"),
    ],
)
def test_a_warmup_that_was_kept_is_read_as_the_same(given: dict[str, float], kept: str) -> None:
    """A resumed run would otherwise be one with other settings."""
    assert resolution._warmup(Train(**given), tuned=False) == kept
    assert resolution._warmup(Train(warmup=kept), tuned=False) == kept
    decayed = resolution._decay(Train(decay_epochs=2.0))
    assert resolution._decay(Train(decay=decayed)) == decayed == "2ep"
