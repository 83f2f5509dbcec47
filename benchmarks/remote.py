"""The loader on an object store: local shards, a cold cache of a fifth of the data, and a warm cache of all of it.

    python benchmarks/remote.py --data FOLDER

The store is a process of its own on this machine: plain HTTP with ranges by sendfile, pinned to the last core; the
loader and its one decoding thread have all others but that one (on two cores, one). Each answer waits for --latency
milliseconds first. Every row is RandomResizedCrop(0.08-1) to --size of the same shards in the same order (quasi-random
by whole shards), an epoch for each repeat; the rows take turns, each right behind two epochs of local shards, with
which it is compared: one from the page cache (`local`), and one from the disk, of which the page cache holds nothing at
its beginning (`local disk`). `cold`: the cache is empty at the beginning of the epoch and holds a fifth of the data;
`warm`: it holds all, which an epoch before has fetched (with the second latency; nothing is asked of the store then).
`waiting`: the time that decoding threads waited for shards, as a share of the epoch. `bytes`: what was fetched, over
the bytes of the shards. `CPU`: processor time of the loader's process per image, over that of local shards.
The store reads from the page cache, and there is no bandwidth but that of the loopback.

With --shards the shards are those of a folder that --write has written before, in the same way, and nothing is
converted; --rows cold leaves the warm rows out.

Fetching needs processor time, which decoding then lacks on one core. With --shared-core the loader may use the store's
core, too: still with as many decoding threads, so that fetching has a core of its own but for what the store needs.
"""

import argparse
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import measure
import numpy as np
from images import list_images
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import Loader
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.remote.fetched_files import fetched_files

_PAGE = 1000  # names that a store gives at once
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
Record = dict[str, Any]


class Turn(NamedTuple):
    """Epochs that follow each other: of local shards, from the page cache and from the disk, and one of a row."""

    local: Record
    disk: Record
    row: Record


class FileHandler(BaseHTTPRequestHandler):
    """Files below the current folder, by ranges, after `latency` seconds; and S3's listings of the folder `bucket`.

    Images have their MD5 as ETag, in both; other files have none.
    """

    protocol_version = "HTTP/1.1"
    latency = 0.0

    def do_HEAD(self) -> None:
        """The size of a file."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """A file, or a range of it, or names."""
        if "list-type=2" in self.path:
            self._list(parse_qs(urlsplit(self.path).query))
        else:
            self._answer(body=True)

    def _list(self, query: dict[str, list[str]]) -> None:
        """A page of names below a prefix; with a delimiter those of the files directly below it alone."""
        time.sleep(self.latency)
        prefix = query.get("prefix", [""])[0]
        start = query.get("continuation-token", query.get("start-after", [""]))[0]
        names = [name for name in _names("bucket") if name.startswith(prefix) and name > start]
        if "delimiter" in query:
            names = [name for name in names if "/" not in name.removeprefix(prefix)]
        page, more = names[:_PAGE], len(names) > _PAGE
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{_tag(f'bucket/{name}')}</ETag><Size>{os.stat(f'bucket/{name}').st_size}</Size></Contents>"
            for name in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        content = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content.encode())))
        self.end_headers()
        self.wfile.write(content.encode())

    def _answer(self, body: bool) -> None:
        time.sleep(self.latency)
        try:
            path = unquote(self.path).lstrip("/")
            file = os.open(path, os.O_RDONLY)
        except OSError:
            self.send_error(404)
            return
        try:
            size = os.fstat(file).st_size
            start, stop, status = 0, size, 200
            if found := _RANGE.fullmatch(self.headers.get("Range", "")):
                start, stop, status = int(found[1]), min(int(found[2]) + 1, size), 206
            self.send_response(status)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            if tag := _tag(path):
                self.send_header("ETag", tag)
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.end_headers()
            self.wfile.flush()
            while body and start < stop:
                start += os.sendfile(self.connection.fileno(), file, start, stop - start)
        finally:
            os.close(file)

    def setup(self) -> None:
        """Send headers at once."""
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@cache
def _names(folder: str) -> list[str]:
    """The files below a folder, in order, from there on."""
    found = [os.path.join(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names]
    return sorted(os.path.relpath(path, folder) for path in found)


@cache
def _tag(path: str) -> str:
    """The ETag of an image; empty for any other file."""
    if not path.endswith((".jpg", ".jpeg", ".png")):
        return ""
    return f'"{hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest()}"'


def serve(folder: Path, latency: float, core: int) -> None:
    """Serve a folder until the process is ended; the address is printed."""
    os.sched_setaffinity(0, {core})
    os.chdir(folder)
    FileHandler.latency = latency
    server = ThreadingHTTPServer(("127.0.0.1", 0), FileHandler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


@contextmanager
def served(folder: Path, latency: float, core: int) -> Any:
    """The address of a store in a process of its own."""
    arguments = [sys.executable, __file__, "--serve", str(folder), "--latency", str(latency), "--core", str(core)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of JPEGs, flat or with subfolders")
    parser.add_argument("--samples", type=int, default=3600, help="images, repeated as needed")
    parser.add_argument("--shard-size", default="2MB")
    parser.add_argument("--window", type=int, default=192)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--latency", type=float, nargs="+", default=[0.0, 10.0, 50.0], help="milliseconds")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shared-core", action="store_true", help="let the loader use the store's core, too")
    parser.add_argument("--write", type=Path, help="only write the shards of --data, to this folder")
    parser.add_argument("--shards", type=Path, help="shards that --write has written; --data names their images")
    parser.add_argument("--rows", choices=["all", "cold"], default="all")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for shards and caches, on a disk")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "remote.jsonl")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve, args.latency[0] / 1e3, args.core)
        return
    if args.write is not None:
        args.write.mkdir(parents=True)
        written(args, args.write)
        return
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=args.scratch or Path.cwd(), prefix="fastimg-remote-") as name:
        scratch = Path(name)
        shards = written(args, scratch) if args.shards is None else args.shards / "D"
        os.sched_setaffinity(0, set(cores if args.shared_core else cores[:-1] or cores))
        measured(args, shards, scratch, cores[-1], max(1, len(cores) - 1))


def written(args: argparse.Namespace, scratch: Path) -> Path:
    """The shards of the folder's images, repeated."""
    source = scratch / "source" / "images"
    source.mkdir(parents=True)
    names = list_images(args.data)
    for number in range(args.samples):
        file = args.data / names[number % len(names)]
        (source / f"{number:06d}{file.suffix}").symlink_to(file.resolve())
    convert(
        Convert(src=source.parent, dst=scratch / "D", shard_size=args.shard_size, val_fraction=0.0),
        Console(quiet=True),
    )
    return scratch / "D"


