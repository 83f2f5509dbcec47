"""Which parquet files of a dataset repository belong to which configuration and split, and what its card says of them.

The card's `configs` decide; else names of files and folders, as in data/train-00000-of-00010.parquet and
CONFIG/SPLIT/0000.parquet. A repository without parquet files is read from the branch that the hub converts it to.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastimg.errors import UsageError, nearest
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.system.hub import asking_hub

from .ranges import HubFile
from .reference import HubReference

CONVERTED = "refs/convert/parquet"
_DEFAULT = "default"
_FOLDER = "data"  # that holds files of no configuration

Splits = dict[str, list[str]]  # paths by split


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """A configuration of a dataset at a commit."""

    reference: HubReference  # with the configuration, if there are several, and the commit
    splits: dict[str, list[HubFile]]
    features: dict[str, Any]  # as in the metadata of parquet files; empty if the card has none
    remarks: tuple[str, ...]


def open_repository(reference: HubReference) -> HubDataset:
    """Ask the hub for the commit, the card and the files of a dataset. Raises UsageError, UserError, DataError."""
    from huggingface_hub import HfApi, RepoFile, hf_hub_url

    api = HfApi()
    remarks = []
    with asking_hub(str(reference)):
        info = api.dataset_info(reference.repository, revision=reference.revision)
        files = _parquets(api.list_repo_tree, RepoFile, reference.repository, str(info.sha))
        card: dict[str, Any] = info.card_data.to_dict() if info.card_data else {}  # type: ignore[no-untyped-call]  # of its
        stated: list[Any] = card.get("configs") or []
        if not files and reference.revision is None:
            info = api.dataset_info(reference.repository, revision=CONVERTED)
            files = _parquets(api.list_repo_tree, RepoFile, reference.repository, str(info.sha))
            stated = []
            remarks.append(f"{reference}: has no parquet files; reading those that the hub made ({CONVERTED})")
    if not files:
        raise DataError(f"{reference}: has no parquet files, and only these are read; convert it with its own tools")
    configs = _stated(stated, sorted(files)) or _by_names(sorted(files))
    name = _chosen(reference, configs, stated)
    stated_config = name if len(configs) > 1 or reference.config else None
    pinned = HubReference(reference.repository, stated_config, str(info.sha))
    splits, unused = _known(reference, configs[name])
    if unused:
        remarks.append(f"{reference}: split {', '.join(unused)} left out: not a split for training, validation or test")

    def opened(path: str) -> HubFile:
        url = hf_hub_url(reference.repository, path, repo_type="dataset", revision=pinned.revision)
        return HubFile(f"hf://datasets/{reference.repository}/{path}", path, url, files[path])

    return HubDataset(
        reference=pinned,
        splits={split: [opened(path) for path in paths] for split, paths in splits.items()},
        features=_features(card.get("dataset_info"), name),
        remarks=tuple(remarks),
    )


def _parquets(list_tree: Any, kind: type[Any], repository: str, commit: str) -> dict[str, int]:
    """The parquet files of a commit, and their sizes in bytes."""
    tree = list_tree(repository, recursive=True, revision=commit, repo_type="dataset")
    entries = (entry for entry in tree if isinstance(entry, kind) and entry.path.lower().endswith(".parquet"))
    return {entry.path: entry.size for entry in entries}


def _stated(configs: Sequence[Mapping[str, Any]], files: Sequence[str]) -> dict[str, Splits]:
    """The files of each split of each configuration, as the card's `configs` give them; empty ones are left out."""
    found: dict[str, Splits] = {}
    for config in configs:
        folder = str(config.get("data_dir") or "").strip("./")
        given = config.get("data_files") or ([f"{folder}/**"] if folder else [])
        given = [given] if isinstance(given, str | Mapping) else given
        splits: Splits = {}
        for item in given:
            split, patterns = (item.get("split", "train"), item["path"]) if isinstance(item, Mapping) else ("", item)
            for pattern in [patterns] if isinstance(patterns, str) else patterns:
                inside = f"{folder}/{pattern}" if folder and not pattern.startswith(f"{folder}/") else pattern
                for path in filter(re.compile(_pattern(inside)).fullmatch, files):
                    of_split = splits.setdefault(split or _split_of(path), [])
                    of_split += [path] * (path not in of_split)
        if splits:
            found[str(config.get("config_name", _DEFAULT))] = splits
    return found


