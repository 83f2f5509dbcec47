"""The kinds and values of targets in a table: what is guessed, what is missing, and what is refused by its row."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastimg.convert.sources.columns import AskedTarget, Columns
from fastimg.convert.sources.targets import StatedTargets, TargetCells, check_targets, parse_targets
from fastimg.errors import UsageError
from fastimg.loaders.containers.targets import Target, TargetValues, packed, unpacked
from fastimg.loaders.errors import DataError

SRC = Path("pets.csv")


def cells_of(values: list[Any], asked: str = "x", names: Any = None, **columns: Any) -> TargetCells:
    """The targets of a table with one column, x, of these values."""
    rows = enumerate(({"x": value} for value in values), start=2)
    return TargetCells(SRC, Columns(targets=parse_targets([asked]), **columns), rows, names or {})


def read(values: list[Any], asked: str = "x", names: Any = None, **columns: Any) -> list[Any]:
    """What is stored of each value."""
    cells = cells_of(values, asked, names, **columns)
    (target,) = cells.targets
    found = []
    for number, value in enumerate(values, start=2):
        note: dict[str, Any] = {}
        label = cells.read_into(note, number, {"x": value}, "train")
        found.append(note["x"] if target.kind != "class" else cells.classes[label] if label >= 0 else None)
    return found


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["pug", "pug", "cat", "cat"], "class"),
        (["1", "2", "1", "2"], "class"),
        ([str(i) for i in range(21)], "number"),
        (["1", "2.5"], "number"),
        ([1.0, 2.0, None], "class"),
        (["1", "nan", "inf", "2"], "number"),
        (["a|b", "a", "b", ""], "multilabel"),
        (["a,b", "a", "b"], "multilabel"),
        (["a, b", "b, c", "a, c"], "multilabel"),
        ([["a"], [], None], "multilabel"),
        (['["a", "b"]', "[]"], "multilabel"),
        (["['a', 'b']", "['a']"], "multilabel"),
        (["cat, tabby", "dog, brown"], "class"),  # names with a comma, not lists of other names
        ([True, False, True], "class"),
    ],
)
def test_the_kind_is_guessed_from_all_values(values: list[Any], kind: str) -> None:
    (target,) = cells_of(values).targets
    assert target.kind == kind


@pytest.mark.parametrize("kind", ["class", "multilabel", "number"])
def test_a_kind_that_is_given_overrules_the_guess(kind: str) -> None:
    (target,) = cells_of(["1", "2", "1"], f"x:{kind}").targets
    assert target.kind == kind


def test_the_guess_is_said_with_what_overrules_it() -> None:
    (said,) = cells_of([*map(str, range(30)), ""]).judged()
    assert said == (
        "pets.csv: target 'x': number; guessed: 30 different numbers; --target x:class overrules this; missing in 1 of "
        "31 rows"
    )


def test_only_a_known_kind_after_the_last_colon_is_a_kind() -> None:
    texts = ["a:b", "a:class", "b:class:class", "c:number", ":number"]
    assert [(target.name, target.kind) for target in parse_targets(texts)] == [
        ("a:b", None),
        ("a", "class"),
        ("b:class", "class"),
        ("c", "number"),
        (":number", None),
    ]


def test_what_is_missing_and_what_is_empty() -> None:
    assert read(["1.5", "", " ", "nan", "NaN", None, math.nan], "x:number") == [1.5, *[None] * 6]
    assert read(["a", "", None, math.nan], "x:class") == ["a", None, None, None]
    assert read(["1", "NaN", "2"], "x:class") == ["1", None, "2"]
    assert read(["Nan", "Bo", "1"], "x:class") == ["Nan", "Bo", "1"]  # where not all others are numbers, it is a name
    assert read([["b", "a"], [], None, "a"], "x:multilabel") == [["a", "b"], [], None, ["a"]]
    assert read(["a|b|", "|", ""], "x:multilabel") == [["a", "b"], [], None]


def test_names_may_have_spaces_commas_quotes_and_any_script() -> None:
    names = ["Lhasa Apso", 'the "good" one', "犬", "a; b", "ß"]
    assert read(["|".join(names), names[0]], "x") == [sorted(names), names[:1]]
    assert read(names, "x:class") == names
    assert read(['["a, b", "c|d"]'], "x") == [["a, b", "c|d"]]


def test_integers_are_classes_by_their_value() -> None:
    assert read(["01", "1", "2", 3.0], "x:class") == ["1", "1", "2", "3"]
    assert read([[1, 10], ["2"]], "x") == [["1", "10"], ["2"]]
    assert cells_of([[1, 10], ["2"]]).targets[0].classes == ("1", "2", "10")


def test_the_delimiter_may_be_given() -> None:
    assert read(["a;b", "b"], label_delimiter=";") == [["a", "b"], ["b"]]
    assert read(["a,b|c"], "x:multilabel") == [["a,b", "c"]]
    assert read(["a,b|c"], "x:multilabel", label_delimiter=",") == [["a", "b|c"]]


LEAVES = ["scab frog_eye", "scab", "frog_eye", "healthy", "rust frog_eye", "rust", "scab"]


def test_labels_that_spaces_separate() -> None:
    expected = [["frog_eye", "scab"], ["scab"], ["frog_eye"], ["healthy"], ["frog_eye", "rust"], ["rust"], ["scab"]]
    assert read(LEAVES, "x:multilabel", label_delimiter=" ") == expected
    assert read(LEAVES, label_delimiter=" ") == expected
    assert read([*LEAVES, "golden  retriever"], label_delimiter=" ")[-1] == ["golden", "retriever"]
    names = ["golden retriever", "labrador retriever", "pug"]
    assert read(names, label_delimiter=" ") == names  # of a class beside the tags that the delimiter is for


@pytest.mark.parametrize(
    ("values", "asked", "advice"),
    [
        (LEAVES, "x:multilabel", "2 of 6 labels look like several, separated by ' ', such as 'rust frog_eye'; all are"),
        (LEAVES, "x:multilabel", "made of 4: give --label-delimiter ' ', or --label-delimiter ',' if each is a label"),
        (LEAVES, "x", "give --target x:multilabel --label-delimiter ' ', or --target x:class if each is a label"),
        ([cell.replace(" ", ";") for cell in LEAVES], "x:multilabel", "give --label-delimiter ';'"),
        (["a;b", "c;d", "e"], "x:multilabel", "give --label-delimiter ';'"),
        (["a|b", "b c", "c"], "x:multilabel", "separated by ' ', such as 'b c'; .* or --label-delimiter '|' if"),
        (["a|b", "b,c", "c"], "x:multilabel", "give --label-delimiter ','"),
        (["a b", "b c", "a c", "b a"], "x:multilabel", "give --label-delimiter ' '"),
    ],
)
def test_lists_that_would_be_labels_are_refused(values: list[Any], asked: str, advice: str) -> None:
    with pytest.raises(DataError, match=re.escape(advice).replace(r"\.\*", ".*")):
        cells_of(values, asked)
    (target,) = cells_of(values, "x:class").targets
    assert target.classes == tuple(sorted(set(values)))


@pytest.mark.parametrize(
    "names",
    [
        ["golden retriever", "labrador retriever", "flat-coated retriever", "golden eagle"],
        [f"{vehicle} {side}" for vehicle in ("car", "van", "bus") for side in ("front", "rear", "top")],
        ["hot dog", "dog", "cat", "teddy bear", "bear", "potted plant"],
        ["New York", "York", "San Francisco", "San Diego"],
    ],
)
def test_names_with_spaces_are_labels(names: list[str]) -> None:
    assert read(names, "x:multilabel") == [[name] for name in names]
    assert read(names, "x") == names


def test_lists_of_labels_that_are_known_are_refused() -> None:
    known = (Target(name="x", kind="multilabel", classes=("scab", "rust")),)
    with pytest.raises(DataError, match=r"1 of 1 label look like several.*--label-delimiter ' '"):
        cells_of(["scab rust", "scab"], known_targets=known)
    assert read(["scab rust"], known_targets=known, label_delimiter="|") == [["scab rust"]]


def test_names_of_a_schema_name_the_numbers() -> None:
    names = {"x": ("pug", "akita", "cat")}
    assert read([2, 0, None, -1], names=names) == ["cat", "pug", None, None]
    assert cells_of([2, 0], names=names).targets[0].classes == ("pug", "cat")
    with pytest.raises(DataError, match=r"row 2: column 'x': 3 is not one of the 3 classes that the schema names"):
        cells_of([3], names=names)


def test_classes_of_the_dataset_that_is_added_to_come_first() -> None:
    known = (Target(name="x", kind="multilabel", classes=("z", "b")),)
    (target,) = cells_of(["a", "b"], known_targets=known).targets  # the kind is that of the dataset
    assert target == Target(name="x", kind="multilabel", classes=("z", "b", "a"))
    with pytest.raises(UsageError, match=r"--target x:number: the dataset has it as multilabel"):
        cells_of(["1"], "x:number", known_targets=known)


@pytest.mark.parametrize(
    ("values", "asked", "reason"),
    [
        (["1", "tall"], "x:number", r"row 3: \"tall\" in column 'x' is not a number; .*x:class"),
        (["1", "1,5"], "x:number", r"row 3: \"1,5\" in column 'x' is not a number"),
        (["1", "1_000"], "x:number", r"row 3: .* is not a number"),
        (["1", "inf"], "x:number", r"row 3: \"inf\" in column 'x' is not finite"),
        ([0.5, -math.inf], "x", r"row 3: .* is not finite"),
        ([[1.0], 2], "x:number", r"row 2: \[\"1\"\] in column 'x' is not a number"),
        (["nan", "", "NaN"], "x", r"target 'x': every row is empty"),
        (["", " ", None], "x", r"target 'x': every row is empty; .*leave out --target x"),
        ([[], []], "x", r"target 'x': no row has a label"),
        ([["a"], "b"], "x:class", r"row 2: .* is a list, not one class; use x:multilabel"),
        ([f"id{i}" for i in range(40)], "x", r"look like identifiers.*--target x:class"),
        ([b"a"], "x", r"row 2: column 'x': neither text nor a number \(bytes\)"),
        ([[["a"]]], "x", r"neither text nor a number \(list\)"),
        (["a\ud800"], "x", r"row 2: column 'x': not UTF-8"),
    ],
)
def test_what_is_no_value_is_refused_by_its_row(values: list[Any], asked: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read(values, asked)


def test_a_constant_is_said() -> None:
    assert "the same in every row (7), so there is nothing to learn" in cells_of(["7", "7", ""], "x:number").judged()[0]


def test_a_class_that_only_validation_has_is_refused_and_a_label_is_said() -> None:
    for asked, said in (("x:class", "the training split has no class 'b' of 'x', which val has"), ("x:multilabel", "")):
        cells = cells_of(["a", "b"], asked)
        cells.read_into({}, 2, {"x": "a"}, "train")
        cells.read_into({}, 3, {"x": "b"}, "val")
        if said:
            with pytest.raises(DataError, match=f"row 3: {said}"):
                cells.judged()
        else:
            assert "the training split lacks 1 label of 'x', such as 'b'" in cells.judged()[-1]


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["age", "age:number"], "--target age: given twice"),
        (["path"], "--target path: every sample keeps something else under that name"),
        ([""], "give the name of a column"),
    ],
)
def test_names_that_cannot_be_targets_are_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_targets(texts)


def test_a_column_that_is_not_there_or_means_something_else_is_refused() -> None:
    with pytest.raises(DataError, match=r"no column 'bred' \(--target\); it has file, breed; did you mean breed"):
        check_targets(SRC, ["file", "breed"], [AskedTarget("bred")], ["file"])
    with pytest.raises(UsageError, match="--target file: the column is already its path"):
        check_targets(SRC, ["file", "breed"], [AskedTarget("file")], ["file"])


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1, max_size=8)
_NAMES = _TEXT.map(str.strip).filter(bool)


@given(st.lists(st.none() | st.lists(_NAMES, max_size=4), min_size=1, max_size=10))
def test_lists_come_back_from_notes_and_from_the_kept_columns(rows: list[list[str] | None]) -> None:
    if not any(rows):
        return
    cells = cells_of(rows, "x:multilabel")
    (target,) = cells.targets
    values = TargetValues(target)
    for number, row in enumerate(rows, start=2):
        note: dict[str, Any] = {}
        cells.read_into(note, number, {"x": row}, "train")
        note = json.loads(json.dumps(note))  # as in a tar
        lacking, bare = StatedTargets([target]).missing(-1, json.dumps(note).encode())
        assert (lacking, bare) == ((["x"], True) if row is None else ([], False))
        values.add(note["x"])
    column = values.column()
    kept, rest = unpacked(target, memoryview(packed(column)), len(rows))
    assert not len(rest)
    for found in (column, kept):
        assert found.present.tolist() == [row is not None for row in rows]
        for i, row in enumerate(rows):
            names = {target.classes[label] for label in found.labels_of(i)}
            written = {int(name) if name.isascii() and name.lstrip("+-").isdigit() else name for name in row or ()}
            whole = all(isinstance(name, int) for r in rows for name in _as_numbers(r or ()))
            assert names == ({str(name) for name in written} if whole else set(row or ()))


def _as_numbers(names: list[str] | tuple[str, ...]) -> list[int | str]:
    return [int(name) if name.isascii() and name.lstrip("+-").isdigit() else name for name in names]


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=10))
def test_numbers_come_back_exactly(rows: list[float | None]) -> None:
    if all(row is None for row in rows):
        return
    (target,) = cells_of(rows, "x:number").targets
    values = TargetValues(target)
    for stored in read(rows, "x:number"):
        values.add(json.loads(json.dumps(stored)))
    kept, _ = unpacked(target, memoryview(packed(values.column())), len(rows))
    assert [None if math.isnan(value) else value for value in kept.values.tolist()] == rows
    as_text = ["" if row is None else repr(row) for row in rows]
    assert read(as_text, "x:number") == rows
