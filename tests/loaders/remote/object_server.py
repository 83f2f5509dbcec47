"""A small object store on 127.0.0.1: objects with ranges, in the paths of S3 and of plain HTTP, and its faults."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class ObjectServer:
    """Serves the files below `folder` as /bucket/NAME. Faults are consumed by the requests that meet them.

    faults: (part of a name, what to do), with "busy" a 503, "cut" half of the body, "flip" a byte of it flipped, and
    "denied" a 403. `requests` lists the names that were asked for; `hold` is waited for before each answer.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[tuple[str, str]] = []
        self.requests: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self._arrived = threading.Event()
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # a header alone would wait 40 ms for its body

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.removeprefix("/bucket/")
        self._arrived.set()
        self.hold.wait()
        with self.lock:
            self.requests.append(name)
            fault = next((each for each in self.faults if each[0] in name), None)
            if fault is not None:
                self.faults.remove(fault)
        kind = fault[1] if fault else ""
        path = self.folder / name
        if kind in ("busy", "denied") or not path.is_file():
            self._send(request, {"busy": 503, "denied": 403}.get(kind, 404), b"<Error/>", {})
            return
        body = path.read_bytes()
        headers = {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT", "ETag": '"1"'}
        status = 200
        if found := _RANGE.fullmatch(request.headers.get("Range", "")):
            start, stop = int(found[1]), min(int(found[2]) + 1, len(body))
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
            body, status = body[start:stop], 206
        if kind == "flip":
            body = body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1 :]
        self._send(request, status, body, headers, cut=kind == "cut")

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], cut: bool = False
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: len(body) // 2] if cut else body)
        request.close_connection = cut or request.close_connection

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
