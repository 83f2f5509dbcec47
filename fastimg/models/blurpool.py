"""BlurPool: blurs before subsampling, so that a shifted image gives nearly the same features.

Zhang, "Making Convolutional Networks Shift-Invariant Again" (2019), https://arxiv.org/abs/1904.11486
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_MIN_CHANNELS = 16  # convolutions with fewer input channels read the image itself


def blur_strides(module: nn.Module) -> int:
    """Add a blur before strided convolutions with at least 16 channels, and after max pooling, made dense.

    The blur after max pooling takes over its stride. The model changes in place; names, parameters, the state dict and
    sizes stay the same. The filter is [1, 2, 1] in both directions, with zero padding. Pooling that rounds sizes up,
    and timm's padded pooling, are left unchanged. Returns the number of layers that changed.
    """
    count = 0
    device = next((parameter.device for parameter in module.parameters()), None)
    for layer in module.modules():
        kind = type(layer)
        if isinstance(layer, nn.Conv2d) and max(layer.stride) > 1 and layer.in_channels >= _MIN_CHANNELS:
            layer.__class__ = type(f"Blurred{kind.__name__}", (_BlurredConvolution, kind), {})
        elif type(layer) is nn.MaxPool2d and _stride(layer) != (1, 1) and not (layer.ceil_mode or layer.return_indices):
            layer.__class__ = _BlurredMaxPool2d
        else:
            continue
        line = torch.tensor([0.25, 0.5, 0.25], device=device)  # the products are exact in bf16, too
        layer.register_buffer("blur", torch.outer(line, line)[None, None], persistent=False)
        count += 1
    return count


class _BlurredConvolution(nn.Conv2d):
    """A mixin for convolution classes."""

    blur: torch.Tensor  # [1, 1, 3, 3]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        stride = self.stride
        if self.kernel_size == (1, 1) and self.padding == (0, 0) and type(self).__mro__[2] is nn.Conv2d:
            # Blurred pixels that the stride would skip need not be computed.
            return F.conv2d(_blurred(input, self.blur, stride), self.weight, self.bias, groups=self.groups)
        return super().forward(_blurred(input, self.blur, (1, 1)))


class _BlurredMaxPool2d(nn.MaxPool2d):
    blur: torch.Tensor  # [1, 1, 3, 3]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        dense = F.max_pool2d(input, self.kernel_size, 1, self.padding, self.dilation)
        return _blurred(dense, self.blur, _stride(self))


def _blurred(images: torch.Tensor, blur: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Blur images [B, C, H, W], channel by channel."""
    channels = images.shape[1]
    blur = blur.to(images.dtype).expand(channels, 1, 3, 3)
    return F.conv2d(images, blur, stride=stride, padding=1, groups=channels)


def _stride(pool: nn.MaxPool2d) -> tuple[int, int]:
    stride: Any = pool.stride
    return (stride, stride) if isinstance(stride, int) else tuple(stride)
