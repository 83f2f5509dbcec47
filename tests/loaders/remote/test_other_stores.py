"""`gs://` and `az://` against servers that speak as Google's and Azure's do, as far as obstore asks them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastimg.loaders import DataError, open_dataset
from fastimg.loaders.remote import writable
from fastimg.loaders.remote.stores import DeniedError, NotThereError, RemoteFolder
from fastimg.loaders.remote.trees import StoredTree
from fastimg.loaders.remote.writable import WritableFolder

from .azure_server import AzureServer
from .object_server import ObjectServer
from .test_remote_datasets import samples


class GoogleServer(ObjectServer):
    """Google's XML interface, which is that of S3 where obstore uses it."""

    @property
    def options(self) -> dict[str, str]:
        """The storage_options of gs://bucket."""
        return {"base_url": self.endpoint, "bearer_token": "token"}


@pytest.fixture(params=["gs", "az"])
def scheme(request: pytest.FixtureRequest) -> str:
    scheme: str = request.param
    return scheme


@pytest.fixture
def server(bucket: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    monkeypatch.setattr(writable.WritableFolder, "retries", 0)
    served = {"gs": GoogleServer, "az": AzureServer}[scheme](bucket)
    yield served
    served.close()


def test_a_dataset_is_read(scheme, server, bucket, cache_dir):
    here = open_dataset(bucket / "D")
    for limit in (None, 0):
        options = {"cache_dir": cache_dir, "cache_limit": limit, "storage_options": server.options}
        there = open_dataset(f"{scheme}://bucket/D", **options)
        assert samples(there) == samples(here)
        there.close()


def test_tars_of_other_writers_and_trees(scheme, server, bucket, cache_dir, tmp_path):
    (bucket / "D/dataset.json").unlink()
    there = open_dataset(f"{scheme}://bucket/D", cache_dir=cache_dir, storage_options=server.options)
    assert samples(there) == samples(open_dataset(bucket / "D"))
    there.close()
    tree = StoredTree(f"{scheme}://bucket/D", server.options, tmp_path / "listings")
    tree.fetch(tree.root / "train-00000.tar")
    assert (tree.root / "train-00000.tar").read_bytes() == (bucket / "D/train-00000.tar").read_bytes()
    tree.close()


def test_files_are_uploaded_in_one_piece_and_in_parts_and_deleted(scheme, server, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(writable, "PART", 1 << 20)
    folder = WritableFolder(f"{scheme}://bucket/x #1", server.options)
    for name, size in (("small", 1000), ("large", (5 << 20) + 7), ("empty", 0)):
        (tmp_path / name).write_bytes(bytes(i * i % 251 for i in range(size)))
        assert folder.send(name, tmp_path / name).size == size
        assert (bucket / "x #1" / name).read_bytes() == (tmp_path / name).read_bytes()
    assert server.writes.multipart == ["x #1/large"]
    folder.put("note", b"text")
    assert [each.name for each in folder.contents()] == ["empty", "large", "note", "small"]
    folder.delete(["small", "large", "none"])
    assert [each.name for each in folder.contents()] == ["empty", "note"]


def test_an_upload_is_verified_by_its_content(scheme, server, bucket, tmp_path):
    folder = WritableFolder(f"{scheme}://bucket/F", server.options)
    (tmp_path / "file").write_bytes(b"content" * 1000)
    server.faults = [("PUT F/file", "flip")]
    folder.send("file", tmp_path / "file")
    assert server.faults == [] and (bucket / "F/file").read_bytes() == b"content" * 1000
    server.faults = [("PUT F/file", "flip")] * 2
    with pytest.raises(DataError, match=rf"^{scheme}://bucket/F/file: uploaded 2 times, and what is there differs"):
        folder.send("file", tmp_path / "file")


def test_refusals_name_what_the_scheme_needs(scheme, server):
    names = {"gs": "GOOGLE_APPLICATION_CREDENTIALS", "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"}
    folder = RemoteFolder(f"{scheme}://bucket/D", server.options)
    for ask in (folder.read, folder.look):
        server.faults = [("dataset.json", "denied")] * 2
        with pytest.raises(
            DeniedError, match=rf"access denied; give credentials in the environment \(as {names[scheme]}\)"
        ):
            ask("dataset.json")
    server.faults = []
    with pytest.raises(NotThereError, match="not found: no such file or bucket"):
        folder.read("none")


def test_a_file_url_is_verified_by_its_content(tmp_path, monkeypatch):
    """Its tag is made of the time of writing: a disk that gives back other bytes is noticed, too."""
    (tmp_path / "file").write_bytes(b"content" * 1000)
    folder = WritableFolder(f"file://{tmp_path}/D", {})
    monkeypatch.setattr(folder, "read_range", lambda *_: memoryview(b"another" * 1000))
    with pytest.raises(DataError, match="uploaded 2 times, and what is there differs"):
        folder.send("file", tmp_path / "file")
