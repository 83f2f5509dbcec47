"""Archives that lie where a folder is expected: they are named, and not read."""

from pathlib import Path

ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar")


def archive_hint(path: Path) -> str:
    """What to do with the archive that a path is, that lies in its place, or in the folder; empty without one."""
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if _is_archive(file))
    else:
        found = [file for file in (path, *(path.with_name(path.name + end) for end in ARCHIVES)) if _is_archive(file)]
    if not found:
        return ""
    remedy = "unpack it, and give the folder that was in it"
    if found[0].name.lower().endswith(".tar.gz"):
        remedy += f"; if it holds samples as WebDataset's tars do, `gunzip {found[0].name}` makes a tar that is read"
    return f"{found[0]} is an archive: {remedy}"


def _is_archive(file: Path) -> bool:
    return file.name.lower().endswith(ARCHIVES) and file.is_file()
