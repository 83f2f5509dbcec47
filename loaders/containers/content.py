"""What the samples of a dataset are: images or texts."""

from typing import Literal

Content = Literal["images", "text"]

TEXT_EXTENSIONS = frozenset({".txt"})
TEXT_FIELDS = ("txt", "text")  # names of the bytes field of a .beton that contains its texts


def singular(content: Content) -> str:
    """The noun for one sample."""
    return "image" if content == "images" else "text"


def samples_of(content: Content) -> str:
    """The noun for several samples."""
    return "images" if content == "images" else "texts"
