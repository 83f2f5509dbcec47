"""What DATA may mean in a folder, where it is left out."""

import subprocess
from pathlib import Path

import pytest

from fastimg.data.candidates import candidates

CASES = {
    "nothing": ((), {}),
    "code and a picture": (("a.py", "b.py", "logo.png", "docs/page.md", "docs/images/a.png"), {}),
    "pictures of pages": (("docs/a/1.svg", "docs/b/1.png", "docs/b/2.jpg", "docs/c/1.md", "docs/d/1.md"), {}),
    "classes here": (("cat/1.jpg", "dog/1.jpg"), {".": "class folders"}),
    "splits here": (("train/cat/1.jpg", "train/dog/1.jpg", "val/cat/1.jpg"), {".": "class folders"}),
    "classes below": (("photos/cat/1.jpg", "photos/dog/1.heic"), {"photos": "class folders"}),
    "splits below": (("photos/training/cat/1.jpg", "photos/training/dog/1.jpg"), {"photos": "class folders"}),
    "texts below": (("reviews/neg/1.txt", "reviews/pos/1.txt"), {"reviews": "class folders"}),
    "datasets below": (
        ("D/dataset.json", "E/train.beton", "F/train-0.tar", "G/convert.json"),
        {"D": "a dataset", "E": "a dataset of .beton files", "F": "tars", "G": "an unfinished conversion"},
    ),
    "flat images": (("photos/1.jpg", "photos/2.jpg"), {"photos": "images without class folders"}),
    "hidden": ((".cache/cat/1.jpg", ".cache/dog/1.jpg"), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_candidates(case: str, tmp_path: Path) -> None:
    files, found = CASES[case]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert {str(folder.relative_to(tmp_path)): what for folder, what in candidates(tmp_path).items()} == found


def test_a_checkout_of_this_repository_is_no_data(tmp_path: Path) -> None:
    """So that the command that trains without DATA works where fastimg has just been cloned."""
    root = Path(__file__).parents[3]
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    for folder in {(tmp_path / name).parent for name in listed.stdout.splitlines()}:
        folder.mkdir(parents=True, exist_ok=True)
    for name in listed.stdout.splitlines():
        (tmp_path / name).touch()
    assert candidates(tmp_path) == {}
