"""Each sentence quoted in troubleshooting.md occurs in the source."""

import ast
import re

import pytest

from .pages import ROOT


def said_by(path):
    """The string literals of a module, adjacent ones joined; placeholders become a NUL."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)


@pytest.fixture(scope="module")
def sentences():
    """All string literals of the three packages."""
    files = [file for top in ("fastimg", "loaders", "augment") for file in (ROOT / top).rglob("*.py")]
    return [text for file in files for text in said_by(file)]


def test_quoted_sentences_occur_in_the_source(sentences):
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| `([^`]+)`", page, re.M)
    assert len(quoted) > 30
    unknown = []
    for sentence in quoted:
        pattern = re.compile(".*".join(re.escape(part) for part in sentence.split("...")), re.S)
        if not any(pattern.search(text) for text in sentences):
            unknown.append(sentence)
    assert unknown == []
