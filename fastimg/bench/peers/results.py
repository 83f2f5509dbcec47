"""The results of a comparison of loaders: records, tables and messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from fastimg.errors import printable
from fastimg.system.measurement import Spread, show
from fastimg.system.terminal import say
from fastimg.wording import number, plural

from .pipelines import BASE

_NAMED = 5  # samples that were left out


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings of a comparison."""

    batch_size: int = 64
    size: int = 224  # of the crops
    threads: tuple[int, ...] = (1,)  # or processes, depending on the loader
    repeats: int = 3  # the median counts
    images: int = 1024  # per epoch, rounded down to whole batches, but at least one
    seed: int = 0  # of the choice of samples


@dataclass(frozen=True, kw_only=True)
class LoaderRow:
    """The measurements of a loader with a number of threads."""

    name: str
    threads: int
    speed: Spread  # images per second
    busy: Spread | None  # CPU microseconds per image; None if the system does not report them


@dataclass(kw_only=True)
class Comparison:
    """The measurements of all loaders, and what is missing."""

    setting: Setting
    data: str
    images: int  # per epoch
    samples: int  # distinct samples of DATA among them
    left_out: dict[str, str]  # sample -> why it cannot be decoded
    about: dict[str, str]  # how each loader is set up
    missing: dict[str, str]  # loader -> the command that installs it
    faults: dict[str, str] = field(default_factory=dict)  # loader -> what went wrong
    parity: dict[str, dict[str, Any]] = field(default_factory=dict)  # by loader: rows of parity.check
    rows: list[LoaderRow] = field(default_factory=list)

    def records(self) -> list[dict[str, Any]]:
        """A record for each loader and number of threads.

        `parity` is the mean absolute difference of centre crops from the native loader's, on 0-255, over images that
        are stored upright; null for loaders whose pixels are not images.
        """
        records = []
        for row in self.rows:
            speed = row.speed.fields("median")
            parity = self.parity.get(row.name, {})
            records.append(
                {
                    "name": row.name,
                    "threads": row.threads,
                    "images_per_second": speed["median"],
                    "spread": [speed["median_low"], speed["median_high"]],
                    "n": row.speed.n,
                    "parity": _short(parity.get("mean_difference")),
                    "parity_worst_image": _short(parity.get("worst_image")),
                    "parity_exif_turned": _short(parity.get("exif_turned_difference")),
                    "boxes": _short(_box_distance(parity)),
                    "boxes_limit": _short(parity.get("ks_limit")),
                    "cpu_microseconds": None if row.busy is None else _short(row.busy.median),
                    "about": self.about[row.name],
                }
            )
        return records

    def show(self, console: Console) -> None:
        """Print tables of parity and speed, and messages on what is not in them."""
        if len(self.parity) > 1:
            self._show_parity(console)
        self._show_speed(console)
        for sentence in self.sentences():
            say(console, sentence)

    def sentences(self) -> list[str]:
        """Messages on what the tables do not show."""
        messages = [f"{name}: {self.about[name]}" for name in dict.fromkeys(row.name for row in self.rows)]
        messages += [f"{name} failed: {fault}" for name, fault in self.faults.items()]
        messages += [f"{name} is not installed: {command}" for name, command in self.missing.items()]
        if self.left_out:
            named = [f"{name}: {reason}" for name, reason in self.left_out.items()]
            if len(named) > _NAMED:
                named[_NAMED:] = [f"and {len(named) - _NAMED} more"]
            messages.append(
                f"left out {plural(len(self.left_out), 'sample')} that cannot be decoded: {'; '.join(named)}"
            )
        return messages

    def _show_parity(self, console: Console) -> None:
        first = next(iter(self.parity.values()))
        turned = first["exif_turned_images"]
        rows = []
        for name, parity in self.parity.items():
            distance = _box_distance(parity)
            row = {"loader": name, "mean": _decimals(parity["mean_difference"])}
            row |= {"worst image": _decimals(parity["worst_image"])}
            row |= {f"{turned} turned by EXIF": _decimals(parity["exif_turned_difference"])} if turned else {}
            row |= {"boxes": _decimals(distance) + (" DIFFERENT" if (distance or 0) > parity["ks_limit"] else "")}
            rows.append(row)
        title = (
            f"parity: centre crops of {plural(first['images'], 'image')} against {BASE}'s, absolute difference on "
            f"0-255; {plural(first['boxes'], 'random box')}, largest distance of distributions (by chance up to "
            f"{first['ks_limit']:.3f})"
        )
        show(console, title, rows)

    def _show_speed(self, console: Console) -> None:
        base = {row.threads: row.speed.median for row in self.rows if row.name == BASE}
        rows = []
        for row in self.rows:
            speed = row.speed
            columns = {"loader": row.name, "threads": row.threads, "img/s": number(speed.median)}
            columns |= {"range": f"{number(speed.low)} - {number(speed.high)}"}
            columns |= {f"{BASE} / it": f"{base[row.threads] / row.speed.median:.2f}"}
            rows.append(columns | {"CPU us/img": "" if row.busy is None else f"{row.busy.median:.0f}"})
        again = ", repeated" if self.samples < self.images else ""
        s = self.setting
        title = (
            f"{printable(self.data)}: {plural(self.images, 'image')} per epoch "
            f"({plural(self.samples, 'sample')}{again}), batches of "
            f"{s.batch_size}, random crops to {s.size}, flips; on the CPU, median of {s.repeats}, epochs in turn"
        )
        show(console, title, rows)


def _box_distance(parity: Mapping[str, Any]) -> float | None:
    return max((parity[key] for key in ("ks_area", "ks_aspect", "ks_centre_x") if key in parity), default=None)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
