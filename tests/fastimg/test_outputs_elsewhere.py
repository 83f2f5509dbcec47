"""What commands write, where it is given as a URL: it goes there, or is refused, and never becomes a folder `s3:`."""

import json
import os
from pathlib import Path

import pytest

from fastimg.bench import benchmark
from fastimg.predict import inference
from fastimg.predict.exporting import graph

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

URL = "s3://bucket/x"
REMEDY = "on this machine; what is written there can be copied to a store"
HERE = "is on this machine alone; give a path here"


@pytest.mark.parametrize(
    ("command", "flag", "words"),
    [
        (("demo",), ("--output", URL), f"--output {URL}: give a folder {REMEDY}"),
        (("suggest", "IMAGES"), ("--output", URL), f"--output {URL}: give a .yaml file, which train --config reads"),
        (("suggest", "IMAGES"), ("-o", "s3://a.yaml"), "--output s3://a.yaml: names no file; give a URL that ends"),
        (("suggest", "IMAGES"), ("-o", "http://h/a.yaml"), "http://h: a web server is only read; give a URL"),
        (("search", "IMAGES", "--trials", "1"), ("-o", "s3://a"), "--output s3://a: names no folder; give a URL that"),
        (("search", "IMAGES", "--trials", "1"), ("-o", "http://h/a"), "http://h/a: a web server is only read; give"),
        (
            ("bench", "IMAGES", "--workers-curve", "1"),
            ("--output", f"{URL}.jpg"),
            f"--output {URL}.jpg: give a file name that",
        ),
        (("bench", "IMAGES"), ("--scratch", URL), f"--scratch {URL}: {HERE}"),
        (
            ("eval", "RUN", "IMAGES"),
            ("--output", "s3://a.png"),
            "--output s3://a.png: names no file; give a URL that ends",
        ),
        (("eval", "RUN", "RUN", "IMAGES"), ("--output", f"{URL}.png"), "--output has no effect with several runs"),
        (("predict", "RUN", "IMAGES"), ("--csv", "http://h/x.csv"), "http://h: a web server is only read; give a URL"),
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


class TestResults:
    """Of `predict --csv`, and of `eval`, `inspect` and `bench` with `--output`: the files of a folder, in the store."""

    @pytest.fixture(autouse=True)
    def store(self, named_server, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        yield
        assert not Path("s3:").exists()

    def staged(self, tmp_path: Path) -> list[str]:
        return [path.name for path in (tmp_path / "home/fastimg/staging").glob("*")]

    def test_a_csv(self, cli, trained, server, tmp_path):
        source = trained.images / "val"
        assert cli("predict", trained.run, source, "--csv", tmp_path / "here.csv").code == 0
        ran = cli("predict", trained.run, source, "--csv", "s3://bucket/a/there.csv")
        assert ran.code == 0, ran.err
        assert (server.folder / "a/there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()
        assert self.staged(tmp_path) == []

    def test_a_csv_by_options_and_a_folder_for_what_is_on_its_way(self, cli, trained, server, tmp_path, monkeypatch):
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        option = f"endpoint={server.options['endpoint']}"
        flags = ("--csv", "s3://bucket/x.csv", "--storage-option", option, "--cache-dir", tmp_path / "cache")
        assert cli("predict", trained.run, trained.images / "val", *flags).code == 0
        assert (server.folder / "x.csv").stat().st_size > 0
        assert not (tmp_path / "home").exists() and list((tmp_path / "cache/staging").iterdir()) == []

    def test_a_plot_and_the_mistakes_beside_it(self, cli, trained, server, tmp_path):
        ran = cli("eval", trained.run, trained.images, "--output", "s3://bucket/e/c.png", "--json")
        assert ran.code == 0, ran.err
        told = json.loads(ran.out)
        names = {"plot": "c.png", "mistakes": "mistakes-val.csv", "mistakes_sheet": "mistakes-val.png"}
        assert {name: told[name] for name in names} == {k: f"s3://bucket/e/{name}" for k, name in names.items()}
        assert sorted(path.name for path in (server.folder / "e").iterdir()) == sorted(names.values())
        assert (server.folder / "e/c.png").read_bytes().startswith(b"\x89PNG")
        assert server.writes.written[-1] == "e/c.png"  # the others are there before it
        assert self.staged(tmp_path) == []

    def test_pictures(self, cli, trained, server, tmp_path):
        ran = cli("inspect", trained.images, "--samples", "2", "--no-aug", "--output", "s3://bucket/p", "--json")
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["pictures"] == [f"s3://bucket/p/{name}.png" for name in ("samples", "augmented")]
        assert sorted(path.name for path in (server.folder / "p").iterdir()) == ["augmented.png", "samples.png"]
        assert self.staged(tmp_path) == []

    def test_a_plot_of_bench(self, cli, trained, server, monkeypatch):
        def measured(request, *_):
            request.settings.output.write_bytes(b"a plot")
            return {}, []

        monkeypatch.setattr(benchmark, "_measure", measured)
        ran = cli("bench", trained.shards, "--workers-curve", "1", "--output", "s3://bucket/b.png")
        assert ran.code == 0, ran.err
        assert (server.folder / "b.png").read_bytes() == b"a plot" and "drawn in s3://bucket/b.png" in ran.out

    def test_what_the_store_refuses_is_kept_here(self, cli, trained, server, tmp_path):
        server.faults = [("PUT x.csv", "denied")]
        ran = cli("predict", trained.run, trained.images / "val", "--csv", "s3://bucket/x.csv")
        said = " ".join(ran.err.split())
        assert ran.code == 1 and "s3://bucket/x.csv: access denied" in said
        (kept,) = (tmp_path / "home/fastimg/staging").iterdir()
        assert f"--csv was written to {kept}: copy it from there, or run the same again" in said
        assert (kept / "x.csv").read_text().startswith("file,error,class1") and not (server.folder / "x.csv").exists()

    def test_what_passes_is_tried_again(self, cli, trained, server):
        server.faults = [("PUT x.csv", "busy"), ("PUT x.csv", "flip")]
        assert cli("predict", trained.run, trained.images / "val", "--csv", "s3://bucket/x.csv").code == 0
        assert (server.folder / "x.csv").read_text().startswith("file,error,class1")

    def test_a_store_that_refuses_says_so_at_once(self, cli, trained, server, tmp_path, monkeypatch):
        monkeypatch.setattr(inference, "load", None)
        server.rates = {"denied": 1.0}
        ran = cli("eval", trained.run, trained.images, "--output", "s3://bucket/c.png")
        assert ran.code == 1 and "s3://bucket/c.png: access denied" in ran.err
        assert self.staged(tmp_path) == []

    def test_what_fails_leaves_nothing(self, cli, trained, server, tmp_path):
        ran = cli("eval", trained.run, trained.images, "--output", "s3://bucket/c.xyz")
        said = " ".join(ran.err.split())
        assert ran.code == 2 and "--output s3://bucket/c.xyz: " in said and "give a name that ends in .png" in said
        assert self.staged(tmp_path) == [] and list(server.folder.iterdir()) == []


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

    def test_a_cache_that_cannot_be_written(self, cli, trained, server, tmp_path):
        """A file in its place, as root may write anywhere."""
        (tmp_path / "home").touch()
        for command in (("export", trained.run, "-o"), ("embed", trained.shards, "--weights", trained.run)):
            name = "m.safetensors" if command[0] == "export" else "E"
            ran = cli(*command, f"s3://bucket/{name}")
            said = " ".join(ran.err.split())
            assert ran.code == 1 and f"{tmp_path}/home/fastimg/staging: Not a directory; give another folder" in said
            assert "with --cache-dir" in said and "Traceback" not in said
        ran = cli("export", trained.run, "-o", "s3://bucket/m.safetensors", "--cache-dir", tmp_path / "cache")
        assert ran.code == 0, ran.err
        assert (server.folder / "m.safetensors").exists() and not list((tmp_path / "cache/staging").iterdir())

    def test_goes_to_the_url(self, cli, trained, server, tmp_path):
        assert cli("export", trained.run, "-o", tmp_path / "m.safetensors").code == 0
        ran = cli("export", trained.run, "-o", "s3://bucket/models/m.safetensors", "--check", "--json")
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["file"] == "s3://bucket/models/m.safetensors"
        there = server.folder / "models"
        assert [path.name for path in there.iterdir()] == ["m.safetensors"]
        assert (there / "m.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()
        again = cli("export", trained.run, "-o", "s3://bucket/models/m.safetensors")
        assert again.code == 2 and "models/m.safetensors: exists already; add --overwrite" in again.err
        assert cli("export", trained.run, "-o", "s3://bucket/models/m.safetensors", "--overwrite").code == 0
        assert not list((tmp_path / "home/fastimg/staging").iterdir()) and not Path("s3:").exists()

    @pytest.mark.parametrize(("fault", "words"), [("busy", None), ("denied", "access denied")])
    def test_faults(self, cli, trained, server, monkeypatch, fault, words):
        monkeypatch.setattr(graph, "write", lambda name, file, source, what: file.write_bytes(b"a graph"))
        server.faults = [("PUT m.pt2", fault)]
        ran = cli("export", trained.run, "-o", "s3://bucket/m.pt2")
        assert (ran.code, (server.folder / "m.pt2").exists()) == ((1, False) if words else (0, True))
        assert words is None or words in ran.err
