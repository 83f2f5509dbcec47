"""A folder in an object store: the bytes of its files, with time-outs, retries, and errors in a sentence.

Clients are obstore's. A request that receives nothing for 30 seconds, or fails in any way that may pass, is tried
again, up to ATTEMPTS times in all, after PAUSE seconds and then twice as long each time: 3 seconds. Ranges are what
runs of days wait for, whose store has answered before: they are tried RANGE_ATTEMPTS times, within 51 seconds.
"""

import os
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fastimg.loaders.errors import DataError, ShardError, UnavailableError
from fastimg.loaders.runtime.stopping import check

from .client import etags
from .client.causes import cause_of, denied, first_line
from .client.store_options import encrypted, opened
from .urls import parsed
from .urls import shown as shown
from .urls import url_of as url_of

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta

ATTEMPTS = 5
RANGE_ATTEMPTS = 9
PAUSE = 0.2
_POLL = 0.1  # seconds of a pause between two looks at whether the file is still needed
_PIECE = 1 << 18  # bytes, about: what is handed over at once while it is in the processor's cache
_TIMES = 5  # a file that nothing vouches for is fetched, unless the same comes twice
_REFUSED = re.compile("status code: 40[013] ")
_SHORTER = "InvalidRange"  # as S3 says where it has nothing of a range
_NO_PARTS = "Range request not supported"  # as obstore says
_MOST_WHOLE = 8 << 20  # bytes of a file that is read whole for a part of it, where the server sends no parts
_T = TypeVar("_T")


class NotThereError(UnavailableError):
    """There is no such file in the store."""


