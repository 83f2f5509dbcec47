"""Where paths on this machine come from: the URLs of what this process has fetched for settings that name it."""

from os import PathLike, fspath

from .stores import url_of

_urls: dict[str, str] = {}  # by path; any thread may add to it


def note_origin(path: str | PathLike[str], url: str) -> None:
    """What is at `path` was fetched from `url`."""
    _urls[fspath(path)] = url


def origin_of(path: str | PathLike[str]) -> str | None:
    """The URL that a path states, or that it was fetched from; None for any other path on this machine."""
    return url_of(path) or _urls.get(fspath(path))


def fetched_from(url: str) -> str | None:
    """The path that was fetched last from a URL; None if none was."""
    return next((path for path, origin in reversed(list(_urls.items())) if origin == url), None)


def named_by_origins(sentence: str) -> str:
    """A sentence in which what was fetched is called by its URL."""
    for path, url in list(_urls.items()):
        sentence = sentence.replace(path, url)
    return sentence
