"""Listing a bucket of many files: requests and seconds, one after the other and side by side.

    python benchmarks/listings.py [--store s3|az] [--names 200000] [--latency 10] [--repeats 3]

A process on 127.0.0.1 answers S3's listings of names that it makes up, 1,000 a request, each answer after a latency;
side by side are ranges of names. Or it answers Azure's, 5,000 a request; side by side are folders, where they are
large. The names lie in 1,000 folders of a split, of Azure in 100, too, or in one. What is made of the names here is
counting them.
"""

import argparse
import bisect
import multiprocessing
import statistics
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import measure
from rich.console import Console

from fastimg.loaders.remote.client import key_ranges
from fastimg.loaders.remote.trees import StoredFiles

Record = dict[str, Any]

_PAGES = {"s3": 1000, "az": 5000}
_FOLDERS = {"s3": (1000, 1), "az": (1000, 100, 1)}


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("s3", "az"), default="s3")
    parser.add_argument("--names", type=int, default=200_000)
    parser.add_argument("--latency", type=float, default=10.0, help="milliseconds")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "listings.jsonl")
    args = parser.parse_args()
    folders = _FOLDERS[args.store]
    records = [listing(args.store, args.names, count, args.latency / 1e3, args.repeats) for count in folders]
    measure.append_sections(args.out, "listings", {"listing": records})
    measure.show(Console(), "listing", records)


def listing(store: str, names: int, folders: int, latency: float, repeats: int) -> Record:
    """The medians of both ways, in turn."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, store, names, folders, latency))
    process.start()
    try:
        own = {"s3": {"region": "us-east-1"}, "az": {"account_name": "account"}}
        options = {"endpoint": here.recv(), "skip_signature": "true", **own[store]}
        files = StoredFiles(f"{store}://bucket/photos", options)
        side_by_side = {"s3": "by ranges", "az": "by folders"}[store]
        found: dict[str, list[tuple[int, float]]] = {"one after the other": [], side_by_side: []}
        divided = key_ranges._DIVIDED, key_ranges._BY_FOLDERS
        for _ in range(repeats):
            for way in found:
                key_ranges._DIVIDED, key_ranges._BY_FOLDERS = divided if way == side_by_side else ((), ())
                seen: list[str] = []
                began = time.perf_counter()
                files.list_all(lambda name, *_, seen=seen: seen.append(name))  # type: ignore[misc]
                took = time.perf_counter() - began
                assert len(seen) == len(set(seen)) == names
                here.send("count")
                found[way].append((here.recv(), took))
        key_ranges._DIVIDED, key_ranges._BY_FOLDERS = divided
    finally:
        process.terminate()
        process.join()
    record: Record = {
        "store": store,
        "names": names,
        "folders": folders,
        "latency_ms": latency * 1e3,
        "repeats": repeats,
    }
    for way, runs in found.items():
        key = way.replace(" ", "_")
        record |= {f"requests_{key}": statistics.median(count for count, _ in runs)}
        record |= {f"seconds_{key}": statistics.median(took for _, took in runs)}
        record |= {f"range_{key}": [min(took for _, took in runs), max(took for _, took in runs)]}
    return record | {"formula": -(-names // _PAGES[store])}


def _serve(pipe: Connection, store: str, count: int, folders: int, latency: float) -> None:
    each = -(-count // folders)
    names = [f"photos/train/{number // each:06d}/{number % each:08d}.jpg" for number in range(count)]
    asked = 0
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            nonlocal asked
            with lock:
                asked += 1
            time.sleep(latency)
            body = _answers[store](names, parse_qs(urlsplit(self.path).query))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(f"http://127.0.0.1:{server.server_address[1]}")
    while pipe.recv() == "count":
        with lock:
            pipe.send(asked)
            asked = 0


def _page(names: list[str], query: dict[str, list[str]], start: str, size: int) -> tuple[list[str], bool]:
    """A page of names, or, with a delimiter, of the folders directly below a prefix; and whether there are more."""
    prefix = query.get("prefix", [""])[0]
    at = max(bisect.bisect_left(names, prefix), bisect.bisect_right(names, start))
    found: list[str] = []
    if "delimiter" in query:
        while at < len(names) and names[at].startswith(prefix) and len(found) < size:
            folder = prefix + names[at][len(prefix) :].partition("/")[0] + "/"
            found.append(folder)
            at = bisect.bisect_left(names, folder[:-1] + "0")  # the character behind /
    else:
        found = [name for name in names[at : at + size] if name.startswith(prefix)]
        at += size
    return found, at < len(names) and len(found) == size and names[at].startswith(prefix)


def _answer_of_s3(names: list[str], query: dict[str, list[str]]) -> bytes:
    start = query.get("continuation-token", query.get("start-after", [""]))[0]
    found, more = _page(names, query, start, _PAGES["s3"])
    token = f"<NextContinuationToken>{found[-1]}</NextContinuationToken>" if more else ""
    if "delimiter" in query:
        entries = "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in found)
        token = token.replace("/</", "0</")
    else:
        entries = "".join(
            f"<Contents><Key>{name}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"0"</ETag><Size>1</Size></Contents>'
            for name in found
        )
    return (
        f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>".encode()
    )


def _answer_of_azure(names: list[str], query: dict[str, list[str]]) -> bytes:
    found, more = _page(names, query, query.get("marker", [""])[0], _PAGES["az"])
    marker = (found[-1].replace("/", "0") if "delimiter" in query else found[-1]) if more else ""
    if "delimiter" in query:
        entries = "".join(f"<BlobPrefix><Name>{name}</Name></BlobPrefix>" for name in found)
    else:
        entries = "".join(
            f"<Blob><Name>{name}</Name><Properties><Last-Modified>Mon, 01 Jan 2024 00:00:00 GMT</Last-Modified>"
            "<Content-Length>1</Content-Length><Content-Type>x/y</Content-Type><Etag>0x0</Etag></Properties></Blob>"
            for name in found
        )
    return (
        '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="x" ContainerName="bucket">'
        f"<Blobs>{entries}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>"
    ).encode()


_answers = {"s3": _answer_of_s3, "az": _answer_of_azure}


if __name__ == "__main__":
    main()
