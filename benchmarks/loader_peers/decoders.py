"""torch's DataLoader with one decoder of JPEGs or another: functions from a path to a picture, a dataset of files.

Each function is what its library shows for reading an RGB picture. Libraries are imported when first used, as each
loader runs in its own process.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fastimg.bench.peers.pipelines import Batches, Transform, Workload, data_loader, first_of

Decode = Callable[[Path], Any]  # to a tensor [3, H, W], or Pillow's image


def pillow(path: Path) -> Image.Image:
    """Pillow: an image, which torchvision's transforms take, too."""
    with Image.open(path) as image:
        return image.convert("RGB")


def torchvision(path: Path) -> torch.Tensor:
    """torchvision.io."""
    from torchvision.io import ImageReadMode, decode_image, read_file

    return decode_image(read_file(str(path)), ImageReadMode.RGB)  # a channels-last view


def torchcodec(path: Path) -> torch.Tensor:
    """TorchCodec, the successor of torchvision's decoders."""
    from torchcodec.decoders import decode_image

    return decode_image(path)


def simplejpeg(path: Path) -> torch.Tensor:
    """simplejpeg, a binding of libjpeg-turbo."""
    import simplejpeg as library

    return _planes(library.decode_jpeg(path.read_bytes(), "RGB"))


def turbojpeg(path: Path) -> torch.Tensor:
    """PyTurboJPEG, with the system's libturbojpeg."""
    from turbojpeg import TJPF_RGB

    return _planes(_turbojpeg().decode(path.read_bytes(), pixel_format=TJPF_RGB))


@cache
def _turbojpeg() -> Any:
    from turbojpeg import TurboJPEG

    return TurboJPEG()


def jpeg4py(path: Path) -> torch.Tensor:
    """jpeg4py, with the system's libturbojpeg."""
    import jpeg4py as library

    return _planes(library.JPEG(str(path)).decode())


def opencv(path: Path) -> torch.Tensor:
    """OpenCV."""
    import cv2

    return _planes(cv2.imread(str(path), cv2.IMREAD_COLOR_RGB))


def imagecodecs(path: Path) -> torch.Tensor:
    """imagecodecs."""
    import imagecodecs as library

    return _planes(library.jpeg8_decode(path.read_bytes(), outcolorspace="rgb"))


def kornia(path: Path) -> torch.Tensor:
    """kornia-rs."""
    from kornia_rs.io import read_image_jpegturbo

    return _planes(read_image_jpegturbo(str(path)))


def pyvips(path: Path) -> torch.Tensor:
    """pyvips."""
    import pyvips as library

    return _planes(library.Image.new_from_file(str(path), access="sequential").colourspace("srgb").numpy())


def imageio(path: Path) -> torch.Tensor:
    """imageio."""
    import imageio.v3

    return _planes(imageio.v3.imread(path, mode="RGB"))


def _planes(pixels: np.ndarray) -> torch.Tensor:
    """Pixels [H, W, 3] as a channels-last view [3, H, W]."""
    return torch.from_numpy(pixels).permute(2, 0, 1)


DECODERS: dict[str, tuple[str, Decode]] = {  # name: module, function
    "pillow": ("PIL", pillow),
    "torchvision.io": ("torchvision", torchvision),
    "torchcodec": ("torchcodec", torchcodec),
    "simplejpeg": ("simplejpeg", simplejpeg),
    "PyTurboJPEG": ("turbojpeg", turbojpeg),
    "jpeg4py": ("jpeg4py", jpeg4py),
    "opencv": ("cv2", opencv),
    "imagecodecs": ("imagecodecs", imagecodecs),
    "kornia-rs": ("kornia_rs", kornia),
    "pyvips": ("pyvips", pyvips),
    "imageio": ("imageio", imageio),
}


def pixels(image: Any) -> torch.Tensor:
    """A picture as pixels [H, W, 3], which collate faster than planes."""
    if isinstance(image, torch.Tensor):
        return image.permute(1, 2, 0).contiguous()
    return torch.from_numpy(np.array(image))


class DecodedFiles(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Files, a decoder, and torchvision's v2 transforms on what it gives."""

    def __init__(self, work: Workload, decode: Decode) -> None:
        self.sources = work.sources
        self.decode = decode
        self.transform = Transform(work).transform

    def __len__(self) -> int:
        return len(self.sources.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return pixels(self.transform(self.decode(self.sources.files[index]))), self.sources.label(index)


def torch_decoding(work: Workload, decode: Decode) -> Batches:
    """torch's DataLoader on decoded files."""
    return first_of(data_loader(work, DecodedFiles(work, decode)))
