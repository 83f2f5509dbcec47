"""Where the directories of runs are: of a run in an object store a folder of each machine, with the same run in all."""

import shlex
from collections.abc import Callable
from pathlib import Path

from fastimg.config.commands import Train
from fastimg.config.rule_tables.elsewhere import SHARDED_APART
from fastimg.errors import UsageError
from fastimg.loaders.remote.stores import url_of
from fastimg.models.ranks import Ranks

from .manifests import Manifest
from .run_uploads import RunUploads
from .stored_runs import fetch_exactly, manifest_of, options_of, output_folder, staged_runs, step_here


def folder_of_runs(config: Train, ranks: Ranks, say: Callable[[str], None]) -> Path:
    """The folder of this machine in which the run's directory is; all ranks call it.

    Of a URL it has the run that is resumed. Several ranks, which may be on several machines, resume what the store has:
    if rank 0's machine has a later checkpoint, it is uploaded first. Raises UsageError, UserError and DataError.
    """
    url = url_of(config.output)
    if url is not None and config.strategy == "fsdp" and ranks.local_world_size < ranks.world_size:
        raise UsageError(f"--strategy fsdp: {SHARDED_APART}")
    if url is None or ranks.world_size == 1 or config.resume is None or config.name is None or config.dry_run:
        return output_folder(config.output, config.name, config.resume, config)
    run, options = f"{url}/{config.name}", options_of(config)
    folder = staged_runs(url, config.cache_dir)
    stated = ""
    if ranks.first:
        manifest = manifest_of(run, options)
        if step_here(folder / config.name) > (-1 if manifest is None else manifest.step):
            RunUploads(run, folder / config.name, options, say).finish(say)
            manifest = manifest_of(run, options)
        stated = "" if manifest is None else manifest.to_json().decode()
    stated = ranks.broadcast(stated)
    fetch_exactly(run, options, config.cache_dir, Manifest.of_json(stated.encode(), run) if stated else None)
    return folder


def resuming(config: Train, run: Path, ranks: int) -> str:
    """The command that goes on with a run of so many ranks. It names the run: there may be newer ones by then.

    How several ranks were started is not known here; options of a store are not repeated, since they may hold secrets.
    """
    url = url_of(config.output)
    here = Path.cwd()
    place = run.relative_to(here) if run.is_relative_to(here) else run
    named = shlex.quote(str(place) if url is None else f"{url}/{run.name}")
    if ranks > 1:
        return f"the same command with --resume {named}"
    options = " with the same --storage-option" if config.storage_option else ""
    return f"`fastimg train --resume {named}`{options}"


def chosen_by_first(directory: Path, output: Path, config: Train, ranks: Ranks) -> Path:
    """The run's directory that rank 0 has chosen in `output`, on this machine; all ranks call it."""
    if url_of(config.output) is None:
        return Path(ranks.broadcast(str(directory)))
    return output / ranks.broadcast(directory.name)
