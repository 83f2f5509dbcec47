"""`fastimg convert --backend ray` to a URL, on a cluster of Ray's own and an object store, both on this machine.

Skipped where Ray is not installed: `test_convert_on_cluster.py` has the commands.
"""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: test_convert_on_cluster.py has the command")

from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.delivery.shard_delivery import NotDelivered, staging_of
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError

from .conftest import options_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings

URL = "s3://bucket/D"


@pytest.fixture
def flags(image_folder, tmp_path, server):
    """A conversion to the URL, in several shards."""
    return Convert(
        src=image_folder,
        dst=Path(URL),
        val_fraction=0.25,
        shard_size="25KB",
        cache_dir=tmp_path / "cache",
        storage_option=options_of(server),
    )


def run(flags):
    return convert(flags, Console(quiet=True))


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.exists() else {}


def here(flags, folder):
    """What the same conversion writes into a folder, on this machine."""
    run(replace(flags, dst=folder, cache_dir=None, storage_option=(), backend="local", address=None, resume=False))
    return contents(folder)


def test_nodes_upload_their_shards_and_a_refused_one_is_uploaded_after_a_resume(warm, flags, cluster, server, tmp_path):
    table = tmp_path / "images.csv"
    images = sorted(flags.src.rglob("*.*"))
    rows = [f"{path},{path.parent.name},{number / 4}" for number, path in enumerate(images)]
    table.write_text("\n".join(["path,label,age", *rows]))
    flags = replace(flags, src=table, target=("label:class", "age:number"), backend="ray", address=cluster.address)
    server.faults = [("PUT D/train-00001.tar", "denied"), ("PUT D/train-00000.idx", "busy")]
    with pytest.raises(NotDelivered, match=r"train-00001\.tar: access denied.*stays there and in .*: go on with"):
        run(flags)
    assert "dataset.json" not in contents(server.folder / "D")
    run(replace(flags, resume=True))
    written = server.writes.written
    assert written[0] == "D/convert.json" and written[-1] == "D/dataset.json"
    assert written.count("D/train-00001.tar") == 1
    expected = here(flags, tmp_path / "here")
    assert "train.fcol" in expected and len([name for name in expected if name.endswith(".tar")]) > 3
    assert contents(server.folder / "D") == expected
    assert not any(path.is_file() for path in staging_of(URL, flags.cache_dir).rglob("*"))


def test_an_image_that_cannot_be_stored_leaves_nothing_in_the_store(warm, flags, cluster, server):
    (flags.src / "blue" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.jpg: not an image"):
        run(replace(flags, on_error="fail", backend="ray", address=cluster.address))
    assert contents(server.folder / "D") == {}


def test_what_is_read_once_goes_there_from_one_machine_alone(warm, flags, cluster, server, tmp_path):
    flags = replace(flags, src=Path("sklearn:digits"), val_fraction=0.0, shard_size="1MB")
    with pytest.raises(UsageError, match=r"sklearn:digits is read .*, not a URL, or leave out --backend ray"):
        run(replace(flags, backend="ray", address=cluster.address))
    assert contents(server.folder / "D") == {}
    run(flags)
    assert contents(server.folder / "D") == here(flags, tmp_path / "here")
