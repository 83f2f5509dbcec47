"""The architecture: imports between packages, links, and the top level of each package."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fastimg

ROOT = Path(__file__).parents[2]
TOP = {
    *("pyproject.toml", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", ".ci", ".gitignore"),
    *("LICENSE", "CITATION.cff", "Dockerfile", ".dockerignore"),
    *("fastimg", "loaders", "augment", "tests", "benchmarks", "scripts", "docs"),
    *(".github", ".pre-commit-config.yaml", ".gitattributes", ".python-version"),
}


@pytest.mark.parametrize("name", ["loaders", "augment"])
def test_links_are_relative(name):
    """An absolute link would point into the author's machine."""
    assert os.readlink(ROOT / "fastimg" / name) == f"../{name}"


def test_the_top_level():
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: nobody knows what belongs to it")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {path.partition("/")[0] for path in listed.split("\0") if path}
    assert top <= TOP
    assert {"pyproject.toml", "README.md", "fastimg", "loaders", "augment", "tests"} <= top


def test_the_package_has_few_names_of_its_own():
    code = "import fastimg; print(sorted(n for n in vars(fastimg) if not n.startswith('_')), fastimg.__version__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == f"[] {fastimg.__version__}"


def names_of(path):
    return str(path.relative_to(ROOT))


MODULES = sorted(path for top in ("fastimg", "loaders", "augment") for path in (ROOT / top).rglob("*.py"))
PACKAGES = sorted(path.parent for path in MODULES if path.name == "__init__.py" and path.parent != ROOT / "fastimg")


@pytest.mark.parametrize("path", MODULES, ids=names_of)
def test_every_module_says_what_it_is_for(path):
    """And no package has a meaningless name."""
    assert path.stem not in ("utils", "helpers", "common", "misc", "manager")
    assert path.parent / path.name == ROOT / "fastimg/__init__.py" or path.read_text(encoding="utf-8").startswith('"""')


@pytest.mark.parametrize("package", PACKAGES, ids=names_of)
def test_every_package_says_what_it_takes_gives_and_must_not_know(package):
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    assert [part in docstring for part in ("In: ", "Out: ", "Must not know: ")] == [True] * 3


def test_packages_are_few_and_small():
    rooms = {path.name for path in (ROOT / "fastimg").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == {
        *("config", "system", "data", "models", "train", "embeddings", "convert", "predict", "inspect", "bench"),
        *("doctor", "publish", "search", "suggest", "cluster", "loaders", "augment"),
    }
    files = {path.stem for path in (ROOT / "fastimg").glob("*.py")}
    assert files == {
        "__init__",
        "__main__",
        "api",
        "cli",
        "demo",
        "errors",
        "notebook",
        "signatures",
        "torch_state",
        "wording",
    }


def test_public_class_names_are_unique():
    """So that a class name identifies the class."""
    homes = {}
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(names_of(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_constructors_take_at_most_12_fields_or_say_why():
    """`# more than 12 fields: a flag each` beside the class, or the same in its docstring."""
    silent = {}
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                fields = sum(isinstance(statement, ast.AnnAssign) for statement in node.body)
                beside = lines[node.lineno - 1] + (ast.get_docstring(node) or "")
                if fields > 12 and "more than 12 fields: " not in beside.lower():
                    silent[node.name] = fields
    assert silent == {}


def test_pillow_opens_images_in_one_place():
    """There it is said which formats, and how many pixels. Pillow would open others: EPS starts a program."""
    opened = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            imported = isinstance(node, ast.ImportFrom) and node.module == "PIL.Image"
            called = (
                isinstance(node, ast.Attribute) and node.attr == "open" and ast.unparse(node.value).endswith("Image")
            )
            parsed = isinstance(node, ast.Attribute) and ast.unparse(node) == "ImageFile.Parser"
            if imported or called or parsed:
                opened.add(names_of(path))
    assert opened == {"loaders/opening.py"}
