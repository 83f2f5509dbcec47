"""Where files of a dataset are: relative to its folder, or anywhere, one by one and in groups."""

from pathlib import Path

import pytest

from fastimg.loaders import FilesDataset
from fastimg.loaders.runtime.scratch import Scratch


@pytest.mark.parametrize("root", ["folder", "", "/"])
def test_paths_of_any_kind(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / root
    folder.mkdir(exist_ok=True)
    (tmp_path / "far").write_bytes(b"far away")
    paths = [str(tmp_path / "far")]
    if root != "/":
        (folder / "near").write_bytes(b"near")
        paths.append("near")
    files = FilesDataset(Path(root), paths)
    alone = [bytes(files.read(index, Scratch())) for index in range(len(paths))]
    encoded = Scratch().group(len(paths))
    files.read_group(range(len(paths)), encoded)
    together = [bytes(encoded[place] or b"") for place in range(len(paths))]
    assert alone == [b"far away", b"near"][: len(paths)] == together


def test_a_subclass_reads_in_its_own_way(tmp_path: Path) -> None:
    class Other(FilesDataset):
        def read(self, index: int, scratch: Scratch) -> memoryview:
            return memoryview(b"its own")

    (tmp_path / "a").write_bytes(b"file")
    files = Other(tmp_path, ["a", "a"])
    encoded = Scratch().group(2)
    files.read_group([0, 1], encoded)
    assert encoded[0] is encoded[1] is None
