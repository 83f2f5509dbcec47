"""Which pixels of an image the model sees: boxes in upright pixels, drawn or computed, apart from being cut out."""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, SupportsIndex, cast, get_args

Interpolation = Literal["bilinear", "bicubic"]
Size = int | tuple[int, int]  # pixels: the side of a square, or (height, width), as torchvision has it


class Window(NamedTuple):
    """Cut `box` out of the image, resize it to `size`, and keep the crop's rectangle that begins at `at`.

    Only a padded crop's rectangle reaches beyond what was resized: that is then mirrored about its outermost pixels, or
    filled (`fill_of`).
    """

    box: tuple[int, int, int, int]  # x, y, width, height in source pixels
    size: tuple[int, int]  # width, height after the resize
    at: tuple[int, int]  # x, y in the resized image


class CropRule(Protocol):
    """A rule for the window of an image. It uses `draws` numbers in [0, 1) per image.

    A crop whose windows reach beyond the image may have an attribute `fill`, the level of what lies there (`Letterbox`,
    `LongestSide`); without it, the image is mirrored about its outermost pixels.
    """

    @property
    def size(self) -> Size:
        """Side of a square output, or its (height, width), in pixels."""

    @property
    def interpolation(self) -> Interpolation:
        """Filter of the antialiased resize."""

    @property
    def draws(self) -> int:
        """Random numbers that one image takes."""

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """The window of an upright image of `width` x `height`."""


def whole(value: object, name: str) -> int:
    """A setting as an int: also of NumPy's integers, and of integer tensors without dimensions.

    Raises TypeError, naming the setting, for anything else, such as a bool or a float.
    """
    if type(value) is int:
        return value
    truth = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool"
    try:
        if not truth and not getattr(value, "ndim", 0):
            return operator.index(cast(SupportsIndex, value))
    except TypeError:
        pass
    raise TypeError(f"{name}={value!r}: give a whole number, an int")


def pair(size: object, name: str = "size") -> tuple[int, int]:
    """(height, width) of a side or a pair. Raises ValueError, naming the argument, for anything else."""
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    try:
        height, width = (whole(side, name) for side in sides)
    except (TypeError, ValueError):  # another type, or another number of sides
        height = width = 0
    if height < 1 or width < 1:
        raise ValueError(f"{name} {size!r}: give the side of a square in pixels, or (height, width), 1 or more each")
    return height, width


def shape_of(crop: CropRule) -> tuple[int, int]:
    """(height, width) of a crop's output."""
    return pair(crop.size)


def describe_size(size: Size) -> str:
    """A size in words: `32`, or `32 x 48` (height x width)."""
    return str(size) if isinstance(size, int) else f"{size[0]} x {size[1]}"


def _plain(shape: tuple[int, int]) -> Size:
    """A square is given by its side."""
    return shape[0] if shape[0] == shape[1] else shape


def _bounds(given: object, name: str, most: float | None = None) -> tuple[float, float]:
    """The least and the largest value, as they were given. Raises ValueError, naming the setting."""
    values = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
    try:
        low, high = map(operator.pos, values)  # of numbers, not of texts
        good = bool(0 < low <= high < math.inf and (most is None or high <= most))
    except (TypeError, ValueError, RuntimeError):
        good = False
    if not good:
        above = "above 0" if most is None else f"above 0 and up to {most:g}"
        raise ValueError(f"{name}={given!r}; give two numbers {above}, the smaller one first")
    return cast(tuple[float, float], values)


def _check_boxes(rule: "RandomResizedCrop | View") -> None:
    """Raises ValueError for shares, ratios or a filter that no RandomResizedCrop can have."""
    kind = type(rule).__name__
    object.__setattr__(rule, "scale", _bounds(rule.scale, f"{kind}: scale", most=1))
    object.__setattr__(rule, "ratio", _bounds(rule.ratio, f"{kind}: ratio"))
    _check_filter(rule.interpolation, kind)


