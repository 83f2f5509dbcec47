"""The blocks of a model, from input to head: the units of freezing, learning rates, sharding and recomputation."""

from dataclasses import dataclass

from timm.models import group_parameters
from torch import nn

# Residual, dense and transformer blocks of torchvision, and of the few timm models that do not name their own.
_CLASSES = {
    "BasicBlock",
    "Block",
    "Bottleneck",
    "CNBlock",
    "ConvStage",
    "_DenseLayer",
    "EncoderBlock",
    "Fire",
    "FusedMBConv",
    "Inception",
    "InceptionA",
    "InceptionB",
    "InceptionC",
    "InceptionD",
    "InceptionE",
    "_InvertedResidual",
    "InvertedResidual",
    "MBConv",
    "MaxVitLayer",
    "MetaFormerBlock",
    "ResBottleneckBlock",
    "SpatialTransformerBlock",
    "SwinTransformerBlock",
}


@dataclass(frozen=True)
class Block:
    """A group of adjacent layers.

    `module` is the submodule that is called as a whole, if there is one; stem and head have none. The parameters may
    include a downsampling layer in front of it.
    """

    name: str
    parameters: tuple[str, ...]  # names in the model
    module: nn.Module | None


def blocks(module: nn.Module) -> list[Block]:
    """The stem, each residual or transformer block, and the head, which is everything after the last block.

    Every parameter belongs to exactly one block. timm's models are split by their own `group_matcher`, text encoders by
    their layers (`transformer_layers`), other models by the classes of their blocks, and a plain stack such as VGG
    before each convolution and linear layer.
    """
    if hasattr(module, "group_matcher"):
        groups = _by_matcher(module)
    elif known := _known(module):
        groups = _by_block(module, known)
    else:
        groups = _by_layer(module)
    if len(groups) == 1:
        return [Block("head", tuple(groups[0]), None)]
    parts = [Block("stem", tuple(groups[0]), None)]
    for names in groups[1:-1]:
        name, submodule = _largest_submodule(module, names)
        parts.append(Block(name, tuple(names), submodule))
    last = parts[-1]
    tail = list(groups[-1])
    if last.module is not None:  # timm counts the last norm or convolution as part of the last block
        own = [name for name in last.parameters if name.startswith(f"{last.name}.")]
        after = last.parameters[last.parameters.index(own[-1]) + 1 :]
        parts[-1] = Block(last.name, last.parameters[: len(last.parameters) - len(after)], last.module)
        tail = [*after, *tail]
    return [*parts, Block("head", tuple(tail), None)]


def repeated(module: nn.Module) -> list[nn.Module]:
    """The modules called in sequence between stem and head; none for a plain stack of layers."""
    return [block.module for block in blocks(module) if block.module is not None]


def _by_matcher(module: nn.Module) -> list[list[str]]:
    matcher = module.group_matcher(coarse=False)  # type: ignore[operator]
    groups = group_parameters(module, matcher)
    order = {name: place for place, (name, _) in enumerate(module.named_parameters())}
    return [sorted(groups[key], key=order.__getitem__) for key in sorted(groups)]


def _known(module: nn.Module) -> set[nn.Module]:
    """The blocks that a model names itself, or that have a known class."""
    if hasattr(module, "transformer_layers"):
        return set(module.transformer_layers())  # type: ignore[operator]
    return {child for child in module.modules() if any(base.__name__ in _CLASSES for base in type(child).__mro__)}


def _by_block(module: nn.Module, known: set[nn.Module]) -> list[list[str]]:
    """Group parameters by block. Layers between two blocks (downsampling, a transition) go with the second."""
    owners: dict[str, str] = {}
    for prefix, child in module.named_modules():
        if child in known:
            for name, _ in child.named_parameters(prefix):
                owners.setdefault(name, prefix)  # the outermost
    groups: list[list[str]] = []
    loose: list[str] = []
    current = None
    for name, _ in module.named_parameters():
        owner = owners.get(name)
        if owner is None:
            loose.append(name)
        elif owner == current:
            groups[-1].append(name)
        else:
            groups += [[*loose, name]] if groups else [loose, [name]]
            loose = []
            current = owner
    return [*groups, loose]


def _by_layer(module: nn.Module) -> list[list[str]]:
    """Each weight with more than one dimension starts a group; its bias and norm follow."""
    groups: list[list[str]] = []
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1 or not groups:
            groups.append([])
        groups[-1].append(name)
    return groups


def _largest_submodule(module: nn.Module, names: list[str]) -> tuple[str, nn.Module | None]:
    """The largest submodule whose parameters are all among `names`, with its name.

    Lists, and sequences of one module, do not count; the module inside does.
    """
    allowed = set(names)
    largest = 0
    best: tuple[str, nn.Module] | None = None
    for prefix, child in module.named_modules():
        own = [name for name, _ in child.named_parameters(prefix)]
        chain = type(child) in (nn.ModuleList, nn.ModuleDict) or (type(child) is nn.Sequential and len(child) == 1)
        layer = next(child.children(), None) is None
        if prefix and not chain and not layer and len(own) > largest and allowed.issuperset(own):
            best = prefix, child
            largest = len(own)
    return best or (names[0].rpartition(".")[0], None)  # the name of its first layer
