"""Prepares texts for storage in a shard: they are stored unchanged, or skipped with a reason."""

from fastimg.convert.sources.samples import Source, SourceEntry
from fastimg.loaders.containers.content import TEXT_EXTENSIONS
from fastimg.loaders.errors import ImageError

from .image_preparation import KEPT, Prepared


def text_fault(data: bytes | memoryview) -> str:
    """Why bytes are not a usable text; empty if they are."""
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"
    if text.lstrip("\ufeff").strip():
        return ""
    return "nothing but white space" if len(data) else "empty"


class PrepareText:
    """Reads a text, on any thread. Returns Prepared, or why it cannot be used."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __call__(self, entry: SourceEntry) -> Prepared | str:
        if reason := self._source.problem(entry):
            return reason
        try:
            original = self._source.read(entry)
        except ImageError as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
        data = original.image
        assert isinstance(data, bytes)
        suffix = original.suffix.lower()
        extension = suffix if "." + suffix.rpartition(".")[2] in TEXT_EXTENSIONS else "txt"
        return text_fault(data) or Prepared(data, extension, len(data), KEPT, *original[2:])
