"""The one resampler: bit-equal to torchvision's antialiased uint8 resize of the box, then a cut of the window."""

import numpy as np
import torch

from .crop import Interpolation, Window
from .decode import Pixels

_KERNELS = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa,
}


def resample(pixels: Pixels, window: Window, interpolation: Interpolation, out: Pixels) -> None:
    """Write `window` of `pixels` [H, W, 3] into `out` [h, w, 3], contiguous uint8. The kernels run without the GIL."""
    x, y, width, height = window.box
    box = np.ascontiguousarray(pixels[y : y + height, x : x + width])
    if not box.flags.writeable:  # Pillow's arrays: torch warns about what it might write to
        box = box.copy()
    source = torch.from_numpy(box).permute(2, 0, 1).unsqueeze(0)  # [1, 3, h, w], channels-last
    kernel = _KERNELS[interpolation]
    size = [window.size[1], window.size[0]]
    if size == [out.shape[0], out.shape[1]]:
        kernel.out(source, size, False, None, None, out=torch.from_numpy(out).permute(2, 0, 1).unsqueeze(0))
        return
    resized = kernel(source, size, False, None, None)
    left, top = window.at
    cut = resized[0, :, top : top + out.shape[0], left : left + out.shape[1]]
    torch.from_numpy(out).permute(2, 0, 1).copy_(cut)
