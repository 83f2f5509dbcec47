"""A listing by several requests at once: the names below a URL, divided where its folders begin.

A store gives names in their order, a thousand a request, and each request says where the next one begins. From any
name on it gives those behind it, so ranges of names are listed side by side: whatever the folders are, that costs a
request more for each range, and two for each folder that is looked into.

Azure gives names from the first one on alone, five thousand a request, of everything or of a folder. There large
folders are listed side by side. Each costs a request, so small ones are listed one after the other, together.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from .etags import tag_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PAGE = 1000  # names that a store gives at once
RANGES = 16  # that are listed side by side
_DIVIDED = ("s3:", "gs:")
_BY_FOLDERS = ("az:",)
_FEW = 4 * RANGES  # folders: with fewer, those in them are looked for
_LEVELS = 2
AZURE_PAGE = 5000  # names that Azure gives at once
_LARGE = AZURE_PAGE // 8  # files of a folder, about: with fewer in each, folders are not listed by themselves
_MOST = 10_000  # folders in a folder that is divided

Add = Callable[[str, int, str], None]  # path, bytes, ETag


def list_names(store: "ObjectStore", url: str, add: Add) -> None:
    """Call `add`, one call at a time, with the path, the size and the tag of each file; raises what obstore raises."""
    if url.startswith(_BY_FOLDERS):
        _list_folders(store, add)
        return
    pages = _pages(store)
    first = next(pages, [])
    if len(first) < PAGE or not url.startswith(_DIVIDED):
        _add_all(first, add)
        for page in pages:
            _add_all(page, add)
        return
    folders = _folders(store, first)
    bounds = [folders[len(folders) * n // RANGES] for n in range(1, RANGES)] if len(folders) > 1 else []
    starts = ["", *dict.fromkeys(bounds)]
    lock = threading.Lock()

    def listed(start: str, stop: str | None) -> None:
        for page in _pages(store, start):
            inside = page if stop is None else [each for each in page if _key(each["path"]) <= _key(stop)]
            with lock:
                _add_all(inside, add)
            if len(inside) < len(page):
                return

    with ThreadPoolExecutor(len(starts), "fastimg-list") as pool:
        for _ in pool.map(listed, starts, [*starts[1:], None]):
            pass


def _list_folders(store: "ObjectStore", add: Add) -> None:
    lock = threading.Lock()

    def listed(folder: str, divisible: bool) -> list[str]:
        """List a folder, or what lies directly in it; then the folders in it are returned."""
        pages = _pages(store, below=folder or None, size=AZURE_PAGE)
        page = next(pages, [])
        if divisible and len(page) == AZURE_PAGE and _has_large_folders(page, folder):
            found = store.list_with_delimiter(folder or None)
            if len(found["common_prefixes"]) <= _MOST:
                with lock:
                    _add_all(list(found["objects"]), add)
                return [name.rstrip("/") for name in found["common_prefixes"]]
        while page:
            with lock:
                _add_all(page, add)
            page = next(pages, [])
        return []

    level = [""]
    with ThreadPoolExecutor(RANGES, "fastimg-list") as pool:
        for depth in range(_LEVELS + 1):
            divided = pool.map(partial(listed, divisible=depth < _LEVELS), level)
            level = [name for names in divided for name in names]


def _has_large_folders(page: list[Any], folder: str) -> bool:
    """Whether a full page of what is below a folder reaches into few folders in it, so that they are large."""
    names = (each["path"][len(folder) + 1 if folder else 0 :] for each in page)
    return 0 < len({name.partition("/")[0] for name in names if "/" in name}) <= AZURE_PAGE // _LARGE


def _pages(store: "ObjectStore", start: str = "", below: str | None = None, size: int = PAGE) -> Iterator[list[Any]]:
    """The objects behind the name `start`, by pages."""
    for page in store.list(below, offset=start or None, chunk_size=size):
        yield list(page)


def _folders(store: "ObjectStore", first: list[Any]) -> list[str]:
    """Names of folders, in order, between which a listing can be divided; none where files lie side by side."""
    found: list[str] = []
    level = [""] if any("/" in each["path"] for each in first) else []
    for _ in range(_LEVELS):
        with ThreadPoolExecutor(RANGES, "fastimg-list") as pool:
            below = list(pool.map(lambda folder: _below(store, folder), level))
        level = sorted((name for names in below for name in names), key=_key)
        found = sorted({*found, *level}, key=_key)
        if len(found) >= _FEW or not level:
            break
    return found


def _below(store: "ObjectStore", folder: str) -> list[str]:
    """The folders in a folder, unless its first files lie in none: then all of them would be read to find some."""
    if folder:
        page = next(_pages(store, below=folder), [])
        if not any("/" in each["path"][len(folder) + 1 :] for each in page):
            return []
    return [name.rstrip("/") for name in store.list_with_delimiter(folder or None)["common_prefixes"]]


def _key(name: str) -> bytes:
    """Stores order names by their bytes."""
    return name.encode("utf-8", "surrogateescape")


def _add_all(page: list[Any], add: Add) -> None:
    for each in page:
        add(each["path"], each["size"], tag_of(each))
