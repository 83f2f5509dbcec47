"""A URL as the destination of a conversion: a staging folder here, and what the store holds meanwhile.

    staging/shards/       the folder that the conversion writes into, with its journal
    staging/uploaded      the ledger of what the store has
    staging/facts/        what derived files need of tars that are no longer here

In the store `convert.json`, the journal's first line, marks a conversion that has not finished. dataset.json is written
last.
"""

import contextlib
import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fastimg.config.commands import Convert
from fastimg.convert.description import with_digests
from fastimg.convert.destination import CHANGED, GIVE_UP, admit
from fastimg.convert.journal import DestinationState, Finished, Held, Journal, held_by, is_made
from fastimg.convert.shards.base import Base, as_made
from fastimg.errors import UserError
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.derived.field_columns import field_columns, fields_of_samples
from fastimg.loaders.containers.derived.kept import DerivedPlace
from fastimg.loaders.containers.derived.records import RECORD, fingerprint_of, keep_records
from fastimg.loaders.containers.derived.target_columns import columns_of_notes, target_columns
from fastimg.loaders.containers.description import declared_targets, stated_fields
from fastimg.loaders.containers.fields import FieldColumn, StoredField
from fastimg.loaders.containers.targets import Target, TargetColumn, first_class
from fastimg.loaders.containers.tars.shards import index_path
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.mirrors import open_mirror
from fastimg.loaders.remote.stores import DeniedError, StoredObject
from fastimg.loaders.remote.writable import WritableFolder

from .node_delivery import DeliveredShard, NodeDelivery
from .shard_delivery import DeliveredFile, ShardFacts, deliver, delivering, staging_of
from .stored_base import StoredBase
from .temporary_objects import TemporaryObjects
from .uploads import Ledger, ShardUploads

_MARK = "convert.json"
_DESCRIPTION = "dataset.json"


