"""Listing a bucket of many files: requests and seconds, one after the other and by ranges of names side by side.

    python benchmarks/listings.py [--names 200000] [--latency 10] [--repeats 3]

A process on 127.0.0.1 answers S3's listings of names that it makes up, 1,000 a request, each answer after a latency.
The names lie in 1,000 folders of a split, or in one. What is made of the names here is counting them.
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

_PAGE = 1000


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, default=200_000)
    parser.add_argument("--latency", type=float, default=10.0, help="milliseconds")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "listings.jsonl")
    args = parser.parse_args()
    records = [listing(args.names, folders, args.latency / 1e3, args.repeats) for folders in (1000, 1)]
    measure.append_sections(args.out, "listings", {"listing": records})
    measure.show(Console(), "listing", records)


def listing(names: int, folders: int, latency: float, repeats: int) -> Record:
    """The medians of both ways, in turn."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, names, folders, latency))
    process.start()
    try:
        options = {"endpoint": here.recv(), "skip_signature": "true", "region": "us-east-1"}
        files = StoredFiles("s3://bucket/photos", options)
        found: dict[str, list[tuple[int, float]]] = {"one after the other": [], "by ranges": []}
        divided = key_ranges._DIVIDED
        for _ in range(repeats):
            for way in found:
                key_ranges._DIVIDED = divided if way == "by ranges" else ()
                seen: list[str] = []
                began = time.perf_counter()
                files.list_all(lambda name, size, seen=seen: seen.append(name))  # type: ignore[misc]
                took = time.perf_counter() - began
                assert len(seen) == len(set(seen)) == names
                here.send("count")
                found[way].append((here.recv(), took))
        key_ranges._DIVIDED = divided
    finally:
        process.terminate()
        process.join()
    record: Record = {"names": names, "folders": folders, "latency_ms": latency * 1e3, "repeats": repeats}
    for way, runs in found.items():
        key = way.replace(" ", "_")
        record |= {f"requests_{key}": statistics.median(count for count, _ in runs)}
        record |= {f"seconds_{key}": statistics.median(took for _, took in runs)}
        record |= {f"range_{key}": [min(took for _, took in runs), max(took for _, took in runs)]}
    return record | {"formula": -(-names // _PAGE)}


def _serve(pipe: Connection, count: int, folders: int, latency: float) -> None:
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
            body = _page(names, parse_qs(urlsplit(self.path).query))
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


def _page(names: list[str], query: dict[str, list[str]]) -> bytes:
    """A page of names, or, with a delimiter, of the folders directly below a prefix."""
    prefix = query.get("prefix", [""])[0]
    start = query.get("continuation-token", query.get("start-after", [""]))[0]
    at = max(bisect.bisect_left(names, prefix), bisect.bisect_right(names, start))
    found: list[str] = []
    if "delimiter" in query:
        while at < len(names) and names[at].startswith(prefix) and len(found) < _PAGE:
            folder = prefix + names[at][len(prefix) :].partition("/")[0] + "/"
            found.append(folder)
            at = bisect.bisect_left(names, folder[:-1] + "0")  # the character behind /
    else:
        found = [name for name in names[at : at + _PAGE] if name.startswith(prefix)]
        at += _PAGE
    more = at < len(names) and len(found) == _PAGE and names[at].startswith(prefix)
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


if __name__ == "__main__":
    main()
