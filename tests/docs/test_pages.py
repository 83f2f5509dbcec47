"""The pages' examples are run on 160 of the embedded digits; numbers in the output may differ, words may not."""

import re
import shutil

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fastimg import cli
from fastimg.config import yaml_file
from fastimg.config.commands import Train
from fastimg.config.flag_types import command_flags, flag_names

from .pages import PAGES, ROOT, blocks_of, name_of, prose_of, run_page

QUICKSTART = ROOT / "docs/quickstart.md"
OTHERS = [page for page in PAGES if page not in (QUICKSTART, ROOT / "README.md")]
RUN = [page for page in OTHERS if any(b.language in ("console", "python") and not b.marked for b in blocks_of(page))]
PER_CLASS = 16
SMALLER = {
    "leaves.py photos": "leaves.py photos --per-class 15",
    "--img-size 64": "--img-size 32",
    "--epochs 6": "--epochs 1",
}


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory):
    """Do not draw curves, which takes longer than training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastimg.train.reporting.summary.plot_curves", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def after_quickstart(tmp_path_factory):
    """The folder after the quickstart: fastimg-demo/images, digits, runs/digits-test_resnet."""
    folder = tmp_path_factory.mktemp("quickstart")
    digits = load_digits()
    for number in range(10):
        into = folder / "fastimg-demo/images" / str(number)
        into.mkdir(parents=True)
        for at, pixels in enumerate(digits.images[digits.target == number][:PER_CLASS]):
            Image.fromarray((pixels * 15).astype("uint8")).save(into / f"{at:04d}.png")
    run_page(QUICKSTART, folder)
    return folder


def test_the_quickstart(after_quickstart):
    assert {path.name for path in after_quickstart.iterdir()} >= {"fastimg-demo", "digits", "runs"}


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch 2.11's own code
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_page(page, after_quickstart, tmp_path):
    """Every page starts where the quickstart ends."""
    folder = tmp_path / "work"
    shutil.copytree(after_quickstart, folder, symlinks=True)
    run_page(page, folder, SMALLER)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_that_are_not_run_are_python_and_yaml(page, tmp_path):
    """Python blocks compile, and YAML blocks are valid configurations of `train`."""
    for block in blocks_of(page):
        if block.language == "python":
            compile(block.text, f"{name_of(page)}:{block.line}", "exec")
        elif block.language == "yaml" and not block.marked:
            file = tmp_path / "run.yaml"
            file.write_text(block.text)
            yaml_file.read(file, Train)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_language(page):
    """A fence without a language is neither run nor checked."""
    assert [block.line for block in blocks_of(page) if not block.language] == []
    assert page.read_text(encoding="utf-8").count("\n```") % 2 == 0


def test_flags_in_the_text_exist():
    """Outside commands: `--flag` in backticks. Pages that compare with other tools may also name those tools' flags."""
    ours = frozenset().union(*(flag_names(command_flags(kind)) for kind in cli._COMMANDS.values()))
    unknown = {
        (name_of(page), flag)
        for page in PAGES
        if page.parent.name != "migrate"
        for flag in re.findall(r"`(--[a-z][\w-]*)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
        if flag not in ours and flag not in THEIRS
    }
    assert unknown == set()


# flags of torchrun, pip, docker and scripts in benchmarks/
THEIRS = {
    *("--gpus", "--ipc"),
    *("--help", "--help-all", "--print-completion"),
    *("--max-restarts", "--numa-binding", "--nproc-per-node", "--version", "--stages", "--gil", "--promise"),
    *("--memory", "--real", "--out", "--second", "--plan", "--check", "--device", "--shared-core", "--store"),
}


# pages of which every sentence has at most 40 words
PLAIN = ("benchmarks", "concepts", "convert", "distillation", "migrate/ultralytics", "optimisers", "remote", "search")


@pytest.mark.parametrize("name", [*PLAIN, "tables", "train"])
def test_no_sentence_is_longer_than_40_words(name):
    """Items of a list and cells of a table are sentences of their own."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose_of(ROOT / f"docs/{name}.md")).replace("\\|", "/")
    parts = re.split(r"\n\s*\n|\n(?=[-*#|]|\d\. )|\|", text)
    sentences = [each for part in parts for each in re.split(r"(?<=[.!?])[)\"]?\s+", " ".join(part.split()))]
    assert [each for each in sentences if len(each.split()) > 40] == []
