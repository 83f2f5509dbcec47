"""A dataset in an object store that a conversion adds to: its files stay, and what is derived is made anew."""

from typing import Any

from fastimg.convert.description import read_base
from fastimg.errors import UserError
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.containers.tars.dataset import TarDataset
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.remote.mirrors import Mirror, wanted_indexes, wanted_shards

from .shard_delivery import ShardFacts


class StoredBase:
    """The dataset at the URL of a mirror. Raises UserError for one that is not added to, and DataError."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self.base = read_base(mirror.folder)
        if self.base.container == "beton":
            raise UserError(
                f"{mirror.url}: a .beton is written anew by whoever adds to it; --merge both into a new dataset"
            )
        if self.base.inputs:
            raise UserError(f"{mirror.url}: images with texts beside them are added to in a folder; copy it here")

    @property
    def _shards(self) -> list[dict[str, Any]]:
        return [shard for split in self.base.description["splits"].values() for shard in split["shards"]]

    @property
    def shard_files(self) -> set[str]:
        """The names of its tars and their indexes."""
        return {each.name for each in (*wanted_shards(self._shards), *wanted_indexes(self._shards))}

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
