"""`fastimg convert s3://... --backend ray`: nodes read their parts of a source in an object store.

Skipped where Ray is not installed: `test_convert_on_cluster.py` has the commands.
"""

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: test_convert_on_cluster.py has the command")

from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.stored.losses import SourceLostError

from .conftest import FAULTS, options_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


def photos(bucket, images):
    """Class folders."""
    images.rename(bucket / "photos")
    (bucket / "photos/red/broken.jpg").write_bytes(b"\xff\xd8 no image")
    return "photos"


def table(bucket, images):
    """A manifest, and the images that it names."""
    names = sorted(images.rename(bucket / "photos").rglob("*.*"))
    rows = [f"{path.relative_to(bucket)},{path.parent.name}" for path in names]
    (bucket / "table.csv").write_text("\n".join(["path,label", *rows]))
    return "table.csv"


def tars(bucket, images):
    """Tars of another writer."""
    (bucket / "tars").mkdir()
    names = sorted(images.rglob("*.*"))
    for number in range(3):
        with tarfile.open(bucket / f"tars/train-{number:04d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for at, path in enumerate(names[number::3]):
                tar.add(path, f"{at:04d}{path.suffix}")
    return "tars"


def dataset(bucket, images):
    """A dataset, in a .beton."""
    convert(Convert(src=images, dst=bucket / "E", format="beton", originals="drop"), Console(quiet=True))
    return "E"


@pytest.fixture
def asked(tmp_path, server, cluster):
    """A conversion on the cluster, without a source."""
    return Convert(
        src=Path(),
        dst=tmp_path / "D",
        shard_size="25KB",
        workers="1",
        backend="ray",
        address=cluster.address,
        cache_dir=tmp_path / "cache",
        storage_option=options_of(server),
    )


def run(config):
    return convert(config, Console(quiet=True))


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def here(config, **flags):
    """What one machine writes of a copy on its disk."""
    run(replace(config, backend="local", address=None, cache_dir=None, storage_option=(), **flags))
    return contents(flags["dst"])


@pytest.mark.parametrize("source", [photos, table, tars, dataset])
def test_the_bytes_are_those_of_a_copy_on_disk(warm, asked, server, image_folder, tmp_path, source):
    name = source(server.folder, image_folder)
    server.rates = FAULTS
    report = run(replace(asked, src=Path(f"s3://bucket/{name}")))
    expected = here(asked, src=server.folder / name, dst=tmp_path / "here")
    assert contents(tmp_path / "D") == expected
    assert server.met or source in (tars, dataset)  # which take few requests
    assert len([name for name in expected if name.endswith(".tar")]) > 2
    assert len(report.skipped) == (source is photos)


def test_what_is_added_to_a_url(warm, asked, server, image_folder, tmp_path):
    """From a URL to a URL, by nodes that fetch and upload."""
    photos(server.folder, image_folder)
    (server.folder / "more").mkdir()
    (server.folder / "photos/red").rename(server.folder / "more/red")
    parts = ("photos", "more")
    for part in parts:
        run(replace(asked, src=Path(f"s3://bucket/{part}"), dst=Path("s3://bucket/D"), append=part == "more"))
    for part in parts:
        expected = here(asked, src=server.folder / part, dst=tmp_path / "here", append=part == "more")
    assert contents(server.folder / "D") == expected


def test_a_source_that_is_lost_leaves_what_is_finished(warm, asked, server, image_folder, tmp_path):
    asked = replace(asked, src=Path(f"s3://bucket/{photos(server.folder, image_folder)}"), no_shuffle=True)
    last = max(server.folder.glob("photos/*/*.png"))
    server.faults = [(f"photos/{last.parent.name}/{last.name}", "denied")]
    with pytest.raises(SourceLostError, match=r"s3://bucket/photos/.*: access denied.*go on with resume=True"):
        run(asked)
    assert (tmp_path / "D/convert.json").exists() and not (tmp_path / "D/dataset.json").exists()
    run(replace(asked, resume=True))
    expected = here(asked, src=server.folder / "photos", dst=tmp_path / "here")
    assert contents(tmp_path / "D") == expected