def _check_filter(given: object, kind: str) -> None:
    """Raises ValueError for a filter that there is not, such as a member of torchvision's enum, not its value."""
    filters = get_args(Interpolation)
    if not isinstance(given, str) or given not in filters:
        raise ValueError(f"{kind}: interpolation={given!r}; give {' or '.join(filters)}")


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """torchvision's RandomResizedCrop: area from `scale`, aspect log-uniform from `ratio`, ten tries, else centre.

    `size` is the side of a square output, or its (height, width), in pixels; `ratio` is that of the box, width over
    height, for any size. Raises ValueError for a size that is neither, a `scale` that is not two shares above 0 and up
    to 1, a `ratio` that is not two numbers above 0, the smaller one first, and for another `interpolation`.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    draws: int = 22  # two for each of ten tries, two for the place

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _plain(pair(self.size)))
        _check_boxes(self)

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        size = (self.size, self.size) if isinstance(self.size, int) else self.size[::-1]  # width, height
        for i in range(0, 20, 2):
            area = width * height * (self.scale[0] + (self.scale[1] - self.scale[0]) * draws[i])
            aspect = math.exp(low + (high - low) * draws[i + 1])
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                box = (int(draws[20] * (width - w + 1)), int(draws[21] * (height - h + 1)), w, h)
                return Window(box, size, (0, 0))
        w, h = width, height
        if width / height < self.ratio[0]:
            h = max(1, round(width / self.ratio[0]))
        elif width / height > self.ratio[1]:
            w = max(1, round(height * self.ratio[1]))
        return Window(((width - w) // 2, (height - h) // 2, w, h), size, (0, 0))


@dataclass(frozen=True, kw_only=True)
class CenterCrop:
    """torchvision's Resize(resize) of the shorter side, then CenterCrop(size).

    Both are sides in pixels, or (height, width). An image keeps its aspect ratio: it is made as small as it can be and
    still cover `resize`, which for a side is torchvision's rule. Sides are truncated to whole pixels, and the crop's
    place is rounded half to even, as torchvision has it. Raises ValueError where `size` is larger than `resize`, for
    sides that are none, and for another `interpolation`.
    """

    size: Size
    resize: Size
    interpolation: Interpolation = "bilinear"
    draws: int = 0

    def __post_init__(self) -> None:
        size = pair(self.size)
        resize = pair(self.resize, "resize")
        _check_filter(self.interpolation, type(self).__name__)
        object.__setattr__(self, "size", _plain(size))
        object.__setattr__(self, "resize", _plain(resize))
        if resize[0] < size[0] or resize[1] < size[1]:
            raise ValueError(
                f"a crop of {describe_size(self.size)} does not fit an image resized to {describe_size(self.resize)}"
            )

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`."""
        crop_height, crop_width = (self.size, self.size) if isinstance(self.size, int) else self.size
        w, h = _covering(width, height, self.resize)
        at = (round((w - crop_width) / 2.0), round((h - crop_height) / 2.0))
        return Window((0, 0, width, height), (w, h), at)


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """torchvision's Resize(size), then RandomCrop(size, padding=padding, padding_mode="reflect").

    `size` is a side in pixels, or (height, width): the image is made as small as it can be and still cover it, mirrored
    about its outermost pixels by up to `padding` pixels on each side, and cut anywhere. Raises ValueError for a padding
    that is not smaller than both sides, for sides that are none, and for another `interpolation`, and TypeError for a
    padding that is no whole number.
    """

    size: Size
    padding: int
    interpolation: Interpolation = "bilinear"
    draws: int = 2

    def __post_init__(self) -> None:
        size = pair(self.size)
        _check_filter(self.interpolation, type(self).__name__)
        object.__setattr__(self, "size", _plain(size))
        object.__setattr__(self, "padding", whole(self.padding, "padding"))
        if not 0 <= self.padding < min(size):
            raise ValueError(
                f"a padding of {self.padding} pixels: a crop of {describe_size(self.size)} has room for 0 to "
                f"{min(size) - 1}"
            )

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`."""
        w, h = self.resized(width, height)
        tall, wide = pair(self.size)
        x = int(draws[0] * (w + 2 * self.padding - wide + 1)) - self.padding
        y = int(draws[1] * (h + 2 * self.padding - tall + 1)) - self.padding
        return Window((0, 0, width, height), (w, h), (x, y))

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) of an image of `width` x `height` once it is resized, before it is padded."""
        return _covering(width, height, self.size)


def least_pixels(crop: CropRule) -> tuple[int, str]:
    """How many pixels every image has, at least, once it is resized for `crop`, and why.

    What is resized for a canvas, or for a crop of your own, may be smaller than the crop: 1.
    """
    if isinstance(crop, CenterCrop):
        least = crop.resize
    elif isinstance(crop, RandomResizedCrop | RandomCrop):
        least = crop.size
    else:
        return 1, ""
    height, width = pair(least)
    resized = f"each is resized to {height} x {width} pixels or more for a crop of {describe_size(crop.size)}"
    return height * width, resized


def check_room(max_pixels: int, crop: CropRule) -> None:
    """Raises ValueError for fewer `max_pixels` than every image has once it is resized for `crop`."""
    least, why = least_pixels(crop)
    if least > max_pixels:
        raise ValueError(
            f"max_pixels={max_pixels}: no image could be decoded, as {why}; give {least} or more, or a smaller crop"
        )


@dataclass(frozen=True, kw_only=True)
class View:
    """`n` crops of each image by one rule, each drawn for itself.

    crop: the size in pixels, a side or (height, width), of RandomResizedCrops with the `scale`, `ratio` and
        `interpolation` given; or a crop object, which has settings of its own. A crop that is larger than its box is
        upscaled.
    scale: the least and the largest share of the image's area that a crop shows.
    ratio: the least and the largest width of a crop's box over its height.
    name: what `batch.views_of` calls it; None: its place in the list of views, "0" for the first.

    Raises ValueError for values that cannot be, and for a crop object together with settings of a RandomResizedCrop.
    """

    crop: CropRule | Size
    n: int = 1
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.n, SupportsIndex) or self.n < 1:
            raise ValueError(f"View: n={self.n!r}; give the number of crops of each image, 1 or more")
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise ValueError(f"View: name={self.name!r}; give a text, or leave it out")
        if hasattr(self.crop, "window"):
            if (self.scale, self.ratio, self.interpolation) != (View.scale, View.ratio, View.interpolation):
                kind = type(self.crop).__name__
                raise ValueError(f"View: scale, ratio and interpolation are the crop's; give them to the {kind}")
            return
        _check_boxes(self)
        self.rule()  # it checks the size

    def rule(self) -> CropRule:
        """The crop that draws its windows."""
        if hasattr(self.crop, "window"):
            return cast(CropRule, self.crop)
        scale, ratio, interpolation = self.scale, self.ratio, self.interpolation
        return RandomResizedCrop(size=self.crop, scale=scale, ratio=ratio, interpolation=interpolation)


@dataclass(frozen=True, kw_only=True)
class _Canvas:
    """What crops that show the whole image, and `fill` what it leaves of `size`, have in common."""

    size: Size
    fill: int
    interpolation: Interpolation = "bilinear"
    draws: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _plain(pair(self.size)))
        _check_filter(self.interpolation, type(self).__name__)
        if self.fill not in range(256):
            raise ValueError(f"fill={self.fill!r}: give a level, 0 to 255")


@dataclass(frozen=True, kw_only=True)
class Letterbox(_Canvas):
    """The whole image, as large as it fits into `size`, in the middle of a canvas of level `fill`: for detectors.

    `size` is a side in pixels, or (height, width). Sizes and places are those of ultralytics' LetterBox (8.3), with
    `auto=False`: sides are rounded half to even, and an odd pixel of padding is on the right or at the bottom. The
    resize is antialiased, as everywhere here; ultralytics' is not. Raises ValueError for a level that is none, a size
    that is none, and another `interpolation`.
    """

    fill: int = 114

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`."""
        tall, wide = pair(self.size)
        share = min(tall / height, wide / width)
        w, h = max(1, round(width * share)), max(1, round(height * share))
        return Window((0, 0, width, height), (w, h), (-((wide - w) // 2), -((tall - h) // 2)))


@dataclass(frozen=True, kw_only=True)
class LongestSide(_Canvas):
    """The whole image, as large as it fits into `size`, at the top left of a canvas of level `fill`.

    `size` is a side in pixels, or (height, width). The longest side becomes `size`, as by Segment Anything's
    ResizeLongestSide: sides are rounded half up, and the right or the bottom is padded. Raises ValueError for a level
    that is none, a size that is none, and another `interpolation`.
    """

    fill: int = 0

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`."""
        tall, wide = pair(self.size)
        share = min(tall / height, wide / width)
        w, h = max(1, int(width * share + 0.5)), max(1, int(height * share + 0.5))
        return Window((0, 0, width, height), (w, h), (0, 0))


