"""Weights of other image sizes, other names and other classes: what is kept, what is converted, and what is said."""

import argparse
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.layers import resample_abs_pos_embed

from fastimg.errors import UserError
from fastimg.models.registry import Model, build, read_weights
from fastimg.models.registry.timm_models import state_dict_filter
from fastimg.train.checkpoints.format import MODEL

State = dict[str, torch.Tensor]


def drawn(model: Model) -> State:
    """A state of the model with no two numbers alike."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(value.shape, generator=generator) if value.is_floating_point() else value.clone()
        for name, value in model.module.state_dict().items()
    }


def saved(state: State, tmp_path: Path) -> Path:
    file = tmp_path / "w.safetensors"
    save_file(state, file)
    return file


def test_position_embeddings_are_resampled_as_timm_does(tmp_path: Path) -> None:
    source = build("test_vit", 3, img_size=32)
    state = drawn(source)
    model = build("test_vit", 3, img_size=64, weights=saved(state, tmp_path))
    found = model.module.state_dict()
    prefix = source.module.num_prefix_tokens
    expected = resample_abs_pos_embed(state["pos_embed"], new_size=[4, 4], old_size=[2, 2], num_prefix_tokens=prefix)
    assert found["pos_embed"].shape[1] == 16 + prefix and torch.equal(found["pos_embed"], expected)
    assert all(torch.equal(found[name], state[name]) for name in state if name != "pos_embed")
    shapes = f"{list(state['pos_embed'].shape)} to {list(expected.shape)}"
    assert model.fitted == (f"1 tensor resampled: pos_embed {shapes}",) and model.new_head is None
    assert build("test_vit", 3, img_size=32, weights=tmp_path / "w.safetensors").fitted == ()


@pytest.mark.parametrize(
    ("arch", "kwargs", "small", "large", "table"),
    [
        (
            "swin_tiny_patch4_window7_224",
            {"embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)},
            32,
            64,
            "bias_table",
        ),
        ("beit_base_patch16_224", {"embed_dim": 16, "depth": 1, "num_heads": 1}, 32, 64, "bias_table"),
    ],
)
def test_tables_of_relative_positions_are_resampled(
    arch: str, kwargs: dict[str, Any], small: int, large: int, table: str, tmp_path: Path
) -> None:
    """Of windows that are smaller, as timm makes them for small images, and of whole images."""
    small_kwargs = {**kwargs, "window_size": 4} if "swin" in arch else kwargs
    source = build(arch, 3, img_size=small, kwargs=small_kwargs)
    state = drawn(source)
    model = build(arch, 3, img_size=large, kwargs=kwargs, weights=saved(state, tmp_path))
    convert = state_dict_filter(source)
    assert convert is not None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = convert(dict(state), model.module)
    found = model.module.state_dict()
    changed = [name for name in found if name in state and found[name].shape != state[name].shape]
    assert changed and all(name.endswith(table) for name in changed)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert len(model.fitted) == 1 and model.fitted[0].startswith(f"{len(changed)} tensor")


def test_names_of_original_releases_are_repaired(tmp_path: Path) -> None:
    """DeiT III's layer scales, and a representation layer of old ViTs."""
    source = build("deit3_small_patch16_224", 3, img_size=32, kwargs={"embed_dim": 24, "depth": 2, "num_heads": 2})
    state = drawn(source)
    old = {name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): each for name, each in state.items()}
    old["pre_logits.fc.weight"] = torch.zeros(3, 3)
    model = build(source.arch, 3, img_size=32, kwargs=source.kwargs, weights=saved(old, tmp_path))
    assert all(torch.equal(value, state[name]) for name, value in model.module.state_dict().items())
    assert model.fitted[0].startswith("4 tensors renamed: blocks.0.ls1.gamma") and "1 tensor left out" in model.fitted


def test_torchvisions_positions_are_resampled(tmp_path: Path) -> None:
    small, large = ({"image_size": size} for size in (32, 64))
    source = build("torchvision/vit_b_32", 3, kwargs=small)
    model = build("torchvision/vit_b_32", 3, kwargs=large, weights=saved(source.module.state_dict(), tmp_path))
    assert model.module.encoder.pos_embedding.shape[1] == 5 and "encoder.pos_embedding" in model.fitted[0]


def test_other_weights_are_still_refused(tmp_path: Path) -> None:
    state = drawn(build("test_vit", 3, img_size=32))
    state["blocks.0.norm1.weight"] = torch.zeros(5)
    with pytest.raises(UserError, match=r"not the weights of test_vit: .* 1 of another shape \(blocks.0.norm1.weight"):
        build("test_vit", 3, img_size=64, weights=saved(state, tmp_path))
    with pytest.raises(UserError, match="not the weights of test_resnet"):
        build("test_resnet", 3, weights=tmp_path / "w.safetensors")


