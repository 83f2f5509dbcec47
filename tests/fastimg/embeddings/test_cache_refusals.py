"""Settings with which embeddings are not cached, and the reasons that are given."""

import pytest

pytestmark = pytest.mark.usefixtures("own_cache")


def test_augmentation_disables_it_and_the_output_says_why(train, shards):
    ran = train("run", "--hflip", "0.5")
    assert "in every epoch: augmentation is on; --cache-embeddings K caches K augmented views" in ran.out
    assert not list(shards.rglob("shards.jsonl"))


REFUSED = {
    "fsdp": (("--strategy", "fsdp"), "run torchrun --nproc-per-node N"),
    "mixup": (("--mixup", "0.2", "--cache-embeddings", "2"), "mixed images have no embeddings of their own"),
    "tta": (("--tta",), "--cache-embeddings 1: --tta also evaluates mirror images"),
    "dropout": (("--model-kwargs", "drop_rate=0.5"), "has dropout before its classifier"),
    "views": (("--cache-embeddings", "3"), "without augmentation all views are the same"),
    "none": (("--cache-embeddings", "0"), "a number of views, 1 or more, or off"),
    "progressive": (("--hflip", "0.5", "--progressive", "32:48"), "--progressive changes the images"),
    "off": (("--cache-embeddings", "off", "--cache-dtype", "fp32"), "--cache-dtype has no effect with"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_uncacheable_settings_are_refused(train, name):
    flags, words = REFUSED[name]
    asked = () if "--cache-embeddings" in flags else ("--cache-embeddings", "1")
    if name == "progressive":
        flags = (*flags, "--epochs", "8")
    assert words in train("run", *asked, *flags, code=2).err


def test_synthetic_pixels_are_refused(cli, shards):
    flags = ("--arch", "test_resnet", "--img-size", "32", "--freeze", "backbone", "--loader", "synthetic")
    ran = cli("train", shards, *flags, "--cache-embeddings")
    assert ran.code == 2 and "--cache-embeddings 1: --loader synthetic makes up its pixels" in ran.err


def test_kornia_is_refused(train, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("kornia: [{RandomInvert: {p: 0.3}}]")
    assert (
        "Kornia's augmentation depends on the whole batch"
        in train("run", "--config", file, "--cache-embeddings", "1", code=2).err
    )


def test_by_default_it_is_off_with_a_reason(train):
    ran = train("tta", "--tta")
    assert "not cached, the encoder runs in every epoch: --tta also evaluates mirror images" in ran.out
    assert "has dropout before its classifier" in train("dropout", "--model-kwargs", "drop_rate=0.5").out


@pytest.mark.parametrize("flags", [(), ("--freeze", "1"), ("--freeze", "backbone", "--freeze-epochs", "1")])
def test_flags_without_a_frozen_backbone(cli, fast, shards, flags):
    for more in (("--cache-embeddings",), ("--cache-dtype", "fp32"), ("--cache-dir", "x")):
        ran = cli("train", shards, *fast, *flags, *more)
        assert ran.code == 2 and f"{more[0]} has no effect without --freeze backbone" in ran.err