class DeniedError(NotThereError):
    """The store refuses, for a reason that stays: there is no such bucket, other credentials are needed, and the like.

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

    def may_be(self, tag: str, size: int) -> bool:
        """Whether a content of a tag and a size is this one. Times are stated in seconds here, and finer there."""
        timed = etags.is_time(tag) or etags.is_time(self.tag)
        return size == self.size and (timed or tag == self.tag)


class RemoteFolder:
    """The files directly below a URL. Any thread may read.

    `options` are obstore's, as strings: those of the store, such as endpoint, region and skip_signature, and those of
    the connection, such as allow_http and read_timeout. What they leave open, the environment says, as in
    AWS_ACCESS_KEY_ID. Raises DataError for an option or a URL that obstore does not know, or without obstore.
    """

    retries = 0  # of obstore's own, beside the attempts here

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        place = parsed(url)
        if place.scheme == "file" and not os.path.isdir(place.path):
            raise DataError(f"{place}: no such folder; check the URL")
        self.url = str(place)
        self.guarded = encrypted(place, options or {})  # what arrives cannot have been damaged on the way
        self._scheme = place.scheme
        self._store = opened(place, options or {}, self.retries)
        self._in_parts = True  # whether the server sends parts of files, as far as it is known

    def address(self, name: str) -> str:
        """The URL of a file."""
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes:
        """A whole, small file, as it is there: its ETag is its checksum, or it arrives twice alike.

        Raises NotThereError and DataError.
        """
        return self._verified(name, strict=True)

    def content_of(self, stored: StoredObject) -> bytes:
        """A whole file as it was listed. Raises NotThereError and DataError, and ShardError if it is another by now.

        Where its ETag may be a checksum, it is compared: what differs must arrive twice alike. So must what has no such
        ETag, unless TLS verifies it.
        """
        return self._verified(stored.name, strict=False, listed=stored)

    def read_once(self, name: str) -> bytes:
        """A whole, small file, of which the caller knows what it must be. Raises NotThereError and DataError."""
        return self._received(name)[1]

    def _received(self, name: str, attempts: int = ATTEMPTS) -> tuple[str, bytes]:
        """The tag and the content of a whole file."""

        def get() -> tuple[str, bytes]:
            answer = self._store.get(name)
            self._refuse_page(name, answer)
            content = bytes(answer.bytes())
            if len(content) != answer.meta["size"]:
                raise EOFError(f"{len(content)} bytes where {answer.meta['size']} are stated")
            return etags.tag_of(answer.meta), content

        return self._tried(name, get, attempts)

    def _verified(self, name: str, strict: bool, listed: StoredObject | None = None) -> bytes:
        """A whole file. Unless `strict`, one that no checksum was stated of is believed if it came by TLS."""
        seen: set[bytes] = set()
        for _ in range(_TIMES):
            tag, content = self._received(name, ATTEMPTS if listed is None else RANGE_ATTEMPTS)
            if listed is not None and not listed.may_be(tag, len(content)):
                raise self._replaced(name)
            if etags.agrees(tag, len(content), partial(_part, content)):
                return content
            if content in seen or not (strict or etags.may_be_checksum(tag) or not self.guarded):
                return content
            seen.add(content)
        raise UnavailableError(
            f"{self.address(name)}: fetched {_TIMES} times, with another content each time; check the network"
        )

    def read_range(self, name: str, start: int, stop: int, tag: str = "") -> memoryview:
        """The bytes from `start` to before `stop`, of which the file has all.

        Raises NotThereError and DataError, and ShardError if the file has another `tag` by now.
        """

        def get() -> memoryview:
            if not tag and self._in_parts:
                found = memoryview(self._store.get_range(name, start=start, end=stop))
            else:
                answer, whole = self._asked(name, start, stop, tag)
                found = memoryview(answer.bytes())
                if whole:
                    found = found[start:stop]
            if len(found) != stop - start:
                raise EOFError(_SHORTER)
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
            answer, whole = self._asked(name, start, stop, tag)
            take, left = begin(), stop - start
            skipped = start if whole else 0
            for piece in answer.stream(_PIECE):
                view = memoryview(piece)
                if whole:
                    view = view[skipped:][:left]
                    skipped -= min(skipped, len(piece))
                left -= view.nbytes
                if left < 0:
                    break
                try:
                    take(view)
                except OSError as error:  # of the disk: no other attempt would help
                    raise _TakingError from error
            if left:
                raise EOFError(_SHORTER)

        try:
            self._tried(name, get, RANGE_ATTEMPTS)
        except _TakingError as error:
            assert error.__cause__ is not None
            raise error.__cause__ from None

    def _asked(self, name: str, start: int, stop: int, tag: str) -> "tuple[GetResult, bool]":
        """The answer to a request for a part of a file, and whether it is the whole file instead.

        A server that sends no parts is asked for the whole file, if it is small. Raises ShardError if the file has
        another tag, and UnavailableError if it cannot be had this way.
        """
        in_parts = self._in_parts  # which another thread may find out meanwhile
        asked: GetOptions = {"range": (start, stop)} if in_parts else {}
        if StoredObject(name, 0, tag).strong:
            asked["if_match"] = tag
        answer = self._store.get(name, options=asked)
        if tag and etags.tag_of(answer.meta) != tag:
            raise self._replaced(name)
        if in_parts:
            return answer, False
        self._refuse_page(name, answer)
        size = answer.meta["size"]
        if size > _MOST_WHOLE:
            raise UnavailableError(
                f"{self.address(name)}: the server sends no parts of files (no Range), and this one has {size:,} "
                f"bytes; up to {_MOST_WHOLE:,} are read whole; use a server that does, such as nginx, or copy the data "
                "to this machine"
            )
        if size < stop:
            raise ShardError(
                f"{self.address(name)}: has {size:,} bytes where {stop:,} are stated: it was replaced or damaged; "
                "upload it again, with dataset.json"
            )
        return answer, True

    def _refuse_page(self, name: str, answer: "GetResult") -> None:
        """Raise UnavailableError where a web server answers with a page instead of the file."""
        if self._scheme in ("http", "https") and not name.lower().endswith((".html", ".htm")):
            kind = str(answer.attributes.get("Content-Type", "")).partition(";")[0].strip().lower()
            if kind == "text/html":
                raise UnavailableError(
                    f"{self.address(name)}: the server answers with a web page (text/html) instead of the file; check "
                    "the address, and whether one has to log in there"
                )

    def look(self, name: str, attempts: int = ATTEMPTS) -> StoredObject:
        """The size and the tag of a file. Raises NotThereError and DataError."""
        found = self._tried(name, lambda: self._head(name), attempts)
        return StoredObject(name, found["size"], etags.tag_of(found))

    def _head(self, name: str) -> "ObjectMeta":
        """What the store says of a file. The answer to HEAD has no body that says why it refuses: that to GET has."""
        from obstore import exceptions

        try:
            return self._store.head(name)
        except exceptions.BaseError as error:
            if cause_of(error) is not None or not _REFUSED.search(str(error)):
                raise
            try:
                self._store.get_range(name, start=0, end=1)
            except exceptions.BaseError as explained:
                if cause_of(explained) is not None:
                    raise
            raise

    def contents(self) -> list[StoredObject]:
        """The files directly below the URL, by name. Raises DataError, also where the store cannot list them."""
        found = self._tried("", lambda: self._store.list_with_delimiter()["objects"])
        return sorted(StoredObject(each["path"].rpartition("/")[2], each["size"], etags.tag_of(each)) for each in found)

    def _replaced(self, name: str) -> ShardError:
        return ShardError(
            f"{self.address(name)}: was replaced in the store while it was in use; open the data again, with "
            "resume=True to go on with a run"
        )

    def _tried(self, name: str, get: Callable[[], _T], attempts: int = ATTEMPTS) -> _T:
        from obstore import exceptions

        for attempt in range(attempts):
            in_parts = self._in_parts
            try:
                return get()
            except FileNotFoundError as error:
                if (cause := cause_of(error, self._scheme)) is not None:  # of all files, not of this one
                    raise DeniedError(f"{self.address(name)}: {cause.says}") from error
                raise NotThereError(
                    f"{self.address(name)}: not found: no such file or bucket; check the URL and storage_options="
                ) from error
            except exceptions.PreconditionError as error:
                raise self._replaced(name) from error
            except exceptions.NotSupportedError as error:
                if not in_parts or _NO_PARTS not in str(error):
                    raise UnavailableError(f"{self.address(name)}: {first_line(error)}; use another server") from error
                self._in_parts = False
                return self._tried(name, get, attempts)  # with the whole file
            except (exceptions.BaseError, OSError, EOFError) as error:
                cause = cause_of(error, self._scheme)
                if cause is not None and not cause.passes:
                    raise DeniedError(f"{self.address(name)}: {cause.says}") from error
                if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
                    raise DeniedError(f"{self.address(name)}: {denied(self._scheme)}") from error
                if attempt + 1 == attempts:
                    says = (
                        f"{first_line(error)}; check the network and storage_options=" if cause is None else cause.says
                    )
                    raise UnavailableError(f"{self.address(name)}: tried {attempts} times: {says}") from error
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


def _part(content: bytes, start: int, size: int) -> bytes:
    return content[start : start + size]
