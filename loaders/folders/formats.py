"""Image formats by file extension: which can be decoded here, and what to do about the others.

Pillow's plugins for HEIC and JPEG XL are used if they are installed. They are imported only when extensions are listed
or such an image is decoded.
"""

import importlib
import threading
from collections.abc import Iterator, Set
from functools import cache, cached_property

from PIL import Image

# What is opened, by Pillow's names; TGA is last, as it has no signature. Pillow's other plugins start programs (EPS),
# know only how a file begins (HDF5, GRIB, BUFR), or are for formats that few images have.
FORMATS = (
    *("JPEG", "PNG", "BMP", "GIF", "PPM"),
    *("WEBP", "TIFF", "AVIF", "JPEG2000", "QOI", "HEIF", "JXL", "DIB", "PCX", "TGA"),
)
START = 256  # bytes of a file by which it is recognised

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
    "PostScript": (".eps", ".ps"),
    "a Windows metafile": (".wmf", ".emf"),
    "Photoshop": (".psd",),
    "HDF5": (".h5", ".hdf"),
    "GRIB": (".grib",),
    "BUFR": (".bufr",),
    "FITS": (".fit", ".fits"),
    "an icon": (".ico", ".icns", ".cur"),
    "DirectDraw": (".dds",),
    "SGI": (".sgi", ".rgb", ".rgba", ".bw"),
    "Sun raster": (".ras",),
    "X bitmap or pixmap": (".xbm", ".xpm"),
}
_SIGNATURES = {  # of some of them, by which a file of another name is recognised
    "PostScript": (b"%!PS", b"\xc5\xd0\xd3\xc6"),
    "a Windows metafile": (b"\xd7\xcd\xc6\x9a\0\0", b"\x01\0\0\0"),
    "Photoshop": (b"8BPS",),
    "HDF5": (b"\x89HDF\r\n\x1a\n",),
    "GRIB": (b"GRIB",),
    "BUFR": (b"BUFR", b"ZCZC"),
    "FITS": (b"SIMPLE",),
    "an icon": (b"\0\0\1\0", b"\0\0\2\0", b"icns"),
    "DirectDraw": (b"DDS ",),
}
_OLD_PILLOW_REASON = "in a format that this Pillow was built without (`pip install -U pillow`)"
_AVIF_REASON = "AVIF, readable after `pip install 'pillow>=11.3'`"

# Brands in the `ftyp` box that an ISO base media file begins with (ISO/IEC 23008-12 annex B, AVIF 1.1 section 6).
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"})
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_JXL_STARTS = (b"\xff\x0a", b"\x00\x00\x00\x0cJXL \r\n\x87\n")

_JPEGS = frozenset({".jpg", ".jpeg"})

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


def init_pillow() -> None:
    """Import all of Pillow's own plugins."""
    with _REGISTERING:
        Image.init()


def opened_formats() -> tuple[str, ...]:
    """Those of FORMATS that Pillow reads with the plugins that are imported."""
    return tuple(name for name in FORMATS if name in Image.OPEN)


class ImageExtensions(Set[str]):
    """Extensions of what is opened by Pillow and its installed plugins, in lower case, with the dot.

    Pillow's plugins are imported for an extension that is none of the commonest formats'. Those take 30 ms and 70
    modules. For a JPEG's none are imported: those of the commonest formats take 10 ms.
    """

    def __contains__(self, extension: object) -> bool:
        if extension in _JPEGS:
            return True
        Image.preinit()  # BMP, GIF, JPEG, PPM and PNG
        name = Image.EXTENSION.get(str(extension))
        return (name in Image.OPEN and name in FORMATS) or extension in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> frozenset[str]:
        with _REGISTERING:
            Image.init()
            register_plugins()
            opened = opened_formats()
            readable = frozenset(ext for ext, name in Image.registered_extensions().items() if name in opened)
        return readable | {".mpo"}  # opened as a JPEG; Pillow lists it only among the formats that it writes


def image_extensions() -> Set[str]:
    """Extensions of what is opened by Pillow and its installed plugins, in lower case, with the dot."""
    return ImageExtensions()


def undecodable_extensions() -> dict[str, str]:
    """Extensions of images that cannot be decoded here -> the format and the remedy, as part of a sentence."""
    reasons = dict.fromkeys(_OLD_PILLOW, _OLD_PILLOW_REASON)
    reasons |= dict.fromkeys(_HEIC, _needs_plugin("HEIC", "pillow_heif"))
    reasons |= dict.fromkeys(_JXL, _needs_plugin("JPEG XL", "pillow_jxl"))
    reasons |= dict.fromkeys(_AVIF, _AVIF_REASON)
    for name, extensions in _CONVERT.items():
        reasons |= dict.fromkeys(extensions, _convert_first(name))
    readable = image_extensions()
    return {extension: reason for extension, reason in reasons.items() if extension not in readable}


def needs_plugin(start: bytes) -> bool:
    """Whether a file that begins so is of a format that one of the plugins may read."""
    return _signature(start) is not None


def recognise(start: bytes) -> str | None:
    """The format and the remedy for a file that cannot be opened, by its beginning; None if the format is unknown."""
    extension = _signature(start)
    if extension is None:
        known = next((name for name, signature in _SIGNATURES.items() if start.startswith(signature)), None)
        return None if known is None else _convert_first(known)
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


def _convert_first(name: str) -> str:
    return f"{name}, which must be converted to JPEG or PNG first"


def _needs_plugin(name: str, module: str) -> str:
    if fault := register_plugins().get(module):
        return f"{name}, and {module}, which reads it, cannot be imported ({fault})"
    return f"{name}, readable after `pip install {_INSTALL[module]}`"
