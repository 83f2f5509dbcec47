"""The blocks of a model: they partition its parameters, in the order of the forward pass."""

import pytest
import timm
import torch
import torchvision

from fastimg.models.blocks import blocks, repeated

TIMM = ("byobnet", "convnext", "efficientnet", "mambaout", "maxvit", "nfnet", "resnet", "vit3", "vit_relpos")
TORCHVISION = {  # name: number of blocks, including stem and head
    "alexnet": 8,
    "vgg11_bn": 11,
    "resnet18": 10,
    "resnet50": 18,
    "densenet121": 60,
    "mobilenet_v2": 19,
    "convnext_tiny": 20,
    "swin_v2_t": 14,
    "vit_b_16": 14,
    "squeezenet1_0": 10,
    "shufflenet_v2_x0_5": 18,
    "mnasnet0_5": 18,
}


def torchvision_model(name):
    with torch.device("meta"):
        return torchvision.models.get_model(name, num_classes=3)


def check(model, size):
    """Every parameter is in one block; the modules of the blocks are called once each, in order."""
    found = blocks(model)
    names = [name for block in found for name in block.parameters]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert all(block.parameters for block in found)
    assert len({block.name for block in found}) == len(found)
    assert (found[0].name, found[-1].name) == ("stem", "head")
    known = dict(model.named_modules())
    called = []
    for block in found:
        if block.module is not None:
            assert known[block.name] is block.module
            own = {name for name, _ in block.module.named_parameters(block.name)}
            assert own <= set(block.parameters)
            block.module.register_forward_pre_hook(lambda module, _: called.append(module))
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, size, size, device=next(model.parameters()).device))
    assert called == repeated(model)


@pytest.mark.parametrize("name", TIMM)
def test_timms_models(name):
    model = timm.create_model(f"test_{name}", num_classes=3)
    check(model, model.default_cfg["input_size"][-1])
    assert len(repeated(model)) >= 4
    head = set(blocks(model)[-1].parameters)
    assert {f"{model.default_cfg['classifier']}.{p}" for p in ("weight", "bias")} <= head


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvisions_models(name):
    model = torchvision_model(name)
    check(model, 224)
    assert len(blocks(model)) == TORCHVISION[name]
    assert len(repeated(model)) == (0 if name in ("alexnet", "vgg11_bn") else TORCHVISION[name] - 2)


def test_a_transformer_has_two_blocks_more_than_its_depth():
    found = blocks(timm.create_model("test_vit", num_classes=3))
    assert [block.name for block in found] == ["stem", *(f"blocks.{n}" for n in range(6)), "head"]
    assert {"cls_token", "pos_embed"} <= set(found[0].parameters)
    assert found[-1].parameters == ("norm.weight", "norm.bias", "head.weight", "head.bias")


def test_resnet50_has_sixteen_residual_blocks():
    with torch.device("meta"):
        ours = timm.create_model("resnet50")
    for model in (ours, torchvision_model("resnet50")):
        assert [type(module).__name__ for module in repeated(model)] == ["Bottleneck"] * 16
        found = blocks(model)
        assert found[0].parameters == ("conv1.weight", "bn1.weight", "bn1.bias")
        assert found[-1].parameters == ("fc.weight", "fc.bias")
        assert "layer2.0.downsample.0.weight" in found[4].parameters


def test_modules_between_two_blocks_belong_to_the_second():
    found = {block.name: block for block in blocks(torchvision_model("convnext_tiny"))}
    assert "features.2.0.weight" in found["features.3.0"].parameters  # the downsampling layer
    assert "features.2.0.weight" not in dict(found["features.3.0"].module.named_parameters("features.3.0"))


@pytest.mark.parametrize(("name", "count"), [("caformer_s18", 18), ("pit_ti_224", 12), ("csatv2", 14)])
def test_timm_models_without_block_information(name, count):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=3)
    assert not hasattr(model, "group_matcher")
    check(model, 224 if name != "csatv2" else 512)
    assert len(repeated(model)) == count


def test_a_single_layer_is_a_head():
    (block,) = blocks(torch.nn.Linear(2, 2))
    assert block.name == "head" and block.parameters == ("weight", "bias") and block.module is None
