"""README.md of a repository: what a checkpoint and its run know of themselves, and nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastimg import __version__
from fastimg.config import yaml_file
from fastimg.config.training import Train
from fastimg.errors import printable
from fastimg.train.checkpoints.format import Card
from fastimg.wording import plural

_SHOWN_CLASSES = 50  # in the table; classes.json has all
_PERCENT = ("top1", "top5")


def public_settings(config: Path) -> dict[str, Any]:
    """The settings of a run's config.yaml, without those of its object store; of paths on its machine the last part.

    Raises UsageError.
    """
    settings = yaml_file.read(config, Train)
    return {name: _public(value) for name, value in settings.items() if name != "storage_option"}


def _public(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_public(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _public(item) for key, item in value.items()}
    if isinstance(value, Path) or (isinstance(value, str) and value.startswith(("/", "~", "./", "../"))):
        return Path(value).name
    return value


def model_card(repository: str, card: Card, settings: Mapping[str, Any], timms: str) -> str:
    """The text of README.md. `settings` are those of the run, `timms` says why timm cannot load it, if it cannot."""
    tags = ["image-classification"] if card.text is None and not card.targets else []
    library = [] if timms else ["library_name: timm"]
    front = ["---", *library, "tags:", *(f"- {tag}" for tag in (*tags, *([] if timms else ["timm"]), "fastimg"))]
    front += [*(f"pipeline_tag: {tag}" for tag in tags), "---", ""]
    name = repository.rpartition("/")[2]
    samples = sum(card.class_counts)
    counted = f" on {plural(samples, 'sample')}" if samples else ""
    classes = f" of {plural(len(card.classes), 'class')}" if card.classes else ""
    lines = [*front, f"# {name}", "", f"{card.arch}, trained with fastimg {__version__}{counted}{classes}.", ""]
    lines += _measured(card)
    lines += _use(repository, card, timms)
    lines += _preprocessing(card)
    lines += _classes(card)
    if settings:
        shown = {key: value for key, value in settings.items() if key not in ("output", "name")}
        lines += ["## Training settings", "", "`config.yaml` of the run:", "", "```yaml"]
        lines += [*yaml_file.dump(shown).rstrip().splitlines(), "```", ""]
    return printable("\n".join(lines))


def _measured(card: Card) -> list[str]:
    """The scores of the checkpoint on its validation data."""
    if not card.metrics:
        return []
    rows = [f"| {_cell(name)} | {_score(name, value)} |" for name, value in card.metrics.items()]
    when = f"Epoch {card.epoch:,}, step {card.step:,}, measured on the validation data of the run."
    return ["## Results", "", "| metric | value |", "|---|---|", *rows, "", when, ""]


def _score(name: str, value: float) -> str:
    return f"{value:.2%}" if name in _PERCENT and 0 <= value <= 1 else f"{value:.4g}"


def _use(repository: str, card: Card, timms: str) -> list[str]:
    lines = ["## Use", ""]
    if not timms:
        lines += [
            "```python",
            "import timm",
            "",
            f'model = timm.create_model("hf-hub:{repository}", pretrained=True).eval()',
            "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))",
            "logits = model(transform(image).unsqueeze(0))  # image: PIL's, of mode RGB",
            "```",
            "",
        ]
    lines += ["With fastimg, on a copy of the repository:", "", "```sh", "fastimg predict FOLDER/model.safetensors"]
    lines[-1] += " --text TEXT" if card.text is not None else " IMAGES"
    return [*lines, "```", ""]


def _preprocessing(card: Card) -> list[str]:
    if card.text is not None:
        length = plural(card.text["length"], "token")
        return ["## Preprocessing", "", f"Texts are cut to {length}; the tokenizer is beside the weights.", ""]
    pixels = card.preprocessing
    numbers = {"mean": pixels.mean, "std": pixels.std}
    how = ", ".join(f"{name} {' '.join(f'{value:.6g}' for value in values)}" for name, values in numbers.items())
    return [
        "## Preprocessing",
        "",
        f"The shorter side is resized to {pixels.val_resize} pixels ({pixels.interpolation}), the middle "
        f"{pixels.val_size} x {pixels.val_size} are cut out, values are divided by 255 and normalised: {how}.",
        f"Trained on crops of {pixels.train_size} x {pixels.train_size}.",
        "",
    ]


def _classes(card: Card) -> list[str]:
    if not card.classes:
        return []
    counts = card.class_counts if len(card.class_counts) == len(card.classes) else ()
    lines = ["## Classes", "", "| index | class |" + (" training samples |" if counts else "")]
    lines.append("|---|---|" + ("---|" if counts else ""))
    for index, name in enumerate(card.classes[:_SHOWN_CLASSES]):
        lines.append(f"| {index} | {_cell(name)} |" + (f" {counts[index]:,} |" if counts else ""))
    left = len(card.classes) - _SHOWN_CLASSES
    return [*lines, "", *([f"And {left:,} more: `classes.json` has all.", ""] if left > 0 else [])]


def _cell(text: str) -> str:
    """Text inside a table of Markdown."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