def test_the_filter_of_one_thread_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm's own loading goes on in another thread while a filter is looked up, and is there again afterwards."""
    loaded: list[str] = []
    model, create = build("test_vit", 3), timm.create_model

    def loading(*_: Any, **__: Any) -> None:
        loaded.append("timm's own")

    def in_between(*args: Any, **kwargs: Any) -> Any:
        thread = threading.Thread(target=create, args=("test_resnet",), kwargs={"pretrained": True})
        thread.start()
        thread.join()
        return create(*args, **kwargs)

    monkeypatch.setattr(timm.models._builder, "load_pretrained", loading)
    monkeypatch.setattr(timm, "create_model", in_between)
    assert state_dict_filter(model) is not None and state_dict_filter(build("test_resnet", 3)) is None
    assert set(loaded) == {"timm's own"} and timm.models._builder.load_pretrained is loading


@pytest.fixture
def named(tmp_path: Path, trained: Any) -> Path:
    """Weights with drawn numbers of a run of blue, green and red."""
    state = drawn(build("test_resnet", 3))
    card = read_weights(trained.run / "best" / MODEL)[1]
    save_file(state, tmp_path / "named.safetensors", metadata=card)
    return tmp_path / "named.safetensors"


def test_rows_of_classes_of_the_same_name_are_kept(named: Path) -> None:
    state = load_file(named)
    model = build("test_resnet", 4, weights=named, classes=("amber", "blue", "cyan", "red"))
    found = model.module.state_dict()
    for name in ("fc.weight", "fc.bias"):
        assert torch.equal(found[name][[1, 3]], state[name][[0, 2]]) and not found[name][[0, 2]].any()
    assert model.fitted == ("2 of 4 rows of the classifier kept by name, new: amber, cyan; 1 row of the file left out",)
    assert (model.new_head, model.kept_rows) == ("zeros", 2)

    model = build("test_resnet", 2, weights=named, classes=("red", "blue"))  # another order, and fewer
    assert torch.equal(model.module.fc.weight, state["fc.weight"][[2, 0]]) and model.new_head is None

    model = build("test_resnet", 5, weights=named, classes=("blue", "green", "red"))  # --num-classes 5
    assert torch.equal(model.module.fc.weight[:3], state["fc.weight"]) and not model.module.fc.weight[3:].any()
    assert (model.new_head, model.kept_rows) == ("zeros", 3)

    model = build("test_resnet", 2, weights=named, classes=("cat", "dog"))
    assert not model.module.fc.weight.any() and "of none of these classes" in model.fitted[0]
    assert torch.equal(model.module.state_dict()["conv1.0.weight"], state["conv1.0.weight"])

    model = build("test_resnet", 3, weights=named, classes=("blue", "green", "red"))
    assert torch.equal(model.module.fc.weight, state["fc.weight"]) and model.fitted == () and model.new_head is None


def test_of_an_mlp_the_last_layer_has_the_rows(tmp_path: Path, trained: Any) -> None:
    source = build("test_resnet", 3, head="mlp", head_hidden=8)
    state = drawn(source)
    save_file(state, tmp_path / "w.safetensors", metadata=read_weights(trained.run / "best" / MODEL)[1])
    classes = ("blue", "pink", "red", "tan")
    model = build("test_resnet", 4, weights=tmp_path / "w.safetensors", classes=classes, head="mlp", head_hidden=8)
    found = model.module.state_dict()
    assert torch.equal(found["fc.0.weight"], state["fc.0.weight"])
    assert torch.equal(found["fc.3.weight"][[0, 2]], state["fc.3.weight"][[0, 2]])
    assert not found["fc.3.weight"][[1, 3]].any() and model.kept_rows == 2
    model = build("test_resnet", 4, weights=tmp_path / "w.safetensors", classes=classes)  # another kind of classifier
    assert "of other layers" in model.fitted[0] and not model.module.fc.weight.any()


