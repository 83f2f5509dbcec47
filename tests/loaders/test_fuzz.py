"""Mutated files of every kind are read correctly or refused: only DataError, no crash, no hang, bounded memory.

python tests/loaders/test_fuzz.py KIND FIRST LAST [SEED]        cases FIRST to LAST - 1 of a KIND of COUNTS

Each case is determined by its kind, number and seed. Cases run in a separate process with a memory limit and an alarm
for each case; the file of a failed case is kept.
"""

import faulthandler
import os
import random
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

COUNTS = {"jpeg": 2000, "picture": 3000, "webp": 2000, "deep": 2000, "npy": 2000}
COUNTS |= {"tar": 1000, "idx": 1000, "beton": 1000}
SECONDS = 20  # for one case; the slowest takes a few hundredths
MEMORY = 256 << 20  # limit of a case's memory, in addition to the process's memory at its start


def run(kind, first, last, seed, folder):
    """Run cases; the current case's number is in `folder`/case, the file of a failed one in `folder`/failed.<kind>."""
    from fuzz_cases import KINDS  # absolute, as this runs as a script

    from fastimg.loaders.containers.derived import kept

    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    kept.replace_file = lambda path, content: None  # nothing is kept between cases
    place = folder / kind
    place.mkdir(exist_ok=True)
    cases = KINDS[kind](place)
    for _ in range(2):
        cases.check(cases.make(random.Random(0)), random.Random(0))  # everything is compiled and imported
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with (folder / "case").open("wb", buffering=0) as note:
        for number in range(first, last):
            draw = random.Random(f"{kind} {seed} {number}")
            os.pwrite(note.fileno(), b"%-9d" % number, 0)
            data = cases.make(draw)
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                cases.check(data, draw)
            except BaseException:
                (folder / f"failed.{kind}").write_bytes(data)
                raise
            finally:
                faulthandler.cancel_dump_traceback_later()
    print(kind, last - first, cases.close())
    return cases


@pytest.mark.parametrize("kind", COUNTS)
def test_read_correctly_or_refused(kind, tmp_path):
    command = [sys.executable, __file__, kind, "0", str(COUNTS[kind]), "0", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    case = (tmp_path / "case").read_text() if (tmp_path / "case").exists() else "none"
    assert ran.returncode == 0, f"case {case} of {kind}, see {tmp_path}: {ran.returncode}\n{ran.stderr[-3000:]}"
    print(ran.stdout)


if __name__ == "__main__":
    import tempfile

    kind, first, last, seed, folder = [*sys.argv[1:], *("0", tempfile.mkdtemp())[len(sys.argv) - 4 :]][:5]
    warnings.simplefilter("ignore")
    run(kind, int(first), int(last), int(seed), Path(folder))
