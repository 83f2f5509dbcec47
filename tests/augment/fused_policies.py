"""What the tests of the Triton path share: policies, types and images, and whether kernels are interpreted."""

import os

import numpy as np
import torch

from fastimg.augment import Policy

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]
JITTER = {"brightness": (0.5, 1.7), "contrast": (0.3, 2.0), "saturation": (0.0, 2.5)}
POLICIES = {
    "nothing": Policy(),
    "flips": Policy(hflip=0.5, vflip=0.5),
    "rotate": Policy(rotate=30, hflip=0.5),
    "brightness": Policy(brightness=(0.0, 2.0), vflip=0.5),
    "contrast": Policy(contrast=(0.0, 2.0), rotate=180),
    "saturation": Policy(saturation=(0.0, 3.0), hflip=0.5),
    "trivial": Policy(trivial=True, hflip=0.5, erase=0.5, erase_value=(0.5, -1.0, 2.0)),
    "trivial, unerased": Policy(trivial=True, hflip=0.5, vflip=0.5),
    "contrast, trivial": Policy(contrast=(0.3, 2.0), trivial=True),
    "jitter": Policy(**JITTER, rotate=10),
    "jitter, trivial": Policy(**JITTER, trivial=True, rotate=45, hflip=0.5, vflip=0.5, erase=0.5),
}
NAMED = {
    "rand": Policy(named="rand-m9-mstd0.5-inc1-p1", hflip=0.5, erase=0.5),
    "three": Policy(named="3aug", brightness=(0.7, 1.3), hflip=0.5),
    "auto": Policy(named="v0", rotate=10),
    "colours": Policy(contrast=(0.5, 1.5), hue=0.3, grayscale=0.3, solarize=0.5),
    "after trivial": Policy(trivial=True, hue=0.2, grayscale=0.3, blur=0.5, solarize=0.5),
}

# Policies, types and sizes for which the kernels are compiled, and executed as PTX.
COMPILED = [
    ("flips", torch.float16, (40, 64)),
    ("flips", torch.float32, (9, 12)),
    ("flips", torch.uint8, (9, 16)),
    ("rotate", torch.bfloat16, (33, 40)),
    ("rotate", torch.float32, (12, 20)),
    ("rotate", torch.float16, (1360, 8)),  # a thread makes four runs in tiles, and three otherwise
    ("trivial", torch.bfloat16, (40, 64)),
    ("trivial", torch.float32, (13, 12)),
    ("trivial", torch.uint8, (16, 24)),
    ("trivial", torch.float16, (13, 9)),
    ("trivial, unerased", torch.bfloat16, (40, 64)),
    ("trivial, unerased", torch.float16, (100, 88)),  # programs of 16 pixels a thread
    ("trivial, unerased", torch.float32, (13, 12)),
    ("trivial, unerased", torch.uint8, (16, 24)),
    ("trivial, unerased", torch.bfloat16, (11, 9)),
    ("contrast, trivial", torch.bfloat16, (24, 32)),
    ("jitter, trivial", torch.float16, (16, 24)),
    ("brightness", torch.uint8, (16, 24)),  # no statistics, and more pixels than a placeholder of uint8 could count
    ("nothing", torch.bfloat16, (9, 15)),
]


def images(batch, height, width, seed=0):
    """uint8 [B, 3, H, W], channels-last: noise, few levels, one level, and gradients, alternating."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (batch, height, width, 3), dtype=np.uint8)
    pixels[1::4] = pixels[1::4] % 3 * 50 + 20
    pixels[2::4] = pixels[2::4, :1, :1]
    pixels[3::4] = (np.arange(height)[:, None, None] * 5 + np.arange(width)[:, None] * 3 + np.arange(3) * 40) % 256
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)
