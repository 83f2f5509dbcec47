"""What the samples of a dataset are: pictures or texts."""

from typing import Literal

Content = Literal["images", "text"]

TEXT_EXTENSIONS = frozenset({".txt"})
TEXT_FIELDS = ("txt", "text")  # names of a bytes field of a .beton that is its text


def singular(content: Content) -> str:
    """One of its samples, in a sentence."""
    return "image" if content == "images" else "text"


def samples_of(content: Content) -> str:
    """Several of its samples, in a sentence."""
    return "images" if content == "images" else "texts"
