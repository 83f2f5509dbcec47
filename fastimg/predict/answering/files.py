"""The files that a caller names, and those in the folders that it names."""

import os
from pathlib import Path

from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.content import Content
from fastimg.loaders.folders.bands import is_bands
from fastimg.loaders.folders.walk import find_images, find_texts


def path_of(source: str | os.PathLike[str], place: int) -> Path:
    """The path that a caller gives as sources[place]. Raises UsageError for text that is none."""
    text = os.fspath(source)
    if not text or "\0" in text:
        raise UsageError(f"sources[{place}] is {text!r}, which is no path; give a file or a folder")
    return Path(source)


def find_files(
    sources: tuple[Path, ...], content: Content = "images", undecodable: bool = False, bands: bool = False
) -> tuple[list[Path], list[str]]:
    """The given files, and the images or texts in the given folders; and messages about other files there.

    Missing files stay in the list, to be reported later. With `undecodable`, so do images in formats that cannot be
    decoded here. With `bands`, they are .npy and TIFF files. Raises UserError for an empty folder.
    """
    if bands:
        return _find_bands(sources), []
    files: list[Path] = []
    notes: list[str] = []
    for source in sources:
        if source.is_dir():
            names, others = find_images(source, undecodable) if content == "images" else find_texts(source)
            if not names:
                what = "images" if content == "images" else ".txt files"
                summary = f" (other files: {others.summary()})" if others.total else ""
                raise UserError(f"{source}: no {what} in this folder{summary}; give another folder, or files")
            files += [Path(name) for name in names]
            notes += others.note(str(source), len(names))
        elif source.exists() and not source.is_file():
            raise UserError(f"{source}: neither a file nor a folder; give files")  # reading a pipe would block forever
        else:
            files.append(source)
    return files, notes


def _find_bands(sources: tuple[Path, ...]) -> list[Path]:
    """The given files of bands, and those in the given folders. Raises UserError."""
    files: list[Path] = []
    for source in sources:
        if not source.is_dir() and not is_bands(source.name):
            raise UserError(f"{source}: the checkpoint reads bands; give .npy or TIFF files, or folders of them")
        found = sorted(path for path in source.rglob("*") if is_bands(path.name)) if source.is_dir() else [source]
        if not found:
            raise UserError(f"{source}: no .npy or TIFF files in this folder; give another folder, or files")
        files += found
    return files
