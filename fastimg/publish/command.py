"""`fastimg push RUN hub://USER/NAME`: a checkpoint, its card and its settings as one commit of a repository."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from fastimg.config import yaml_file
from fastimg.config.commands import Push
from fastimg.errors import UsageError, UserError, printable
from fastimg.system.hub import asking_hub
from fastimg.system.terminal import say
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints.format import MODEL, TRAINING
from fastimg.train.checkpoints.run_directory import CONFIG
from fastimg.wording import plural

from .model_card import model_card, public_settings
from .timm_layout import timm_config, why_not_timm

_DESTINATION = re.compile(r"hub:/{1,2}([\w.-]+/[\w.-]+)/?")
README = "README.md"


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What was uploaded, or would be."""

    repository: str
    commit: str | None  # None with --dry-run
    url: str | None
    timm: bool  # whether timm can load it
    files: dict[str, int]  # bytes


def push(config: Push, out: Console) -> Pushed:
    """Upload a run's best checkpoint, or the checkpoint that is named, and print what was done.

    Raises UsageError for a destination that is none, and UserError without a token, or where the hub refuses.
    """
    found = _DESTINATION.fullmatch(config.dst)
    if found is None:
        raise UsageError(f"push {config.dst}: give hub://USER/NAME, as in hub://me/flowers-resnet18")
    repository = found[1]
    _check_token(config, repository)
    contents, timms = repository_files(config.checkpoint, repository)
    commit = None if config.dry_run else _upload(config, repository, contents)
    sizes = {
        name: content.stat().st_size if isinstance(content, Path) else len(content)
        for name, content in contents.items()
    }
    pushed = Pushed(
        repository=repository,
        commit=None if commit is None else commit[0],
        url=None if commit is None else commit[1],
        timm=not timms,
        files=sizes,
    )
    if config.json:
        print(json.dumps(asdict(pushed)))
        return pushed
    for name, size in sizes.items():
        say(out, f"  {name:<24} {decimal(size)}")
    if timms:
        say(out, f"timm cannot load it, because {timms}: fastimg reads it")
    if commit is None:
        readme = contents[README]
        assert isinstance(readme, bytes)
        say(out, f"dry run: {plural(len(sizes), 'file')} for {repository}, nothing uploaded; {README}:")
        print(readme.decode())
    else:
        say(out, f"pushed {config.checkpoint} to {commit[1]}")
    return pushed


def repository_files(path: Path, repository: str) -> tuple[dict[str, bytes | Path], str]:
    """The files of a repository by name, as content or as a file here; and why timm cannot load them, if it cannot.

    Raises UserError if `path` has no checkpoint.
    """
    file = checkpoint.find(path)
    model, card = checkpoint.load_model(path)
    timms = why_not_timm(model, card)
    settings = _settings(file)
    files: dict[str, bytes | Path] = {MODEL: file}
    for beside in sorted(file.parent.iterdir()) if file.name == MODEL else ():  # a tokenizer
        if beside.is_file() and beside.suffix == ".json" and beside.name not in (MODEL, TRAINING):
            files[beside.name] = beside
    if not timms:
        files["config.json"] = _json(timm_config(model, card))
    if card.classes:
        files["classes.json"] = _json(list(card.classes))
    if card.metrics:
        files["metrics.json"] = _json({"epoch": card.epoch, "step": card.step, **card.metrics})
    if settings:
        files["config.yaml"] = yaml_file.dump(settings).encode()
    files[README] = model_card(repository, card, settings, timms).encode()
    return files, timms


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _settings(file: Path) -> dict[str, object]:
    """The settings of the run that a checkpoint's file lies in; empty for a file from elsewhere."""
    folder = file.resolve().parent
    run = next((above for above in (folder, *folder.parents[:2]) if (above / CONFIG).is_file()), None)
    return {} if run is None else public_settings(run / CONFIG)


def _check_token(config: Push, repository: str) -> None:
    from huggingface_hub import get_token

    if not config.dry_run and get_token() is None:
        raise UserError(
            f"push hub://{repository}: no token; set HF_TOKEN to one that may write, or see what would be uploaded "
            "with --dry-run"
        )


def _upload(config: Push, repository: str, contents: dict[str, bytes | Path]) -> tuple[str, str]:
    """Make the repository, unless it is there, and commit the files. Returns the commit and its address."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    api = HfApi()
    message = config.message or f"Upload {printable(config.checkpoint.name)}"
    operations = [CommitOperationAdd(name, content) for name, content in contents.items()]
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        with asking_hub(f"push hub://{repository}"):
            api.create_repo(repository, private=config.private or None, exist_ok=True)
            if config.revision is not None:
                api.create_branch(repository, branch=config.revision, exist_ok=True)
            commit = api.create_commit(
                repository, operations, commit_message=message, revision=config.revision, repo_type="model"
            )
    finally:
        if shown:
            enable_progress_bars()
    return str(commit.oid), str(commit.commit_url)
