"""A folder in an object store: the bytes of its files, with time-outs, retries, and errors in a sentence.

Clients are obstore's. A request that receives nothing for READ_TIMEOUT, or fails in any way that may pass, is tried
again, up to ATTEMPTS times in all, after PAUSE seconds and then twice as long each time: 3 seconds. Ranges are what
runs of days wait for, whose store has answered before: they are tried RANGE_ATTEMPTS times, within 51 seconds.
"""

import os
import re
import time
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.runtime.stopping import check

from . import etags
from .causes import DENIED, cause_of, first_line, refused_without_reason

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

ATTEMPTS = 5
RANGE_ATTEMPTS = 9
PAUSE = 0.2
_POLL = 0.1  # seconds of a pause between two looks at whether the file is still needed
READ_TIMEOUT = "30s"
CONNECT_TIMEOUT = "10s"

_SCHEMES = ("s3", "gs", "az", "http", "https", "file")
_URL = re.compile(rf"({'|'.join(_SCHEMES)}):/+(.+)")
_CLIENT = (  # options of the connection; all others are those of the store
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "proxy_excludes", "read_timeout"),
    *("root_certificate", "timeout", "user_agent"),
)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")  # in the environment
_SWITCHES = ("allow_http", "allow_invalid_certificates")
_PIECE = 1 << 18  # bytes, about: what is handed over at once while it is in the processor's cache
_TIMES = 5  # a file that nothing vouches for is fetched, unless the same comes twice
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
        self.guarded = parts.scheme == "file"  # what arrives cannot have been damaged on the way: TLS verifies it
        options = dict(options or {})
        client: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT, "timeout": "1h"}
        stated = (os.environ.get(name, "") for name in _ENDPOINTS) if parts.scheme == "s3" else ()
        if any(address.startswith("http://") for address in (url, options.get("endpoint", ""), *stated)):
            client["allow_http"] = True
        for key in _CLIENT:
            if key in options:
                value = options.pop(key)
                client[key] = value.lower() in ("true", "1", "yes") if key in _SWITCHES else value
        self.guarded = self.guarded or not client.get("allow_http")
        more: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": self.retries}, **options}
        try:
            self._store: ObjectStore = from_url(url, **(options if parts.scheme == "file" else more))
        except Exception as error:
            raise DataError(f"{url}: {first_line(error)}; check the URL and storage_options=") from error

    def address(self, name: str) -> str:
        """The URL of a file."""
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes:
        """A whole, small file, as it is there: its ETag is its checksum, or it arrives twice alike.

        Raises NotThereError and DataError.
        """
        return self._verified(name, strict=True)

    def read_once(self, name: str) -> bytes:
        """A whole, small file, of which the caller knows what it must be. Raises NotThereError and DataError."""
        return self._received(name)[1]

    def _received(self, name: str) -> tuple[str, bytes]:
        """The ETag and the content of a whole file."""

        def get() -> tuple[str, bytes]:
            answer = self._store.get(name)
            content = bytes(answer.bytes())
            if len(content) != answer.meta["size"]:
                raise EOFError(f"{len(content)} bytes where {answer.meta['size']} are stated")
            return answer.meta["e_tag"] or "", content

        return self._tried(name, get)

    def _verified(self, name: str, strict: bool) -> bytes:
        """A whole file. Unless `strict`, one that no checksum was stated of is believed if it came by TLS."""
        seen: set[bytes] = set()
        for _ in range(_TIMES):
            tag, content = self._received(name)
            if etags.agrees(tag, len(content), lambda start, size, of=content: of[start : start + size]):
                return content
            if content in seen or not (strict or etags.may_be_checksum(tag) or not self.guarded):
                return content
            seen.add(content)
        raise DataError(
            f"{self.address(name)}: fetched {_TIMES} times, with another content each time; check the network"
        )

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
                raise EOFError(f"{len(found)} bytes where {stop - start} were asked for, from byte {start} on")
            return found

        return self._tried(name, get, RANGE_ATTEMPTS)

    def receive(
        self, name: str, start: int, stop: int, tag: str, begin: Callable[[], Callable[[memoryview], None]]
    ) -> None:
        """Hand over the bytes from `start` to before `stop`, in order, in pieces, as they arrive.

        Each attempt calls `begin`, and gives the pieces to what it returns, whose OSErrors are raised as they are.
        Otherwise raises as `read_range` does.
        """

        def get() -> None:
            asked: GetOptions = {"range": (start, stop)}
            if StoredObject(name, 0, tag).strong:
                asked["if_match"] = tag
            answer = self._store.get(name, options=asked)
            if tag and _tag(answer.meta) != tag:
                raise self._replaced(name)
            take, left = begin(), stop - start
            for piece in answer.stream(_PIECE):
                view = memoryview(piece)
                left -= view.nbytes
                if left < 0:
                    break
                try:
                    take(view)
                except OSError as error:  # of the disk: no other attempt would help
                    raise _TakingError from error
            if left:
                raise EOFError(f"{stop - start - left} bytes where {stop - start} were asked for, from byte {start} on")

        try:
            self._tried(name, get, RANGE_ATTEMPTS)
        except _TakingError as error:
            assert error.__cause__ is not None
            raise error.__cause__ from None

    def look(self, name: str, attempts: int = ATTEMPTS) -> StoredObject:
        """The size and the tag of a file. Raises NotThereError and DataError."""
        found = self._tried(name, lambda: self._head(name), attempts)
        return StoredObject(name, found["size"], _tag(found))

    def _head(self, name: str) -> "ObjectMeta":
        from obstore import exceptions

        try:
            return self._store.head(name)
        except exceptions.BaseError as error:
            if refused_without_reason(error):  # an answer without a body: to a byte the store says why
                self._store.get_range(name, start=0, length=1)
            raise

    def contents(self) -> list[StoredObject]:
        """The files directly below the URL, by name. Raises DataError, also where the store cannot list them."""
        found = self._tried("", lambda: self._store.list_with_delimiter()["objects"])
        return sorted(StoredObject(each["path"].rpartition("/")[2], each["size"], _tag(each)) for each in found)

    def _replaced(self, name: str) -> ShardError:
        return ShardError(
            f"{self.address(name)}: was replaced in the store while it was in use; open the data again, with "
            "resume=True to go on with a run"
        )

    def _tried(self, name: str, get: Callable[[], _T], attempts: int = ATTEMPTS) -> _T:
        from obstore import exceptions

        for attempt in range(attempts):
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
                if attempt + 1 == attempts:
                    says = (
                        f"{first_line(error)}; check the network and storage_options=" if cause is None else cause.says
                    )
                    raise DataError(f"{self.address(name)}: tried {attempts} times: {says}") from error
            _pause(PAUSE * 2**attempt)
        raise AssertionError


class _TakingError(Exception):
    """What was received cannot be taken; the cause says why."""


def _pause(seconds: float) -> None:
    """Wait. Raises Cancelled as soon as nobody needs the file any more."""
    until = time.monotonic() + seconds
    check()
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _POLL))
        check()


def _tag(described: "ObjectMeta") -> str:
    return described["e_tag"] or f"written {described['last_modified'].isoformat()}"
