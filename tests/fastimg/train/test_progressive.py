"""Sizes by epoch, invalid sizes, and a run whose loader and model use them."""

from types import SimpleNamespace

import pytest

from fastimg.config.values.progressive import Progressive, parse
from fastimg.errors import UsageError


def test_the_table_of_resnet50_in_16_epochs():
    """ffcv-imagenet's rn50_16_epochs: 160 to 192 pixels from epoch 11 to 13, by multiples of 32."""
    sizes = [Progressive(160, 192, 11, 13).size(epoch) for epoch in range(16)]
    assert sizes == [*[160] * 12, *[192] * 4]


def test_it_grows_by_steps_of_32_and_stays_within():
    plan = Progressive(100, 230, 2, 8)
    sizes = [plan.size(epoch) for epoch in range(12)]
    assert sizes == sorted(sizes)
    assert sizes[:3] == [100] * 3 and sizes[8:] == [230] * 4
    assert all(size % 32 == 0 for size in sizes[3:8])
    assert plan.sizes(12) == [100, 128, 160, 192, 224, 230]


def test_by_itself_it_grows_between_70_and_85_percent():
    assert parse("160:192", None, 100) == Progressive(160, 192, 70, 85)


@pytest.mark.parametrize(
    ("sizes", "epochs", "words"),
    [
        ("192:160", None, "smaller size in pixels, then a larger"),
        ("160", None, "two numbers and a colon"),
        ("a:b", None, "two numbers and a colon"),
        ("0:32", None, "smaller size"),
        ("32:64", "5:3", "the earlier epoch first"),
        ("32:64", "x", "two numbers"),
        ("32:64", "10:12", "has no effect: all 10 epochs would have 32 pixels"),
    ],
)
def test_refused(sizes, epochs, words):
    with pytest.raises(UsageError, match=words):
        parse(sizes, epochs, 10)


def test_a_run_changes_size_and_reports_it(trained, fast, tmp_path, cli, monkeypatch):
    seen = []
    import fastimg.train.step as step

    inner = step.model_input

    def spy(plan, images, *rest):
        seen.append(images.shape[-1])
        return inner(plan, images, *rest)

    monkeypatch.setattr(step, "model_input", spy)
    flags = [*fast[: fast.index("--epochs")], "--epochs", "4", "--progressive", "32:64", "--progressive-epochs", "1:2"]
    ran = cli("train", trained.shards, *flags, "-o", tmp_path / "runs")
    assert ran.code == 0, ran.err
    assert "crops of 32, 64 pixels, growing from epoch 1 to 2" in ran.out
    assert seen == [32, *[32] * 6, *[64] * 6]  # once before the first step; three batches an epoch


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--arch", "vit_tiny_patch16_224", "--progressive", "32:64"), "--model-kwargs dynamic_img_size=True"),
        (("--progressive", "32:64", "--train-crop-size", "48"), "--train-crop-size has no effect with --progressive"),
        (("--progressive-epochs", "1:2"), "--progressive-epochs has no effect without --progressive"),
        (("--progressive", "32:64", "--no-aug"), "--progressive has no effect with --no-aug"),
    ],
)
def test_invalid_pairs(flags, words, trained, fast, tmp_path, cli):
    rest = [*fast[: fast.index("--epochs")], "--epochs", "4"]
    ran = cli("train", trained.shards, *rest, *flags, "-o", tmp_path / "runs")
    assert ran.code == 2 and words in ran.err, ran.err


@pytest.mark.parametrize("flags", [("--aa", "trivial", "--reprob", "0.3"), ("--rotate", "15", "--mixup", "0.2"), ()])
def test_kernels_of_every_size_are_compiled_before_the_first_step(flags, trained, fast, tmp_path, cli, monkeypatch):
    """With Triton's specialisation keys of kernels: no step uses a new combination."""
    import fastimg.train.step as step
    from fastimg.augment import backends

    compiled, late, began = set(), [], []

    def counting(plan, images, table, dtype, out, line):
        drawn = plan and (plan.ops.shape[1], bool(plan.trivial.any()), bool(plan.angle.any()), plan.erasing is not None)
        kind = (images.shape[1:], images.stride()[1:], dtype, drawn)
        if began and kind not in compiled:
            late.append(kind)
        compiled.add(kind)
        return backends.reference.augment(plan, images, table)

    update = step.update
    monkeypatch.setattr(step, "update", lambda *args: began.append(1) or update(*args))
    monkeypatch.setattr(backends, "backend_of", lambda device: "fused")
    monkeypatch.setattr(backends, "_fused", lambda: SimpleNamespace(fused=counting))
    rest = [*fast[: fast.index("--epochs")], "--epochs", "4", "--progressive", "32:64", "--progressive-epochs", "1:2"]
    ran = cli("train", trained.shards, *rest, *flags, "--val-crop-size", "48", "-o", tmp_path / "runs")
    assert ran.code == 0, ran.err
    assert late == [] and {shape[-1] for shape, *_ in compiled} == {32, 48, 64}


def test_long_compilation_is_reported(trained, fast, tmp_path, cli, monkeypatch):
    from fastimg.train import wrapping

    monkeypatch.setattr(wrapping, "_LONG", 0.0)
    monkeypatch.setattr(wrapping.backends, "backend_of", lambda device: "reference")
    rest = [*fast[: fast.index("--epochs")], "--epochs", "4", "--progressive", "32:64", "--progressive-epochs", "1:2"]
    ran = cli("train", trained.shards, *rest, "-o", tmp_path / "runs")
    assert "compiled    augmentation for images of 32 and 64 pixels in " in ran.out
