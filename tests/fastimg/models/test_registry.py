"""Models by name, weights from files, freezing."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file

from fastimg.errors import UsageError, UserError
from fastimg.models.blocks import blocks
from fastimg.models.freezing import freeze, train_mode
from fastimg.models.heads import init_head
from fastimg.models.input_size import check_input
from fastimg.models.registry import build, check_kwargs, load_weights, parse_kwargs, read_weights
from fastimg.train.checkpoints.format import MODEL, load_model


def state(model):
    return {name: tensor.clone() for name, tensor in model.module.state_dict().items()}


def same(one, other, names=None):
    return all(one[name].equal(other[name]) for name in names or one)


def trunk(tensors, head="fc."):
    return [name for name in tensors if not name.startswith(head)]


def test_arguments():
    given = ("a=1", "b=0.5", "c=same", "d=(1, 2)", "e=None", "f=x=y", "g=")
    expected = {"a": 1, "b": 0.5, "c": "same", "d": (1, 2), "e": None, "f": "x=y", "g": ""}
    assert parse_kwargs(given) == expected


def test_arguments_reach_the_model_and_its_checkpoint(trained, tmp_path, fast, cli):
    flags = ("--model-kwargs", "stem_width=8", "block_args={'attn_layer': 'se'}", "--drop-path", "0.2")
    ran = cli("train", trained.images, *fast, *flags, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    model, card = load_model(tmp_path / "run")
    assert card.kwargs == {"stem_width": 8, "block_args": {"attn_layer": "se"}, "drop_path_rate": 0.2}
    assert any(".se." in name for name in state(model)) and model.module.conv1[0].out_channels == 8


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"state_dict": t}, lambda t: {"model": t, "epoch": 3}])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module.model."])
def test_wrappers_are_undone(wrap, prefix, tmp_path):
    tensors = {"a": torch.ones(2), "b.c": torch.zeros(1)}
    torch.save(wrap({prefix + name: tensor for name, tensor in tensors.items()}), tmp_path / "w.pth")
    found, metadata = read_weights(tmp_path / "w.pth")
    assert found.keys() == tensors.keys() and same(found, tensors) and metadata == {}


def test_an_old_checkpoint_loads_into_the_model(tmp_path):
    source = build("test_resnet", 3)
    tensors = {f"module.{name}": tensor for name, tensor in state(source).items()}
    torch.save({"state_dict": tensors, "epoch": 3, "arch": "x"}, tmp_path / "old.pth.tar")
    assert same(state(build("test_resnet", 3, weights=tmp_path / "old.pth.tar")), state(source))


@pytest.mark.parametrize("how", ["xavier", "he", "zeros"])
def test_a_classifier_of_another_width_is_initialised(how, tmp_path):
    source = build("test_resnet", 1000)
    save_file(state(source), tmp_path / "w.safetensors")
    made = state(build("test_resnet", 3, weights=tmp_path / "w.safetensors", head_init=how))
    assert same(made, state(source), trunk(made)) and made["fc.weight"].shape == (3, made["fc.weight"].shape[1])
    assert not made["fc.bias"].any() and made["fc.weight"].any() == (how != "zeros")
    if how == "xavier":
        assert made["fc.weight"].abs().max() <= math.sqrt(6 / sum(made["fc.weight"].shape))


@pytest.mark.parametrize(("how", "variance"), [("xavier", 2 / 1600), ("he", 2 / 600), ("zeros", 0.0)])
def test_the_variance_of_a_new_classifier(how, variance):
    module = torch.nn.ModuleDict({"head": torch.nn.Linear(600, 1000), "rest": torch.nn.Linear(600, 2)})
    rest = module["rest"].weight.clone()
    init_head(module, "head", how)
    assert module["head"].weight.var().item() == pytest.approx(variance, rel=0.02)
    largest = module["head"].weight.abs().max().item()
    assert largest <= math.sqrt(3 * variance) * 1.0001 if how != "he" else largest > 3 * math.sqrt(variance)
    assert not module["head"].bias.any() and module["rest"].weight.equal(rest)


@pytest.mark.parametrize("how", ["xavier", "he", "zeros"])
def test_a_classifier_of_several_layers_can_learn(how):
    head = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    module = torch.nn.ModuleDict({"head": head})
    init_head(module, ["head"], how)
    assert head[1].weight.eq(1).all()
    torch.nn.functional.cross_entropy(head(torch.randn(4, 6)), torch.tensor([0, 1, 2, 0])).backward()
    assert head[3].weight.grad.any() and head[0].weight.any()


def test_a_file_without_a_classifier(tmp_path):
    source = state(build("test_resnet", 3))
    save_file({name: source[name] for name in trunk(source)}, tmp_path / "w.safetensors")
    assert same(state(build("test_resnet", 3, weights=tmp_path / "w.safetensors")), source, trunk(source))


def test_counters_of_batches_may_be_missing():
    model = build("test_resnet", 3)
    tensors = {name: tensor for name, tensor in state(model).items() if not name.endswith("num_batches_tracked")}
    load_weights(model, tensors, "origin")


def test_weights_from_a_run_directory(trained, tmp_path):
    there = load_file(trained.run / "best" / MODEL)
    for path in (trained.run, (trained.run / "best").resolve(), trained.run / "best" / MODEL):
        assert same(state(build("test_resnet", 3, weights=path)), there)
    (tmp_path / "last").symlink_to((trained.run / "last").resolve())  # stopped before its first validation
    assert same(read_weights(tmp_path)[0], load_file(trained.run / "last" / MODEL))


def test_preprocessing_is_read_from_weights(tmp_path):
    tensors = state(build("test_resnet", 3))
    save_file(tensors, tmp_path / "w.safetensors", metadata={"mean": "0.1,0.2, 0"})
    pre = build("test_resnet", 3, weights=tmp_path / "w.safetensors").preprocessing
    assert pre.mean == (0.1, 0.2, 0.0) and pre.std == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("stated", [{"std": "1,1,x"}, {"std": "0,1,1"}, {"mean": "0.5"}, {"mean": "124,116,104"}])
def test_preprocessing_that_cannot_be_is_refused(stated, tmp_path):
    """It was left out without a word, or raised an error of the policy."""
    save_file(state(build("test_resnet", 3)), tmp_path / "w.safetensors", metadata=stated)
    with pytest.raises(UserError, match=r"w\.safetensors: states (mean|std) .* 3 numbers from 0 to 1"):
        build("test_resnet", 3, weights=tmp_path / "w.safetensors")


@pytest.mark.parametrize("arch", ["test_resnet", "test_vit"])
def test_frozen_is_frozen(arch, trained, tmp_path, cli):
    """The backbone does not change by a bit, including batch norm statistics; the classifier learns."""
    source = build(arch, 3, img_size=32)
    save_file(state(source), tmp_path / "w.safetensors")
    flags = ("--arch", arch, "--img-size", "32", "-b", "8", "-j", "1", "--epochs", "1", "--hflip", "0.5")
    weights = ("--weights", tmp_path / "w.safetensors", "--freeze", "backbone")
    ran = cli("train", trained.images, *flags, *weights, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    head = "fc." if arch == "test_resnet" else "head."
    before, after = state(source), load_file(tmp_path / "run" / "last" / MODEL)
    assert before.keys() == after.keys() and same(before, after, trunk(before, head))
    assert not same(before, after, [name for name in before if name.startswith(head)])
    assert f"({sum(t.numel() for n, t in before.items() if n.startswith(head)):,} trained)" in ran.out


def test_frozen_modules_are_in_eval_mode():
    model = build("test_resnet", 3)
    freeze(model, "backbone")
    train_mode(model.module)
    assert not any(m.training for m in model.module.modules() if isinstance(m, torch.nn.BatchNorm2d))
    assert model.module.fc.training
    model.module.requires_grad_(True)
    train_mode(model.module)
    assert all(m.training for m in model.module.modules())


@pytest.mark.parametrize(("arch", "dropout"), [("test_resnet", "drop_path_rate"), ("test_vit", "proj_drop_rate")])
@pytest.mark.parametrize("first", [1, 3])
def test_the_first_blocks_are_frozen(arch, dropout, first):
    """They keep weights and statistics and apply no dropout; every other block learns."""
    kwargs = {dropout: 0.4, **({"img_size": 32} if arch == "test_vit" else {})}
    model = build(arch, 3, kwargs=kwargs)
    module, cut = model.module, blocks(model.module)
    learning = freeze(model, str(first))
    frozen = [name for block in cut[:first] for name in block.parameters]
    assert [name for name, p in module.named_parameters() if not p.requires_grad] == frozen
    assert learning == sum(p.numel() for p in module.parameters() if p.requires_grad) > 0
    train_mode(module)
    for place, block in enumerate(cut):
        if block.module is not None:
            assert all(m.training == (place >= first) for m in block.module.modules()), block.name
    before = state(model)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        module(torch.randn(4, 3, 32, 32)).square().sum().backward()
        optimizer.step()
    owners = [name.rpartition(".")[0] for name in frozen]
    changed = [name for name, value in state(model).items() if not value.equal(before[name])]
    assert not [name for name in changed if name in frozen or name.rpartition(".")[0] in owners]
    for block in cut[first:]:
        assert any(name in changed for name in block.parameters), block.name


@pytest.mark.parametrize("what", ["0", "6", "-1", "1.5", "head", ""])
def test_unknown_blocks_cannot_be_frozen(what):
    with pytest.raises(UsageError, match=rf"--freeze {what}: test_resnet has 6 blocks, .* from 1 to 5, or backbone"):
        freeze(build("test_resnet", 3), what)


def test_a_model_without_a_classifier_cannot_be_frozen():
    with pytest.raises(UsageError, match="has no separate classifier layer"):
        freeze(replace(build("test_resnet", 3), classifier=()), "backbone")


def test_blurpool_takes_the_same_weights(tmp_path):
    source = build("test_resnet", 3)
    save_file(state(source), tmp_path / "w.safetensors")
    model = build("test_resnet", 3, weights=tmp_path / "w.safetensors", blurpool=True)
    assert model.blurpool and not source.blurpool
    assert list(state(model)) == list(state(source)) and same(state(model), state(source))
    images = torch.randn(1, 3, 64, 64)
    one, other = (m.module.eval().forward_features(images) for m in (source, model))
    assert one.shape == other.shape and not torch.allclose(one, other, atol=1e-3)
    with pytest.raises(UsageError, match=r"--blurpool: test_vit has no max pooling .* leave it out"):
        build("test_vit", 3, blurpool=True)


@pytest.mark.parametrize("size", [32, 64])
def test_a_transformer_of_another_image_size(size, trained, tmp_path, cli):
    flags = ("--arch", "test_vit", "--img-size", size, "-b", "8", "-j", "1", "--epochs", "1", "--no-amp")
    assert cli("train", trained.images, *flags, "-o", tmp_path, "--name", "run").code == 0
    model, card = load_model(tmp_path / "run")
    assert card.kwargs["img_size"] == size == card.preprocessing.val_size
    assert model.module.pos_embed.shape[1] >= (size // 16) ** 2
    assert cli("eval", tmp_path / "run", trained.images).code == 0


def test_torchvisions_models(trained, tmp_path, cli):
    """A published state_dict with 1000 classes, used for three: the trunk is kept, trained, saved and loaded."""
    source = torchvision.models.shufflenet_v2_x0_5(weights=None).state_dict()
    torch.save(source, tmp_path / "shufflenet.pth")
    flags = ("--arch", "torchvision/shufflenet_v2_x0_5", "--img-size", "32", "-b", "12", "-j", "1", "--epochs", "1")
    weights = ("--weights", tmp_path / "shufflenet.pth", "--freeze", "backbone")
    ran = cli("train", trained.images, *flags, *weights, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    after = load_file(tmp_path / "run" / "last" / MODEL)
    assert same(source, after, trunk(source)) and after["fc.weight"].shape == (3, 1024) and after["fc.weight"].any()
    ran = cli("eval", tmp_path / "run", trained.images, "--json")
    assert ran.code == 0 and json.loads(ran.out)["images"] == 12
    ran = cli("train", trained.images, *flags, "-o", tmp_path, "--name", "whole")
    assert ran.code == 0
    assert not same(after, load_file(tmp_path / "whole" / "last" / MODEL), ["conv1.0.weight"])


def test_more_outputs_than_classes(trained, tmp_path, fast, cli):
    ran = cli("train", trained.images, *fast, "--num-classes", "7", "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    assert load_model(tmp_path / "run")[0].module.fc.out_features == 7
    ran = cli("predict", tmp_path / "run", trained.images / "val" / "red" / "0.jpg", "--json", "--topk", "9")
    assert sum(json.loads(ran.out)["probabilities"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("arch", "size", "words"),
    [
        (
            "vit_tiny_patch16_224",
            100,
            "--img-size 100: vit_tiny_patch16_224 splits images into patches of 16 pixels and would ignore the last 4 "
            "rows and columns; the nearest sizes are 96 and 112",
        ),
        ("convnext_atto", 65, "would ignore the last row and column; the nearest sizes are 64 and 68"),
        ("test_vit", 100, "the nearest sizes are 96 and 112, and its own size is 160"),
        ("vit_tiny_patch16_224", 8, "the nearest size is 16, and its own size is 224"),
        (
            "xcit_tiny_12_p8_224",
            100,
            "--img-size 100: xcit_tiny_12_p8_224 cannot be built for images of 100 pixels "
            "(`patch_size` should divide image dimensions evenly); its own size is 224",
        ),
    ],
)
def test_sizes_that_a_model_does_not_support(arch, size, words):
    with pytest.raises(UsageError) as caught:
        check_input(build(arch, 3, img_size=size), size, 3, "--img-size")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arch", "size", "kwargs"),
    [
        ("vit_tiny_patch16_224", 96, {}),
        ("vit_tiny_patch16_224", 100, {"dynamic_img_size": True, "dynamic_img_pad": True}),  # it pads its images
        ("test_resnet", 33, {}),  # a strided convolution is not a patch
        ("test_vit", 160, {}),
    ],
)
def test_sizes_that_a_model_supports(arch, size, kwargs):
    check_input(build(arch, 3, img_size=size, kwargs=kwargs), size, 3, "--img-size")


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ("in_chans=5", "--model-kwargs in_chans=5: images have 3 channels, or 1 of gray; give one of them"),
        ("num_classes=7", "use --num-classes instead"),
        ("pretrained=True", "use --pretrained instead"),
        ("img_size=64", "--model-kwargs img_size=64 contradicts --img-size 32; remove img_size"),
    ],
)
def test_arguments_that_contradict_the_models_input(kwargs, words, trained, tmp_path, cli):
    flags = ("--arch", "test_vit", "--img-size", "32", "--model-kwargs", kwargs)
    for command, more in (("train", ("--dry-run",)), ("embed", (tmp_path / "out", "--weights", trained.run))):
        ran = cli(command, trained.images, *(flags if command == "train" else (*more, *flags)))
        assert ran.code == 2 and words in ran.err, ran.err


def test_consistent_arguments_are_accepted():
    check_kwargs({"in_chans": 3, "img_size": 32}, 32, "--img-size")
    assert build("test_vit", 3, kwargs={"img_size": 64}).preprocessing.val_size == 64
