"""Commands on `gs://` and `az://`, whose addresses and credentials the environment names."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastimg.loaders.remote import stores, writable

from ..loaders.remote.azure_server import AzureServer
from ..loaders.remote.object_server import ObjectServer
from .conftest import FAST

pytest.importorskip("obstore", reason="the extra `remote` is not installed")


@pytest.fixture(params=["gs", "az"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket, which is the folder `bucket` here."""
    monkeypatch.setattr(stores, "PAUSE", 0.0)
    monkeypatch.setattr(writable.WritableFolder, "retries", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "bucket").mkdir()
    served = (AzureServer if request.param == "az" else ObjectServer)(tmp_path / "bucket")
    named = {
        "gs": {"GOOGLE_BASE_URL": served.endpoint, "GOOGLE_BEARER_TOKEN": "token"},
        "az": {
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
            "AZURE_STORAGE_ENDPOINT": served.endpoint,
        },
    }
    for name, value in named[request.param].items():
        monkeypatch.setenv(name, value)
    yield f"{request.param}://bucket"
    served.close()


def test_convert_verify_train_and_eval(cli: Callable, url: str, image_folder: Path, tmp_path: Path) -> None:
    flags = ("--shard-size", "20KB", "--workers", "1")
    for dst in (f"{url}/D", tmp_path / "D"):
        assert cli("convert", image_folder, dst, "--val-fraction", "0.25", *flags).code == 0
    here = {path.name: path.read_bytes() for path in (tmp_path / "D").iterdir() if path.is_file()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "bucket/D").iterdir()} == here
    assert cli("verify", f"{url}/D").code == 0
    runs = ("--epochs", "1", "--output", f"{url}/runs")
    assert cli("train", f"{url}/D", *FAST, *runs, "--name", "x #1").code == 0
    assert cli("train", f"{url}/D", *FAST, *runs, "--name", "x #2").code == 0
    assert sorted(path.name for path in (tmp_path / "bucket/runs").iterdir()) == ["x #1", "x #2"]
    assert cli("eval", f"{url}/runs/x #1", f"{url}/D", "--workers", "1").code == 0
    taken = cli("train", f"{url}/D", *FAST, *runs, "--name", "x #2")
    assert taken.code == 2 and f"{url}/runs/x #2: a run of that name already exists" in taken.err
