"""obstore's clients, from options as people give them: strings, under the names that obstore has for them."""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastimg.loaders.errors import DataError
from fastimg.loaders.extras import install
from fastimg.loaders.remote.urls import StoreURL

from .causes import first_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

READ_TIMEOUT = "30s"
CONNECT_TIMEOUT = "10s"

_CLIENT = frozenset(  # options of the connection; all others are those of the store
    (
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only"),
        *("http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only"),
        *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url"),
        *("randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent"),
    )
)
_PREFIX = re.compile("(aws|google|azure)_")  # which obstore allows before any name
_ENDPOINTS = {  # in the environment, by scheme
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_ADDRESSES = ("endpoint", "endpoint_url", "base_url")  # ends of the options that name a store's address
_UNFIT = re.compile(r'failed to parse "(.*)" as (\w+)')
_FIT = {"Duration": "a time with its unit, as in 30s", "boolean": "true or false"}


def opened(url: StoreURL, options: Mapping[str, str], retries: int) -> "ObjectStore":
    """The client of the folder at a URL. Raises DataError for options that obstore does not take, and without it."""
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise DataError(f"{url}: an object store is read with obstore: `{install('remote')}`") from error
    client: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT, "timeout": "1h"}
    store: dict[str, Any] = {}
    if _is_plain(url, options):
        client["allow_http"] = True
    for given, value in options.items():
        name = given.lower()
        bare = _PREFIX.sub("", name, count=1)
        if bare in _CLIENT:
            client[bare] = value
        else:
            store[name] = value
    if url.scheme != "file":
        store |= {"client_options": client, "retry_config": {"max_retries": retries}}
    try:
        return from_url(url.for_obstore, **store)
    except Exception as error:
        raise DataError(f"{url}: {_reason(error, options)}") from error


def encrypted(url: StoreURL, options: Mapping[str, str]) -> bool:
    """Whether TLS, or the disk, vouches for what is read from a URL: no byte of it can have been damaged on the way."""
    allowed = any(
        _PREFIX.sub("", name.lower(), count=1) == "allow_http" and value.lower() in ("true", "1", "yes")
        for name, value in options.items()
    )
    return url.scheme == "file" or not (allowed or _is_plain(url, options))


def _is_plain(url: StoreURL, options: Mapping[str, str]) -> bool:
    """Whether the store is spoken to without TLS, as its address says."""
    stated = [os.environ.get(name, "") for name in _ENDPOINTS.get(url.scheme, ())]
    given = [value for name, value in options.items() if name.lower().endswith(_ADDRESSES)]
    return any(address.startswith("http://") for address in (str(url), *given, *stated))


def _reason(error: Exception, options: Mapping[str, str]) -> str:
    line = first_line(error)
    if found := _UNFIT.search(line):
        names = [name for name, value in options.items() if value == found[1]]
        return f"{' or '.join(names) or found[1]}: give {_FIT.get(found[2], found[2])} with storage_options="
    if "builder error" in line and any(name.lower() == "proxy_url" for name in options):
        return "proxy_url is no address; check it, with storage_options="
    return f"{line}; check the URL and storage_options="