def test_timm_names_classes_beside_its_weights(tmp_path: Path) -> None:
    state = drawn(build("test_resnet", 3))
    file = saved(state, tmp_path)
    config = {"architecture": "test_resnet", "label_names": ["red", "green", "blue"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = build("test_resnet", 3, weights=file, classes=("blue", "green", "red"))
    assert torch.equal(model.module.fc.weight, state["fc.weight"].flip(0))
    (tmp_path / "config.json").write_text(json.dumps({**config, "architecture": "resnet18"}))  # of another model
    model = build("test_resnet", 3, weights=file, classes=("blue", "green", "red"))
    assert torch.equal(model.module.fc.weight, state["fc.weight"]) and model.fitted == ()


def test_a_checkpoint_of_timms_trainer(tmp_path: Path) -> None:
    """Its arguments are a Namespace; of its two states the moving average is taken, and that is said."""
    state, average = drawn(build("test_resnet", 3)), {}
    average = {f"module.{name}": value + 1 for name, value in state.items()}
    content = {"epoch": 3, "arch": "test_resnet", "state_dict": state, "args": argparse.Namespace(lr=0.1, opt="sgd")}
    file = tmp_path / "last.pth.tar"
    torch.save({**content, "state_dict_ema": average}, file)
    model = build("test_resnet", 3, weights=file)
    assert torch.equal(model.module.fc.weight, state["fc.weight"] + 1)
    assert model.fitted == ("the moving average (state_dict_ema) is taken",)
    torch.save({"model": state, "model_ema": {"n_averaged": torch.tensor(5), **average}}, file)  # torchvision's
    assert build("test_resnet", 3, weights=file).fitted == ("the moving average (model_ema) is taken",)
    torch.save({**content, "state_dict_ema": None}, file)
    model = build("test_resnet", 3, weights=file)
    assert torch.equal(model.module.fc.weight, state["fc.weight"]) and model.fitted == ()


class Derived(argparse.Namespace):
    """Not exactly a Namespace."""


class Started:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return open, (str(self.file), "w")


@pytest.mark.parametrize("kind", ["derived", "inside", "beside"])
def test_only_a_namespace_is_admitted(kind: str, tmp_path: Path) -> None:
    evil = Started(tmp_path / "written")
    beside = {
        "derived": {"args": Derived(lr=0.1)},
        "inside": {"args": argparse.Namespace(lr=evil)},
        "beside": {"args": argparse.Namespace(lr=0.1), "optimizer": evil},
    }[kind]
    torch.save({"state_dict": {"fc.weight": torch.zeros(1)}, **beside}, tmp_path / "w.pth.tar")
    with pytest.raises(UserError, match="cannot be read as plain tensors"):
        read_weights(tmp_path / "w.pth.tar")
    assert not (tmp_path / "written").exists()
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


def test_a_run_at_another_size_begins_from_the_weights(trained: Any, tmp_path: Path, cli: Any) -> None:
    """train, embed and a teacher, from a run and from a state dict."""
    flags = ("--arch", "test_vit", "-b", "8", "-j", "1", "--epochs", "1", "--no-amp", "-o", tmp_path)
    assert cli("train", trained.images, *flags, "--img-size", "32", "--name", "small").code == 0
    small = load_file(tmp_path / "small/best" / MODEL)
    torch.save(small, tmp_path / "small.pth")
    for weights in (tmp_path / "small", tmp_path / "small.pth"):
        ran = cli("train", trained.images, *flags, "--img-size", "64", "--weights", weights, "--dry-run")
        assert ran.code == 0 and "1 tensor resampled: pos_embed [1, 5, 64] to [1, 17, 64]" in ran.out, ran.err
        out = tmp_path / f"embedded-{weights.name}"
        arch = ("--arch", "test_vit", "--img-size", "64", "--format", "npy", "--cache-dir", tmp_path / "cache")
        ran = cli("embed", trained.images, out, *arch, "--weights", weights, "--no-amp", "-j", "1", "--split", "val")
        assert ran.code == 0 and "weights: 1 tensor resampled: pos_embed" in ran.err, ran.err
        assert np.load(out / "val.npy").shape == (12, 64)
    teacher = ("--teacher", "test_vit", "--teacher-weights", tmp_path / "small.pth")
    ran = cli("train", trained.images, *flags, "--img-size", "32", *teacher, "--dry-run")
    assert ran.code == 0 and "1 tensor resampled: pos_embed [1, 5, 64] to [1, 101, 64]" in ran.out, ran.err


def test_a_run_with_more_classes_says_which_are_new(
    trained: Any, named: Path, tmp_path: Path, fast: Any, cli: Any
) -> None:
    for split in ("train", "val"):
        for name in ("blue", "red", "teal"):
            folder = tmp_path / "more" / split / name
            folder.mkdir(parents=True)
            source = trained.images / split / ("green" if name == "teal" else name)
            for file in source.iterdir():
                (folder / file.name).write_bytes(file.read_bytes())
    ran = cli("train", tmp_path / "more", *fast, "--weights", named, "--dry-run", "-o", tmp_path)
    assert ran.code == 0, ran.err
    assert "2 of 3 rows of the classifier kept by name, new: teal; 1 row of the file left out" in ran.out
    assert "zeros head but for 2 rows" in ran.out
