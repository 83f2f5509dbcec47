"""Exported files as they are used without fastimg."""

import onnx
import onnxruntime
import torch

FORMATS = ("onnx", "pt2", "safetensors")
GRAPHS = ("onnx", "pt2")


def opened(file):
    """The file as used without fastimg: its inputs -> float32 [N, classes]."""
    if file.suffix == ".pt2":
        module = torch.export.load(file).module()
        return lambda *inputs: module(*map(torch.from_numpy, inputs)).detach().numpy()
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda *inputs: session.run(["logits"], dict(zip(names, inputs, strict=True)))[0]


def stated_in(file):
    """The metadata of a file, by name."""
    if file.suffix == ".pt2":
        found = {"classes": ""}  # torch takes an empty tuple for none
        torch.export.load(file, extra_files=found)
        return found
    return {pair.key: pair.value for pair in onnx.load(file).metadata_props}
