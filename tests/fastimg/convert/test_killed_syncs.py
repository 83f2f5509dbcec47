"""`convert` killed with SIGKILL while something is put on disk: nothing looks complete, `--resume` gives its bytes."""

import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders.containers.atomic import temporary

from .conversions import contents
from .field_samples import FORMATS

# Files are synced while they are written, too: after every kilobyte.
SCRIPT = """
import os, signal, sys
from fastimg import cli
from fastimg.loaders.containers import atomic
from fastimg.loaders.containers.tars import shards

fsync, synced = os.fsync, []

def fsync_or_die(file):
    synced.append(1)
    if len(synced) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return fsync(file)

os.fsync, atomic._EARLY, shards._TOGETHER = fsync_or_die, 1 << 10, 1 << 10
sys.exit(cli.run(sys.argv[2:]))
"""


@FORMATS
@pytest.mark.parametrize("number", [4, 5, 7, 10, 13])
def test_kill_9_between_writing_and_syncing(
    number: int, container: Any, config: Convert, console: Console, python: str, tmp_path: Path
) -> None:
    config = replace(config, format=container, shard_size="8KB", workers="2")
    convert(replace(config, dst=tmp_path / "whole"), console)
    script = tmp_path / "dies.py"
    script.write_text(SCRIPT)
    words = ["--format", container, "--shard-size", "8KB", "--workers", "2", "--tile", "off"]
    command = [python, script, str(number), "convert", config.src, config.dst, *words]
    died = subprocess.run(command, capture_output=True, timeout=300)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert not (config.dst / "dataset.json").exists() and (config.dst / "convert.json").exists()
    for shard in config.dst.glob("train*.tar"):
        assert shard.read_bytes() == (tmp_path / "whole" / shard.name).read_bytes()
        assert not temporary(shard).exists()
    convert(replace(config, resume=True), console)
    assert contents(config.dst) == contents(tmp_path / "whole")
