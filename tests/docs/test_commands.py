"""Every command in the pages is parsed, whether a test runs it or not, and every page has its place in the site."""

import pytest
import yaml

from .commands import commands_in, fault_in
from .pages import PAGES, ROOT, name_of

OTHERS = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/README.md")]


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_every_command_can_be_parsed(page):
    """Flags exist and have valid values, files and extras exist, and no program is unknown."""
    faults = {line: fault for line in commands_in(page) if (fault := fault_in(line))}
    assert faults == {}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("fastimg train D resnet50 --dct-scaling low", "unexpected argument 'resnet50'"),
        ("for k in 0 1; do fastimg train D --fold $k/5 --stratfy; done", "--stratfy"),
        ("fastimg search D --trials 2 -- --img-sze 32  # a comment", "--img-sze"),
        ("cd D && torchrun --nproc-per-node 8 -m fastimg trains D", "no command trains"),
        ("docker run --gpus all fastimg fastimg train /D --arc resnet50", "--arc"),
        ('pip install "fastimg[tune]"', "no package index has fastimg"),
        ("uv sync --extra tunes", "no extra tunes"),
        ("python benchmarks/none.py --data D", "benchmarks/none.py does not exist"),
        ("python benchmarks/tiles.py --dta D", "benchmarks/tiles.py has no --dta"),
        ("scripts/none", "scripts/none does not exist"),
        ("fastimg train D --mixup 0.2 --no-aug", "--mixup has no effect with --no-aug"),
        ("frobnicate D", "neither run nor parsed"),
    ],
)
def test_what_is_wrong_is_found(line, fault):
    assert fault in fault_in(line)


@pytest.mark.parametrize(
    "line",
    [
        "fastimg export CKPT --format onnx|pt2|safetensors",
        "fastimg predict",
        "fastimg train ... --img-size 32",
        "fastimg cluster example > cluster.yaml",
        "uv sync --extra tune",
        "pip install 'fastimg[tune] @ git+https://HOST/fastimg'",
    ],
)
def test_what_is_right_is_not(line):
    assert fault_in(line) is None


def test_every_page_is_in_the_site():
    """The pages that scripts/docs copies are those of its navigation: mkdocs refuses others, unless it is quiet."""

    def files(entry):
        if isinstance(entry, str):
            return [entry]
        return [file for part in (entry.values() if isinstance(entry, dict) else entry) for file in files(part)]

    nav = files(yaml.safe_load((ROOT / "scripts/mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert len(set(nav)) == len(nav)
    assert set(nav) == {name_of(page) for page in [*PAGES, *OTHERS]} | {"CHANGELOG.md"}
