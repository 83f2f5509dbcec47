"""A folder in an object store: the bytes of its files, with time-outs, retries, and errors in a sentence.

Clients are obstore's. A request that receives nothing for READ_TIMEOUT, or fails in any way that may pass, is tried
again, up to ATTEMPTS times in all, after PAUSE seconds and then twice as long each time.
"""

import os
import re
import time
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from fastimg.loaders.errors import DataError, ShardError

from .causes import DENIED, cause_of, first_line

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

ATTEMPTS = 5
PAUSE = 0.2
READ_TIMEOUT = "30s"
CONNECT_TIMEOUT = "10s"

_SCHEMES = ("s3", "gs", "az", "http", "https", "file")
_URL = re.compile(rf"({'|'.join(_SCHEMES)}):/+(.+)")
_CLIENT = (  # options of the connection; all others are those of the store
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "proxy_excludes", "read_timeout"),
    *("root_certificate", "timeout", "user_agent"),
)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")  # in the environment
_SHORTER = "InvalidRange"  # as S3 says where it has nothing of a range
_SWITCHES = ("allow_http", "allow_invalid_certificates")
_T = TypeVar("_T")


def url_of(path: str | PathLike[str]) -> str | None:
    """The URL that a path states; None if it is a path on this machine.

    A `Path` keeps one slash of a URL's two: it is given back the other.
    """
    found = _URL.fullmatch(fspath(path))
    if found is None:
        return None
    scheme, rest = found.groups()
    return f"{scheme}://{'/' if scheme == 'file' else ''}{rest.rstrip('/')}"


def shown(path: str | PathLike[str]) -> str:
    """A path, or the URL that it states, as people write it."""
    return url_of(path) or fspath(path)


class NotThereError(DataError):
    """There is no such file in the store."""


class DeniedError(NotThereError):
    """The store refuses, for a reason that stays: other credentials are needed, say, or the clock must be set.

    A store may say so of a file that does not exist.
    """


class StoredObject(NamedTuple):
    """A file as the store describes it. Another content has another tag: its ETag, or else the time of its writing."""

    name: str
    size: int
    tag: str

    @property
    def strong(self) -> bool:
        """Whether the tag stands for the bytes themselves, so that a request may be bound to it."""
        return self.tag.startswith('"')


class RemoteFolder:
    """The files directly below a URL. Any thread may read.

    `options` are obstore's, as strings: those of the store, such as endpoint, region and skip_signature, and those of
    the connection, such as allow_http and read_timeout. What they leave open, the environment says, as in
    AWS_ACCESS_KEY_ID. Raises DataError for an option or a URL that obstore does not know, or without obstore.
    """

    retries = 0  # of obstore's own, beside the attempts here

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise DataError(f"{url}: an object store is read with obstore: pip install 'fastimg[remote]'") from error
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query:
            raise DataError(
                f"{parts.scheme}://{parts.hostname}{parts.path}: names and passwords do not belong in a URL, which is "
                "written down; give them in the environment or with storage_options="
            )
        if parts.scheme == "file" and not os.path.isdir(unquote(parts.path)):
            raise DataError(f"{url}: no such folder; check the URL")
        self.url = url
        options = dict(options or {})
        client: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT, "timeout": "1h"}
        stated = (os.environ.get(name, "") for name in _ENDPOINTS) if parts.scheme == "s3" else ()
        if any(address.startswith("http://") for address in (url, options.get("endpoint", ""), *stated)):
            client["allow_http"] = True
        for key in _CLIENT:
            if key in options:
                value = options.pop(key)
                client[key] = value.lower() in ("true", "1", "yes") if key in _SWITCHES else value
        more: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": self.retries}, **options}
        try:
            self._store: ObjectStore = from_url(url, **(options if parts.scheme == "file" else more))
        except Exception as error:
            raise DataError(f"{url}: {first_line(error)}; check the URL and storage_options=") from error

    def address(self, name: str) -> str:
        """The URL of a file."""
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes:
        """A whole, small file. Raises NotThereError and DataError."""
        return self._tried(name, lambda: bytes(self._store.get(name).bytes()))

    def read_range(self, name: str, start: int, stop: int, tag: str = "") -> memoryview:
        """The bytes from `start` to before `stop`, of which the file has all.

        Raises NotThereError and DataError, and ShardError if the file has another `tag` by now.
        """

        def get() -> memoryview:
            if not tag:
                found = memoryview(self._store.get_range(name, start=start, end=stop))
            else:
                asked: GetOptions = {"range": (start, stop)}
                if StoredObject(name, 0, tag).strong:
                    asked["if_match"] = tag
                answer = self._store.get(name, options=asked)
                if _tag(answer.meta) != tag:
                    raise self._replaced(name)
                found = memoryview(answer.bytes())
            if len(found) != stop - start:
                raise EOFError(_SHORTER)
            return found

        return self._tried(name, get)

    def look(self, name: str) -> StoredObject:
        """The size and the tag of a file. Raises NotThereError and DataError."""
        found = self._tried(name, lambda: self._store.head(name))
        return StoredObject(name, found["size"], _tag(found))

    def contents(self) -> list[StoredObject]:
        """The files directly below the URL, by name. Raises DataError, also where the store cannot list them."""
        found = self._tried("", lambda: self._store.list_with_delimiter()["objects"])
        return sorted(StoredObject(each["path"].rpartition("/")[2], each["size"], _tag(each)) for each in found)

    def _replaced(self, name: str) -> ShardError:
        return ShardError(
            f"{self.address(name)}: was replaced in the store while it was in use; open the data again, with "
            "resume=True to go on with a run"
        )

    def _tried(self, name: str, get: Callable[[], _T]) -> _T:
        from obstore import exceptions

        for attempt in range(ATTEMPTS):
            try:
                return get()
            except FileNotFoundError as error:
                raise NotThereError(
                    f"{self.address(name)}: not found: no such file or bucket; check the URL and storage_options="
                ) from error
            except exceptions.PreconditionError as error:
                raise self._replaced(name) from error
            except (exceptions.BaseError, OSError, EOFError) as error:
                cause = cause_of(error)
                denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
                if cause is not None and not cause.passes:
                    raise DeniedError(f"{self.address(name)}: {cause.says}") from error
                if denied:
                    raise DeniedError(f"{self.address(name)}: {DENIED.says}") from error
                if attempt + 1 == ATTEMPTS:
                    says = (
                        f"{first_line(error)}; check the network and storage_options=" if cause is None else cause.says
                    )
                    raise DataError(f"{self.address(name)}: tried {ATTEMPTS} times: {says}") from error
            time.sleep(PAUSE * 2**attempt)
        raise AssertionError


def _tag(described: "ObjectMeta") -> str:
    return described["e_tag"] or f"written {described['last_modified'].isoformat()}"