class Crop:
    """The crops of detectors, by their size alone: `Loader("D", crop=Crop.letterbox(640))`."""

    @staticmethod
    def letterbox(size: Size, *, fill: int = Letterbox.fill) -> Letterbox:
        """`Letterbox(size=size, fill=fill)`. Raises ValueError for a size or a level that is none."""
        return Letterbox(size=size, fill=fill)

    @staticmethod
    def longest_side(size: Size, *, fill: int = LongestSide.fill) -> LongestSide:
        """`LongestSide(size=size, fill=fill)`. Raises ValueError for a size or a level that is none."""
        return LongestSide(size=size, fill=fill)


def fill_of(crop: CropRule) -> int | None:
    """The level, 0 to 255, beyond the image in windows of `crop`; None where the image is mirrored there."""
    fill: int | None = getattr(crop, "fill", None)
    return fill


def _covering(width: int, height: int, least: Size) -> tuple[int, int]:
    """(width, height) of an image made as small as it can be and still cover `least`, truncated to whole pixels."""
    least_height, least_width = (least, least) if isinstance(least, int) else least
    if width * least_height <= height * least_width:
        return least_width, int(least_width * height / width)
    return int(least_height * width / height), least_height


def reaches_out(window: Window, width: int, height: int) -> bool:
    """Whether an output of `width` x `height` pixels reaches beyond what was resized, and is mirrored there."""
    left, top = window.at
    return left < 0 or top < 0 or left + width > window.size[0] or top + height > window.size[1]


