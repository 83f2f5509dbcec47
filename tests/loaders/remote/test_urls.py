"""URLs: their parts, those that are refused, and what a refusal does not repeat."""

import itertools
from pathlib import Path

import pytest

from fastimg.loaders import DataError, open_dataset
from fastimg.loaders.remote import mirrors, origins, trees
from fastimg.loaders.remote.mirrors import open_mirror, with_urls
from fastimg.loaders.remote.urls import BadURLError, StoreURL, parsed, url_of, without_secrets
from fastimg.loaders.remote.writable import WritableFolder

from .conftest import write_shards

KNOWN = "give one of s3://, gs://, az://, http://, https:// or file://"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/a/D/", "s3://bucket/a/D"),
        ("S3://bucket/D", "s3://bucket/D"),
        (Path("s3://bucket/D"), "s3://bucket/D"),
        ("Az://container", "az://container"),
        ("s3://bucket/x #1%20", "s3://bucket/x #1%20"),
        ("s3://bucket/photos@2x/D", "s3://bucket/photos@2x/D"),
        ("https://[::1]:9000/D", "https://[::1]:9000/D"),
        ("file:///data/D", "file:///data/D"),
        (Path("/data/D"), None),
        ("torchvision:CIFAR10", None),
        ("photos/a:/b", None),
    ],
)
def test_what_is_a_url(text, url):
    assert url_of(text) == url


@pytest.mark.parametrize(
    "text", ["s3a://b/D", "hf://datasets/a/b", Path("abfs://c/D"), "C:/D", "s3:b/F", "gs:", "az://"]
)
def test_what_can_only_be_meant_as_one_is_refused(text):
    with pytest.raises(BadURLError, match=KNOWN) as refused:
        url_of(text)
    assert "--" not in str(refused.value)


def test_a_scheme_beside_these():
    assert url_of("hf://datasets/a/b", ("hf",)) is None
    with pytest.raises(BadURLError, match=r"file:// or hf://"):
        url_of("s3a://b", ("hf",))


@pytest.mark.parametrize(
    "text",
    [
        "https://me:SECRET@host/D",
        "https://SECRET@host/D",
        "https://me:SE/CRET@host/D",
        "https://me:123/SECRET@host/D",
        "s3://AKIA:SECRET@bucket/D",
        "s3://AKIA:SECRET/C+@b/D",
        "S3://AKIA:SECRET@bucket/D",
        "s3:AKIA:SECRET@bucket/D",
        "s3a://AKIA:SECRET@bucket/D",
        "https://host/D?X-Amz-Signature=SECRET",
        "s3://bucket/D?sig=SECRET",
        "ftp://host/D?sig=SECRET",
    ],
)
def test_secrets_are_refused_and_not_repeated(text):
    for given in (text, Path(text)):
        with pytest.raises(BadURLError) as refused:
            url_of(given)
        assert "SECRET" not in str(refused.value)
    sentence = without_secrets(f"{text}: no such file; see {text}")
    assert ("SECRET" in sentence) == ("://" not in text) and "no such file" in sentence


def test_sentences_without_secrets_stay():
    for sentence in ("s3://b/D: not found: tried at 10:30 by me@host", "http://127.0.0.1:9000/D?: no; is it?"):
        assert without_secrets(sentence) == sentence


def test_the_parts():
    url = parsed("s3://bucket/a/x #1%20")
    assert url == StoreURL("s3", "bucket", "a/x #1%20") and url.name == "x #1%20"
    assert url.for_obstore == "s3://bucket/a/x%20%231%2520"
    assert parsed("file:///a%20b/#1").path == "/a b/#1"
    with pytest.raises(BadURLError, match=r"write %23"):
        parsed("https://host/x#1")


def test_keys_are_those_that_are_written(server):
    for name in ("x", "x#v1", "x #2", "a%20b", "50%"):
        WritableFolder(f"s3://bucket/{name}", server.options).put("file", name.encode())
    assert {path.parent.name: path.read_bytes().decode() for path in server.folder.glob("*/file")} == {
        name: name for name in ("x", "x#v1", "x #2", "a%20b", "50%")
    }


def test_a_dataset_whose_name_has_a_hash(bucket, images, server, cache_dir):
    write_shards(bucket / "D#v2", images[:8])
    for name, count in (("D", len(images)), ("D#v2", 8)):
        dataset = open_dataset(f"s3://bucket/{name}", cache_dir=cache_dir, storage_options=server.options)
        assert len(dataset) == count
        dataset.close()


def test_an_unknown_scheme_is_said_first(cache_dir):
    with pytest.raises(BadURLError, match=KNOWN):
        open_dataset("s3a://bucket/D", cache_dir=cache_dir)


@pytest.mark.parametrize("name", ["x.beton", "dataset.json"])
def test_a_file_of_a_dataset_is_not_its_folder(cache_dir, name):
    with pytest.raises(DataError, match=rf"^s3://bucket/D/{name}: is a file of a dataset; give .* in, s3://bucket/D$"):
        open_dataset(f"s3://bucket/D/{name}", cache_dir=cache_dir)


def test_a_backslash_in_a_url_stays(bucket, images, server, cache_dir):
    write_shards(bucket / r"a\d\1", images[:8])
    url = r"s3://bucket/a\d\1"
    mirror = open_mirror(url, cache_dir, options=server.options)
    assert with_urls(f"{mirror.folder}: not found") == f"{url}: not found"


def test_places_are_looked_up_while_other_threads_open_some(monkeypatch):
    """Each name is compared while another one is added, as by a thread that opens it."""

    class Url(str):
        def __eq__(self, other):
            add()
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    class Place(type(Path())):
        def is_relative_to(self, *other):
            add()
            return super().is_relative_to(*other)

    class Sentence(str):
        def replace(self, *words):
            add()
            return Sentence(super().replace(*words))

    class Opened:
        @property
        def url(self):
            add()
            return "s3://bucket/D"

    def add():
        number = next(numbers)
        for places in (mirrors._open, trees._open):
            places[Path(f"/cache/{number}")] = Opened()
        origins._urls[f"/cache/{number}"] = f"s3://bucket/{number}"

    numbers = itertools.count()
    for module, name in ((mirrors, "_open"), (trees, "_open"), (origins, "_urls")):
        monkeypatch.setattr(module, name, {})
    add(), add()
    assert with_urls("/cache/0: gone") == "s3://bucket/D: gone"
    assert trees.tree_of(Place("/elsewhere")) is None
    assert origins.named_by_origins(Sentence("/cache/1: gone")) == "s3://bucket/1: gone"
    assert origins.fetched_from(Url("s3://bucket/none")) is None
