"""`convert --append` to a dataset in an object store, and what is kept there of its large photographs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.delivery.store_destination import NotDelivered
from fastimg.convert.pipeline import convert
from fastimg.errors import UserError
from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.containers.derived import block_index, dc_images
from fastimg.loaders.remote import stores, writable
from fastimg.loaders.remote.trees import StoredFiles

from ...loaders.remote.object_server import ObjectServer

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

URL = Path("s3://bucket/D")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    (tmp_path / "bucket").mkdir()
    monkeypatch.setattr(stores, "PAUSE", 0.0)
    monkeypatch.setattr(writable.WritableFolder, "retries", 0)
    monkeypatch.setattr(StoredFiles, "retries", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    served = ObjectServer(tmp_path / "bucket")
    yield served
    served.close()


@pytest.fixture
def run(server: ObjectServer, tmp_path: Path) -> Callable[..., Any]:
    """`run(src, **flags)`: into the URL and into the folder `here`, with the same files in both."""

    def run_(src: Path, **flags: Any) -> Any:
        config = Convert(src=src, dst=URL, shard_size="8KB", workers="1", cache_dir=tmp_path / "staging", **flags)
        options = tuple(f"{name}={value}" for name, value in server.options.items())
        report = convert(replace(config, storage_option=options), Console(quiet=True))
        convert(replace(config, dst=tmp_path / "here", cache_dir=None), Console(quiet=True))
        assert contents(server.folder / "D") == contents(tmp_path / "here")
        assert not any(path.is_file() for path in (tmp_path / "staging/staging").rglob("*"))
        return report

    return run_


@pytest.fixture
def parts(image_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two class folders, the second with a further class."""
    more = tmp_path / "more"
    for name in ("red", "green"):
        (more / name).mkdir(parents=True)
        for image in sorted((image_folder / name).iterdir())[8:]:
            image.rename(more / name / image.name)
    (more / "green").rename(more / "yellow")
    return image_folder, more


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


class TestAppend:
    def test_gives_the_bytes_of_a_folder(self, run, parts, server):
        run(parts[0], val_fraction=0.25)
        before = contents(server.folder / "D")
        server.requests.clear()
        report = run(parts[1], append=True)
        assert report.added == 8 and report.dst == "s3://bucket/D"
        after = contents(server.folder / "D")
        assert all(after[name] == before[name] for name in before if name.endswith((".tar", ".idx", "val.fidx")))
        assert not any(
            name.endswith(".tar") and not name.startswith("PUT") for name in server.requests if "00000" in name
        )
        assert server.writes.written[-1] == "D/dataset.json"
        with pytest.raises(UserError, match=r"^s3://bucket/D: the same samples were already converted or appended"):
            run(parts[1], append=True)

    def test_with_targets_and_fields(self, run, parts, tmp_path):
        for name, folder in zip("ab", parts, strict=True):
            rows = [f"{path},{place},{path.parent.name}" for place, path in enumerate(sorted(folder.rglob("*.jpg")))]
            (tmp_path / f"{name}.csv").write_text("\n".join(["path,weight,kind", *rows[:6]]))
        flags = {"target": ("kind:class",), "field": ("weight:number",)}
        run(tmp_path / "a.csv", **flags)
        run(tmp_path / "b.csv", append=True, **flags)

    def test_goes_on_after_a_refusal(self, run, parts, server):
        run(parts[0])
        before = contents(server.folder / "D")
        server.faults = [("PUT D/dataset.json", "denied")]
        with pytest.raises(NotDelivered, match="go on with resume=True"):
            run(parts[1], append=True)
        assert contents(server.folder / "D")["dataset.json"] == before["dataset.json"]
        with pytest.raises(UserError, match="holds an unfinished conversion; continue it with --resume"):
            run(parts[1], append=True)
        run(parts[1], append=True, resume=True)

    @pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
    def test_survives_faults_that_pass(self, run, parts, server, fault):
        run(parts[0])
        server.faults = [("PUT D/dataset.json", fault), ("D/train.fidx", fault), ("D/dataset.json", fault)]
        if fault == "flip":
            server.faults.pop()
        run(parts[1], append=True)
        assert server.faults == []

    def test_a_source_that_fails_leaves_the_dataset(self, run, parts, server, tmp_path):
        run(parts[0])
        before = contents(server.folder / "D")
        (parts[1] / "red/broken.jpg").write_bytes(b"\xff\xd8 no image")
        with pytest.raises(stores.DataError, match=r"broken\.jpg"):
            run(parts[1], append=True, on_error="fail")
        assert contents(server.folder / "D") == before

    def test_needs_a_dataset_of_tars(self, run, parts, server):
        with pytest.raises(UserError, match=r"^s3://bucket/D: no dataset to append to; leave out --append"):
            run(parts[0], append=True)
        run(parts[0], format="beton")
        with pytest.raises(UserError, match=r"a .beton is written anew by whoever adds to it; --merge both"):
            run(parts[1], append=True)


