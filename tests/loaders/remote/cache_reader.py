"""Reads all samples of a dataset, in several orders, for tests of several processes: `cache_reader.py SETTINGS`.

SETTINGS, as JSON: url, cache_dir, cache_limit, options, and orders, each a list of sample numbers; file_limit: bytes
that a file may have, as `ulimit -f` does. It prints `ready`, and waits for a line before it opens the dataset; then it
prints, for each order, a checksum of the samples by number.
"""

import hashlib
import json
import resource
import sys

from fastimg.loaders import open_dataset
from fastimg.loaders.containers import quick_sums
from fastimg.loaders.runtime.scratch import Scratch


def checksum(samples: list[bytes]) -> str:
    """Of samples that stand in the order of their numbers."""
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in samples)).hexdigest()


def main() -> None:
    quick_sums.BLOCK = 1000  # as the tests that write the shards have it
    asked = json.loads(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    if limit := asked.get("file_limit"):
        sys.dont_write_bytecode = True  # Python would leave modules that are cut off
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    dataset = open_dataset(
        asked["url"],
        cache_dir=asked["cache_dir"],
        cache_limit=asked["cache_limit"],
        storage_options=asked["options"],
    )
    scratch = Scratch()
    for order in asked["orders"]:
        found = {number: bytes(dataset.read(number, scratch)) for number in order}
        print(checksum([found[number] for number in sorted(found)]), flush=True)
    dataset.close()


if __name__ == "__main__":
    main()
