"""Manifests of texts whose delimiter, quotes or header have to be found."""

import csv
import io
import json

import pytest

from fastimg.errors import UsageError

from .manifests import members, said, texts, write

LINES = ['"Good", he said', 'it is "so-so"', '"all of it"', "un'quoted", 'ends with "', "", "  spaces  ", "drôle"]


def test_a_tsv_without_a_header_is_split_at_lines_and_tabs(tmp_path, make, console):
    lines = [f"{text}\t{i % 2}" for i, text in enumerate(LINES) if text] * 2
    for end in ("\n", "\r\n"):
        dst, _ = make(write(tmp_path / "set.tsv", end.join(lines) + end), no_shuffle=True)
        assert [f"{text}\t{label}" for text, label in texts(dst)] == lines
    assert (
        "no header (none of the names in its first line is a known column): columns are numbered 1 to 2; taken as "
        "text: 1, as label: 2 (7 and 2 different values in 14 rows)" in said(console)
    )
    assert "quotes in it are text, because there is no header" in said(console)


def test_byte_order_marks_and_line_ends_are_not_text(tmp_path, make):
    lines = [("x", text) for text in ("one", "two ", "three\r")] + [("y", "four")]
    content = b"\xef\xbb\xbf" + b"".join(f"{label}\t{text}\r\n".encode() for label, text in lines)
    dst, _ = make(write(tmp_path / "set.tsv", content), no_shuffle=True)
    assert texts(dst) == [(text, label) for label, text in lines]


def test_a_tsv_with_quotes_that_are_text(tmp_path, make, console):
    lines = [f"{text}\t{i % 2}" for i, text in enumerate(LINES) if text]
    dst, _ = make(write(tmp_path / "set.tsv", "\n".join(["sentence\tlabel", *lines])), no_shuffle=True)
    assert [f"{text}\t{label}" for text, label in texts(dst)] == lines
    assert "quotes in it are text, because not all of them enclose a field" in said(console)


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (['"a ""b"" c"\t0', "d\t1"], 'a "b" c'),  # doubled: csv's
        (['"a"\t0', '"b"\t1'], "a"),  # all texts are quoted
        (['"a\tb"\t0', "c\t1"], "a\tb"),  # lines have different numbers of tabs
        (['"a"\t0', "b\t1"], '"a"'),  # csv would not have quoted it
        (['"a\t0', 'b"\t1'], '"a'),  # every line has its two fields
        (['"a "b""\t0', "c\t1"], '"a "b""'),
    ],
)
def test_whether_quotes_in_a_tsv_are_text(lines, first, tmp_path, make):
    dst, _ = make(write(tmp_path / "set.tsv", "\n".join(["text\tlabel", *lines]) + "\n"), no_shuffle=True)
    assert texts(dst)[0] == (first, "0")


def test_a_csv_without_a_header(tmp_path, make, console):
    src = write(tmp_path / "set.csv", '\ufeff0,"one, two"\n1,three\n0,four\n1,"say ""five"""\n')
    dst, report = make(src, no_shuffle=True)
    expected = [("one, two", "0"), ("three", "1"), ("four", "0"), ('say "five"', "1")]
    assert texts(dst) == expected
    assert "taken as text: 2, as label: 1" in said(console)
    assert texts(make(src, text_column="2", no_shuffle=True)[0]) == expected
    assert texts(make(src, no_header=True, text_column="2", label_column="1", no_shuffle=True)[0]) == expected
    assert "text from column '2', label from '1'" in report.columns[0]
    assert json.loads(members(dst / "train-00000.tar")["000000003.json"]) == {"path": "set.csv:4"}


@pytest.mark.parametrize(
    ("name", "separator", "said_of_it"),
    [
        ("set.csv", ";", "';'"),
        ("set.csv", "|", "'|'"),
        ("set.csv", "\t", "tabs"),
        ("set.tsv", ",", "','"),
        ("set.tsv", ";", "';'"),
        ("set.csv", ",", ""),
        ("set.tsv", "\t", ""),
    ],
)
@pytest.mark.parametrize("header", [True, False])
def test_the_delimiter_of_texts_and_labels_is_detected(name, separator, said_of_it, header, tmp_path, make):
    rows = [('good; "fine", and | so on\tand on', "pos"), ("a\nb", "neg"), ("so, so", "pos"), ("bad", "neg")]
    rows = rows * 3
    if separator == "\t" and (name == "set.tsv" or not header):  # quotes are text, and every line is a row
        rows = [(text.replace("\t", " ").replace("\n", " "), label) for text, label in rows]
        table = "".join(f"{text}\t{label}\r\n" for text, label in rows)
    else:
        file = io.StringIO(newline="")
        csv.writer(file, delimiter=separator).writerows(rows)
        table = file.getvalue()
    src = write(tmp_path / name, (f"text{separator}label\r\n" if header else "") + table)
    dst, report = make(src, no_shuffle=True)
    assert texts(dst) == rows
    assert report.columns[0].partition(", columns separated by ")[2] == said_of_it


def test_an_explicit_delimiter(tmp_path, make):
    src = write(tmp_path / "set.csv", "good:pos\nbad:neg\nfine:pos\ndull:neg\n")
    dst, report = make(src, delimiter=":", no_shuffle=True)
    assert texts(dst)[0] == ("good", "pos") and report.columns[0].endswith("columns separated by ':'")
    src = write(tmp_path / "tabs.csv", "text\tlabel\ngood\tpos\nbad\tneg\n")
    for spelled in ("tab", "\\t", "\t"):
        assert texts(make(src, delimiter=spelled, no_shuffle=True)[0]) == [("good", "pos"), ("bad", "neg")]
    for wrong in ("", ";;", "x", '"', "\n"):
        with pytest.raises(UsageError, match=r"--delimiter .*: give one character, such as ',' ';' or '|', or tab"):
            make(src, delimiter=wrong)
