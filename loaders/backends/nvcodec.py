"""JPEGs decoded on a GPU by nvImageCodec (the extra `gpu`): the hardware engine first, then CUDA.

Pixels differ a little from libjpeg-turbo's, so which decoder a run uses is part of its configuration. All that the
engine takes goes to it (load hint 1, fixed): shared out by load, an image's pixels would depend on the moment.

The engine of H100-class GPUs does not wait for the stream that it is given. So memory that it writes must be free on
the host's clock: whoever calls `decode` has waited for all that read the images before. They are used again.

Written for nvImageCodec 0.9 and tried with its CPU backend, which the tests do too; not run on a GPU yet.
"""

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

INSTALL = 'pip install "fastimg[gpu]"'

_KEPT_BYTES = 8 << 20  # an image with a larger buffer is not kept for the next batch
_OPTIONS = ":fancy_upsampling=1"  # chroma is interpolated, as libjpeg does it


class DecodedImage(NamedTuple):
    """An image where the decoder left it: uint8 RGB, in memory of the device."""

    address: int
    width: int
    height: int
    strides: tuple[int, int, int]  # bytes to the next column, row and channel


class BatchDecoder(Protocol):
    """Decodes many JPEGs at once. `parse` is called by any thread, `decode` by one."""

    def parse(self, jpeg: bytes) -> object | None:
        """What `decode` takes. None for bytes that it does not know."""

    def decode(self, parsed: Sequence[object], stream: int) -> list[DecodedImage | None]:
        """Enqueue decoding on a CUDA stream (its handle). None for an image that was refused.

        The images hold until the next call, which the caller makes when nothing reads them any more.
        """


def installed() -> bool:
    """Whether nvImageCodec is there to be imported, and Triton, which resizes what it decodes."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in ("nvidia.nvimgcodec", "triton"))
    except ModuleNotFoundError:  # of `nvidia`
        return False


class NvCodec:
    """nvImageCodec behind `BatchDecoder`. `engine` cuda leaves the hardware engine out; cpu is for tests.

    Raises ModuleNotFoundError where it is not installed.
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
        self._images: list[Any] = []  # of the batch before, whose memory is used again

    def parse(self, jpeg: bytes) -> object | None:
        """See `BatchDecoder`."""
        stream: Any = self._codec.CodeStream(jpeg)
        try:
            return stream if stream.width else None  # it is parsed when it is asked
        except RuntimeError:  # "Failed to get image info"
            return None

    def decode(self, parsed: Sequence[object], stream: int) -> list[DecodedImage | None]:
        """See `BatchDecoder`."""
        kept = [image for image in self._images if image.capacity <= _KEPT_BYTES][: len(parsed)]
        given = {"params": self._parameters, "cuda_stream": stream}
        found = list(self._decoder.decode(parsed[: len(kept)], images=kept, **given)) if kept else []
        if len(kept) < len(parsed):
            found += self._decoder.decode(parsed[len(kept) :], **given)
        # A refused image's buffer is as good as before.
        self._images = [*kept, *(image for image in found[len(kept) :] if image is not None)]
        return [None if image is None else _described(image) for image in found]


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