class StoreDestination:
    """Where a conversion to `url` writes, and how that gets there. Raises DataError for a URL that cannot be."""

    def __init__(
        self, url: str, cache_dir: Path | None, options: Mapping[str, str], cache_limit: str | None = None
    ) -> None:
        self.url = url
        self._base: StoredBase | None = None  # the dataset that is added to
        self._replaced: Base | None = None  # the one that stays until this one is complete
        self._cache = cache_dir, cache_limit, dict(options)
        self.staging = staging_of(url, cache_dir)
        self.folder = self.staging / "shards"
        self._cache_dir = None if cache_dir is None else cache_dir.absolute()
        self._options = dict(options)
        self._store = WritableFolder(url, options)
        self._ledger = Ledger(self.staging / "uploaded")
        self._facts = ShardFacts(self.staging / "facts")
        self._uploads: ShardUploads | None = None

    def base(self) -> Base:
        """The dataset to add to. Raises UserError if there is none, or it cannot be added to."""
        if not any(each.name == _DESCRIPTION for each in self._store.contents()):
            raise UserError(f"{self.url}: no dataset to append to; leave out --append to make a new one")
        self._base = StoredBase(open_mirror(self.url, *self._cache))
        return self._base.base

    def replaced(self, flags: Convert) -> Base | None:
        """The dataset that is there, if it stays until the new one is complete. Raises DataError."""
        if not (flags.resume or flags.overwrite):
            return None
        held = self._held()
        goes_on = flags.resume and held.state is DestinationState.REPLACING
        if not held.sha256 or not (goes_on or (flags.overwrite and not flags.delete_first)):
            return None
        described = self._store.read(_DESCRIPTION)
        try:
            made = as_made(json.loads(described), f"{self.url}/{_DESCRIPTION}")
        except DataError:  # nobody can read it: nothing is lost
            return None
        self._replaced = Base(self.folder, made, hashlib.sha256(described).hexdigest())
        return self._replaced

    @property
    def names_in_use(self) -> Collection[str]:
        """The names of shards that stay until the end: new ones get others."""
        return self._replaced.shard_files if self._replaced else ()

    def _held(self) -> Held:
        return held_by({each.name for each in self._store.contents()}, self._store.read)

    def admit(self, flags: Convert, options: dict[str, Any] | None = None) -> DestinationState:
        """What the store holds. Raises UserError unless a conversion with these flags and options may begin or go on.

        A conversion that was killed before it marked the store has not begun.
        """
        base = self._base.base if self._base else None
        state = admit(self._held(), self.url, flags, options, base)
        goes_on = flags.resume and state in (
            DestinationState.UNFINISHED,
            DestinationState.APPENDING,
            DestinationState.REPLACING,
        )
        if goes_on and not (self.folder / _MARK).exists():
            again = GIVE_UP if base else "start again with --overwrite"
            raise UserError(
                f"{self.url}: holds an unfinished conversion whose journal is not in {self.folder}; continue it on the "
                f"machine that began it, with the same --cache-dir, or {again}"
            )
        return state

    def bring_betons(self, grown: Collection[str], derived: bool, say: Callable[[str], object]) -> dict[str, Path]:
        """The .beton files that an append needs, fetched, by split: of those that grow.

        With `derived`, targets or fields are derived of all splits, so that all lie in the staging folder, too. Raises
        DataError.
        """
        assert self._base is not None
        betons = self._base.bring_betons(grown, derived, say)
        for split, path in betons.items():
            if derived and split not in grown:
                (self.folder / path.name).symlink_to(path)
        return betons

    def description(self) -> dict[str, Any]:
        """dataset.json of the dataset that is there."""
        description: dict[str, Any] = json.loads(self._store.read(_DESCRIPTION))
        return description

    def delivered(self) -> frozenset[str]:
        """The tars that are whole in the store, with their indexes: as they were when they were verified."""
        good = self._good()
        tars = (name for name in good if name.endswith(".tar"))
        return frozenset(name for name in tars if index_path(Path(name)).name in good and self._facts.has(name))

    def _good(self) -> set[str]:
        """The files that are in the store as they were when they were verified."""
        there = {each.name: each for each in self._store.contents()}
        return {name for name, file in self._ledger.read().items() if file.is_(there.get(name))}

    def clear(self) -> None:
        """Delete what conversions have written, dataset.json first, and forget what was uploaded.

        What is added to stays, and what is replaced in the end.
        """
        self._ledger.clear()
        shutil.rmtree(self.staging / "facts", ignore_errors=True)
        kept = self._kept
        names = [each.name for each in self._store.contents() if is_made(each.name) and each.name not in kept]
        self._store.delete(sorted(names, key=lambda name: (name != _DESCRIPTION, name == _MARK, name)))

    def begin(self, journal: Journal, content: Content, notes: bool, delivered: Collection[str] = ()) -> None:
        """Mark the store, and upload each shard that the journal has or gets; `notes` are needed for targets, fields.

        Shards that were finished and not `delivered` are uploaded first. A kill may have left files of those that
        were; they are deleted.
        """
        with delivering(self._remedy):
            self._store.put(_MARK, (self.folder / _MARK).read_bytes().splitlines(keepends=True)[0])
        self._uploads = uploads = ShardUploads(self._store, self._ledger)

        def upload(shard: Finished) -> None:
            if shard.part is None and shard.name and (self.folder / shard.name).exists():
                tar = self.folder / shard.name
                keep = partial(self._facts.keep, tar, shard.index_sha256, content, notes)
                with delivering(self._remedy):
                    uploads.add([index_path(tar), tar], keep)

        for shard in list(journal.finished.values()):
            if shard.name in delivered:
                for file in (self.folder / shard.name, index_path(self.folder / shard.name)):
                    file.unlink(missing_ok=True)
            else:
                upload(shard)
        journal.listener = upload

    def for_nodes(self, content: Content, notes: bool) -> NodeDelivery:
        """What uploads shards from the nodes of a cluster; see `begin`."""
        return NodeDelivery(
            url=self.url,
            options=self._options,
            cache_dir=self._cache_dir,
            word=secrets.token_hex(8),
            content=content,
            notes=notes,
            remedy=self._remedy,
        )

    def temporary(self) -> TemporaryObjects:
        """What nodes exchange with this machine by way of the store."""
        return TemporaryObjects(self.url, self._options, self.folder, self._remedy)

    def take(self, shard: DeliveredShard) -> None:
        """Remember a shard that a node has uploaded."""
        self._facts.take(shard.facts)
        self._ledger.add(shard.files)

    @property
    def _remedy(self) -> str:
        return f"what is finished stays there and in {self.staging}: go on with resume=True"

    def finish(self, description: dict[str, Any]) -> None:
        """Upload what is left, see that everything is there, and write dataset.json. Raises DataError.

        In the staging folder nothing is left.
        """
        assert self._uploads is not None
        names = Base.of(description).files - {_DESCRIPTION}
        with delivering(self._remedy):
            self._uploads.finish()
            if description["container"] == "tar":
                if self._base is not None:
                    self._base.keep_facts(self._facts, bool(description.get("targets") or description.get("fields")))
                self._derive(description)
                description = with_digests(self.folder, description)
            good = self._good() | (self._base.shard_files if self._base else set())
            left = sorted(name for name in names if name not in good and (self.folder / name).exists())
            self._ledger.add([deliver(self.folder / name, self._store) for name in left])
            self._check(description, names)
            self._store.put(_DESCRIPTION, (json.dumps(description, indent=1) + "\n").encode())
            self.tidy(description)

    def undo(self) -> None:
        """Delete what was uploaded, as far as the store lets it be deleted."""
        with contextlib.suppress(DataError):
            self.clear()
        shutil.rmtree(self.staging, ignore_errors=True)

    def tidy(self, description: dict[str, Any]) -> None:
        """Delete the staging folder, and what is left beside a finished dataset: replaced files, the mark last."""
        names = {each.name for each in self._store.contents()}
        if _MARK in names:
            stated = {shard["name"] for split in description["splits"].values() for shard in split["shards"]}
            kept = Base.of(description).files | {_MARK}
            if stated <= names:  # otherwise the description may have been damaged on its way here
                self._store.delete(sorted(name for name in names if is_made(name) and name not in kept))
            with contextlib.suppress(DeniedError):  # nobody reads it beside a dataset
                self._store.delete([_MARK])
        shutil.rmtree(self.staging, ignore_errors=True)

    def close(self) -> None:
        """End the threads."""
        if self._uploads is not None:
            self._uploads.close()
        if self._base is not None:
            self._base.close()

    @property
    def _kept(self) -> set[str]:
        """The files of a dataset that is there meanwhile."""
        there = self._base.base if self._base else self._replaced
        return there.files if there else set()

    def _check(self, description: dict[str, Any], names: set[str]) -> None:
        """Raise DataError unless the store lists every file of the dataset as it was verified; delete all others.

        What is added to must not have changed.
        """
        if self._base is not None:
            now = hashlib.sha256(self._store.read(_DESCRIPTION)).hexdigest()
            if now != self._base.base.sha256:
                raise DataError(f"{self.url}: {CHANGED}")
        there: dict[str, StoredObject] = {each.name: each for each in self._store.contents()}
        known: dict[str, DeliveredFile] = self._ledger.read()
        if self._base is not None:  # whose files are there, with the sizes that it states
            known = {name: DeliveredFile(*there[name]) for name in self._base.shard_files & there.keys()} | known
        sizes: dict[str, int] = {}
        for split in description["splits"].values():
            for shard in split["shards"]:
                sizes[shard["name"]] = shard["bytes"]
                if "index_bytes" in shard:
                    sizes[index_path(Path(shard["name"])).name] = shard["index_bytes"]
        for name in sorted(sizes.keys() | (names & known.keys())):
            file = known.get(name)
            if file is None or not file.is_(there.get(name)) or sizes.get(name, file.size) != file.size:
                again = "" if self._base else "; convert again with overwrite=True"
                raise DataError(
                    f"{self.url}/{name}: is not in the store as it was uploaded: somebody else writes there{again}"
                )
        kept = {*names, _DESCRIPTION, _MARK}
        kept |= self._kept  # the dataset that is there until dataset.json is replaced
        stale = {name for name in there if is_made(name) and name not in kept}
        if self._base is not None:  # its large photographs are numbered anew
            stale |= {name for name in self._base.derived_of(description) if name in there and name not in known}
        if self._replaced is not None:
            derived = self._replaced.files - self._replaced.shard_files - {_DESCRIPTION}
            stale |= {name for name in derived if name in there and name not in known}
        self._store.delete(sorted(stale))

    def _derive(self, description: dict[str, Any]) -> None:
        """The derived files of tars, which are not here."""
        content: Content = "text" if description.get("content") == "text" else "images"
        targets = declared_targets(description)
        own = first_class(targets)
        others = [target for target in targets if target is not own]
        fields = list(stated_fields(description).values())
        for split, stated in description["splits"].items():
            shards = stated["shards"]
            names = [shard["name"] for shard in shards]
            place = DerivedPlace(folder=self.folder, split=split)
            fingerprint = fingerprint_of([shard["sha256"] + shard["index_sha256"] for shard in shards])
            facts = self._facts
            made = facts.records(names, RECORD)
            keep_records(self.folder, split, fingerprint, content, made)
            if self._base is None or split not in self._base.base.description["splits"]:
                facts.derive_photographs(self.folder, split, names, made, fingerprint)
            if others:
                derive = partial(_columns, facts, names, others)
                target_columns(place, others, len(made), fingerprint, derive)
            if fields:
                fill = partial(_fields, facts, shards, fields)
                field_columns(place, fields, len(made), fingerprint, None, fill)


def _columns(facts: ShardFacts, names: list[str], targets: list[Target]) -> list[TargetColumn]:
    return columns_of_notes(facts.notes(names), targets)


def _fields(facts: ShardFacts, shards: list[dict[str, Any]], fields: list[StoredField]) -> list[FieldColumn]:
    return fields_of_samples(facts.samples(shards), facts.notes([shard["name"] for shard in shards]), fields)
