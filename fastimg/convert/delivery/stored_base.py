"""A dataset in an object store that a conversion adds to: its files stay, and what is derived is made anew."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from fastimg.convert.shards.base import read_base
from fastimg.errors import UserError
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.containers.tars.dataset import TarDataset
from fastimg.loaders.remote.cache.sizes import in_words
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.remote.mirrors import Lease, Mirror, wanted_shards
from fastimg.wording import plural

from .shard_delivery import ShardFacts


class StoredBase:
    """The dataset at the URL of a mirror. Raises UserError for one that is not added to, and DataError."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self.base = read_base(mirror.folder)
        self._leases: list[Lease] = []
        if self.base.inputs:
            raise UserError(f"{mirror.url}: images with texts beside them are added to in a folder; copy it here")

    @property
    def shard_files(self) -> set[str]:
        """The names of its tars and their indexes, or of its .beton files."""
        return self.base.shard_files

    def bring_betons(self, grown: Collection[str], everything: bool, say: Callable[[str], object]) -> dict[str, Path]:
        """Have .beton files in the cache, until `close`: of the splits that grow, or of all. Returns them by split.

        If no split grows, the smallest tells what fields there are. Raises DataError.
        """
        files = {split: wanted_shards(stated["shards"])[0] for split, stated in self.base.description["splits"].items()}
        needed = {split: file for split, file in files.items() if everything or split in grown}
        if not needed:
            split = min(files, key=lambda split: files[split].size)
            needed = {split: files[split]}
        if missing := [file for file in needed.values() if not self._mirror.has(file)]:
            size = in_words(sum(file.size for file in missing))
            say(f"fetching    {plural(len(missing), '.beton file')} of {self._mirror.url} ({size})")
        for file in needed.values():
            self._leases.append(self._mirror.lease(file))
        return {split: self._mirror.folder / file.name for split, file in needed.items()}

    def close(self) -> None:
        """Let the cache delete what was brought."""
        for lease in self._leases:
            lease.close()

    def keep_facts(self, facts: ShardFacts, notes: bool) -> None:
        """Keep what derived files need of its tars: with `notes` all of them are fetched once. Raises DataError."""
        for split, stated in self.base.description["splits"].items():
            shards = [shard for shard in stated["shards"] if not facts.has(shard["name"])]
            if not shards:
                continue
            dataset = open_dataset(self._mirror.folder, split)
            try:
                assert isinstance(dataset, TarDataset)
                files = fetched_files(dataset)
                assert files is not None
                if notes:
                    for tar, shard in zip(files.present(), stated["shards"], strict=True):
                        facts.keep(tar, shard["index_sha256"], self.base.content, notes)
                else:
                    facts.keep_records([shard["name"] for shard in stated["shards"]], dataset.records)
            finally:
                dataset.close()

    def derived_of(self, description: dict[str, Any]) -> set[str]:
        """The names of what was derived of the large photographs of those splits that have grown."""
        before = {split: stated["shards"] for split, stated in self.base.description["splits"].items()}
        grown = (name for name, stated in description["splits"].items() if stated["shards"] != before.get(name))
        return {f"{split}.{suffix}" for split in grown for suffix in ("ftil", "fdci")}
