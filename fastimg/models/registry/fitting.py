"""Weights of other image sizes, other names or other classes made to fit a model, with a remark about each change."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torchvision.models import VisionTransformer
from torchvision.models.vision_transformer import interpolate_embeddings

from fastimg.errors import printable
from fastimg.models.heads import HeadInit, init_head
from fastimg.wording import plural

from .model import Model, head_prefixes
from .timm_models import state_dict_filter
from .weights import AVERAGE, folded, load_weights, misfits, read_weights, stated_classes

_SHOWN = 3  # names in a remark

Tensors = dict[str, torch.Tensor]


def with_weights(
    model: Model, file: Path, classes: tuple[str, ...] | None, head_init: HeadInit
) -> tuple[Model, dict[str, str]]:
    """The model with the weights of `--weights FILE`, and the file's metadata. Raises UserError.

    classes: what its outputs stand for, whose rows of the classifier are kept by name; None: by their number.
    """
    tensors, metadata = read_weights(file)
    remarks = taken_from(metadata)
    tensors, repairs = repaired(model, tensors)
    tensors = folded(model, tensors, file)
    model, tensors, rows = with_rows(model, tensors, stated_classes(model.arch, metadata, file), classes, head_init)
    kept = load_weights(model, tensors, f"--weights {file}", head_init=head_init)
    new_head = None if kept and not model.kept_rows else head_init
    return replace(model, new_head=new_head, fitted=(*remarks, *repairs, *rows)), metadata


def taken_from(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """A remark where a file holds a moving average of the weights beside them, which is then what is taken."""
    return (f"the moving average ({metadata[AVERAGE]}) is taken",) if AVERAGE in metadata else ()


def repaired(model: Model, tensors: Tensors) -> tuple[Tensors, tuple[str, ...]]:
    """Weights as timm's or torchvision's own function for the model's weights converts them, and remarks on that.

    It renames tensors of old or original releases, and resamples position embeddings and tables of relative positions
    for the size that the model was built for. Weights that fit, or that it does not make fit better, stay as they are.
    """
    before = len(misfits(model, tensors))
    convert = _conversion(model) if before else None
    if convert is None:
        return tensors, ()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about how timm calls it
            converted = {name: value for name, value in convert(dict(tensors)).items() if torch.is_tensor(value)}
    except Exception:  # noqa: BLE001 - of a function that was given other weights; what does not fit is named later
        return tensors, ()
    return (converted, _changes(tensors, converted)) if len(misfits(model, converted)) < before else (tensors, ())


def _conversion(model: Model) -> Callable[[Tensors], Tensors] | None:
    """The function that `repaired` calls; None where the model's library has none."""
    module = model.module
    if isinstance(module, VisionTransformer):
        return lambda tensors: interpolate_embeddings(module.image_size, module.patch_size, tensors)
    own = state_dict_filter(model)
    if own is None:
        return None
    return own if len(inspect.signature(own).parameters) == 1 else lambda tensors: own(tensors, module)


def _changes(before: Tensors, after: Tensors) -> tuple[str, ...]:
    """What a conversion did, in words."""
    resampled = [
        f"{name} {list(before[name].shape)} to {list(after[name].shape)}"
        for name in after
        if name in before and before[name].numel() != after[name].numel()
    ]
    added, gone = ([name for name in one if name not in other] for one, other in ((after, before), (before, after)))
    left_out = len(gone) - len(added)
    remarks = [f"{plural(len(resampled), 'tensor')} resampled: {_some(resampled)}"] if resampled else []
    remarks += [f"{plural(len(added), 'tensor')} renamed: {_some(added)}"] if added else []
    remarks += [f"{plural(left_out, 'tensor')} left out{'' if added else f': {_some(gone)}'}"] if left_out > 0 else []
    return tuple(remarks)


def with_rows(
    model: Model,
    tensors: Tensors,
    theirs: tuple[str, ...] | None,
    ours: tuple[str, ...] | None,
    head_init: HeadInit,
) -> tuple[Model, Tensors, tuple[str, ...]]:
    """The classifier's rows of classes that both name, in the order of the model's, and a remark on that.

    The rows of its other classes begin as `head_init` says. Where no class is the same, or the classifiers are of
    different layers, all of it does. Where names are not known, or are the same, nothing changes.
    """
    in_head = head_prefixes(model)
    own = {name: value for name, value in model.module.state_dict().items() if name.startswith(in_head)}
    if theirs is None or ours is None or (theirs == ours and all(_same_shape(own, tensors, name) for name in own)):
        return model, tensors, ()
    trunk = {name: value for name, value in tensors.items() if not name.startswith(in_head)}
    by_class = _rows_of_classes(model)
    places = {name: place for place, name in enumerate(theirs)}
    kept = [row for row, name in enumerate(ours) if name in places]
    alike = all(
        _same_width(own, tensors, name, len(theirs)) if name in by_class else _same_shape(own, tensors, name)
        for name in own
    )
    if not kept or not alike:
        why = "of other layers" if kept else "of none of these classes"
        return model, trunk, (f"a new classifier, as the one in the file is {why}",)
    init_head(model.module, model.classifier, head_init)
    source = [places[ours[row]] for row in kept]
    head = {name: tensors[name] for name in own if name in tensors}
    for name in by_class:
        head[name] = own[name].clone()  # as it begins
        head[name][kept] = tensors[name][source].to(own[name].dtype)
    rows = max(len(head[name]) for name in by_class)  # more than classes with --num-classes
    remark = f"{len(kept):,} of {plural(rows, 'row')} of the classifier kept by name"
    if new := [name for name in ours if name not in places]:
        remark += f", new: {_some(new)}"
    if left_out := len(theirs) - len(kept):
        remark += f"; {plural(left_out, 'row')} of the file left out"
    return replace(model, kept_rows=len(kept) % rows), trunk | head, (printable(remark),)


def _same_shape(own: Tensors, tensors: Tensors, name: str) -> bool:
    return name.endswith("num_batches_tracked") or (name in tensors and tensors[name].shape == own[name].shape)


def _same_width(own: Tensors, tensors: Tensors, name: str, rows: int) -> bool:
    """Whether both have rows of the same shape, and the weights `rows` of them or more."""
    return name in tensors and len(tensors[name]) >= rows and tensors[name].shape[1:] == own[name].shape[1:]


def _rows_of_classes(model: Model) -> set[str]:
    """The names of the tensors with a row for each class: those of the last layer of each classifier."""
    found = set()
    for classifier in model.classifier:
        layers = [
            (name, layer)
            for name, layer in model.module.get_submodule(classifier).named_modules(prefix=classifier)
            if isinstance(layer, nn.Linear | nn.Conv2d)
        ]
        if layers:
            name, layer = layers[-1]
            found |= {f"{name}.weight"} | ({f"{name}.bias"} if layer.bias is not None else set())
    return found


def _some(names: tuple[str, ...] | list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
