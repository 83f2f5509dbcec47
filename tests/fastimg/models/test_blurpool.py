"""BlurPool: blurring before strides."""

import copy

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from fastimg.models.blurpool import blur_strides

BLUR = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16


def blurred(images, stride=1):
    channels = images.shape[1]
    return F.conv2d(images, BLUR.expand(channels, 1, 3, 3), stride=stride, padding=1, groups=channels)


def turned(layer):
    layers = nn.Sequential(copy.deepcopy(layer))
    return layers, blur_strides(layers)


CONVOLUTIONS = {
    "3x3": nn.Conv2d(16, 8, 3, stride=2, padding=1),
    "pointwise": nn.Conv2d(16, 8, 1, stride=2, bias=False),
    "pointwise in groups": nn.Conv2d(16, 8, 1, stride=(2, 3), groups=4),
    "depthwise": nn.Conv2d(16, 16, 5, stride=2, padding=2, groups=16),
    "patches": nn.Conv2d(16, 8, 2, stride=2),
    "same": timm.layers.create_conv2d(16, 8, 3, stride=2, padding="same"),
    "standardised": timm.layers.StdConv2d(16, 8, 3, stride=2, padding=1),
}


@pytest.mark.parametrize("size", [13, 16])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_strided_convolution_sees_a_blurred_image(name, size):
    layer = CONVOLUTIONS[name]
    layers, count = turned(layer)
    images = torch.randn(2, 16, size, size).contiguous(memory_format=torch.channels_last)
    found = layers(images)
    assert count == 1 and isinstance(layers[0], type(layer))
    torch.testing.assert_close(found, layer(blurred(images)), rtol=1e-5, atol=1e-6)
    assert found.shape == layer(images).shape and found.is_contiguous(memory_format=torch.channels_last)
    assert not torch.allclose(found, layer(images), atol=1e-3)


@pytest.mark.parametrize("size", [12, 13, 14, 15])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2), nn.MaxPool2d(3, (2, 3)), nn.MaxPool2d(3, 3)])
def test_max_pooling_becomes_dense_and_is_blurred(pool, size):
    layers, count = turned(pool)
    images = torch.rand(2, 4, size, size)
    dense = F.max_pool2d(images, pool.kernel_size, 1, pool.padding)
    assert count == 1
    torch.testing.assert_close(layers(images), blurred(dense, pool.stride))
    assert layers(images).shape == pool(images).shape


def test_layers_that_are_not_replaced():
    same = timm.layers.create_pool2d("max", 3, 2, padding="same")
    layers = [nn.Conv2d(15, 8, 3, 2), nn.Conv2d(16, 8, 3), nn.MaxPool2d(3, 1), nn.MaxPool2d(3, 2, ceil_mode=True), same]
    for layer in layers:
        model, count = turned(layer)
        assert count == 0 and type(model[0]) is type(layer)


def test_a_constant_image_stays_constant():
    layers, _ = turned(nn.MaxPool2d(3, 2, 1))
    found = layers(torch.full((1, 2, 16, 16), 3.0))
    assert torch.allclose(found[..., 1:-1, 1:-1], torch.tensor(3.0))
    assert (found[..., 0, :] < 3).all()  # it is padded with zeros
    conv = nn.Conv2d(16, 4, 3, stride=2, padding=1)
    images = torch.full((1, 16, 16, 16), 3.0)
    assert torch.allclose(turned(conv)[0](images)[..., 1:-1, 1:-1], conv(images)[..., 1:-1, 1:-1], atol=1e-5)


@pytest.mark.parametrize("layer", [nn.MaxPool2d(3, 2, 1), CONVOLUTIONS["3x3"], CONVOLUTIONS["pointwise"]])
def test_a_shifted_image_changes_less(layer):
    """A shift by one pixel, which a stride of two does not divide: the relative change of the inner features."""
    torch.manual_seed(0)
    images = torch.rand(8, 16, 32, 32)

    @torch.no_grad()
    def change(layers):
        one, other = (layers(shifted)[..., 2:-2, 2:-2] for shifted in (images, images.roll(1, -1)))
        centred = one - one.mean((-1, -2), keepdim=True)
        return ((one - other).norm() / centred.norm()).item()

    assert change(turned(layer)[0]) < 0.75 * change(layer)


@pytest.mark.parametrize("bits", [torch.float64, torch.bfloat16])
def test_the_filter_follows_the_model(bits):
    layers, _ = turned(CONVOLUTIONS["3x3"])
    assert layers.to(bits)(torch.ones(1, 16, 8, 8, dtype=bits)).dtype == bits
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(16, 4, 3, 2), nn.MaxPool2d(2))
    assert blur_strides(model) == 2
    assert model(torch.ones(1, 16, 8, 8, device="meta")).shape == (1, 4, 1, 1)


def test_resnet50():
    """Its pooling, and a 3x3 and the shortcut in each of three stages; names, gradients and a trained state dict."""
    for make in (timm.create_model, torchvision.models.get_model):
        with torch.device("meta"):
            model = make("resnet50")
        before = list(model.state_dict())
        assert blur_strides(model) == 7
        assert list(model.state_dict()) == before
        assert model.eval()(torch.ones(1, 3, 64, 64, device="meta")).shape == (1, 1000)


def test_a_model_learns_and_keeps_its_names():
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=3, zero_init_last=False)
    plain = copy.deepcopy(model)
    assert blur_strides(model) > 3
    model.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 64, 64)
    assert not torch.allclose(model(images), plain(images), atol=1e-4)
    copy.deepcopy(model)(images).sum().backward()
    model(images).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
