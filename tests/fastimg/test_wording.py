"""Wording of counts and long names."""

import ast
import re
from pathlib import Path

import pytest

import fastimg
from fastimg.loaders import wording as of_loaders
from fastimg.wording import agreeing, legible, plural, several, shortened

# A count directly before a plural noun: `{len(classes)} classes` would print "1 classes".
NOUNS = (
    *("array", "batch", "block", "box", "class", "classifier", "copy", "core", "epoch", "error", "fault", "field"),
    *(
        "file",
        "GPU",
        "graph",
        "image",
        "JPEG",
        "label",
        "loader",
        "process",
        "rank",
        "repeat",
        "row",
        "sample",
        "shard",
    ),
    *("slot", "step", "tensor", "text", "thread", "time", "token", "view"),
)
WORDS = "|".join(several(noun) for noun in NOUNS)
# Constants above one, numbers that are known not to be one, and placeholders that are not numbers.
NOT_ONE = {
    *("BLOCK images", "AHEAD batches", "config.freeze blocks", "most steps", "len(shards) files", "n samples"),
    *("attempts times", "_TIMES times", "_ROUNDS times"),
    *("self.dtype.name arrays", "kind fields", "len(input) samples", "there epochs"),
}
NOT_ONE_IN = {
    *(("plots.py", "len(classes) classes"), ("prediction.py", "len(answers) files"), ("input_size.py", "count rows")),
    ("captions.py", "images.fingerprint texts"),
    ("stage_table.py", "threads threads"),
}


@pytest.mark.parametrize(
    ("count", "noun", "written"),
    [
        (0, "image", "0 images"),
        (1, "image", "1 image"),
        (2, "class", "2 classes"),
        (1, "class", "1 class"),
        (3, "batch", "3 batches"),
        (4, "copy", "4 copies"),
        (5, "array of days", "5 array of dayses"),  # nouns come last
        (1200, "random box", "1,200 random boxes"),
        (1, "training image", "1 training image"),
    ],
)
def test_counts(count, noun, written):
    assert plural(count, noun) == written


def test_plurals_of_the_nouns_in_use():
    irregular = {"batch": "batches", "box": "boxes", "class": "classes", "copy": "copies", "process": "processes"}
    assert {noun: several(noun) for noun in NOUNS} == {noun: f"{noun}s" for noun in NOUNS} | irregular


def test_verbs_agree():
    assert [plural(n, "file", "is") for n in (0, 1, 2)] == ["0 files are", "1 file is", "2 files are"]
    assert [agreeing(n, verb) for verb in ("was", "has") for n in (1, 2)] == ["was", "were", "has", "have"]
    assert several("day") == "days" and several("epoch") == "epochs"


def test_loaders_write_counts_alike():
    """They do not know the application."""
    for noun in ("thread", "process", "batch", "class", "sample", "rank"):
        for count in (0, 1, 2, 12_345):
            assert of_loaders.plural(count, noun) == plural(count, noun)


def test_what_is_cut_says_so():
    assert [shortened(text, 5) for text in ("abcde", "abcdef", "abc def", "")] == ["abcde", "abcd…", "abc…", ""]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.7e9 + 12.3456, "1700000012.35"),
        (5_400_000.25, "5400000.25"),
        (-0.300000012, "-0.3"),
        (1234.56789, "1234.568"),
        (2e-9, "2e-09"),
        (9_999_999_999.996, "10000000000"),
        (1.5e300, "1.5e+300"),
        (float("nan"), "nan"),
    ],
)
def test_values_are_legible(value, words):
    assert legible(value) == words


def test_no_count_is_printed_before_a_plural():
    root = Path(fastimg.__file__).parent
    found = []
    # Two of the packages are links, which rglob does not follow.
    files = sorted({*root.rglob("*.py"), *(root / "loaders").rglob("*.py"), *(root / "augment").rglob("*.py")})
    assert len(files) > 100
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            for value, words in zip(node.values, node.values[1:], strict=False):
                if isinstance(value, ast.FormattedValue) and isinstance(words, ast.Constant):
                    match = re.match(rf" ({WORDS})\b", str(words.value))
                    text = f"{ast.unparse(value.value)}{match[0]}" if match else ""
                    if text and text not in NOT_ONE and (file.name, text) not in NOT_ONE_IN:
                        found.append(f"{file.name}:{node.lineno}: {text}")
    assert found == []