SIDE = 200
KEPT = ("train.ftil", "train.fdci")


class TestLargePhotographs:
    @pytest.fixture
    def photographs(self, tmp_path: Path, encode: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
        for module in (block_index, dc_images):
            monkeypatch.setattr(module, "MIN_PIXELS", SIDE * SIDE)
        for i in range(6):
            file = tmp_path / "photographs" / "ab"[i % 2] / f"{i}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode((10 * i, 90, 40), (SIDE + 40 * i if i else 90, SIDE), seed=i))
        return tmp_path / "photographs"

    @pytest.fixture
    def opened(self, server: ObjectServer, tmp_path: Path) -> Callable[..., Any]:
        return lambda **more: open_dataset(
            str(URL), cache_dir=tmp_path / "cache", storage_options=server.options, **more
        )

    @pytest.mark.parametrize("container", ["tar", "beton"])
    def test_are_indexed_in_the_store(self, run, photographs, server, opened, tmp_path, container):
        run(photographs, format=container)
        assert set(KEPT) <= contents(server.folder / "D").keys()
        if container == "tar":
            dataset = opened()
            assert dataset.blocks is not None and dataset.blocks.dc_images is not None and not dataset.notes
            for scaling in (True, "low"):
                assert np.array_equal(pixels_of(dataset, scaling), pixels_of(open_dataset(tmp_path / "here"), scaling))
            dataset.close()

    @pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
    def test_survive_faults_that_pass(self, run, photographs, server, opened, fault):
        run(photographs)
        server.faults = [(name, fault) for name in KEPT for _ in range(2)]
        dataset = opened()
        assert server.faults == [] or fault == "flip"
        assert dataset.blocks is not None and dataset.blocks.dc_images is not None
        dataset.close()

    def test_are_read_whole_without_an_index(self, run, photographs, server, opened, tmp_path):
        run(photographs)
        for name in KEPT:
            (server.folder / "D" / name).unlink()
        dataset = opened()
        assert dataset.blocks is None and not dataset.notes
        assert np.array_equal(pixels_of(dataset, True), pixels_of(open_dataset(tmp_path / "here"), True))
        dataset.close()

    def test_are_read_whole_with_an_index_of_others(self, run, photographs, server, opened):
        run(photographs)
        (server.folder / "D/train.ftil").write_bytes((server.folder / "D/train.fdci").read_bytes())
        dataset = opened()
        assert dataset.blocks is None and not dataset.notes
        dataset.close()

    def test_have_no_index_that_fills_the_cache(self, run, photographs, opened):
        run(photographs)
        dataset = opened(cache_limit="60KB")
        (note,) = dataset.notes
        assert "what is kept of them" in note and "takes more than a quarter of the cache" in note
        dataset.close()
        assert opened(cache_limit=0).blocks is None

    def test_are_not_indexed_in_a_split_that_has_grown(self, run, photographs, server, parts, tmp_path, opened):
        options = tuple(f"{name}={value}" for name, value in server.options.items())
        config = Convert(src=photographs, dst=URL, workers="1", cache_dir=tmp_path / "s", storage_option=options)
        convert(config, Console(quiet=True))
        convert(replace(config, src=parts[1], append=True), Console(quiet=True))
        assert not set(KEPT) & contents(server.folder / "D").keys()
        assert len(opened()) == 14


def pixels_of(dataset: Any, scaling: bool | str) -> list[Any]:
    decoder = ImageDecoder(RandomResizedCrop(size=12, scale=(0.1, 0.5)), dct_scaling=scaling)
    settings = LoaderConfig(batch_size=6, workers=1, order="sequential", on_error="fail")
    with Loader(dataset, decoder, settings) as loader:
        return [batch.inputs.numpy().copy() for _ in range(2) for batch in loader]
