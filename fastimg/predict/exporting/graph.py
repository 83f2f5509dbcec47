"""Models as graphs in one file, ONNX or torch.export's: writing such files, and running them."""

import contextlib
import io
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from fastimg.loaders.containers.atomic import replace_file, whole

from .interface import Subject

Format = Literal["safetensors", "onnx", "pt2"]
Run = Callable[[torch.Tensor], torch.Tensor]  # a loader's batch -> the outputs side by side, float32 [N, outputs]

ONNX_LIMIT = 2**31  # bytes: an ONNX file is one protobuf message


def trace(subject: Subject) -> ExportedProgram:
    """The graph, for all sizes of the dynamic axes. Raises what torch.export raises for a model it cannot trace."""
    names = {name for axes in subject.axes.values() for name in axes.values()}
    dims = {name: Dim(name, max=subject.max_sizes.get(name)) for name in sorted(names)}
    shapes = {
        input_name: {axis: dims[name] for axis, name in axes.items()} for input_name, axes in subject.axes.items()
    }
    with torch.no_grad():
        return torch.export.export(subject.module, tuple(subject.examples.values()), dynamic_shapes=shapes)


def onnx_bytes(subject: Subject) -> bytes:
    """An ONNX model with its weights. Raises what the exporter raises."""
    program = torch.onnx.export(
        trace(subject),
        dynamo=True,
        verbose=False,
        input_names=list(subject.examples),
        output_names=list(subject.outputs),
        dynamic_shapes=subject.axes,
    )
    assert program is not None  # with dynamo=True it never is
    program.model.metadata_props.update(subject.metadata)
    content: bytes = program.model_proto.SerializeToString()
    return content


def write(format: Format, file: Path, source: Path, subject: Subject) -> None:
    """Write `file`, which appears complete or not at all. `source` is the checkpoint's model.safetensors.

    The files next to it are written first. Raises OSError, and whatever the exporter of the format raises.
    """
    with quiet():
        save = _saver(format, source, subject)
        for name, content in subject.files.items():
            beside = file.with_name(name)
            if not beside.is_file() or beside.read_bytes() != content:
                replace_file(beside, content)
        with whole(file) as part:
            save(part)


def _saver(format: Format, source: Path, subject: Subject) -> Callable[[BinaryIO], object]:
    """A function that writes the content to an open file; the content is computed before it is returned."""
    if format == "onnx":
        content = onnx_bytes(subject)
        return lambda part: part.write(content)
    if format == "pt2":
        program = trace(subject)
        return lambda part: torch.export.save(program, part, extra_files=subject.metadata)

    def copy(part: BinaryIO) -> None:
        with source.open("rb") as model:
            shutil.copyfileobj(model, part, 1 << 20)

    return copy


def open_onnx(file: Path, subject: Subject) -> Run:
    """The file in ONNX Runtime, on the CPU."""
    with quiet():
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised anyway
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = list(subject.examples)

    def run(batch: torch.Tensor) -> torch.Tensor:
        inputs = {name: tensor.contiguous().numpy() for name, tensor in zip(names, subject.feed(batch), strict=True)}
        return torch.cat([torch.from_numpy(each) for each in session.run(list(subject.outputs), inputs)], dim=1)

    return run


def open_pt2(file: Path, subject: Subject) -> Run:
    """The file in torch, on the CPU."""
    with quiet():
        return _runner(torch.export.load(file).module(), subject)


def open_module(subject: Subject) -> Run:
    """The subject's own module."""
    return _runner(subject.module, subject)


def _runner(module: nn.Module, subject: Subject) -> Run:
    def run(batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            outputs = module(*subject.feed(batch))
        return outputs if isinstance(outputs, torch.Tensor) else torch.cat(tuple(outputs), dim=1)

    return run


def reason(error: BaseException) -> str:
    """The first informative line of the root cause of an exporter's error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Constraints violated"):  # the next line names them
        lines = lines[1:]
    return lines[0].rstrip(".") if lines else type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what exporters warn about, log or print, as it concerns only their internals."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
