"""`fastimg export`: a checkpoint as a single file for other programs, with a check of its outputs."""

import contextlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastimg import notebook
from fastimg.config.commands import Export
from fastimg.data.elsewhere import local_folder
from fastimg.errors import UsageError, UserError, printable
from fastimg.loaders.errors import not_written
from fastimg.loaders.extras import install
from fastimg.loaders.remote.stores import url_of
from fastimg.models.registry import Model
from fastimg.system.terminal import print_table
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints.format import MODEL, Card
from fastimg.train.checkpoints.stored_runs import options_of
from fastimg.train.tasks.regression import NumberTask
from fastimg.train.tasks.restored import several
from fastimg.wording import agreeing, plural

from . import inference
from .exporting import graph
from .exporting import interface as subjects
from .exporting.check import CUT, WHOLE, WHOLE_ELSEWHERE, Agreement, Form, compare, open_data
from .exporting.delivery import FileDelivery
from .exporting.interface import Subject

_PACKAGES = {"onnx": ("onnx", "onnxscript"), "pt2": (), "safetensors": ()}  # without those for --check


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written. `check` is None without --check."""

    file: str
    format: graph.Format
    bytes: int
    checkpoint: str
    arch: str
    inputs: list[str]  # empty for a file of weights only
    preprocessing: dict[str, Any]  # as in the file's metadata
    classes: list[str]
    beside: list[str]  # files that belong to it
    check: Agreement | None
    targets: list[dict[str, Any]] | None = None  # of several, in the order of the outputs
    stays: bool = False  # whether the file that was there stays, as the new one does not agree

    def as_dict(self) -> dict[str, Any]:
        """For JSON; without `targets` where a class is all there is."""
        fields = asdict(self)
        if self.targets is None:
            del fields["targets"]
        if self.check is not None:
            fields["check"] = self.check.as_dict(self.kinds)
        return fields

    @property
    def differs(self) -> bool:
        """Whether a check found that the outputs are not those of the checkpoint."""
        return self.check is not None and not self.check.agrees

    def _repr_html_(self) -> str:
        return notebook.page(
            notebook.facts(
                {
                    "file": f"{self.file}, {self.bytes / 1e6:,.1f} MB",
                    "of": f"{self.checkpoint} ({self.arch}, {plural(len(self.classes), 'class')})",
                    "input": ", ".join(self.inputs),
                    "beside": ", ".join(self.beside),
                    "check": None if self.check is None else check_row(self.check, self.kinds),
                }
            )
        )

    @property
    def kinds(self) -> set[str]:
        """The kinds of its targets."""
        return {"class"} if self.targets is None else {target["kind"] for target in self.targets}


def export(config: Export, out: Console) -> Exported:
    """Export a checkpoint and print what was written; whether the outputs of the file differ is in its `check`.

    Raises UsageError, UserError and DataError.
    """
    if config.check_data is not None and not config.check:
        raise UsageError(f"--check-data {config.check_data}: has no effect without --check; add it")
    if config.with_preprocessing and config.chosen_format == "safetensors":
        raise UsageError(
            "--with-preprocessing: --format safetensors holds only weights; leave it out, or use --format onnx or pt2"
        )
    _check_packages(config)
    url = None if config.output is None else url_of(config.output)
    if url is None:
        return _exported(config, config.output, out, None)
    suffix = f".{config.chosen_format}"
    with FileDelivery(url, suffix, config.overwrite, config.cache_dir, options_of(config)) as delivery:
        return _exported(config, delivery.file, out, delivery)


def _exported(config: Export, output: Path | None, out: Console, delivery: FileDelivery | None) -> Exported:
    """Export into a file here, from where it may be delivered, and print what was written."""
    source = checkpoint.find(config.checkpoint)
    file = _file(config, output, source)
    model, card = checkpoint.load_model(config.checkpoint)
    if model.pair is not None and config.chosen_format != "safetensors":
        raise UsageError(
            f"{config.checkpoint}: a model of images and texts, which only --format safetensors writes; use it, or "
            "another checkpoint"
        )
    if config.with_preprocessing and model.text is not None:
        raise UsageError(
            f"--with-preprocessing: {config.checkpoint} reads texts, and its tokenizer is written next to the file; "
            "leave it out"
        )
    seen = card.preprocessing
    if config.with_preprocessing and seen.is_deep:
        raise UsageError(
            f"--with-preprocessing: {config.checkpoint} reads {'bands' if seen.field else 'images of 16 bits'}, which "
            "the caller resizes and crops; leave it out"
        )
    subject = subjects.of(model, card, config.with_preprocessing)
    _check_beside(file, subject)
    if config.check_data is not None:
        data = local_folder(config.check_data, config)
        open_data(data, model)[0].close()  # fails before the export, not after it
        config = replace(config, check_data=data)
    with _checked_first(file, config.check) as written:
        _write(config, written, source, model, subject)
        agreement = _check(config, written, subject) if config.check else None
        result = _result(config, written, source, card, subject, agreement)
        differs = result.differs
        if written != file:
            beside = [file.with_name(name) for name in subject.files]
            result = replace(result, file=str(file), beside=list(map(str, beside)), stays=differs)
            for path in () if differs else (*beside, file):
                written.with_name(path.name).replace(path)
    if delivery is not None:
        stays = differs and delivery.replaces
        beside_there = [] if stays else delivery.deliver(list(subject.files))
        result = replace(result, file=delivery.url, beside=beside_there, stays=stays)
    if config.json:
        print(printable(json.dumps(result.as_dict(), ensure_ascii=False)))
    else:
        _print(result, subject, out)
    return result


@contextlib.contextmanager
def _checked_first(file: Path, check: bool) -> Iterator[Path]:
    """Where to write `file` until it is checked: in a folder beside it if there is a file that it replaces."""
    if not (check and os.path.lexists(file)):
        yield file
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix=".export-", dir=file.parent))
    except OSError as error:
        raise UserError(f"{file}: {not_written(error, 'choose an --output that can be written')}") from error
    try:
        yield folder / file.name
    except UserError as error:
        error.args = (str(error).replace(str(folder), str(file.parent)), *error.args[1:])
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_packages(config: Export) -> None:
    """Raises UsageError, with the command to install them, if packages are missing."""
    needed = _PACKAGES[config.chosen_format]
    if config.chosen_format == "onnx" and config.check:
        needed = (*needed, "onnxruntime")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join([", ".join(missing[:-1]), missing[-1]] if len(missing) > 1 else missing)
        what = f"--format {config.chosen_format}{' --check' if missing == ['onnxruntime'] else ''}"
        raise UsageError(
            f"{what}: needs {names}, which {agreeing(len(missing), 'is')} not installed; `{install('export')}`"
        )


def _file(config: Export, output: Path | None, source: Path) -> Path:
    """The file to write. Raises UsageError and UserError if it cannot be written there, or exists."""
    suffix = f".{config.chosen_format}"
    if output is None:
        file = _default(source, suffix)
    elif output.is_dir():
        file = output / _default(source, suffix).name
    elif output.suffix != suffix:
        raise UsageError(f"--output {output}: give an existing folder, or a name that ends in {suffix}")
    else:
        file = output
    if not file.parent.is_dir():
        raise UserError(f"{file}: the folder {file.parent} does not exist; create it, or give another --output")
    if file.is_dir():
        raise UserError(f"{file}: is a folder; give another --output")
    if file.exists() and file.samefile(source):
        raise UsageError(f"{file}: is the checkpoint itself; give another --output")
    if os.path.lexists(file) and not config.overwrite:
        raise UsageError(f"--output {file}: exists already; add --overwrite, or give another file")
    return file


def _check_beside(file: Path, subject: Subject) -> None:
    """Raises UserError if writing the files next to it would replace something else."""
    for name, content in subject.files.items():
        beside = file.with_name(name)
        if os.path.lexists(beside) and not (beside.is_file() and beside.read_bytes() == content):
            raise UserError(f"{beside}: exists and is not the checkpoint's; give an --output in another folder")


def _default(source: Path, suffix: str) -> Path:
    """RUN/RUN.onnx for any checkpoint of a run, whose own folder may be deleted; next to it for a single file."""
    folder = source.parent.absolute()
    if (folder.parent / "checkpoints").is_dir():  # RUN/best, RUN/last
        folder = folder.parent
    elif folder.parent.name == "checkpoints":
        folder = folder.parent.parent
    file = folder / f"{folder.name if source.name == MODEL else source.stem}{suffix}"
    return file if source.is_absolute() else Path(os.path.relpath(file))


def _write(config: Export, file: Path, source: Path, model: Model, subject: Subject) -> None:
    size = sum(tensor.nbytes for tensor in model.module.state_dict().values())
    if config.chosen_format == "onnx" and size >= graph.ONNX_LIMIT:
        raise UserError(
            f"{config.checkpoint}: has {size / 2**30:.1f} GiB of weights, too many for an ONNX file, which holds less "
            "than 2 GiB; use --format pt2 or safetensors"
        )
    try:
        graph.write(config.chosen_format, file, source, subject)
    except OSError as error:
        raise UserError(f"{file}: {not_written(error, 'choose an --output that can be written')}") from error
    except Exception as error:
        raise UserError(
            f"{config.checkpoint}: {model.arch} cannot be exported as {config.chosen_format} ({graph.reason(error)}); "
            "--format safetensors works for any model"
        ) from error


def _check(config: Export, file: Path, subject: Subject) -> Agreement:
    """Compare the written file with the checkpoint, on the CPU in float32."""
    cpu = torch.device("cpu")
    engine = inference.load(config.checkpoint, cpu, amp=False)  # as the file computes, whatever it was trained in
    try:
        match config.chosen_format:
            case "onnx":
                run = graph.open_onnx(file, subject)
            case "pt2":
                run = graph.open_pt2(file, subject)
            case "safetensors":
                run = graph.open_module(subjects.of(*checkpoint.load_model(file)))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{file}: was written but cannot be loaded ({graph.reason(error)}); do not use it") from error
    return compare(file, run, engine, config.check_data, _form(config))


def _form(config: Export) -> Form:
    """The inputs for the check, and its tolerance."""
    if not config.with_preprocessing:
        return CUT
    return WHOLE if config.chosen_format == "pt2" else WHOLE_ELSEWHERE


def _result(
    config: Export, file: Path, source: Path, card: Card, subject: Subject, agreement: Agreement | None
) -> Exported:
    graphed = config.chosen_format != "safetensors"
    preprocessing = json.loads(subject.metadata["preprocessing"])
    if not graphed and "normalisation" in preprocessing:  # the file holds only weights
        preprocessing["normalisation"] = "by the caller"
    return Exported(
        file=str(file),
        format=config.chosen_format,
        bytes=file.stat().st_size,
        checkpoint=str(source),
        arch=card.arch,
        inputs=subject.inputs() if graphed else [],
        preprocessing=preprocessing,
        classes=list(card.classes),
        beside=[str(file.with_name(name)) for name in subject.files],
        check=agreement,
        targets=None if several(card.targets) is None else list(card.targets),
    )


def _print(result: Exported, subject: Subject, out: Console) -> None:
    classes = len(result.classes)
    rows = {
        "file": f"{result.file}, {result.bytes / 1e6:,.1f} MB"
        if not result.stays
        else f"{result.file}: stays as it was, as the new one does not agree with the checkpoint",
        "of": f"{result.checkpoint} ({result.arch}, {plural(classes, 'class')})",
    }
    if result.inputs:
        rows["input"] = f"{', '.join(result.inputs)}; left to the caller: {subject.caller}"
        rows["output"] = _outputs(result, subject)
        rows["inside"] = f"{subject.inside}; class names and preprocessing as metadata"
    else:
        rows["inside"] = "only weights; the metadata, which eval, predict and train --weights read, says how to use "
        rows["inside"] += f"them: {subject.caller}; {subject.inside}"
    if result.beside:
        rows["beside"] = ", ".join(result.beside)
    if result.check is not None:
        rows["check"] = check_row(result.check, result.kinds)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, Text(printable(text)))
    print_table(out, table)


def _outputs(result: Exported, subject: Subject) -> str:
    """Name, type and shape of each output."""
    tasks = several(result.targets or ())
    if tasks is None:
        return f"logits float32 [batch, {len(result.classes)}]"
    words = []
    for name, task in zip(subject.outputs, tasks.all, strict=True):
        kind, what = "float32", "logits"
        if isinstance(task, NumberTask):
            kind, what = str(task.exported_type).removeprefix("torch."), "in its own units"
        words.append(f"{name} {kind} [batch, {task.outputs}] ({what})")
    return printable(", ".join(words))


def check_row(check: Agreement, kinds: Collection[str]) -> str:
    """The result of the check in one sentence."""
    logits, probabilities, numbers = (
        "are NaN or infinite" if value is None else f"differ by at most {value:.1e}"
        for value in (check.logits, check.probabilities, check.numbers)
    )
    bound = f"(bound {check.bound:g})"
    told = [f"probabilities {probabilities} {bound}"] if set(kinds) - {"number"} else []
    told += [f"numbers {numbers} of their deviations in training {bound}"] if "number" in kinds else []
    told += [f"logits {logits}"] if set(kinds) - {"number"} else []
    told += [f"the likeliest class is the same for {check.top1}"] if "class" in kinds else []
    verdict = "agrees" if check.agrees else "does NOT agree"
    left_out = f" ({check.unreadable} more could not be read)" if check.unreadable else ""
    return f"{verdict} with predict on {check.samples} {check.origin}{left_out}: {', '.join(told)}"
