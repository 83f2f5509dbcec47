"""JPEG decoding on a GPU by nvImageCodec (the extra `gpu`): the hardware engine first, then CUDA.

Pixels differ slightly from libjpeg-turbo's, so the decoder is part of a run's configuration. Every image that the
hardware engine supports goes to it (a fixed load hint of 1): if images were divided by load, their pixels would depend
on timing.

The engine of H100-class GPUs does not wait for the given stream. Two sets of images take turns, whose memory is reused:
the caller of `decode` must wait, on the host, until nothing reads the images of the last call but one any more.

Written for nvImageCodec 0.9 and tested with its CPU backend. On an H100, crops of 256 images differed from the CPU's by
at most 1 of 255, in 0.01 % of the values.
"""

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch


SETS = 2  # of images in a device's memory: one is decoded while the other is read
_KEPT_BYTES = 8 << 20  # an image with a larger buffer is not reused for the next batch
_OPTIONS = ":fancy_upsampling=1"  # interpolate chroma, like libjpeg


class DecodedImage(NamedTuple):
    """A decoded image in the device's memory: uint8 RGB."""

    address: int
    width: int
    height: int
    strides: tuple[int, int, int]  # bytes to the next column, row and channel


class BatchDecoder(Protocol):
    """Decodes batches of JPEGs. `parse` may be called from any thread, `decode` from one."""

    def parse(self, jpeg: bytes | memoryview) -> object | None:
        """An image for `decode`, until which `jpeg` must not change; None for bytes that cannot be parsed."""

    def decode(self, parsed: Sequence[object], stream: int) -> list[DecodedImage | None]:
        """Enqueue decoding on a CUDA stream, given by its handle. None for each image that was refused.

        The images are valid until the next call but one (SETS); nothing may read them any more by then.
        """


def installed() -> bool:
    """Whether nvImageCodec is installed, and Triton, which resizes the decoded images."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in ("nvidia.nvimgcodec", "triton"))
    except ModuleNotFoundError:  # the package `nvidia` is missing
        return False


class NvCodec:
    """nvImageCodec as a `BatchDecoder`. The engine "cuda" skips the hardware engine; "cpu" is for tests.

    Raises ModuleNotFoundError if nvImageCodec is not installed.
    """

    def __init__(
        self, device: "torch.device", engine: Literal["auto", "cuda", "cpu"] = "auto", threads: int = 0
    ) -> None:
        from nvidia import nvimgcodec  # type: ignore[import-untyped, unused-ignore]

        kinds = nvimgcodec.BackendKind
        chosen = {
            "auto": (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU),
            "cuda": (kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU),
            "cpu": (kinds.CPU_ONLY,),
        }[engine]
        fixed = nvimgcodec.LoadHintPolicy.FIXED
        number = nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY if engine == "cpu" else _index(device)
        self._codec = nvimgcodec
        self._decoder = nvimgcodec.Decoder(
            device_id=number,
            max_num_cpu_threads=threads,
            backends=[nvimgcodec.Backend(kind, 1.0, fixed) for kind in chosen],
            options=_OPTIONS,
        )
        self._parameters = nvimgcodec.DecodeParams(
            apply_exif_orientation=False,  # the resize does it
            color_spec=nvimgcodec.ColorSpec.SRGB,
            sample_format=nvimgcodec.SampleFormat.I_RGB,
        )
        self._sets: list[list[Any]] = [[] for _ in range(SETS)]  # the first is the oldest, whose memory is reused

    def parse(self, jpeg: bytes | memoryview) -> object | None:
        """See `BatchDecoder`."""
        if not len(jpeg):
            return None
        stream: Any = self._codec.CodeStream(np.frombuffer(jpeg, np.uint8))  # it refers to them
        try:
            return stream if stream.width else None  # this parses it
        except RuntimeError:  # "Failed to get image info"
            return None

    def decode(self, parsed: Sequence[object], stream: int) -> list[DecodedImage | None]:
        """See `BatchDecoder`."""
        kept = [image for image in self._sets[0] if image.capacity <= _KEPT_BYTES][: len(parsed)]
        given = {"params": self._parameters, "cuda_stream": stream}
        decoded = list(self._decoder.decode(parsed[: len(kept)], images=kept, **given)) if kept else []
        if len(kept) < len(parsed):
            decoded += self._decoder.decode(parsed[len(kept) :], **given)
        # The buffer of a refused image can be reused as well.
        self._sets = [*self._sets[1:], [*kept, *(image for image in decoded[len(kept) :] if image is not None)]]
        return [None if image is None else _described(image) for image in decoded]


def _index(device: "torch.device") -> int:
    import torch

    return torch.cuda.current_device() if device.index is None else device.index


def _described(image: Any) -> DecodedImage | None:
    height, width, channels = image.shape
    if channels != 3 or image.dtype.itemsize != 1:
        return None
    down, across, channel = image.strides
    on_device = image.device_id is not None
    interface = image.__cuda_array_interface__ if on_device else image.__array_interface__
    return DecodedImage(interface["data"][0], width, height, (across, down, channel))
