"""Models by name: timm's, torchvision's as `torchvision/NAME`, ours as `fastimg/NAME`, Hugging Face's text encoders
as `hf:NAME`; timm's in repositories of the hub as `hf-hub:USER/NAME`, which checkpoints state by timm's own names.

A model stays pure: precision, data parallelism and freezing are applied from outside.

In: a name, arguments, files of weights. Out: a Model on the CPU. Must not know: datasets, runs, what wraps a model.
"""

from .arguments import check_kwargs, parse_kwargs
from .building import build
from .fitting import repaired, taken_from, with_rows
from .model import NO_PIXELS, Model, Pair, PixelType, Preprocessing, TextSide
from .other_models import OWN_PREFIX
from .weights import load_weights, output_names, read_metadata, read_weights, stated_classes, weights_file

__all__ = [
    "NO_PIXELS",
    "OWN_PREFIX",
    "Model",
    "Pair",
    "PixelType",
    "Preprocessing",
    "TextSide",
    "build",
    "check_kwargs",
    "load_weights",
    "output_names",
    "parse_kwargs",
    "read_metadata",
    "read_weights",
    "repaired",
    "stated_classes",
    "taken_from",
    "weights_file",
    "with_rows",
]
