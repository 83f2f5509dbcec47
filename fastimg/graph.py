"""A model as a graph in one file, ONNX or torch.export's, and such a file at work."""

import contextlib
import io
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from .checkpoint import Card
from .loaders.tar import sync_folder, temporary
from .models import Model

Format = Literal["safetensors", "onnx", "pt2"]
Run = Callable[[torch.Tensor], torch.Tensor]  # a loader's batch -> logits float32 [N, classes]

OUTPUT = "logits"
ONNX_LIMIT = 2**31  # bytes of a protobuf message, which an ONNX file is


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What becomes a graph: a module that takes what callers have and answers with logits float32 [N, classes]."""

    module: nn.Module
    examples: dict[str, torch.Tensor]  # by the name of the input, of two samples: one would be taken for a constant
    axes: dict[str, dict[int, str]]  # of each input, those of any size, and what they are called
    feed: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]  # a loader's batch -> the inputs
    metadata: dict[str, str]


class Pixels(nn.Module):
    """uint8 images [N, 3, H, W] -> logits float32 [N, classes]: normalisation, the model, the checkpoint's classes."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__()
        self.model = model
        self.classes = len(card.classes)
        for name, values in (("mean", card.preprocessing.mean), ("std", card.preprocessing.std)):
            levels = torch.tensor(values, dtype=torch.float64) * 255
            self.register_buffer(name, levels.float().view(1, 3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See the class."""
        logits: torch.Tensor = self.model((images.float() - self.mean) / self.std)
        return logits.float()[:, : self.classes]


def subject(model: Model, card: Card) -> Subject:
    """What a checkpoint's model takes, and what its file says of itself."""
    size = card.preprocessing.val_size
    return Subject(
        module=Pixels(model.module, card).eval(),
        examples={"images": torch.zeros(2, 3, size, size, dtype=torch.uint8)},
        axes={"images": {0: "batch"}},
        feed=lambda images: (images,),
        metadata=metadata(card),
    )


def metadata(card: Card) -> dict[str, str]:
    """JSON by name: `fastimg`, the whole card as in a checkpoint, and of it, for other programs, what callers need."""
    p = card.preprocessing
    steps = {"resize": p.val_resize, "crop": p.val_size, "interpolation": p.interpolation, "antialias": True}
    inside = {"normalisation": "inside", "mean": p.mean, "std": p.std}
    return {
        "fastimg": card.to_json(),
        "classes": json.dumps(card.classes),
        "preprocessing": json.dumps({**steps, **inside}),
    }


def trace(subject: Subject) -> ExportedProgram:
    """The graph, for any size of the `axes`. Raises what torch.export does for a model that has none."""
    names = {name for axes in subject.axes.values() for name in axes.values()}
    dims = {name: Dim(name) for name in sorted(names)}
    shapes = {at: {axis: dims[name] for axis, name in axes.items()} for at, axes in subject.axes.items()}
    with torch.no_grad():
        return torch.export.export(subject.module, tuple(subject.examples.values()), dynamic_shapes=shapes)


def onnx_bytes(subject: Subject) -> bytes:
    """An ONNX model, weights inside. Raises what the exporter does."""
    program = torch.onnx.export(
        trace(subject),
        dynamo=True,
        verbose=False,
        input_names=list(subject.examples),
        output_names=[OUTPUT],
        dynamic_shapes=subject.axes,
    )
    assert program is not None  # with dynamo it is one
    program.model.metadata_props.update(subject.metadata)
    content: bytes = program.model_proto.SerializeToString()
    return content


def inputs(subject: Subject) -> list[str]:
    """Name, type and shape of each input, in words: `images uint8 [batch, 3, 224, 224]`."""
    told = []
    for name, example in subject.examples.items():
        shape = [subject.axes[name].get(axis, str(size)) for axis, size in enumerate(example.shape)]
        told.append(f"{name} {str(example.dtype).removeprefix('torch.')} [{', '.join(shape)}]")
    return told


def write(format: Format, file: Path, source: Path, subject: Subject) -> None:
    """Write `file`, which appears complete or not at all. `source` is the checkpoint's model.safetensors.

    Raises OSError, and whatever the exporter of that format raises.
    """
    with quiet():
        match format:
            case "onnx":
                content = onnx_bytes(subject)
                with whole(file) as part:
                    part.write(content)
            case "pt2":
                program = trace(subject)
                with whole(file) as part:
                    torch.export.save(program, part, extra_files=subject.metadata)
            case "safetensors":
                with source.open("rb") as model, whole(file) as part:
                    shutil.copyfileobj(model, part, 1 << 20)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes its name when the block ends without an error."""
    part = temporary(path)
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def open_onnx(file: Path, subject: Subject) -> Run:
    """The file in ONNX Runtime, on the CPU."""
    with quiet():
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what goes wrong is raised
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = list(subject.examples)

    def run(batch: torch.Tensor) -> torch.Tensor:
        inputs = {name: tensor.contiguous().numpy() for name, tensor in zip(names, subject.feed(batch), strict=True)}
        return torch.from_numpy(session.run([OUTPUT], inputs)[0])

    return run


def open_pt2(file: Path, subject: Subject) -> Run:
    """The file in torch, on the CPU."""
    with quiet():
        return _runner(torch.export.load(file).module(), subject)


def open_module(subject: Subject) -> Run:
    """The subject as it is."""
    return _runner(subject.module, subject)


def _runner(module: nn.Module, subject: Subject) -> Run:
    def run(batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = module(*subject.feed(batch))
        return logits

    return run


def reason(error: BaseException) -> str:
    """The first line of an exporter's error that says anything, of the error at its root."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Constraints violated"):  # the next one says which
        lines = lines[1:]
    return lines[0].rstrip(".") if lines else type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing that exporters warn of, log or print is seen: it is about their insides."""
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
