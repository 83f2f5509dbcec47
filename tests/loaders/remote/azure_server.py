"""The object store of the tests as Azure's Blob service: its lists, blocks and batches, and ETags that are no MD5s."""

import hashlib
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from .object_server import REFUSALS, ObjectServer

_WRITTEN = "Mon, 01 Jan 2024 00:00:00 GMT"


class AzureServer(ObjectServer):
    """See ObjectServer: `az://bucket` with its options. Faults of writes are "flip" and those of REFUSALS.

    As at Azure, ETags have quotes in headers and none in lists. `page` names are given at once.
    """

    page = 5000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._blocks: dict[tuple[str, str], bytes] = {}

    @property
    def options(self) -> dict[str, str]:
        """The storage_options of az://bucket."""
        return {"account_name": "account", "endpoint": self.endpoint, "skip_signature": "true"}

    @staticmethod
    def tag(body: bytes) -> str:
        """An ETag as Azure gives them."""
        return f'"0x8D{hashlib.sha256(body).hexdigest()[:12].upper()}"'

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        query = parse_qs(url.query, keep_blank_values=True)
        name = unquote(url.path).removeprefix("/bucket").strip("/")
        if request.command in ("GET", "HEAD") and "comp" not in query:
            super().answer(request)
            return
        same = f"{request.command} {request.path}"
        kind = self._fault(name if request.command == "GET" else f"{request.command} {name}", same)
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if kind in REFUSALS:
            status, code = REFUSALS[kind]
            self._send(request, status, f"<Error><Code>{code}</Code></Error>".encode(), {})
        elif query.get("comp") == ["list"]:
            self._send(request, 200, self._blobs(query), {})
        elif query.get("comp") == ["batch"]:
            self._send(request, 202, *self._deleted(body))
        elif query.get("comp") == ["block"]:
            self._blocks[name, query["blockid"][0]] = body
            self._send(request, 201, b"", {})
        else:
            if query.get("comp") == ["blocklist"]:
                blocks = re.findall(r"<(?:Uncommitted|Latest)>([^<]*)<", body.decode())
                body = b"".join(self._blocks.pop((name, block)) for block in blocks)
                self.writes.multipart.append(name)
            assert "comp" in query or request.headers["x-ms-blob-type"] == "BlockBlob"
            if kind == "flip" and body:
                body = bytes([body[0] ^ 1]) + body[1:]
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
            self.writes.written.append(name)
            self._send(request, 201, b"", {"ETag": self.tag(body), "Last-Modified": _WRITTEN})

    def _blobs(self, query: dict[str, list[str]]) -> bytes:
        """What is below a prefix, by pages; with a delimiter, files and folders directly below it."""
        prefix = query.get("prefix", [""])[0]
        found = (self.folder / prefix).glob("*" if "delimiter" in query else "**/*")
        named = ((file.relative_to(self.folder).as_posix(), file.is_dir()) for file in found)
        keys = (f"{name}/" if folder else name for name, folder in named if "delimiter" in query or not folder)
        after = query.get("marker", [""])[0]
        names = sorted((key for key in keys if key > after), key=str.encode)
        marker = escape(names[self.page - 1]) if len(names) > self.page else ""
        names = names[: self.page]
        folders = "".join(f"<BlobPrefix><Name>{escape(key)}</Name></BlobPrefix>" for key in names if key[-1] == "/")
        files = [self.folder / key for key in names if key[-1] != "/"]
        entries = "".join(
            f"<Blob><Name>{escape(file.relative_to(self.folder).as_posix())}</Name><Properties>"
            f"<Last-Modified>{_WRITTEN}</Last-Modified><Content-Length>{file.stat().st_size}</Content-Length>"
            f"<Content-Type>x/y</Content-Type><Etag>{self.tag(file.read_bytes())[1:-1]}</Etag>"
            "</Properties></Blob>"
            for file in files
        )
        return (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="x" ContainerName="bucket">'
            f"<Blobs>{entries}{folders}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>"
        ).encode()

    def _deleted(self, body: bytes) -> tuple[bytes, dict[str, str]]:
        """Delete the blobs of a batch, and the answer to each request in it."""
        parts = []
        for place, path in enumerate(re.findall(r"DELETE (\S+) HTTP", body.decode())):
            (self.folder / unquote(urlsplit(path).path).removeprefix("/bucket/")).unlink(missing_ok=True)
            parts.append(
                f"--answers\r\nContent-Type: application/http\r\nContent-ID: {place}\r\n\r\n"
                "HTTP/1.1 202 Accepted\r\nx-ms-delete-type-permanent: true\r\nx-ms-version: 2023-11-03\r\n\r\n"
            )
        answer = "\r\n".join(parts) + "\r\n--answers--\r\n"
        return answer.encode(), {"Content-Type": "multipart/mixed; boundary=answers"}
