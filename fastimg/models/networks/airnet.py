"""A small convolutional network for 32 x 32 pixels, whose first layer whitens patches: fastimg/airnet.

The network of Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU (arXiv 2404.00498, cifar10-airbench), written
anew from its description: a fixed 2 x 2 convolution that whitens patches of the training images, three stages of two
3 x 3 convolutions that begin as identities, norms without weights, GELU, and logits that are scaled down.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

SIZE = 32  # pixels; others of 15 or more work too
MEAN = (0.4914, 0.4822, 0.4465)  # of CIFAR-10
STD = (0.247, 0.2435, 0.2616)
_SIDE = 2  # pixels of a patch
_FLOOR = 5e-4  # added to eigenvalues, so that patterns that hardly occur are not blown up


class Moments(NamedTuple):
    """Sums over patches of D = 3 x 2 x 2 levels from 0 to 255: whole numbers in float64, exact in any order."""

    patches: int
    products: torch.Tensor  # [D, D]
    levels: torch.Tensor  # [D]

    def __add__(self, other: object) -> "Moments":
        if not isinstance(other, Moments):
            return NotImplemented
        return Moments(self.patches + other.patches, self.products + other.products, self.levels + other.levels)


def patch_moments(images: torch.Tensor) -> Moments:
    """The sums over all patches of uint8 images [B, 3, H, W], on their device; up to 2^53 / 255^2 patches are exact."""
    height, width = (side - _SIDE + 1 for side in images.shape[2:])
    planes = images.transpose(0, 1).double()
    views = [planes[:, :, y : y + height, x : x + width] for y in range(_SIDE) for x in range(_SIDE)]
    patches = torch.stack(views, dim=1).flatten(2).flatten(0, 1)  # [D, patches]
    return Moments(patches.shape[1], patches @ patches.T, patches.sum(dim=1))


def whitening_filters(moments: Moments, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    """float32 [2 D, 3, 2, 2]: principal patterns of normalised patches, divided by their spread; then their negatives.

    The widest spread comes first. The same on every machine, but for the last bits of the eigenvectors.
    """
    each = _SIDE * _SIDE
    offset = torch.tensor(mean, dtype=torch.float64).repeat_interleave(each)  # [D]
    scale = torch.tensor(std, dtype=torch.float64).repeat_interleave(each)
    first = moments.levels.cpu() / moments.patches / 255
    second = moments.products.cpu() / moments.patches / 255**2
    crossed = torch.outer(offset, first)
    second = (second - crossed - crossed.T + torch.outer(offset, offset)) / torch.outer(scale, scale)
    values, vectors = torch.linalg.eigh(second)
    patterns = (vectors / (values.clamp(min=0.0) + _FLOOR).sqrt()).T.flip(0)  # [D, D], a pattern a row
    largest = patterns.gather(1, patterns.abs().argmax(dim=1, keepdim=True))
    patterns = patterns * largest.sign()  # an eigenvector's sign is arbitrary
    return torch.cat([patterns, -patterns]).view(-1, 3, _SIDE, _SIDE).float()


class ConvStage(nn.Module):
    """Convolution, pooling, norm, GELU, convolution, norm, GELU: [B, inputs, H, W] -> [B, outputs, H / 2, W / 2]."""

    def __init__(self, inputs: int, outputs: int, momentum: float) -> None:
        super().__init__()
        self.conv1 = _identity(inputs, outputs)
        self.norm1 = _norm(outputs, momentum)
        self.conv2 = _identity(outputs, outputs)
        self.norm2 = _norm(outputs, momentum)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class AirNet(nn.Module):
    """Normalised images [B, 3, H, W] -> logits [B, classes].

    `width` is that of the first stage, the others have four times as many channels. `scale` multiplies the logits;
    `momentum` is the share that norms' running statistics keep in a step.
    """

    def __init__(self, num_classes: int, width: int = 64, scale: float = 1 / 9, momentum: float = 0.6) -> None:
        super().__init__()
        self.scale = scale
        self.stem = nn.Conv2d(3, 6 * _SIDE * _SIDE, _SIDE)
        self.stem.weight.requires_grad_(False)
        nn.init.zeros_(self.stem.bias)  # type: ignore[arg-type]
        widths = (self.stem.out_channels, width, 4 * width, 4 * width)
        stages = [ConvStage(*pair, 1 - momentum) for pair in pairwise(widths)]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(widths[-1], num_classes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        x = self.stages(F.gelu(self.stem(x)))
        # Not adaptive_max_pool2d, whose backward pass on a GPU --deterministic refuses.
        logits: torch.Tensor = self.head(F.max_pool2d(x, x.shape[2:]).flatten(1))
        return logits * self.scale

    def fixed(self) -> set[str]:
        """The names of the parameters that never train."""
        return {"stem.weight", *(f"{name}.weight" for name, m in self.named_modules() if isinstance(m, nn.BatchNorm2d))}

    @torch.no_grad()
    def whiten(self, filters: torch.Tensor) -> None:
        """Set the first layer to `whitening_filters`."""
        self.stem.weight.copy_(filters)


def _identity(inputs: int, outputs: int) -> nn.Conv2d:
    """A convolution whose first outputs are its inputs; the others begin with torch's usual weights."""
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(conv.weight[:inputs])
    return conv


def _norm(channels: int, momentum: float) -> nn.BatchNorm2d:
    """A batch norm whose weights stay 1."""
    norm = nn.BatchNorm2d(channels, eps=1e-12, momentum=momentum)
    norm.weight.requires_grad_(False)
    return norm
