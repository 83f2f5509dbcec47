"""Configurations as YAML: the same keys as the flags, an unknown key is an error; and what wins over what.

A recipe is below a file, a file below flags. What is above drops what it contradicts or makes useless below.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

import yaml

from fastimg.errors import UsageError, nearest
from fastimg.loaders.remote.stores import RemoteFolder, shown, url_of

from . import flags, recipes, rules
from . import yaml_values as yamlvalues
from .augmentation import ON_A_LIST, listed
from .commands import Train
from .intent import named_run
from .rule_tables.training import TRAIN
from .training import NEWEST_RUN
from .url_arguments import refuse_urls
from .yaml_text import parsed

_T = TypeVar("_T")


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain values: 1e-3 is a number, off and no are words, and 11:13 is not 673. Each key comes once.

    Of 1.1 the merge key `<<` is left: what it brings, the mapping's own keys override.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """See yaml.SafeLoader. Raises ConstructorError for a key that comes again."""
        if id(node) not in self._checked:  # afterwards it has the merged keys as well
            self._checked.add(id(node))
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} comes twice", key.start_mark)
                seen.add(str(key.value))
        super().flatten_mapping(node)


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would take for something else than text."""


_Loader.yaml_implicit_resolvers = {}
# Of more digits than that Python makes no number: such a text is refused by the name of its key.
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9]\d{0,3999})", list("-+0123456789")),
    ("merge", r"<<", ["<"]),
    ("float", r"[-+]?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.inf)|\.nan", list("-+.0123456789")),
):
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first)


def dump(config: Any) -> str:
    """A dataclass, or a mapping of its fields, as YAML that `load` reads back; unset choices are left out."""
    import msgspec

    values = {key: value for key, value in msgspec.to_builtins(config, enc_hook=shown).items() if value is not None}
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def load(path: Path, kind: type[_T]) -> _T:
    """A dataclass from YAML, over the recipe that it names. Raises UsageError naming the file and the key."""
    values = read(path, kind)
    return cast(_T, combined(values)) if kind is Train else kind(**values)


def read(path: Path, kind: type[Any], storage_option: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of `kind` that the file, or the one at a URL, sets.

    Raises UsageError naming the file and the key, and DataError where a store does not give it.
    """
    name = shown(path)
    try:
        values = parsed(_text(path, storage_option), _Loader) or {}
    except OSError as error:
        raise UsageError(f"--config {name}: {error.strerror}; check the path") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"--config {name}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UsageError(f"--config {name}: not a mapping of settings; write lines like `epochs: 10`")
    known = [field.name for field in dataclasses.fields(kind)]
    values = {str(key).replace("-", "_"): value for key, value in values.items()}
    for key in values:
        if key == "config":
            raise UsageError(
                f"--config {name}: names another file ({values[key]}); give that one, or put both into one"
            )
        if key not in known:
            raise UsageError(f"--config {name}: unknown key {key!r}{meant(key, known)}")
    try:
        return fitted(values, kind)
    except UsageError as error:
        raise UsageError(f"--config {name}: {error}") from error


def _text(path: Path, storage_option: Sequence[str]) -> str:
    url = url_of(path)
    if url is None:
        return path.read_text(encoding="utf-8")
    folder, _, name = url.rpartition("/")
    if folder.endswith(("/", ":")):
        raise UsageError(f"--config {url}: names no file; give a URL that ends in one, as in {url}/settings.yaml")
    options = dict(option.split("=", 1) for option in storage_option)
    return RemoteFolder(folder, options).read(name).decode("utf-8")


def fitted(values: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Values as YAML has them, by field of `kind`, as the types of the fields. Raises UsageError naming the key."""
    typed = _typed(_as_flags(values, kind), kind)
    refuse_urls(typed)
    if typed.get("augmentation") is not None:
        _check_list(typed)
    if typed.get("recipe") is not None:
        recipes.settings(typed["recipe"])
    return typed


def meant(key: str, known: Collection[str]) -> str:
    """What an unknown key was probably meant to be, by other tools' names too."""
    name = flags.suggestion(key.replace("_", "-"), [name.replace("_", "-") for name in known])
    return f"; did you mean {name.replace('-', '_')}?" if name else nearest(key, known)


def _typed(values: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Values as the types of their fields; null leaves a field as it is by default. Raises UsageError."""
    hints = get_type_hints(kind)
    typed = {}
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    for key, value in values.items():
        try:
            typed[key] = defaults[key] if value is None else yamlvalues.converted(value, hints[key])
        except yamlvalues.Unfit as error:
            raise UsageError(f"{key}: {error}") from error
    return typed


def _as_flags(values: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """The values of YAML that a flag expresses by standing alone, or under another name."""
    hints = get_type_hints(kind)
    values = dict(values)
    if isinstance(values.get("compile"), bool):
        values["compile"] = "default" if values["compile"] else None
    if isinstance(values.get("resume"), bool) and hints["resume"] is not bool:
        values["resume"] = NEWEST_RUN[0] if values["resume"] else None
    if "no_aug" in hints and values.get("augmentation") is False:
        values = {key: value for key, value in values.items() if key != "augmentation"} | {"no_aug": True}
    return values


def layered(given: Mapping[str, Any]) -> Train:
    """What is given, over the file that it names or that of the run to resume, over a recipe. Raises UsageError."""
    return combined(settings_of(given))


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with the recipe by its name: for `combined`, to lay more over both. Raises UsageError."""
    path, resumed, recipe = given.get("config"), given.get("resume"), given.get("recipe")
    file: dict[str, Any] = {}
    if path is not None:
        file = read(path, Train, given.get("storage_option", ()))
    elif recipe is None and (run := named_run(resumed)) is not None and (run / "config.yaml").exists():
        file = read(run / "config.yaml", Train)
    if recipe is not None:
        file = {**file, "recipe": recipe}
    return _over(file, given)


def combined(file: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Train:
    """A recipe's settings, over them a file's, over those the flags'. Raises UsageError for an unknown recipe."""
    return _over_recipe(**_over(file, given or {}))


def _over(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Both, without the settings of the file that give way to those that are given; a recipe is below, by its name."""
    return _without(rules.dropped(_over_recipe, file, given, TRAIN), file) | dict(given)


def _over_recipe(**above: Any) -> Train:
    """Settings over those of the recipe that they name, if they name one."""
    if above.get("recipe") is None:
        return Train(**above)
    recipe = recipes.settings(above["recipe"], above.get("epochs"))
    return Train(**_without(rules.dropped(Train, recipe, above, TRAIN, recipe=True), recipe) | above)


def _without(dropped: Collection[str], below: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in below.items() if name not in dropped}


def without_contradicted(file: Train, given: Mapping[str, Any]) -> Train:
    """A file's settings without those that give way to the `given` ones: flags win."""
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Train)}
    settings = {name: value for name, value in vars(file).items() if value != defaults[name]}
    return dataclasses.replace(file, **{name: defaults[name] for name in rules.dropped(Train, settings, given, TRAIN)})


def _check_list(values: Mapping[str, Any]) -> None:
    """Refuse a list that is not one of augmentations, and a file that says the same thing in two ways."""
    for name in ON_A_LIST:
        if values.get(name) is not None:
            raise UsageError(f"augmentation and {name} say two things; put {name} into the list")
    listed(values["augmentation"])
