"""Links in the pages point to existing files and headings."""

import re

import pytest

from .pages import PAGES, ROOT, name_of, prose_of

OTHERS = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/README.md")]
_LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")


def anchors(page):
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_links(page):
    targets = ["".join(found) for found in _LINK.findall(prose_of(page))]
    dead = []
    for target in targets:
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


def test_every_page_is_linked():
    """From README, or from a page that README links to."""
    linked = set()
    for page in PAGES:
        for found in _LINK.findall(prose_of(page)):
            linked.add((page.parent / "".join(found).partition("#")[0]).resolve())
    assert [name_of(page) for page in PAGES if page not in linked and page.name != "README.md"] == []
