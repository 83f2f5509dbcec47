"""URLs of object stores: the parts of one, and which are refused, before anything is printed, written or asked for.

`s3://bucket/key`, `gs://bucket/key` and `az://container/key` name keys as they are: `#`, `%` and blanks belong to the
key. A `file` URL is percent-encoded, as RFC 8089 has it, and so is the path at a web server.
"""

import re
from collections.abc import Collection
from os import PathLike, fspath
from typing import NamedTuple
from urllib.parse import quote, unquote

from fastimg.loaders.errors import DataError

SCHEMES = ("s3", "gs", "az", "http", "https", "file")
_WEB = ("http", "https")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)(.*)", re.DOTALL)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:\d*)?")
_ELSEWHERE = "give what it states in the environment or with storage_options="
# What may be a secret in a text: names and passwords, also with slashes, and queries.
_USERINFO = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*:/+)(?:[^\s/@:'\"]*:[^\s@'\"]*|[^\s/@'\"]*)@")
_QUERY = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*:/+[^\s?'\"]*)\?[^\s'\"]*=[^\s'\"]*")


class BadURLError(DataError):
    """A path that can only be meant as a URL, and is none that is read or written here. It holds no secret."""


class StoreURL(NamedTuple):
    """A folder or file in an object store. `str` gives it as people write it, without a slash at its end."""

    scheme: str  # one of SCHEMES
    bucket: str  # also a container, or the host of a web server and its port; empty for `file`
    key: str  # as it is written, without slashes at either end

    @classmethod
    def of(cls, path: str | PathLike[str], besides: Collection[str] = ()) -> "StoreURL | None":
        """The URL that a path states; None for a path on this machine, or a URL of a scheme in `besides`.

        A `Path` keeps one slash of a URL's two. Raises BadURLError.
        """
        text = fspath(path)
        found = _URL.fullmatch(text)
        if found is None:
            return None
        scheme, slashes, rest = found[1].lower(), found[2], found[3].rstrip("/")
        if scheme in besides or (scheme not in SCHEMES and not slashes):
            return None
        written = f"{found[1]}:{slashes and '//'}" + ("..." if "@" in rest or "?" in rest else rest)
        if scheme not in SCHEMES:
            raise BadURLError(f"{written}: URLs of {scheme} are not known here; {_known(besides)}")
        if not slashes or not rest:
            raise BadURLError(f"{written}: names no folder in a store; {_known(besides)}")
        _refuse_secrets(scheme, rest)
        if "?" in rest:
            raise BadURLError(
                f"{scheme}://{rest.partition('?')[0]}?...: a ? does not belong in a URL, which is written down; "
                + ("copy the file, or give an address without it" if scheme in _WEB else _ELSEWHERE)
            )
        if scheme == "file":
            return cls(scheme, "", rest)
        bucket, _, key = rest.partition("/")
        if scheme in _WEB and "#" in rest:
            raise BadURLError(f"{scheme}://{rest}: what is behind # is not sent to a web server; write %23 for a #")
        return cls(scheme, bucket, key.strip("/"))

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file:///{self.key}"
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    @property
    def name(self) -> str:
        """The last part of its path; empty for a bucket."""
        return self.key.rpartition("/")[2]

    @property
    def path(self) -> str:
        """The path on this machine of a `file` URL."""
        return unquote(f"/{self.key}")

    @property
    def for_obstore(self) -> str:
        """The URL as obstore reads it, which decodes what is encoded and takes # for the end."""
        if self.scheme in _WEB:
            return str(self)
        path = self.path if self.scheme == "file" else f"/{self.key}"
        return f"{self.scheme}://{self.bucket}" + quote(path, errors="surrogateescape")


def url_of(path: str | PathLike[str], besides: Collection[str] = ()) -> str | None:
    """The URL that a path states, as it is written down; None if it is a path on this machine. See `StoreURL.of`."""
    url = StoreURL.of(path, besides)
    return None if url is None else str(url)


def parsed(url: str) -> StoreURL:
    """The parts of a URL. Raises BadURLError, also for a path on this machine."""
    found = StoreURL.of(url)
    if found is None:
        raise BadURLError(f"{url}: is no URL; {_known(())}")
    return found


def shown(path: str | PathLike[str]) -> str:
    """A path, or the URL that it states, as people write it."""
    return url_of(path) or fspath(path)


def without_secrets(text: str) -> str:
    """A text in which names and passwords in URLs, and their queries, are left out."""
    return _QUERY.sub(r"\1?***", _USERINFO.sub(r"\1***@", text))


def _known(besides: Collection[str]) -> str:
    known = [f"{scheme}://" for scheme in (*SCHEMES, *besides)]
    return f"give one of {', '.join(known[:-1])} or {known[-1]}, or the whole path of a folder here"


def _refuse_secrets(scheme: str, rest: str) -> None:
    """Raise BadURLError, with nothing of the URL but its scheme, where it holds a name or a password.

    A password may hold a slash. So a bucket's name has no colon, and in the path at a web server @ is written %40.
    """
    host = rest.partition("/")[0]
    remedy = _ELSEWHERE
    if scheme in _WEB:
        plain = "@" not in host and _HOST.fullmatch(host) is not None
        bad = not plain or "@" in rest.partition("?")[0]
        remedy = "write %40 for an @ in a name" if plain else "give an address that is read without them"
    else:
        bad = scheme != "file" and ("@" in host or ":" in host)
    if bad:
        reason = "names and passwords do not belong in a URL, which is written down"
        raise BadURLError(f"{scheme}://...: {reason}; {remedy}")
