"""What a URL as DST makes of the flags of a conversion."""

from dataclasses import replace
from pathlib import Path

from fastimg.config.commands import Convert
from fastimg.config.rule_tables.reading import CONVERT
from fastimg.config.rules import refuse
from fastimg.config.url_arguments import HUB
from fastimg.convert.sources.resolve import refuse_absent
from fastimg.errors import UsageError
from fastimg.loaders.remote.stores import url_of

from .store_destination import StoreDestination


def staged(config: Convert) -> tuple[Convert, StoreDestination | None]:
    """The flags with the staging folder as DST, and the store; None if DST is on this machine.

    Raises UsageError for what a URL cannot be, and DataError for one that cannot be written to.
    """
    refuse(config, CONVERT)
    given: tuple[Path, ...] = (config.src, config.dst, *config.more)
    sources = given[:-1]
    url = url_of(given[-1])
    if url is None:
        return config, None
    for source in (url_of(source, (HUB,)) for source in sources):
        if source is not None and f"{url}/".startswith(f"{source.rstrip('/')}/"):
            raise UsageError(f"{url}: the destination lies in the source {source}; give a URL outside it")
    for path in sources:
        if url_of(path, (HUB,)) is None:
            refuse_absent(path)  # before a store is asked
    options = dict(option.split("=", 1) for option in config.storage_option)
    store = StoreDestination(url, config.cache_dir, options, config.cache_limit)
    paths = (*sources, store.folder)
    return replace(config, src=paths[0], dst=paths[1], more=paths[2:]), store
