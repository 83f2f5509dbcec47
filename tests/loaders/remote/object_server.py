"""A small object store on 127.0.0.1: objects with ranges, in the paths of S3 and of plain HTTP, and its faults."""

import hashlib
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from .object_writes import ObjectWrites

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
REFUSALS = {  # status and S3's code
    "busy": (503, "SlowDown"),
    "denied": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
    "skewed": (403, "RequestTimeTooSkewed"),
    "region": (400, "AuthorizationHeaderMalformed"),
    "bucket": (404, "NoSuchBucket"),
}
LASTING = (  # refusals that no other attempt changes, and what is said of them
    ("denied", "access denied"),
    ("expired", "the credentials have expired"),
    ("bucket", "no such bucket"),
    ("skewed", "the clock of this machine differs too much"),
)


class _Server(ThreadingHTTPServer):
    """Says nothing of clients that are gone before their answer, at any time, even when the test is over."""

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class ObjectServer:
    """Serves the files below `folder` as /bucket/NAME. Faults are consumed by the requests that meet them.

    faults: (part of a name, what to do), with "busy" a 503, "cut" half of the body, "flip" a byte of it flipped,
    "stall" an answer after `writes.release`, and the other refusals of S3 by the keys of REFUSALS. `rates` has shares
    of all requests that meet a fault, by its kind; the draw is a function of the request, of how often the same one has
    come, and of `seed`, whatever the order of requests. `before` is called with the name of each request that reads,
    before it is answered, and returns a fault for it, or "". `latency` is waited for before each answer, in
    seconds. `requests` lists the names that were asked for, after PUT or POST where they were written, and `heads`
    those of HEAD again; `hold` is waited for before each answer. `tags` replaces the ETags, which are MD5s.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[tuple[str, str]] = []
        self.rates: dict[str, float] = {}
        self.seed = 0
        self.before: Callable[[str], str] = lambda name: ""
        self.met: list[str] = []  # the faults that were drawn by `rates`
        self.latency = 0.0
        self.tags: dict[str, str] = {}
        self.requests: list[str] = []
        self.heads: list[str] = []
        self.writes = ObjectWrites(self)
        self.hold = threading.Event()
        self.hold.set()
        self._draws = random.Random(0)
        self._repeats: Counter[str] = Counter()
        self._arrived = threading.Event()
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # a header alone would wait 40 ms for its body

            def do_GET(self) -> None:
                outer.answer(self)

            def do_HEAD(self) -> None:
                outer.answer(self)

            def do_PUT(self) -> None:
                outer.answer(self)

            def do_POST(self) -> None:
                outer.answer(self)

            def do_DELETE(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def hold_next(self) -> threading.Event:
        """Answer nothing until `hold` is set; the event says that a request is waiting."""
        self.hold.clear()
        self._arrived = threading.Event()
        return self._arrived

    @property
    def options(self) -> dict[str, str]:
        """The storage_options of s3://bucket."""
        return {"endpoint": self.endpoint, "skip_signature": "true", "region": "us-east-1"}

    def contents_asked(self, name: str) -> int:
        """How many requests for the content of a file, or a range of it, there were."""
        return self.requests.count(name) - self.heads.count(name)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = unquote(request.path.removeprefix("/bucket/"))
        self._arrived.set()
        self.hold.wait()
        time.sleep(self.latency)
        reads = request.command in ("GET", "HEAD")
        if request.command == "HEAD":
            self.heads.append(name)
        same = f"{request.command} {request.path} {request.headers.get('Range', '')}"
        kind = self._fault(name if reads else f"{request.command} {name}", same)
        if reads:
            kind = self.before(name) or kind
        if request.command in ("PUT", "POST", "DELETE"):
            self._send(request, *self.writes.answer(request, kind))
            return
        if kind == "stall":
            self.writes.stalled.set()
            self.writes.release.wait()
        path = self.folder / name
        if "list-type=2" in request.path and kind not in REFUSALS:  # nothing could tell of a byte that is flipped
            self._send(request, 200, self._listing(request.path), {}, cut=kind == "cut")
            return
        if kind in REFUSALS or not path.is_file():
            status, code = REFUSALS.get(kind, (404, "NoSuchKey"))
            self._send(request, status, f"<Error><Code>{code}</Code></Error>".encode(), {})
            return
        body = path.read_bytes()
        tag = self.tags.get(name) or self.tag(body)
        if request.headers.get("If-Match", tag) != tag:
            self._send(request, 412, b"<Error><Code>PreconditionFailed</Code></Error>", {})
            return
        headers = {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT", "ETag": tag}
        status = 200
        if found := _RANGE.fullmatch(request.headers.get("Range", "")):
            start, stop = int(found[1]), min(int(found[2]) + 1, len(body))
            if start >= len(body):
                self._send(request, 416, b"<Error><Code>InvalidRange</Code></Error>", {})
                return
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
            body, status = body[start:stop], 206
        if kind in ("flip", "flip anywhere") and body:
            at = len(body) // 2 if kind == "flip" else self._draws.randrange(len(body))
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        self._send(request, status, body, headers, cut=kind == "cut")

    @staticmethod
    def tag(body: bytes) -> str:
        """The ETag that S3 gives to a content that was uploaded in one piece."""
        return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'

    def _fault(self, name: str, same: str) -> str:
        with self.lock:
            self.requests.append(name)
            fault = next((each for each in self.faults if each[0] in name), None)
            if fault is not None:
                self.faults.remove(fault)
                return fault[1]
            self._repeats[same] += 1
            drawn = random.Random(f"{self.seed} {same} {self._repeats[same]}").random()
            for kind, share in self.rates.items():
                drawn -= share
                if drawn < 0:
                    self.met.append(kind)
                    return "flip anywhere" if kind == "flip" else kind
        return ""

    def _listing(self, path: str) -> bytes:
        """What is below a prefix, in pages of 1,000; with a delimiter, files and folders directly below it."""
        query = parse_qs(urlsplit(path).query)
        prefix = query.get("prefix", [""])[0]
        start = query.get("continuation-token", query.get("start-after", [""]))[0]
        found = list((self.folder / prefix).glob("*" if "delimiter" in query else "**/*"))
        named = ((file.relative_to(self.folder).as_posix(), file.is_dir()) for file in found)
        keys = [f"{name}/" if folder else name for name, folder in named if "delimiter" in query or not folder]
        behind = sorted((key for key in keys if key > start), key=str.encode)
        names, more = behind[:1000], len(behind) > 1000
        token = f"<NextContinuationToken>{escape(names[-1])}</NextContinuationToken>" if more else ""
        folders = [name for name in names if name.endswith("/")]
        token += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{self.tags.get(name) or self.tag((self.folder / name).read_bytes())}</ETag>"
            f"<Size>{(self.folder / name).stat().st_size}</Size></Contents>"
            for name in names
            if not name.endswith("/")
        )
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        return f"<ListBucketResult>{truncated}{token}{entries}</ListBucketResult>".encode()

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], cut: bool = False
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body[: len(body) // 2] if cut else body)
        request.close_connection = cut or request.close_connection

    def close(self) -> None:
        self.hold.set()
        self.writes.release.set()
        self._server.shutdown()
        self._server.server_close()
