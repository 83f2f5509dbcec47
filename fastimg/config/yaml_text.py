"""YAML of bounded depth and size, whatever its aliases stand for."""

from typing import Any

import yaml

MAX_DEPTH = 100
MAX_NODES = 1_000_000  # with each alias counted as what it stands for


class Texts(yaml.SafeLoader):
    """Every scalar is a text, as in yaml.BaseLoader, which does not know the merge key `<<`."""


Texts.yaml_implicit_resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}


def parsed(text: str, loader: type[Any]) -> Any:
    """The content of a YAML text. Raises YAMLError, also for what is nested too deeply or too large when written out.

    A few hundred bytes of aliases of aliases stand for more than any memory holds, and PyYAML calls itself for brackets
    in brackets.
    """
    _check(text)
    return yaml.load(text, Loader=loader)


def _check(text: str) -> None:
    """Count the nodes of a YAML text by its events, of which none is kept. Raises YAMLError."""
    sizes: dict[str, int] = {}  # of what has an anchor
    within: list[tuple[str | None, int]] = []  # the anchors of what is open, and the nodes before it
    nodes = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, nodes))
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in [anchor for anchor, _ in within]:
                raise _refused(f"*{event.anchor} stands for itself", event)
            nodes += sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            nodes += 1
        if isinstance(event, yaml.ScalarEvent) and event.anchor is not None:
            sizes[event.anchor] = 1
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = within.pop()
            if anchor is not None:
                sizes[anchor] = nodes - before
        if len(within) > MAX_DEPTH:
            raise _refused(f"more than {MAX_DEPTH} levels", event)
        if nodes > MAX_NODES:
            raise _refused(f"more than {MAX_NODES:,} values, with aliases written out", event)


def _refused(why: str, event: Any) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=why, problem_mark=event.start_mark)
