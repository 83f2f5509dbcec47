"""The flags that say how tars of other writers are read: checked, stated among the options, and taken over from those.

A conversion that goes on, and a dataset that grows, read tars as they were read before, unless a flag says otherwise.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastimg.config.commands import Convert
from fastimg.convert.journal import journal_options
from fastimg.convert.shards.base import Base, read_made
from fastimg.convert.sources.resolve import holds_foreign_tars
from fastimg.errors import UsageError

from .tar_rules import TarRules, parse_label_member

if TYPE_CHECKING:
    from fastimg.convert.request import Request

_FLAGS = ("key_dots", "image_member", "label_member")  # and classes, which is for folders, too
_LABELS = ("label_member", "classes")  # of which one says where labels are


def check_tar_flags(config: Convert) -> None:
    """Raise UsageError for values that cannot be, and for two flags that contradict each other."""
    if config.label_member is not None:
        parse_label_member(config.label_member)
        if config.classes is not None:
            raise UsageError(
                f"--label-member {config.label_member} and --classes {config.classes} both say where labels are; give "
                "one of them"
            )
    if config.image_member is not None and not config.image_member.strip().strip("."):
        raise UsageError("--image-member: give the extension of a member, as in image.jpg")


def refuse_without_tars(config: Convert, sources: Sequence[Path]) -> bool:
    """Whether sources are tars of other writers. Raises UsageError for flags that are for those alone."""
    tars = any(map(holds_foreign_tars, sources))
    for name in _FLAGS if not tars else ():
        if (value := getattr(config, name)) is not None:
            given = ", ".join(map(str, sources))
            raise UsageError(f"{_flag(name)} {value} has no effect: {given} has no tars of other writers; leave it out")
    return tars


def tar_rules(config: Convert, known_classes: Collection[str] = ()) -> TarRules:
    """How the flags say that tars are read."""
    image = config.image_member
    return TarRules(
        config.key_dots,
        None if image is None else image.strip().lstrip(".").lower(),
        None if config.label_member is None else parse_label_member(config.label_member),
        config.classes,
        config.labels_are_classes,
        frozenset(known_classes),
    )


def stated_rules(config: Convert, sources: Sequence[Path]) -> dict[str, Any]:
    """What the options of a conversion state about tars; nothing where no flag is given."""
    if not any(map(holds_foreign_tars, sources)):
        return {}
    given = {name: value for name in (*_FLAGS, "classes") if (value := getattr(config, name)) is not None}
    return {"tars": given} if given else {}


def as_begun(request: "Request", base: Base | None, tell: Callable[[str], object]) -> "Request":
    """The request, with how tars were read when the conversion began that is resumed, or the dataset was made."""
    config = request.flags
    if not (config.resume or base) or not any(map(holds_foreign_tars, request.sources)):
        return request
    before = dict(_of_journal(request.dst)) if config.resume else {}
    if base and not before:
        for options in (base.description["options"], *base.description.get("appended", ())):
            before |= _rules_in(options)
    if any(getattr(config, name) is not None for name in _LABELS):
        before = {name: value for name, value in before.items() if name not in _LABELS}
    taken = {name: value for name, value in before.items() if getattr(config, name) is None}
    if not taken:
        return request
    flags = " ".join(f"{_flag(name)} {value}" for name, value in taken.items())
    tell(f"{request.dst}: was made with {flags}; so is what is added")
    config = replace(config, **taken)
    check_tar_flags(config)
    return replace(request, flags=config)


def _of_journal(folder: Path) -> Mapping[str, Any]:
    """The rules in the journal of a folder; where it is complete, those of the conversion that completed it."""
    options = journal_options(folder)
    if options is None and (folder / "dataset.json").exists():
        made = read_made(folder)
        options = [made["options"], *made.get("appended", ())][-1]
    return _rules_in(options or {})


def _rules_in(options: Mapping[str, Any]) -> dict[str, Any]:
    """The rules that options state, as far as they are ones."""
    stated = options.get("tars")
    known = {"key_dots": ("first", "last"), "classes": ("top", "leaf")}
    rules = {}
    for name, value in stated.items() if isinstance(stated, dict) else ():
        if name in (*_FLAGS, "classes") and isinstance(value, str) and value in known.get(name, (value,)):
            rules[name] = value
    return rules


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