def _pattern(glob: str) -> str:
    """A regular expression for a glob in which `**` crosses folders and `*` does not."""
    glob = glob.removeprefix("./")
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]*\])", glob)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        known.get(part) or (fnmatch.translate(part)[4:-3] if part[:1] == "[" else re.escape(part)) for part in parts
    )


def _by_names(files: Sequence[str]) -> dict[str, Splits]:
    """The same by names: a folder at the top is a configuration, unless it is data/ or named like a split."""
    found: dict[str, Splits] = {}
    for path in files:
        folders = path.split("/")[:-1]
        top = folders[0] if folders else _FOLDER
        config = _DEFAULT if top == _FOLDER or top.lower() in SPLIT_FOLDERS else top
        found.setdefault(config, {}).setdefault(_split_of(path), []).append(path)
    return found


def _split_of(path: str) -> str:
    """The split that a file's name says, else its folders from the innermost; train if none does."""
    *folders, name = path.lower().removesuffix(".parquet").split("/")
    for part in (name, *reversed(folders)):
        words: list[str] = re.split(r"[^a-z]+", part)
        if split := next((word for word in words if word in SPLIT_FOLDERS), None):
            return split
    return "train"


def _chosen(reference: HubReference, configs: Mapping[str, Splits], stated: Sequence[Mapping[str, Any]]) -> str:
    if reference.config is not None:
        if reference.config not in configs:
            raise UsageError(
                f"{reference}: no configuration {reference.config!r}; it has {', '.join(configs)}"
                f"{nearest(reference.config, configs)}"
            )
        return reference.config
    marked = [str(config.get("config_name")) for config in stated if config.get("default")]
    first = next(iter(configs))
    for name in [*marked, _DEFAULT, *([first] if len(configs) == 1 else [])]:
        if name in configs:
            return name
    raise UsageError(
        f"{reference}: has several configurations ({', '.join(configs)}); choose one, as in "
        f"hf://datasets/{reference.repository}:{first}"
    )


def _known(reference: HubReference, splits: Splits) -> tuple[Splits, list[str]]:
    """The splits under our names, and the names of those that are left out. A single split is for training."""
    if len(splits) == 1:
        return {"train": next(iter(splits.values()))}, []
    known: Splits = {}
    unused = []
    for split, paths in splits.items():
        name = SPLIT_FOLDERS.get(split.lower())
        if name is None:
            unused.append(split)
        elif name in known:
            raise DataError(f"{reference}: {split} is a second split for {name}; choose a configuration without it")
        else:
            known[name] = paths
    return known, unused


def _features(stated: Any, config: str) -> dict[str, Any]:
    """The card's features, written as in the metadata of parquet files: only what names classes or marks images."""
    infos = [stated] if isinstance(stated, Mapping) else stated if isinstance(stated, list) else []
    own = next((info for info in infos if info.get("config_name", _DEFAULT) == config), None)
    own = own or (infos[0] if len(infos) == 1 else {})
    columns = own.get("features") if isinstance(own, Mapping) else None
    found = {}
    for column in columns if isinstance(columns, list) else ():
        inner = column.get("sequence") or column.get("list")
        feature = _feature(inner if isinstance(inner, Mapping) else column)
        if feature is not None:
            found[str(column.get("name"))] = {"_type": "Sequence", "feature": feature} if inner else feature
    return found


def _feature(column: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = column.get("dtype", column)
    if kind == "image":
        return {"_type": "Image"}
    names = kind.get("class_label", {}).get("names") if isinstance(kind, Mapping) else None
    if isinstance(names, Mapping):
        names = [names[number] for number in sorted(names, key=int)]
    return {"_type": "ClassLabel", "names": [str(name) for name in names]} if names else None
