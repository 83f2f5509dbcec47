"""How a run, or the folder of a search, lies in an object store.

<URL>/objects/<sha256>    files by content
<URL>/manifest.json       which file is which object, and where links as `last` and `best` point: written last
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fastimg.errors import UserError

MANIFEST = "manifest.json"
OBJECTS = "objects"
_NAME = re.compile(r"(?!\.\.?(/|\Z))[\w.@+-]+(/(?!\.\.?(/|\Z))[\w.@+-]+)*")

Kind = Literal["run", "search"]


@dataclass(frozen=True)
class Manifest:
    """The files of a folder by their names in it: bytes and SHA-256. `links` point to folders beside them."""

    step: int  # of a run; of a search the number of its runs
    files: Mapping[str, tuple[int, str]]
    links: Mapping[str, str]
    kind: Kind = "run"

    def to_json(self) -> bytes:
        """For the store."""
        content = {
            "format": f"fastimg {self.kind}",
            "version": 1,
            "step": self.step,
            "files": self.files,
            "links": self.links,
        }
        return (json.dumps(content, indent=1) + "\n").encode()

    @classmethod
    def of_json(cls, content: bytes, url: str, kind: Kind = "run") -> "Manifest":
        """The inverse of `to_json`. Raises UserError for anything else that is at the URL of the folder."""
        try:
            stated = json.loads(content)
            if kind == "run" and stated["format"] == "fastimg search":
                raise UserError(f"{url}: is the folder of a search; give its best run, {url}/best")
            if stated["format"] != f"fastimg {kind}":
                raise ValueError(f"it is not a {kind}'s")
            files = {str(path): (int(size), str(sha256)) for path, (size, sha256) in stated["files"].items()}
            links = {str(link): str(target) for link, target in stated["links"].items()}
            for path in (*files, *links, *links.values()):
                if not _NAME.fullmatch(path):
                    raise ValueError(f"{path!r} is not a name in a {kind}")
            return cls(int(stated["step"]), files, links, kind)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{url}/{MANIFEST}: cannot be read ({error}); give a {kind} that fastimg has uploaded"
            ) from error