def sized(crop: CropRule, size: Size) -> CropRule:
    """`crop` made smaller or larger: the same boxes of the same draws, with an output of `size` (a side, or height and
    width).

    Raises ValueError for a size that is none, TypeError for a crop that is not of this module and has no such method.
    """
    largest = shape_of(crop)
    height, width = pair(size)
    if (height, width) == largest:
        return crop
    if isinstance(crop, CenterCrop):
        resize = pair(crop.resize)
        other = (round(resize[0] * height / largest[0]), round(resize[1] * width / largest[1]))
        return replace(crop, size=(height, width), resize=other)
    if isinstance(crop, RandomResizedCrop | _Canvas):
        return replace(crop, size=(height, width))
    if hasattr(crop, "sized"):
        return cast(CropRule, crop.sized((height, width)))
    raise TypeError(f"{type(crop).__name__} has one size; give a RandomResizedCrop or a CenterCrop")


def smaller(crop: CropRule, size: Size) -> CropRule:
    """`sized`, for loaders whose memory is that of `crop`. Raises ValueError for a `size` larger than its own."""
    height, width = pair(size)
    largest = shape_of(crop)
    if height > largest[0] or width > largest[1]:
        raise ValueError(
            f"size {describe_size(size)}: give at most {describe_size(crop.size)}, "
            "or make the loader with a larger crop"
        )
    return sized(crop, size)
