"""URLs in SRC, and the folders of this machine that stand for them while a conversion lists and reads them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fastimg.config.commands import Convert
from fastimg.config.url_arguments import HUB
from fastimg.errors import UsageError, UserError
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.cache.sizes import in_words
from fastimg.loaders.remote.listing import named_tars
from fastimg.loaders.remote.mirrors import mirror_at, open_mirror, with_urls
from fastimg.loaders.remote.stores import RemoteFolder, url_of
from fastimg.loaders.remote.trees import StoredTree, tree_of
from fastimg.loaders.remote.urls import StoreURL
from fastimg.loaders.runtime.cache import cache_folder
from fastimg.wording import plural

from .files import REQUESTS

_MANIFESTS = (".csv", ".tsv", ".jsonl", ".parquet", ".json")
_ANNOTATIONS = "annotations"
_HERE = "copy it here, and give the file or folder"
_DESCRIPTIONS = ("*.json", "*.yaml", "*.yml")  # at the top of a folder, which tell layouts of annotations apart

Tell = Callable[[str], None]


@contextmanager
def stand_ins(sources: Sequence[Path], config: Convert, tell: Tell) -> Iterator[tuple[Path, ...]]:
    """The sources, with paths of this machine in place of URLs. Errors raised meanwhile name the URLs.

    Raises UsageError for URLs that are no sources, and DataError for what is not there.
    """
    with ExitStack() as stack:
        try:
            paths = tuple(_stand_in(source, config, tell, stack) for source in sources)
            _refuse_limit(paths, config)
            yield paths
        except (DataError, UserError, UsageError) as error:
            error.args = (with_urls(str(error)), *error.args[1:])
            raise


def is_stand_in(path: Path) -> bool:
    """Whether a path stands for a URL: on this machine alone."""
    return tree_of(path) is not None or mirror_at(path) is not None


def _refuse_limit(paths: Sequence[Path], config: Convert) -> None:
    """Raise UsageError for --cache-limit where no shards are fetched."""
    if config.cache_limit is None or config.append or any(mirror_at(path) is not None for path in paths):
        return
    raise UsageError("--cache-limit has no effect: no source has shards, and nothing else is kept; leave it out")


def _stand_in(source: Path, config: Convert, tell: Tell, stack: ExitStack) -> Path:
    place = StoreURL.of(source, (HUB,))
    if place is None:
        return source
    url = str(place)
    if place.scheme == "file" and "{" not in url:
        return Path(place.path)
    options = dict(option.split("=", 1) for option in config.storage_option)
    suffix = Path(place.name).suffix.lower()
    if suffix == ".beton":
        raise UsageError(f"{url}: a {suffix} is not read from an object store by itself; {_HERE}")
    if suffix in _MANIFESTS:
        return _manifest(url, suffix, config, options, tell, stack)
    if named_tars(url)[1] is not None or url.startswith("http") or _holds_shards(url, options):
        mirror = open_mirror(url, config.cache_dir, config.cache_limit, options)
        cache = mirror.cache
        tell(
            f"{url}: its shards are fetched into {cache.root}, which may hold {in_words(cache.limit)}: once to be "
            "listed, and again to be read where it does not hold them"
        )
        return mirror.folder
    tree = _tree(url, config, options, stack)
    tree.fetch_all([file for pattern in _DESCRIPTIONS for file in tree.root.glob(pattern) if file.is_file()], REQUESTS)
    again = "; twice, as a .beton states its fields before its first sample" if config.format == "beton" else ""
    tell(
        f"{url}: {plural(tree.count, 'file')} ({in_words(tree.size)}) in the store; they are read one by one, "
        f"{REQUESTS} at a time, and not kept{again}"
    )
    return tree.root


def images_in(images: Path | None, sources: Sequence[Path]) -> Path | None:
    """The folder of COCO's images that --images names, in a source's tree if it is a URL. Raises UsageError."""
    url = None if images is None else url_of(images)
    if images is None or url is None:
        return images
    for source in sources:
        tree = tree_of(source)
        if tree is not None and f"{url}/".startswith(f"{tree.url}/"):
            return tree.root / url.removeprefix(tree.url).strip("/")
    raise UsageError(
        f"--images {url}: is not below the URL of the annotations; put them into one folder, or list the images in a "
        "manifest"
    )


def _holds_shards(url: str, options: dict[str, str]) -> bool:
    """Whether a folder is one of shards. Raises UsageError for .beton files of other writers."""
    names = [each.name for each in RemoteFolder(url, options).contents() if not each.name.startswith(".")]
    if any(name in ("dataset.json", "convert.json") or name.endswith(".tar") for name in names):
        return True
    if any(name.endswith(".beton") for name in names):
        raise UsageError(f"{url}: .beton files without a dataset.json are not read from an object store; {_HERE}")
    return False


def _tree(url: str, config: Convert, options: dict[str, str], stack: ExitStack) -> StoredTree:
    tree = StoredTree(url, options, (config.cache_dir or cache_folder()).absolute() / "listings")
    stack.callback(tree.close)
    return tree


def _manifest(url: str, suffix: str, config: Convert, options: dict[str, str], tell: Tell, stack: ExitStack) -> Path:
    """A manifest, here, in the tree of the folder that it lies in; a parquet file stays in the store.

    The tree of COCO's annotations/instances_train.json has the folders beside annotations/, too.
    """
    if url.startswith("http"):
        raise UsageError(
            f"{url}: a web server lists no files, so the images of a manifest are not found there; name tars, as in "
            f"{url.rpartition('/')[0]}/{{0000..0099}}.tar, or {_HERE}"
        )
    folder, _, name = url.rpartition("/")
    if suffix == ".json" and folder.endswith(f"/{_ANNOTATIONS}"):
        folder, name = folder.removesuffix(f"/{_ANNOTATIONS}"), f"{_ANNOTATIONS}/{name}"
    tree = _tree(folder, config, options, stack)
    path = tree.root / name
    if suffix != ".parquet":
        tree.fetch(path)
        tell(f"{url}: what it names is read from {folder}, {REQUESTS} at a time, and not kept")
    else:
        tell(f"{url}: is read by ranges, from front to back")
    return path
