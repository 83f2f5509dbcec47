"""Uploads a run behind its training: after each checkpoint what `last` and `best` point at, the log, the settings."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from .folder_uploads import FolderUploads

_LINKS = ("last", "best")


class RunUploads(FolderUploads):
    """The uploads of one run's directory. `note` is called when a checkpoint is on disk."""

    kind = "run"
    moment = "with the next checkpoint"
    again = "the same command with --resume auto uploads it"
    other = "--name"

    def collect(self, folder: Path) -> None:
        """Links to the files of checkpoints, which never change, and copies of all others."""
        collect_run(self.directory, folder)

    def step(self, links: Mapping[str, str]) -> int:
        """That of the last checkpoint."""
        return int(links["last"].rpartition("/")[2].partition("-")[0]) if "last" in links else 0


def collect_run(run: Path, folder: Path) -> None:
    """Copy the files of a run into a folder, and link what `last` and `best` point at. Raises OSError."""
    for file in run.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copyfile(file, folder / file.name)
    for link in _LINKS:
        if not (run / link).exists():
            continue
        target = os.readlink(run / link)
        (folder / link).symlink_to(target)
        for file in (run / target).rglob("*"):
            linked = folder / target / file.relative_to(run / target)
            if file.is_file() and not linked.exists():
                linked.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, linked)
