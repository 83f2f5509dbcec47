"""Object stores against moto, which answers as S3 does: another reading of its interface than that of our own tests."""

import io
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fastimg.cli import run
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import Loader

boto3 = pytest.importorskip("boto3", reason="moto is not installed")
moto = pytest.importorskip("moto.server", reason="moto is not installed")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A client of a server with an empty bucket, which the environment names."""
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "XDG_CACHE_HOME": str(tmp_path / "home"),
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
    client.create_bucket(Bucket="bucket")
    yield client
    urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()  # it keeps its buckets otherwise
    server.stop()


def objects(client: Any, prefix: str) -> dict[str, bytes]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=prefix)
    names = [each["Key"] for page in pages for each in page.get("Contents", ())]
    return {
        name.removeprefix(prefix): client.get_object(Bucket="bucket", Key=name)["Body"].read() for name in sorted(names)
    }


def draw(folder: Path, count: int, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{seed}-{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (48, 48, 3), dtype=np.uint8)).save(path)
    return folder


def converted(src: Path | str, dst: Path | str, **flags: Any) -> None:
    config = Convert(src=Path(src), dst=Path(dst), shard_size="20KB", workers="1", **flags)
    convert(config, Console(file=io.StringIO()))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_convert_append_and_read(s3: Any, tmp_path: Path, container: Any) -> None:
    first, more = draw(tmp_path / "first", 40), draw(tmp_path / "more", 20, seed=1)
    for dst in (tmp_path / "D", "s3://bucket/D"):
        converted(first, dst, format=container)
        converted(more, dst, append=True)
    here = {name: content for name, content in contents(tmp_path / "D").items() if not name.startswith(".")}
    assert objects(s3, "D/") == here
    assert run(["verify", "s3://bucket/D"]) == 0
    batches = []
    for data, settings in (
        (tmp_path / "D", {}),
        ("s3://bucket/D", {"cache_dir": tmp_path / "cache"}),
        *((("s3://bucket/D", {"cache_dir": tmp_path / "cache", "cache_limit": 0}),) if container == "tar" else ()),
    ):
        with Loader(data, batch_size=8, crop=32, workers=1, order="sequential", **settings) as loader:
            batches.append(np.concatenate([batch.inputs.numpy().copy() for batch in loader]))
    assert all((batches[0] == each).all() for each in batches[1:])


def test_convert_from_class_folders_and_annotations(s3: Any, tmp_path: Path) -> None:
    folders = draw(tmp_path / "photos", 30)
    yolo = draw(tmp_path / "yolo/images", 6)
    for image in yolo.rglob("*.jpg"):
        label = tmp_path / "yolo/labels" / image.relative_to(yolo).with_suffix(".txt")
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("0 0.5 0.5 0.25 0.5\n")
    for name, src in (("photos", folders), ("yolo", tmp_path / "yolo")):
        for path in src.rglob("*.*"):
            s3.upload_file(str(path), "bucket", f"{name}/{path.relative_to(src)}")
        converted(src, tmp_path / "here" / name)
        converted(f"s3://bucket/{name}", tmp_path / "D" / name)
        assert contents(tmp_path / "D" / name) == contents(tmp_path / "here" / name)


def test_train_into_the_bucket_and_eval(s3: Any, tmp_path: Path) -> None:
    converted(draw(tmp_path / "photos", 40), "s3://bucket/D", val_fraction=0.2)
    flags = ["--arch", "resnet18", "--epochs", "1", "--img-size", "32", "--batch-size", "8", "--workers", "1"]
    assert run(["train", "s3://bucket/D", *flags, "--output", "s3://bucket/runs", "--name", "first"]) == 0
    assert "manifest.json" in objects(s3, "runs/first/")
    assert run(["eval", "s3://bucket/runs/first", "s3://bucket/D"]) == 0
