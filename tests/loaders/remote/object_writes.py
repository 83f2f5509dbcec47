"""What the object store of the tests does with PUT, POST and DELETE: whole objects, and uploads in parts."""

import hashlib
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from .object_server import ObjectServer

Answer = tuple[int, bytes, dict[str, str]]


class ObjectWrites:
    """Writes below the folder of a server, each object whole or not at all. `written` lists the names, in order.

    Faults: "cut" ends the connection in the middle of a body, "flip" stores a flipped byte, "stall" sets `stalled`
    and ends the connection once `release` is set, others refuse.
    """

    def __init__(self, server: "ObjectServer") -> None:
        self._server = server
        self._lock = threading.Lock()
        self._parts: dict[str, dict[int, bytes]] = {}
        self.written: list[str] = []
        self.stalled, self.release = threading.Event(), threading.Event()
        self.multipart: list[str] = []  # names of objects that came in parts

    def answer(self, request: BaseHTTPRequestHandler, fault: str) -> Answer:
        """Take the body of a request, and do what it asks for."""
        from .object_server import REFUSALS

        url = urlsplit(request.path)
        name = unquote(url.path.removeprefix("/bucket/"))
        query = parse_qs(url.query, keep_blank_values=True)
        length = int(request.headers.get("Content-Length", 0))
        if fault == "cut":
            request.rfile.read(length // 2)
            request.close_connection = True
            request.connection.close()
            raise ConnectionAbortedError("a fault of the test")
        body = request.rfile.read(length)
        if fault == "stall":
            self.stalled.set()
            self.release.wait()
            raise ConnectionAbortedError("a fault of the test")
        if fault in REFUSALS:
            status, code = REFUSALS[fault]
            return status, f"<Error><Code>{code}</Code></Error>".encode(), {}
        if fault == "flip" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        with self._lock:
            if request.command == "DELETE":
                return self._delete(name, query)
            if "delete" in query:
                keys = re.findall(r"<Key>([^<]*)</Key>", body.decode())
                for key in keys:
                    self._delete(key, {})
                deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), {}
            if "uploads" in query:
                key = str(len(self._parts))
                self._parts[key] = {}
                begun = f"<InitiateMultipartUploadResult><UploadId>{key}</UploadId></InitiateMultipartUploadResult>"
                return 200, begun.encode(), {}
            if "uploadId" in query:
                return self._part(name, query, body)
            if not self._allowed(name, request):
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
            self._write(name, body)
            return 200, b"", {"ETag": self._server.tag(body)}

    def _allowed(self, name: str, request: BaseHTTPRequestHandler) -> bool:
        """Whether what is there is what the request is bound to."""
        path = self._server.folder / name
        now = self._server.tag(path.read_bytes()) if path.is_file() else None
        if request.headers.get("If-None-Match") == "*":
            return now is None
        return request.headers.get("If-Match") in (None, now)

    def _part(self, name: str, query: dict[str, list[str]], body: bytes) -> Answer:
        parts = self._parts[query["uploadId"][0]]
        if "partNumber" in query:
            parts[int(query["partNumber"][0])] = body
            return 200, b"", {"ETag": self._server.tag(body)}
        content = [parts[number] for number in sorted(parts)]
        self._write(name, b"".join(content))
        sums = b"".join(hashlib.md5(each, usedforsecurity=False).digest() for each in content)
        tag = f'"{hashlib.md5(sums, usedforsecurity=False).hexdigest()}-{len(content)}"'
        self._server.tags[name] = tag
        self.multipart.append(name)
        done = f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
        return 200, done.encode(), {}

    def _delete(self, name: str, query: dict[str, list[str]]) -> Answer:
        if "uploadId" in query:
            self._parts.pop(query["uploadId"][0], None)
        else:
            (self._server.folder / name).unlink(missing_ok=True)
            self._server.tags.pop(name, None)
        return 204, b"", {}

    def _write(self, name: str, body: bytes) -> None:
        path = self._server.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = self._server.folder.with_name(f"{self._server.folder.name}.part")
        part.write_bytes(body)
        shutil.move(part, path)
        self._server.tags.pop(name, None)
        self.written.append(name)
