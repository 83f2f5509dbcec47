"""Text in plots: a font with the glyphs, or code points and a message."""

import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.text import Text

from fastimg.train.reporting import confusion, plots
from fastimg.train.reporting.lettering import Lettering, lettering


def make_font(file, characters, outline=True):
    """A font of the family `file.stem`, with a square for each of some characters."""
    pen = TTGlyphPen(None)
    if outline:
        pen.moveTo((100, 0))
        for corner in ((100, 700), (800, 700), (800, 0)):
            pen.lineTo(corner)
        pen.closePath()
    names = {ord(char): f"uni{ord(char):X}" for char in characters}
    glyphs = [".notdef", *names.values()]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap(names)
    builder.setupGlyf(dict.fromkeys(glyphs, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 100)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": file.stem, "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=800, usWeightClass=400)
    builder.setupPost()
    builder.save(file)
    return str(file)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """`install(name, characters)`: install a font on a system that has only matplotlib's."""
    own = [entry for entry in font_manager.fontManager.ttflist if "mpl-data" in str(entry.fname)]
    files = []
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: files)
    return lambda name, characters, outline=True: files.append(make_font(tmp_path / f"{name}.ttf", characters, outline))


def test_plain_names_need_no_other_font(install, monkeypatch):
    monkeypatch.setattr(font_manager, "findSystemFonts", None)  # nobody asks
    found = lettering(["dog", "café", "cafe\u0301", "→ …", "x\ty"])
    assert (len(found.families), found.missing, found.note()) == (1, frozenset(), None)


def test_a_font_with_the_glyphs_is_used(install, tmp_path):
    install("Dogs", "犬猫")
    install("Cats", "猫")
    install("Faces", "🐶")
    found = lettering(["犬", "猫 🐶", "dog"])
    assert found.families[1:] == ("Dogs", "Faces") and found.note() is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert (
            confusion.plot_confusion(np.eye(3, dtype=np.int64), ["犬", "猫 🐶", "dog"], "t", tmp_path / "c.png") == []
        )
    assert not [str(one.message) for one in caught if "lyph" in str(one.message)]


def test_missing_glyphs_become_code_points_and_are_reported(install):
    install("Dogs", "犬")
    install("Blank", "🐶", outline=False)  # as in fonts of coloured bitmaps
    found = lettering(["犬 🐶", "鳥"])
    assert found.families[1:] == ("Dogs",) and found.missing == {"🐶", "鳥"}
    assert found.text("犬 🐶 鳥") == "犬 \\U0001f436 \\u9ce5"
    assert found.note() == (
        "no installed font has all characters of the names: pictures show 鳥 as \\u9ce5, 🐶 as \\U0001f436; install a "
        "font that has them, such as Noto Sans CJK or Noto Emoji"
    )
    many = Lettering((), frozenset(map(chr, range(0x4E00, 0x4E08))))
    assert "\\u4e04 and 3 more; install" in str(many.note())


@pytest.mark.parametrize(
    ("text", "length", "drawn"),
    [
        ("a\u0301b", None, "áb"),  # composed
        ("👍\u200d\ufe0f!", None, "👍!"),  # joiners and selectors have no glyphs
        ("x\ty\nz\u3000", None, "x y z "),
        ("bell\x07", None, "bell\\x07"),
        ("\udcff", None, "\\udcff"),  # a file name that is not UTF-8
        ("abcdefgh", 8, "abcdefgh"),
        ("abcdefghi", 8, "abcd…ghi"),
        ("abc d e ghi", 8, "abc…ghi"),
        ("鳥鳥鳥", 14, "\\u9ce5…\\u9ce5"),  # no code point is split
    ],
)
def test_texts(text, length, drawn):
    assert Lettering((), frozenset("鳥")).text(text, length) == drawn


def test_a_class_whose_name_no_font_has_is_a_number():
    found = Lettering((), frozenset("犬鳥🐶"))
    assert [found.class_label(name, 7) for name in ("犬", "犬鳥 dog", "dog 🐶 at home", "dog")] == [
        *("class 7", "class 7", "dog \\U0001f436 at home", "dog")
    ]
    assert str(found.note({3: "鳥", 5: "dog"})).startswith(
        "no installed font has all characters of the names: pictures show 鳥 as class 3; install a font"
    )
    assert "show 犬 as class 1, 🐶 as \\U0001f436; install" in str(found.note({1: "犬", 2: "dogs, all 🐶"}))
    assert found.note({5: "dog"}) is None


@pytest.mark.parametrize("shaped", [True, False])
def test_scripts_that_an_older_matplotlib_cannot_join_are_not_drawn(shaped, install, monkeypatch):
    monkeypatch.setattr("fastimg.train.reporting.lettering._shapes", lambda: shaped)
    assert lettering(["كلب", "größer"]).missing == (frozenset() if shaped else frozenset("كلب"))


def test_all_texts_of_a_picture_get_the_fonts(install, tmp_path, monkeypatch):
    kept = []
    save = plots.save
    monkeypatch.setattr(plots, "save", lambda figure, *rest: (save(figure, *rest), kept.append(figure)))
    install("Dogs", "犬")
    images = [np.zeros((8, 8, 3), np.uint8)] * 2
    assert plots.plot_predictions(images, ["犬 (50%)", "cat"], [True, False], tmp_path / "p.png") == []
    texts = [text for text in kept[0].findobj(Text) if text.get_text()]
    assert "犬 (50%)" in [text.get_text() for text in texts]
    assert all(text.get_fontfamily()[-1] == "Dogs" for text in texts)
