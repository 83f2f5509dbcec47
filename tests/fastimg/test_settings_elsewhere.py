"""Files of settings in an object store: `suggest` writes them, `train` and `search` read them."""

from pathlib import Path

import pytest

from fastimg.config import yaml_file
from fastimg.config.commands import Train
from fastimg.suggest.document import MARK

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

URL = "s3://bucket/settings/a.yaml"
SETTINGS = """
arch: test_resnet
img_size: 32
epochs: 1
lr: 1e-2
"""


@pytest.fixture(autouse=True)
def store(named_server, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path("s3:").exists()


@pytest.fixture
def file(server) -> Path:
    path = server.folder / "settings/a.yaml"
    path.parent.mkdir()
    path.write_text(SETTINGS)
    return path


def test_train_reads_them(cli, file, image_folder, tmp_path):
    (tmp_path / "a.yaml").write_text(SETTINGS)
    here, there = (
        cli("train", image_folder, "--config", config, "--lr", "2e-2", "--dry-run") for config in ("a.yaml", URL)
    )
    assert there.code == 0, there.err
    assert there.out == here.out and "test_resnet" in there.out and "lr 0.02" in there.out


def test_a_name_that_they_state_is_followed_by_a_number(cli, file, image_folder, tmp_path):
    file.write_text(f"{SETTINGS}name: named\n")
    for name in ("named", "named-2"):
        ran = cli("train", image_folder, "--config", URL, "-b", 8, "--workers", 1, "--no-amp", "--output", "runs")
        assert ran.code == 0, ran.err
        assert yaml_file.load(tmp_path / "runs" / name / "config.yaml", Train).lr == 0.01
    assert f"named, which {URL} names, already exists: this run is runs/named-2" in " ".join(ran.out.split())


def test_search_reads_them(cli, file, image_folder):
    trials = ("--param", "lr=1e-3:1e-2", "--trials", "1", "--device", "cpu")
    file.write_text("arch: no_such_model\n")
    ran = cli("search", image_folder, *trials, "--config", URL, "-o", "S")
    assert ran.code == 2 and "no_such_model" in ran.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [", f"--config {URL}: not YAML: "),
        (b"\xff\xfe\x00", f"--config {URL}: not YAML: "),
        (b"- 1", f"--config {URL}: not a mapping of settings"),
        (b"epoch: 3", f"--config {URL}: unknown key 'epoch'; did you mean epochs?"),
        (b"epochs: many", f"--config {URL}: epochs: "),
    ],
)
def test_what_cannot_be_used_is_named_by_its_url(cli, file, image_folder, content, words):
    file.write_bytes(content)
    ran = cli("train", image_folder, "--config", URL)
    assert ran.code == 2 and words in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("s3://bucket/settings/none.yaml", 1, "s3://bucket/settings/none.yaml: not found"),
        ("s3://a.yaml", 2, "--config s3://a.yaml: names no file; give a URL that ends in one"),
    ],
)
def test_what_is_not_there_is_said(cli, image_folder, url, code, words):
    ran = cli("train", image_folder, "--config", url)
    assert ran.code == code and words in " ".join(ran.err.split()) and "Traceback" not in ran.err


def test_options_of_the_store_count(cli, file, server, image_folder, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    option = ("--storage-option", f"endpoint={server.options['endpoint']}")
    ran = cli("train", image_folder, "--config", URL, *option, "--dry-run")
    assert ran.code == 0, ran.err


def test_suggest_writes_them(cli, server, image_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    flags = ("--arch", "test_resnet", "--workers", "1", "-o", URL)
    ran = cli("suggest", image_folder, *flags)
    said = " ".join(ran.out.split())
    assert ran.code == 0, ran.err
    assert f"written {URL}; train with `fastimg train {image_folder} --config {URL}`" in said
    written = server.folder / "settings/a.yaml"
    assert written.read_text().startswith(MARK) and f"--config {URL}" in " ".join(written.read_text().split())
    assert cli("train", image_folder, "--config", URL, "--dry-run").code == 0
    assert list((tmp_path / "home/fastimg/staging").iterdir()) == []

    before = written.read_bytes()
    again = cli("suggest", image_folder, *flags)
    assert again.code == 2 and f"--output {URL}: exists already; add --overwrite" in " ".join(again.err.split())
    assert written.read_bytes() == before
    written.write_text("old")
    assert cli("suggest", image_folder, *flags, "--overwrite").code == 0
    assert written.read_text().startswith(MARK)
