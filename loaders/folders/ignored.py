"""Files of a source that are not used: counts by reason and extension, and the names of the first ones."""

import bisect
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastimg.loaders.wording import plural

HIDDEN = "hidden by a leading dot"
MACOS_METADATA = "in __MACOSX, which macOS adds to archives"
NOT_A_FILE = "not a regular file"
NOT_AN_IMAGE = "without an image's extension"
NOT_A_TEXT = "not a .txt file"
NOT_AN_ARRAY = "neither .npy nor TIFF"

NAMED = 10  # file names that are kept for each reason
_EXTENSIONS = 4  # extensions that a sentence lists for each reason
_LEAST = (NOT_A_FILE, NOT_AN_IMAGE, NOT_A_TEXT, NOT_AN_ARRAY, MACOS_METADATA, HIDDEN)  # least important last


@dataclass
class Ignored:
    """How many files are not used, and why."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # by (reason, extension in lower case)
    names: dict[str, list[str]] = field(default_factory=dict)  # reason -> the first names in sorted order

    def add(self, path: str, reason: str) -> None:
        """Count one file."""
        path = path.encode("utf-8", "backslashreplace").decode()  # file names need not be UTF-8
        self.counts[reason, extension_of(path)] += 1
        self._keep(path, reason)

    def update(self, other: "Ignored") -> None:
        """Add the counts and names of another one."""
        self.counts.update(other.counts)
        for reason, paths in other.names.items():
            for path in paths:
                self._keep(path, reason)

    def joined(self, other: "Ignored") -> "Ignored":
        """A new one with the counts and names of both."""
        both = Ignored()
        both.update(self)
        both.update(other)
        return both

    @property
    def total(self) -> int:
        """The number of files."""
        return self.counts.total()

    @property
    def reasons(self) -> dict[str, int]:
        """The number of files for each reason, the most important reason first."""
        totals: Counter[str] = Counter()
        for (reason, _), count in self.counts.items():
            totals[reason] += count
        ranks = {reason: _LEAST.index(reason) if reason in _LEAST else -1 for reason in totals}
        order = sorted(totals, key=lambda reason: (ranks[reason], -totals[reason], reason))
        return {reason: totals[reason] for reason in order}

    @property
    def extensions(self) -> dict[str, int]:
        """The number of files for each extension, the commonest first; "" for files without one."""
        totals: Counter[str] = Counter()
        for (_, extension), count in self.counts.items():
            totals[extension] += count
        return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))

    def first(self) -> list[tuple[str, str]]:
        """Up to ten (path, reason), sorted by reason and name, with at least one for each reason if possible."""
        reasons = list(self.reasons)
        turns = sorted((turn, number) for number, why in enumerate(reasons) for turn in range(len(self.names[why])))
        chosen = sorted((number, turn) for turn, number in turns[:NAMED])
        return [(self.names[reasons[number]][turn], reasons[number]) for number, turn in chosen]

    def summary(self) -> str:
        """Counts by reason, with extensions: `120 outside any class folder (.jpg); 1 not a .txt file (.md)`."""
        parts = []
        for reason, count in self.reasons.items():
            totals = {ext: number for (why, ext), number in self.counts.items() if why == reason}
            commonest = sorted(totals, key=lambda ext: (-totals[ext], ext))
            shown = [
                (ext or "no extension") + (f" {totals[ext]:,}" if len(totals) > 1 else "")
                for ext in commonest[:_EXTENSIONS]
            ] + ["..."] * (len(totals) > _EXTENSIONS)
            parts.append(
                f"{count:,} {reason}" + (f" ({', '.join(shown)})" if reason not in (MACOS_METADATA, HIDDEN) else "")
            )
        return "; ".join(parts)

    def note(self, where: str, used: int) -> list[str]:
        """A sentence about the ignored files of a folder of which `used` files are used; none if there are none."""
        if not self.total:
            return []
        (first, _), *_ = self.first()
        files = plural(self.total + used, "file")
        verb = "is" if self.total == 1 else "are"
        return [f"{where}: {self.total:,} of {files} {verb} not used: {self.summary()}; the first is {first}"]

    def to_json(self) -> dict[str, Any]:
        """A form that `of_json` reads."""
        counts: dict[str, dict[str, int]] = {reason: {} for reason in self.reasons}
        for (reason, extension), count in sorted(self.counts.items()):
            counts[reason][extension] = count
        return {"files": self.total, "counts": counts, "names": dict(sorted(self.names.items()))}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "Ignored":
        """The inverse of `to_json`."""
        ignored = cls(names={reason: list(paths) for reason, paths in stored["names"].items()})
        for reason, extensions in stored["counts"].items():
            ignored.counts.update({(reason, extension): count for extension, count in extensions.items()})
        return ignored

    def _keep(self, path: str, reason: str) -> None:
        kept = self.names.setdefault(reason, [])
        if len(kept) < NAMED or path < kept[-1]:
            bisect.insort(kept, path)
            del kept[NAMED:]


def hidden_reason(name: str) -> str:
    """Why files and folders of this name are ignored; empty if they are not."""
    if name == "__MACOSX":
        return MACOS_METADATA
    return HIDDEN if name.startswith(".") else ""


def extension_of(path: str) -> str:
    """The extension of a file's name, with its dot, in lower case; empty if it has none."""
    return os.path.splitext(path)[1].lower()
