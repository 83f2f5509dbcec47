"""The blocks of a model, from its input to its head: what freezes, learns, is sharded and is recomputed together."""

from dataclasses import dataclass

from timm.models import group_parameters
from torch import nn

# Residual, dense and transformer blocks of torchvision, and of timm's few models that do not know their own.
_CLASSES = {
    "BasicBlock",
    "Block",
    "Bottleneck",
    "CNBlock",
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
    """Neighbouring layers. `module`, of all but stem and head, is the part that is called as a whole, where there is
    one; a downsampling layer before it may be among the parameters too.
    """

    name: str
    parameters: tuple[str, ...]  # names in the model
    module: nn.Module | None


def blocks(module: nn.Module) -> list[Block]:
    """The stem, each residual or transformer block, and the head: all that follows the last block, its norm included.

    Every parameter is in exactly one. timm's models are cut by their own `group_matcher`, a text encoder by its layers
    (`transformer_layers`), others by the classes of their blocks, and a plain stack, such as VGG, before each
    convolution and matrix.
    """
    if hasattr(module, "group_matcher"):
        groups = _by_matcher(module)
    elif known := _known(module):
        groups = _by_block(module, known)
    else:
        groups = _by_layer(module)
    if len(groups) == 1:
        return [Block("head", tuple(groups[0]), None)]
    found = [Block("stem", tuple(groups[0]), None)]
    for names in groups[1:-1]:
        name, called = _called(module, names)
        found.append(Block(name, tuple(names), called))
    last = found[-1]
    tail = list(groups[-1])
    if last.module is not None:  # timm leaves the last norm, or convolution, with the last block
        held = [name for name in last.parameters if name.startswith(f"{last.name}.")]
        after = last.parameters[last.parameters.index(held[-1]) + 1 :]
        found[-1] = Block(last.name, last.parameters[: len(last.parameters) - len(after)], last.module)
        tail = [*after, *tail]
    return [*found, Block("head", tuple(tail), None)]


def repeated(module: nn.Module) -> list[nn.Module]:
    """The modules that are called one after the other between stem and head; none for a plain stack of layers."""
    return [block.module for block in blocks(module) if block.module is not None]


def _by_matcher(module: nn.Module) -> list[list[str]]:
    matcher = module.group_matcher(coarse=False)  # type: ignore[operator]
    groups = group_parameters(module, matcher)
    order = {name: place for place, (name, _) in enumerate(module.named_parameters())}
    return [sorted(groups[key], key=order.__getitem__) for key in sorted(groups)]


def _known(module: nn.Module) -> set[nn.Module]:
    """The blocks that a model names itself, or that are of a known class."""
    if hasattr(module, "transformer_layers"):
        return set(module.transformer_layers())  # type: ignore[operator]
    return {child for child in module.modules() if any(base.__name__ in _CLASSES for base in type(child).__mro__)}


def _by_block(module: nn.Module, known: set[nn.Module]) -> list[list[str]]:
    """What stands between two blocks goes with the second: a downsampling layer, a transition."""
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
            loose, current = [], owner
    return [*groups, loose]


def _by_layer(module: nn.Module) -> list[list[str]]:
    """Each weight with more than one dimension begins a group; its bias and norm follow."""
    groups: list[list[str]] = []
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1 or not groups:
            groups.append([])
        groups[-1].append(name)
    return groups


def _called(module: nn.Module, names: list[str]) -> tuple[str, nn.Module | None]:
    """The largest submodule whose parameters are all among `names`, and its name; a chain of one is its only link."""
    among, most = set(names), 0
    best: tuple[str, nn.Module] | None = None
    for prefix, child in module.named_modules():
        own = [name for name, _ in child.named_parameters(prefix)]
        chain = type(child) in (nn.ModuleList, nn.ModuleDict) or (type(child) is nn.Sequential and len(child) == 1)
        layer = next(child.children(), None) is None
        if prefix and not chain and not layer and len(own) > most and among.issuperset(own):
            best, most = (prefix, child), len(own)
    return best or (names[0].rpartition(".")[0], None)  # its first layer's name
