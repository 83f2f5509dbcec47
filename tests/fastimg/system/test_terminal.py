"""Output of commands is complete: pipes do not wrap lines, and terminals truncate nothing."""

import base64
import io
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.table import Table

from fastimg.bench import rig
from fastimg.doctor import diagnosis as doctor
from fastimg.doctor import torch_facts
from fastimg.embeddings.cache import Keeper
from fastimg.system import packages as installed
from fastimg.system import terminal
from fastimg.system.progress import Display
from fastimg.wording import brief

MODEL = ("--arch", "test_resnet", "--img-size", "32", "--no-amp", "-j", "1")
BENCH = (*MODEL, "--workers-curve", "1", "-b", "4", "--images", "8", "--repeats", "1", "--stages", "none")


@pytest.fixture
def deep(trained, tmp_path, monkeypatch):
    """Data, shards and a run below a path of more than 300 characters, some like rich's markup; COLUMNS is 40."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(rig, "SECONDS", 0.01)
    monkeypatch.setattr(doctor.disks, "FILE", 16 << 20)
    monkeypatch.setattr(installed, "why_not_importable", lambda module: "")
    monkeypatch.setattr(torch_facts, "_ask", torch_facts.look)
    folder = tmp_path / f"[bold]{'a' * 150}:smile:" / f"it is long {'b' * 150}"
    folder.mkdir(parents=True)
    for name, target in (("images", trained.images), ("shards", trained.shards), ("run", trained.run)):
        shutil.copytree(target, folder / name, symlinks=True)
    return folder


COMMANDS = {
    "convert": (("convert", "{}/images", "{}/made"), ("{}/made (tar)",)),
    "verify": (("verify", "{}/shards"), ("{}/shards: no fault",)),
    "inspect": (
        ("inspect", "{}/shards", "-o", "{}/look"),
        ("{}/shards", "{}/look/samples.png, ", "{}/look/augmented.png"),
    ),
    "train": (
        ("train", "{}/images", *MODEL, "-b", "8", "--epochs", "1", "--no-aug", "--output", "{}/runs", "--name", "r"),
        ("test_resnet on {}/images", "{}/runs/r/best/model.safetensors", "{}/runs/r/curves.png, results.csv"),
    ),
    "eval": (
        ("eval", "{}/run", "{}/shards", "--output", "{}/c.png", "-j", "1"),
        ("{}/shards (val), 12 images", "confusion matrix: {}/c.png"),
    ),
    "predict": (
        ("predict", "{}/run", "{}/images/val/red", "{}/other.jpg"),
        ("│ {}/images/val/red/0.jpg", "{}/other.jpg "),
    ),
    "embed": (("embed", "{}/shards", "{}/vectors", *MODEL, "--weights", "{}/run"), ("embeddings in {}/vectors",)),
    "export": (("export", "{}/run", "--format", "safetensors", "-o", "{}/m.safetensors"), ("{}/m.safetensors, ",)),
    "doctor": (("doctor", "{}"), ("{} (",)),
    "bench": (("bench", "{}/shards", *BENCH, "--output", "{}/p.png"), ("drawn in {}/p.png",)),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_gets_whole_lines_without_colours(command, cli, deep, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(deep / "cache"))
    arguments, expected = COMMANDS[command]
    ran = cli(*(argument.replace("{}", str(deep)) for argument in arguments))
    assert ran.code == (command == "predict"), ran.err  # it cannot read one of the files
    for text in expected:
        assert text.replace("{}", str(deep)) in ran.out
    assert "\x1b" not in ran.out + ran.err and "…" not in ran.out


TOLD = {"convert": ["{}/made"], "inspect": ["{}/look/samples.png"], "eval": ["{}/shards", "{}/c.png"]}


@pytest.fixture
def narrow(monkeypatch):
    """A terminal of 60 columns."""

    def console(stderr=False):
        return Console(file=sys.stderr if stderr else sys.stdout, width=60, force_terminal=True, **PLAIN)

    monkeypatch.setattr(terminal, "console", console)


@pytest.mark.parametrize("command", TOLD)
def test_a_narrow_terminal_wraps_paths_and_truncates_none(command, cli, deep, narrow):
    ran = cli(*(argument.replace("{}", str(deep)) for argument in COMMANDS[command][0]))
    out = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", ran.out)
    assert ran.code == 0 and "…" not in out
    for text in TOLD[command]:
        assert re.sub(r"\s", "", text.replace("{}", str(deep))) in re.sub(r"[\s│]", "", out)


def test_predict_prints_one_line_an_image_with_the_end_of_its_path(cli, deep, narrow):
    """The table is for looking at; --csv and a pipe have whole paths."""
    ran = cli(*(argument.replace("{}", str(deep)) for argument in COMMANDS["predict"][0]))
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", ran.out).splitlines() if line.startswith("│")]
    assert ran.code == 1 and all(len(line) <= 60 for line in lines)
    for name in ("0.jpg", "1.png", "2.jpg", "3.png"):
        (line,) = (line for line in lines if f"/images/val/red/{name} │ " in line)
        assert re.match(r"│ …b+/images/val/red/", line) and re.search(r"│ \w+ \d+\.\d%", line)
    assert "/other.jpg │ not read: " in "".join(lines)


PLAIN = {"markup": False, "highlight": False, "emoji": False}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_only_terminals_have_a_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "44")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert terminal.console().width == 44
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert terminal.console().width > 100_000
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert terminal.console().width > 100_000
    monkeypatch.setattr(sys, "stdout", None)  # closed by the shell: `fastimg ... >&-`
    terminal.console().print("nobody reads this")


def test_a_notebook_gets_text_whose_last_line_is_rewritten(monkeypatch, capsys):
    """Jupyter shows what follows a return in place of the line, and drops the codes that it does not know."""

    class ZMQInteractiveShell:
        pass

    monkeypatch.setenv("TERM", "xterm-color")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell))
    console = terminal.console(stderr=True)
    assert (console.width, console.is_terminal, console.is_jupyter) == (100, True, False)
    with Display(console, 3, 40) as display:
        display.say("[b]epoch[/b] 1")
        display.advance(0, 7)
    printed = capsys.readouterr()
    assert printed.err == "" and "[b]epoch[/b] 1\n" in printed.out and "\r" in printed.out
    shown = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", printed.out)
    assert "\x1b" not in shown and "1/3" in shown
    assert max(len(part) for part in re.split(r"[\r\n]", shown)) <= 100


def test_long_titles_are_not_wrapped():
    out = io.StringIO()
    terminal.print_table(
        Console(file=out, width=30), Table("x", "y"), "[a] title that is longer than its table :smile:"
    )
    assert out.getvalue().startswith("[a] title that is longer than its table :smile:\n")


def test_headings_of_the_demo_keep_their_commands(capsys):
    from fastimg import demo

    demo._step(terminal.console(), "fastimg train " + "x" * 300)
    demo._step(terminal.console(), "next")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "fastimg train " + "x" * 300 + " " and lines[3] == "next ".ljust(80, "-")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_control_characters_are_printed_and_not_obeyed(is_terminal, monkeypatch):
    name = "a\x1b[31mb\x07\rc\x9b2J\u202ed\udce9e\x7f"
    shown = "a\\x1b[31mb\\x07\\x0dc\\x9b2J\\u202ed\\udce9e\\x7f"
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    console = terminal.console()
    terminal.say(console, name)
    console.print(f"plain {name}")
    table = Table("class")
    table.add_row(name)
    terminal.print_table(console, table)
    assert stream.getvalue().count(shown) == 3
    without_styles = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
    assert not set(without_styles) & set("\x1b\x07\r\x9b\u202e\udce9\x7f")


def test_cells_in_errors_are_short_and_paths_are_whole():
    jpeg = bytes(range(256)) * 24
    path = "/".join(["folder of images"] * 2 + ["a" * 200] * 4)
    url = "s3://bucket/" + path
    for cell in (repr(jpeg), repr([jpeg]), base64.b64encode(jpeg).decode(), "x" * 6000):
        sentence = brief(f"{path}: row 3: {cell} is no image; see {url}")
        assert sentence.startswith(f"{path}: row 3: {cell[:40]}") and sentence.endswith(f"is no image; see {url}")
        assert len(sentence) < len(path) + len(url) + 160
    assert len(brief("a word " * 5000)) < 4000


def test_square_brackets_in_names_are_printed_on_a_terminal(monkeypatch):
    """In lines, tables and bars: rich's markup is nowhere obeyed."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "200")
    name = "[red]x[/red] [/] :smile:"
    console = terminal.console()
    terminal.say(console, name)
    console.print(name)
    table = Table("class", name)
    table.add_row(name, name)
    terminal.print_table(console, table, name)
    with Display(console, 3, 9) as display:
        display.note(name)
    with Keeper(Path(), SimpleNamespace(first=True), 1, console).progress(name, 3) as advance:
        advance(1)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert shown.count(name) >= 8 and shown.count("x") == shown.count("[red]x[/red]")
