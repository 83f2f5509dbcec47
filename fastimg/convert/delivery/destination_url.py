"""What a URL as DST makes of the flags of a conversion."""

from dataclasses import replace
from pathlib import Path

from fastimg.config.commands import Convert
from fastimg.config.rule_tables.reading import CONVERT
from fastimg.config.rules import refuse
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
    for source in sources:
        if url := url_of(source):
            raise UsageError(f"convert {url}: a source is read from this machine; copy it here, and give the folder")
    url = url_of(given[-1])
    if url is None:
        return config, None
    if config.append:
        raise UsageError(f"--append {url}: a dataset in an object store is not added to; --merge both into a new one")
    options = dict(option.split("=", 1) for option in config.storage_option)
    store = StoreDestination(url, config.cache_dir, options)
    paths = (*sources, store.folder)
    return replace(config, src=paths[0], dst=paths[1], more=paths[2:]), store
