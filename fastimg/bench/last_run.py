"""The model of the user's last run, which `bench` measures where no --arch names another."""

from dataclasses import dataclass
from pathlib import Path

from fastimg.config.commands import Train
from fastimg.config.intent import architecture, progressive, reads_text
from fastimg.config.yaml_file import load
from fastimg.errors import UsageError
from fastimg.train.checkpoints.run_directory import CONFIG


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """A run directory, and what its model is."""

    directory: Path
    arch: str
    model_kwargs: tuple[str, ...]
    img_size: int | None  # of training crops; None: the model's own


def last_run(output: Path) -> tuple[LastRun | None, list[str]]:
    """The newest run on images in a folder of run directories, and remarks on newer ones that cannot be used."""
    try:
        there = [run for run in output.iterdir() if (run / CONFIG).is_file()] if output.is_dir() else []
        newest = sorted(there, key=lambda run: (-(run / CONFIG).stat().st_mtime_ns, run.name))
    except OSError as error:
        return None, [f"{output}: {error.strerror or error}; its runs are not looked at"]
    remarks: list[str] = []
    for run in newest:
        try:
            config = load(run / CONFIG, Train)
            if reads_text(config):
                continue
            size = progressive(config).large if config.progressive else config.train_crop_size or config.img_size
        except UsageError as error:
            remarks.append(f"{run}: not taken as the last run: {str(error).removeprefix('--config ')}")
            continue
        arch = architecture(config)
        return LastRun(directory=run, arch=arch, model_kwargs=config.model_kwargs, img_size=size), remarks
    return None, remarks