def measured(args: argparse.Namespace, shards: Path, scratch: Path, core: int, workers: int) -> None:
    """Measure the rows in turn."""
    nbytes = sum(file.stat().st_size for file in shards.glob("*.tar"))
    args.samples = sum(split["samples"] for split in read_description(shards)["splits"].values())
    settings = {
        "batch_size": args.batch_size,
        "crop": args.size,
        "order": "quasi-random",
        "block": "shard",
        "window": args.window,
        "workers": workers,
    }
    with Loader(shards, **settings) as here:
        epoch(here)  # compiles, makes the index, and has the shards in the page cache
        rows: dict[str, Callable[[], Record]] = {}
        with measuring(args.latency, shards.parent, core) as stores:
            for latency, address in stores.items():
                url = f"{address}/{shards.name}"
                rows[f"cold, {latency:g} ms"] = partial(cold, url, settings, scratch / f"cold-{latency:g}", nbytes // 5)
                if latency == args.latency[:2][-1] and args.rows == "all":
                    rows["warm"] = partial(kept, url, settings, scratch / "warm")
                    rows["warm"]()
            found: dict[str, list[Turn]] = {name: [] for name in rows}
            for _ in range(args.repeats):
                for name, row in rows.items():
                    found[name].append(Turn(epoch(here), from_disk(here, shards), row()))
    report(args, found, nbytes, workers, len(list(shards.glob("*.tar"))))


@contextmanager
def measuring(latencies: list[float], folder: Path, core: int) -> Any:
    """A store for each latency: its address."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield {latency: stack.enter_context(served(folder, latency, core)) for latency in latencies}


def epoch(loader: Loader) -> Record:
    """Images per second of an epoch, and what was waited for and fetched in it."""
    files = fetched_files(loader.dataset)
    before = None if files is None else files.mirror.cache.spent
    began, busy = time.perf_counter(), time.process_time()
    images = sum(batch.samples for batch in loader)
    seconds, cpu = time.perf_counter() - began, (time.process_time() - busy) / images
    if files is None or before is None:
        return {"rate": images / seconds, "cpu": cpu, "waiting": 0.0, "bytes": 0}
    after = files.mirror.cache.spent
    waited = (after.waited - before.waited) / (seconds * loader.workers)
    return {"rate": images / seconds, "cpu": cpu, "waiting": waited, "bytes": after.bytes - before.bytes}


def from_disk(loader: Loader, shards: Path) -> Record:
    """An epoch of local shards of which the page cache holds nothing. Raises OSError if they could not be dropped."""
    for tar in shards.glob("*.tar"):
        with tar.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = _bytes_of_disk()
    found = epoch(loader)
    read, size = _bytes_of_disk() - before, sum(tar.stat().st_size for tar in shards.glob("*.tar"))
    if read < 0.9 * size:
        raise OSError(f"{shards}: the page cache held {1 - read / size:.0%} of the shards that were to be on disk only")
    return found


def _bytes_of_disk() -> int:
    """What this process has had read from disks so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def cold(url: str, settings: Record, cache: Path, limit: int) -> Record:
    """An epoch from an empty cache of `limit` bytes. The index has been fetched."""
    shutil.rmtree(cache, ignore_errors=True)
    with Loader(url, cache_dir=cache, cache_limit=limit, **settings) as loader:
        found = epoch(loader)
    shutil.rmtree(cache)  # or the system writes it to the disk during the next epochs
    return found


def kept(url: str, settings: Record, cache: Path) -> Record:
    """An epoch from a cache that holds all, from the second call on."""
    with Loader(url, cache_dir=cache, **settings) as loader:
        return epoch(loader)


def report(args: argparse.Namespace, found: dict[str, list[Turn]], nbytes: int, workers: int, shards: int) -> None:
    """Print the table, and append a record for each row: turns of local epochs and one of the row."""
    rows = []
    turns = [turn for each in found.values() for turn in each]
    local = {
        "local": [turn._replace(row=turn.local) for turn in turns],
        "local disk": [turn._replace(row=turn.disk) for turn in turns],
    }
    for name, measured in {**local, **found}.items():
        speed = measure.Spread.of([turn.row["rate"] for turn in measured])
        cpu = measure.Spread.of([turn.row["cpu"] * 1e6 for turn in measured])
        over_local = measure.Spread.of([turn.row["rate"] / turn.local["rate"] for turn in measured])
        over_disk = measure.Spread.of([turn.row["rate"] / turn.disk["rate"] for turn in measured])
        cpu_over_local = float(np.median([turn.row["cpu"] / turn.local["cpu"] for turn in measured]))
        waiting = float(np.median([turn.row["waiting"] for turn in measured]))
        fetched = float(np.median([turn.row["bytes"] for turn in measured])) / nbytes
        rows.append(
            {
                "shards": name,
                **speed.columns("img/s"),
                "of local": f"{over_local.median:.2f} ({over_local.low:.2f} - {over_local.high:.2f})",
                "of local disk": f"{over_disk.median:.2f} ({over_disk.low:.2f} - {over_disk.high:.2f})",
                "CPU": f"{cpu_over_local:.2f}",
                "waiting": f"{waiting:.0%}",
                "bytes": f"{fetched:.2f}",
            }
        )
        record = {
            "benchmark": "remote",
            "row": name,
            "images": args.samples,
            "bytes": nbytes,
            "shards": shards,
            "window": args.window,
            "batch_size": args.batch_size,
            "size": args.size,
            "workers": workers,
            "shared_core": args.shared_core,
            "cache": "a fifth" if name.startswith("cold") else "all" if name == "warm" else None,
            **speed.fields("images_per_second"),
            **cpu.fields("cpu_microseconds"),
            **over_local.fields("over_local"),
            **over_disk.fields("over_local_disk"),
            "cpu_over_local": round(cpu_over_local, 3),
            "waiting_share": round(waiting, 4),
            "fetched_over_data": round(fetched, 4),
            "data": args.data.resolve().name,
            "environment": measure.environment(),
        }
        measure.append(args.out, record)
    measure.show(Console(width=140), f"{args.samples} images, {shards} shards of {nbytes / shards / 1e6:.0f} MB", rows)


if __name__ == "__main__":
    main()
