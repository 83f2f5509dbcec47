"""Commands that read data, and files that they must not change."""


def everything(folder):
    """Files and folders below `folder`, without the compact index, which is a cache."""
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*") if path.suffix != ".fidx"}


READERS = ("convert", "train", "eval")
