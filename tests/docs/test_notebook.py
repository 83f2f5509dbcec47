"""The tutorial's notebook: its cells run one after the other, as Jupyter would run them, on fewer photographs."""

import ast
import json

import pytest

from .pages import ROOT, inside

NOTEBOOK = ROOT / "docs/tutorial/notebook.ipynb"
SMALLER = {"per_class=150": "per_class=12", "img_size=64": "img_size=32", "epochs=6": "epochs=1"}


@pytest.mark.curves
def test_the_cells_run(tmp_path, monkeypatch):
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))
    monkeypatch.syspath_prepend(NOTEBOOK.parent)
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    whole = "\n".join(cells)
    for theirs, ours in SMALLER.items():
        assert whole.count(theirs) == 1
        cells = [cell.replace(theirs, ours) for cell in cells]
    names, shown = {}, []
    with inside(tmp_path):
        for number, cell in enumerate(cells):
            *statements, last = ast.parse(cell).body
            exec(compile(ast.Module(statements, []), f"cell {number}", "exec"), names)
            shown.append(eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names))
        tables = [result._repr_html_() for result in shown[1:]]
    assert names["report"].images == 50 and names["found"].duplicates.within == 2
    assert names["result"].best.samples == names["evaluation"].images == names["report"].splits["val"]
    assert [answer.error for answer in names["answers"]] == [None] * 12
    pictures = [table.count("<img") for table in tables]
    assert pictures == [2, 0, 1, 2, 12], tables
    assert all("<table" in table for table in tables)


def test_it_is_stored_without_outputs():
    """They would be bytes that change with every run; the tutorial has the pictures."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if "outputs" in cell)
