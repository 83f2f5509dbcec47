"""Image formats by file extension: which can be decoded here, and what to do about the others.

Pillow's plugins for HEIC and JPEG XL are used if they are installed. They are imported only when extensions are listed
or such an image is decoded.
"""

import importlib
import threading
from collections.abc import Iterator, Set
from functools import cache, cached_property

from PIL import Image

_INSTALL = {"pillow_heif": "pillow-heif", "pillow_jxl": "pillow-jxl-plugin"}  # module -> distribution

_HEIC = (".heic", ".heics", ".heif", ".heifs", ".hif")
_AVIF = (".avif", ".avifs")
_JXL = (".jxl",)
_OLD_PILLOW = (".gif", ".jpeg", ".jpg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".jp2", ".j2k", ".jpx", ".qoi")
_CONVERT = {
    "camera raw": (
        *(".3fr", ".arw", ".cr2", ".cr3", ".dng", ".erf", ".iiq", ".kdc", ".mrw", ".nef", ".nrw", ".orf", ".pef"),
        *(".raf", ".rw2", ".srw", ".x3f"),
    ),
    "OpenEXR": (".exr",),
    "Radiance HDR": (".hdr",),
    "JPEG XR": (".jxr", ".wdp", ".hdp"),
    "JPEG-LS": (".jls",),
    "BPG": (".bpg",),
    "DICOM": (".dcm", ".dicom"),
    "SVG": (".svg", ".svgz"),
    "GIMP": (".xcf",),
}
_OLD_PILLOW_REASON = "in a format that this Pillow was built without (`pip install -U pillow`)"
_AVIF_REASON = "AVIF, readable after `pip install 'pillow>=11.3'`"

# Brands in the `ftyp` box that an ISO base media file begins with (ISO/IEC 23008-12 annex B, AVIF 1.1 section 6).
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"})
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_JXL_STARTS = (b"\xff\x0a", b"\x00\x00\x00\x0cJXL \r\n\x87\n")

_REGISTERING = threading.RLock()  # Pillow's tables must not grow while they are read


@cache
def register_plugins() -> dict[str, str]:
    """Register the installed Pillow plugins. Returns, by module, why an installed one cannot be imported."""
    with _REGISTERING:
        return _register()


def _register() -> dict[str, str]:
    faults = {}
    for module in _INSTALL:
        try:
            plugin = importlib.import_module(module)  # pillow_jxl registers itself
        except ImportError as error:
            if not (
                isinstance(error, ModuleNotFoundError) and error.name == module
            ):  # otherwise it is just not installed
                faults[module] = str(error).splitlines()[0] if str(error) else type(error).__name__
            continue
        if module == "pillow_heif":
            plugin.register_heif_opener()
    return faults


class ImageExtensions(Set[str]):
    """Extensions that Pillow and its installed plugins read, in lower case, with the dot.

    Pillow's plugins are imported for an extension that is none of the commonest formats'. Those take 30 ms and 70
    modules.
    """

    def __contains__(self, extension: object) -> bool:
        Image.preinit()  # BMP, GIF, JPEG, PPM and PNG
        return Image.EXTENSION.get(str(extension)) in Image.OPEN or extension in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> frozenset[str]:
        with _REGISTERING:
            Image.init()
            register_plugins()
            readable = frozenset(ext for ext, name in Image.registered_extensions().items() if name in Image.OPEN)
        return readable | {".mpo"}  # opened as a JPEG; Pillow lists it only among the formats that it writes


def image_extensions() -> Set[str]:
    """Extensions that Pillow and its installed plugins read, in lower case, with the dot."""
    return ImageExtensions()


def undecodable_extensions() -> dict[str, str]:
    """Extensions of images that cannot be decoded here -> the format and the remedy, as part of a sentence."""
    reasons = dict.fromkeys(_OLD_PILLOW, _OLD_PILLOW_REASON)
    reasons |= dict.fromkeys(_HEIC, _needs_plugin("HEIC", "pillow_heif"))
    reasons |= dict.fromkeys(_JXL, _needs_plugin("JPEG XL", "pillow_jxl"))
    reasons |= dict.fromkeys(_AVIF, _AVIF_REASON)
    for name, extensions in _CONVERT.items():
        reasons |= dict.fromkeys(extensions, f"{name}, which must be converted to JPEG or PNG first")
    readable = image_extensions()
    return {extension: reason for extension, reason in reasons.items() if extension not in readable}


def recognise(data: bytes | memoryview) -> str | None:
    """The format and the remedy for encoded data that Pillow cannot open; None if the format is unknown."""
    extension = _signature(data)
    if extension is None:
        return None
    damaged = f"{extension[1:].upper()}, damaged, or of a kind that its decoder does not support"
    return undecodable_extensions().get(extension, damaged)


def _signature(data: bytes | memoryview) -> str | None:
    """The extension of a format that needs a plugin, or used to need one, from the first bytes of a file."""
    if bytes(data[:12]).startswith(_JXL_STARTS):
        return ".jxl"
    if bytes(data[4:8]) != b"ftyp":
        return None
    end = min(int.from_bytes(data[:4], "big"), 256)
    brands = {bytes(data[at : at + 4]) for at in (8, *range(16, end, 4))}
    if brands & _AVIF_BRANDS:
        return ".avif"
    return ".heic" if brands & _HEIC_BRANDS else None


def _needs_plugin(name: str, module: str) -> str:
    if fault := register_plugins().get(module):
        return f"{name}, and {module}, which reads it, cannot be imported ({fault})"
    return f"{name}, readable after `pip install {_INSTALL[module]}`"
