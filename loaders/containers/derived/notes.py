"""The notes of samples, their `.json`: what a sample states by name."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.tars.shards import index_path, parse_index
from fastimg.loaders.errors import ShardError


def notes_of_tars(shards: Iterable[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the note of every sample of our shards. Raises ShardError for a note that is not a JSON object."""
    for shard in shards:
        with shard.open("rb") as file:
            for sample in parse_index(index_path(shard), os.fstat(file.fileno()).st_size):
                member = next((member for member in sample if member.ext == "json"), None)
                text = b"{}" if member is None else os.pread(file.fileno(), member.size, member.offset)
                try:
                    note = json.loads(text)
                    if not isinstance(note, dict):
                        raise ValueError("it is not an object")
                except (ValueError, RecursionError) as error:
                    raise ShardError(
                        f"{shard}: {sample[0].name}: its .json cannot be read ({error}); convert again"
                    ) from error
                yield f"{shard}: {sample[0].name}", note


def notes_of_beton(reader: BetonFile) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the note of every sample of a .beton; the note is empty where it is not an object."""
    for index in range(len(reader)):
        note = reader.value("json", index)
        yield f"{reader.path}: sample {index}", note if isinstance(note, dict) else {}
