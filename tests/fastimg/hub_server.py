"""A server on 127.0.0.1 that answers as the Hugging Face hub does, to its own client: repositories, commits, faults."""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_test"


@dataclass
class Repository:
    """Files at each commit. `refs` name commits; the last one of a ref is what `commit` adds to."""

    card: dict[str, Any] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False
    messages: list[str] = field(default_factory=list)

    def commit(self, files: dict[str, bytes], ref: str = "main", message: str = "") -> str:
        before = self.commits.get(self.refs.get(ref, ""), {})
        sha = hashlib.sha1(f"{ref} {len(self.commits)}".encode()).hexdigest()
        self.commits[sha] = {**before, **files}
        self.refs[ref] = sha
        self.messages.append(message)
        return sha


class HubServer:
    """`datasets` and `models` by name. `faults`: (part of a path, what to do), each consumed by the request it meets:
    "busy" a 503, "cut" half of a body, "denied" a 403. `requests`: method and path of every request."""

    def __init__(self) -> None:
        self.datasets: dict[str, Repository] = {}
        self.models: dict[str, Repository] = {}
        self.faults: list[tuple[str, str]] = []
        self.requests: list[str] = []
        self.large: dict[str, bytes] = {}  # uploaded, by sha256
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _answer(self) -> None:
                _Answer(outer, self).give()

            do_GET = do_HEAD = do_POST = do_PUT = _answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Answer:
    """To one request."""

    def __init__(self, hub: HubServer, request: BaseHTTPRequestHandler) -> None:
        self.hub = hub
        self.request = request
        self.path = unquote(urlsplit(request.path).path)
        self.body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if request.headers.get("Transfer-Encoding") == "chunked":
            while size := int(request.rfile.readline(), 16):
                self.body += request.rfile.read(size)
                request.rfile.readline()
            request.rfile.readline()
        self.known = request.headers.get("Authorization") == f"Bearer {TOKEN}"

    def give(self) -> None:
        with self.hub.lock:
            self.hub.requests.append(f"{self.request.command} {self.path}")
            met = next((fault for fault in self.hub.faults if fault[0] in self.path), None)
            if met:
                self.hub.faults.remove(met)
        fault = met[1] if met else ""
        if fault in ("busy", "denied"):
            self._send(503 if fault == "busy" else 403, b"")
        elif self.path.startswith("/api/"):
            self._api()
        elif self.path == "/":
            self._send(200, b"")
        elif self.path.startswith("/lfs/"):
            self.hub.large[self.path.removeprefix("/lfs/")] = self.body
            self._send(200, b"")
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            self._batch()
        elif found := re.fullmatch(r"/(cdn/)?(datasets/)?([^/]+/[^/]+)/resolve/(.+?)/(.+)", self.path):
            self._file(found, fault == "cut")
        else:
            self._send(404, b"")

    def _send(self, status: int, body: bytes, cut: bool = False, **headers: str) -> None:
        self.request.send_response(status)
        self.request.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.request.send_header(name.replace("_", "-"), value)
        self.request.end_headers()
        if self.request.command != "HEAD":
            self.request.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.request.wfile.flush()
            self.request.close_connection = True
            self.request.connection.close()

    def _json(self, content: object, status: int = 200) -> None:
        self._send(status, json.dumps(content).encode(), Content_Type="application/json")

    def _found(self, kind: str, name: str, revision: str) -> tuple[Repository, str] | None:
        """The repository and the commit; None where the answer has been given."""
        repository = (self.hub.datasets if kind == "datasets" else self.hub.models).get(name)
        if repository is None or (repository.private and not self.known):
            self._send(404 if self.known else 401, b"", X_Error_Code="RepoNotFound")
        elif repository.gated and not self.known:
            self._send(403, b"", X_Error_Code="GatedRepo")
        elif (sha := repository.refs.get(revision, revision)) not in repository.commits:
            self._send(404, b"", X_Error_Code="RevisionNotFound")
        else:
            return repository, sha
        return None

    def _api(self) -> None:
        parts = self.path.split("/")[2:]
        if parts[0] == "whoami-v2":
            self._json({"name": "me", "type": "user"}) if self.known else self._send(401, b"")
        elif parts[0] == "validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif parts[:2] == ["repos", "create"]:
            self._create()
        elif len(parts) > 3 and parts[3] in ("preupload", "commit", "branch") and not self.known:
            self._send(401, b"")
        elif len(parts) > 3 and parts[3] == "branch":
            repository = self.hub.models["/".join(parts[1:3])]
            there = parts[4] in repository.refs
            repository.refs.setdefault(parts[4], repository.refs["main"])
            self._json({}, 409 if there else 200)
        elif len(parts) > 3 and parts[3] == "preupload":
            files = json.loads(self.body)["files"]
            modes = {True: "lfs", False: "regular"}
            each = [{"path": f["path"], "uploadMode": modes[f["path"].endswith(".safetensors")]} for f in files]
            self._json({"files": [{**file, "shouldIgnore": False} for file in each]})
        elif found := self._found(parts[0], "/".join(parts[1:3]), "/".join(parts[4:]) or "main"):
            self._about(parts, *found)

    def _about(self, parts: list[str], repository: Repository, sha: str) -> None:
        name = "/".join(parts[1:3])
        files = repository.commits[sha]
        if len(parts) > 3 and parts[3] == "tree":
            self._json([{"type": "file", "path": p, "size": len(c), "oid": "0" * 40} for p, c in files.items()])
        elif len(parts) > 3 and parts[3] == "commit":
            self._commit(repository, "/".join(parts[4:]), name)
        else:
            siblings = [{"rfilename": path} for path in files]
            self._json({"id": name, "sha": sha, "siblings": siblings, "cardData": repository.card, "tags": []})

    def _create(self) -> None:
        if not self.known:
            self._send(401, b"")
            return
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        there = name in self.hub.models
        if not there:
            repository = self.hub.models[name] = Repository(
                private="private" in (asked.get("visibility"), asked.get("private") and "private")
            )
            repository.commit({".gitattributes": b""})
        self._json({"url": f"{self.hub.endpoint}/{name}"}, 409 if there else 200)

    def _batch(self) -> None:
        objects = []
        for each in json.loads(self.body)["objects"]:
            upload = {"href": f"{self.hub.endpoint}/lfs/{each['oid']}"}
            actions = {} if each["oid"] in self.hub.large else {"actions": {"upload": upload}}
            objects.append({"oid": each["oid"], "size": each["size"], **actions})
        self._json({"transfer": "basic", "objects": objects})

    def _commit(self, repository: Repository, ref: str, name: str) -> None:
        files: dict[str, bytes] = {}
        message = ""
        for line in self.body.decode().splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                message = value["summary"]
            elif item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
        sha = repository.commit(files, ref or "main", message)
        self._json({"success": True, "commitOid": sha, "commitUrl": f"{self.hub.endpoint}/{name}/commit/{sha}"})

    def _file(self, found: re.Match[str], cut: bool) -> None:
        cdn, dataset, name, revision, path = found.groups()
        there = self._found("datasets" if dataset else "models", name, revision)
        if there is None:
            return
        repository, sha = there
        content = repository.commits[sha].get(path)
        if content is None:
            self._send(404, b"", X_Error_Code="EntryNotFound")
            return
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        headers = {"X_Repo_Commit": sha, "ETag": tag, "Accept_Ranges": "bytes"}
        if not cdn and path.endswith((".parquet", ".safetensors")):  # large files are elsewhere
            size = str(len(content))
            where = f"{self.hub.endpoint}/cdn{self.path.replace(f'/{revision}/', f'/{sha}/', 1)}"
            self._send(302, b"", Location=where, X_Linked_Size=size, X_Linked_ETag=tag, **headers)
            return
        ranged = re.fullmatch(r"bytes=(\d+)-(\d*)", self.request.headers.get("Range") or "")
        if ranged is None:
            self._send(200, content, cut, **headers)
            return
        start, end = int(ranged[1]), int(ranged[2] or len(content) - 1) + 1
        piece = content[start:end]
        stated = f"bytes {start}-{start + len(piece) - 1}/{len(content)}"
        self._send(206, piece, cut, Content_Range=stated, **headers)
