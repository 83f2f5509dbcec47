"""What commands write, where it is given as a URL: it goes there, or is refused, and never becomes a folder `s3:`."""

import json
import os
from pathlib import Path

import pytest

from fastimg.predict.exporting import graph

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

URL = "s3://bucket/x"
REMEDY = "on this machine; what is written there can be copied to a store"
HERE = "is on this machine alone; give a path here"


@pytest.mark.parametrize(
    ("command", "flag", "words"),
    [
        (("demo",), ("--output", URL), f"--output {URL}: give a folder {REMEDY}"),
        (("inspect", "IMAGES"), ("--output", URL), f"--output {URL}: give a folder {REMEDY}"),
        (("suggest", "IMAGES"), ("--output", f"{URL}.yaml"), f"--output {URL}.yaml: give a file {REMEDY}"),
        (("suggest", "IMAGES", "--weights", "w"), ("-o", f"{URL}.yaml"), f"--output {URL}.yaml: give a file {REMEDY}"),
        (("search", "IMAGES", "--trials", "1"), ("--output", URL), f"--output {URL}: give a folder {REMEDY}"),
        (("bench", "IMAGES"), ("--plot", f"{URL}.png"), f"--plot {URL}.png: {HERE}"),
        (("bench", "IMAGES"), ("--scratch", URL), f"--scratch {URL}: {HERE}"),
        (("eval", "RUN", "IMAGES"), ("--plot", f"{URL}.png"), f"--plot {URL}.png: {HERE}"),
        (("eval", "RUN", "RUN", "IMAGES"), ("--plot", f"{URL}.png"), f"--plot {URL}.png: {HERE}"),
        (("predict", "RUN", "IMAGES"), ("--csv", f"{URL}.csv"), f"--csv {URL}.csv: give a file {REMEDY}"),
        (("train", "IMAGES"), ("--output", URL), "a run in an object store has a name that you give; add --name"),
        (("export", "RUN", "--format", "onnx"), ("--output", URL), f"--output {URL}: give a URL that ends in a name"),
        (("export", "RUN"), ("--output", "s3://a.onnx"), "--output s3://a.onnx: give a URL that ends in a name"),
        *(
            (command, ("--cache-dir", URL), f"--cache-dir {URL}: {HERE}")
            for command in (
                *((name, "s3://bucket/D") for name in ("train", "inspect", "suggest", "bench", "verify")),
                *((name, "RUN", "s3://bucket/D") for name in ("eval", "predict")),
                ("convert", "IMAGES", "s3://bucket/D"),
                ("embed", "IMAGES", "E"),
                ("search", "s3://bucket/D", "--trials", "1", "--", "--img-size", "32"),
            )
        ),
        (("push", "RUN"), (URL,), f"push {URL}: give hub://USER/NAME"),
    ],
)
def test_what_is_not_written_to_a_url_is_refused(
    cli, image_folder, tmp_path, monkeypatch, request, command, flag, words
):
    run = request.getfixturevalue("trained").run if "RUN" in command else ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ran = cli(*({"IMAGES": image_folder, "RUN": run}.get(word, word) for word in (*command, *flag)))
    assert ran.code in (1, 2)
    assert words in " ".join(ran.err.split())
    assert not any(name.startswith("s3:") for name in os.listdir(tmp_path / "here"))


class TestExport:
    @pytest.fixture(autouse=True)
    def store(self, named_server, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)

    def test_takes_options_of_the_store(self, cli, trained, server, monkeypatch):
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        option = f"endpoint={server.options['endpoint']}"
        ran = cli("export", trained.run, "-o", "s3://bucket/models/n.safetensors", "--storage-option", option)
        assert ran.code == 0, ran.err
        assert (server.folder / "models" / "n.safetensors").stat().st_size > 0

    def test_goes_to_the_url(self, cli, trained, server, tmp_path):
        assert cli("export", trained.run, "-o", tmp_path / "m.safetensors").code == 0
        ran = cli("export", trained.run, "-o", "s3://bucket/models/m.safetensors", "--check", "--json")
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["file"] == "s3://bucket/models/m.safetensors"
        there = server.folder / "models"
        assert [path.name for path in there.iterdir()] == ["m.safetensors"]
        assert (there / "m.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()
        again = cli("export", trained.run, "-o", "s3://bucket/models/m.safetensors")
        assert again.code == 1 and "models/m.safetensors: exists already; give another --output" in again.err
        assert cli("export", trained.run, "-o", "s3://bucket/models/m.safetensors", "--overwrite").code == 0
        assert not list((tmp_path / "home/fastimg/staging").iterdir()) and not Path("s3:").exists()

    @pytest.mark.parametrize(("fault", "words"), [("busy", None), ("denied", "access denied")])
    def test_faults(self, cli, trained, server, monkeypatch, fault, words):
        monkeypatch.setattr(graph, "write", lambda name, file, source, what: file.write_bytes(b"a graph"))
        server.faults = [("PUT m.pt2", fault)]
        ran = cli("export", trained.run, "-o", "s3://bucket/m.pt2")
        assert (ran.code, (server.folder / "m.pt2").exists()) == ((1, False) if words else (0, True))
        assert words is None or words in ran.err
