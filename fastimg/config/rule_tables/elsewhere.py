"""Rules of data, runs and results in an object store."""

from typing import Any

from fastimg.config.benchmarking import Bench, Doctor
from fastimg.config.commands import Convert, Embed, Eval, Export, Inspect, Predict
from fastimg.config.rules import Check, Needs, Range, Rule
from fastimg.config.searching import Suggest
from fastimg.config.training import Train
from fastimg.config.url_arguments import HUB, refuse_options
from fastimg.loaders.remote.cache.sizes import parse_size
from fastimg.loaders.remote.origins import origin_of
from fastimg.loaders.remote.stores import url_of

# The settings that name what a command writes, where that may be a URL; a run's are apart.
_RESULTS: dict[type, tuple[str, ...]] = {
    Embed: ("dst",),
    Export: ("output",),
    Predict: ("csv", "sheet"),
    Eval: ("output",),
    Inspect: ("output",),
    Bench: ("output",),
    Suggest: ("output",),
}


def _is_elsewhere(config: Any) -> bool:
    """Whether the data is in an object store."""
    if isinstance(config, Predict):
        return any(url_of(source) is not None for source in config.sources)
    if isinstance(config, Export):
        return config.check_data is not None and url_of(config.check_data) is not None
    if isinstance(config, Doctor):
        return url_of(config.folder) is not None
    data = config.dataset if isinstance(config, Eval) else getattr(config, "data", None)
    return data is not None and url_of(data) is not None


def _has_run_elsewhere(config: Any) -> bool:
    """Whether a run, a model or a file of settings is in an object store: one that is written, or one that is read."""
    if isinstance(config, Train):
        runs: tuple[Any, ...] = (config.output, config.resume or "")
    else:
        runs = config.runs if isinstance(config, Eval) else (getattr(config, "checkpoint", ""),)
    models = (getattr(config, name, None) for name in ("weights", "teacher", "teacher_weights", "config"))
    return any(origin_of(path) is not None for path in (*runs, *models) if path is not None)


def uses_store(config: Any) -> bool:
    written = [getattr(config, name) for name in _RESULTS.get(type(config), ())]
    writes = any(result is not None and url_of(result) is not None for result in written)
    return writes or _is_elsewhere(config) or _has_run_elsewhere(config)


def check_output(config: Train) -> str | None:
    if url_of(config.output) is None or config.dry_run:
        return None
    if config.name is None:
        return "a run in an object store has a name that you give; add --name"
    if any(character in config.name for character in "/?%") or config.name in (".", ".."):
        return f"a run in an object store has a name without /, ? and %; change --name {config.name}"
    return None


# Why sharded checkpoints do not go to a store from several machines.
SHARDED_APART = (
    "each rank writes its part of a checkpoint beside those of the others, into a folder that all machines share; give "
    "such a folder as --output, not a URL"
)


def check_cluster_and_store(config: Train) -> str | None:
    if config.backend == "local" or url_of(config.output) is None or config.strategy != "fsdp":
        return None
    return SHARDED_APART


def goes_elsewhere(config: Convert) -> bool:
    """Whether the dataset is written to an object store."""
    return url_of((config.dst, *config.more)[-1]) is not None


def _sources(config: Convert) -> tuple[Any, ...]:
    return (config.src, config.dst, *config.more)[:-1]


def reads_elsewhere(config: Convert) -> bool:
    """Whether a source is in an object store."""
    return any(url_of(source, (HUB,)) is not None for source in _sources(config))


def reads_shards_elsewhere(config: Convert) -> bool:
    """Whether shards may be fetched: of a source, or of the dataset that is added to."""
    return reads_elsewhere(config) or (config.append and goes_elsewhere(config))


def converts_urls(config: Convert) -> bool:
    """Whether a source or the dataset is in an object store."""
    return reads_elsewhere(config) or goes_elsewhere(config)


def _loader_elsewhere(config: Any) -> str | None:
    if not _is_elsewhere(config) or config.loader in ("auto", "native", "synthetic"):
        return None
    return "reads only data on this machine, and DATA is a URL; leave it out"


def check_loaders_elsewhere(config: Any) -> str | None:
    if not _is_elsewhere(config) or config.loaders in (None, "none"):
        return None
    return "loaders are compared on data of this machine, and DATA is a URL; leave it out"


def check_cache_limit(config: Any) -> str | None:
    if config.cache_limit is None:
        return None
    try:
        parse_size(config.cache_limit)
        return None
    except ValueError:
        return "give bytes, or a number with KB, MB, GB or TB, as in 200GB"


def check_storage_option(config: Any) -> str | None:
    refuse_options(config.storage_option)
    return None


def _is_here(path: Any) -> bool:
    return url_of(path) is None


def written_here(field: str) -> Range:
    """A folder that a command writes on this machine alone."""
    return Range(field, _is_here, "a folder on this machine; what is written there can be copied to a store")


_A_URL = "a URL as DATA, run or result"

ELSEWHERE: tuple[Rule, ...] = (  # data in an object store
    Needs("cache_limit", _is_elsewhere, "a URL as DATA"),
    Needs("storage_option", uses_store, _A_URL),
    Check("cache_limit", check_cache_limit),
    Check("storage_option", check_storage_option),
)

LOADER_ELSEWHERE = Check("loader", _loader_elsewhere)

_CACHE_ELSEWHERE = Needs("cache_dir", uses_store, _A_URL)

RUN_FROM_STORE: tuple[Rule, ...] = (  # of commands that read a run, and no data
    _CACHE_ELSEWHERE,
    Needs("storage_option", uses_store, _A_URL),
    Check("storage_option", check_storage_option),
)

FROM_STORE: tuple[Rule, ...] = (_CACHE_ELSEWHERE, *ELSEWHERE)  # of commands that keep nothing else in a cache
