"""New classifiers, of one linear layer or two, and their initialisation."""

from collections.abc import Iterable
from typing import Literal

from torch import nn

from fastimg.errors import UsageError

HeadInit = Literal["xavier", "he", "zeros"]
HeadKind = Literal["linear", "mlp"]

HIDDEN = 512  # default number of units in an mlp's hidden layer


def mlp(inputs: int, hidden: int, classes: int) -> nn.Sequential:
    """Linear, batch norm, GELU, linear: embeddings [B, inputs] -> logits [B, classes]."""
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.GELU(), nn.Linear(hidden, classes)
    )


def replace_head(module: nn.Module, classifier: tuple[str, ...], hidden: int, arch: str) -> None:
    """Replace a linear classifier by an mlp. Raises UsageError if the model has another kind of classifier."""
    old = module.get_submodule(classifier[0]) if len(classifier) == 1 else None
    if not isinstance(old, nn.Linear):
        raise UsageError(f"--head mlp: the classifier of {arch} is not one linear layer; leave --head out")
    holder, _, name = classifier[0].rpartition(".")
    setattr(module.get_submodule(holder), name, mlp(old.in_features, hidden, old.out_features))


def init_head(module: nn.Module, classifier: str | Iterable[str], how: HeadInit = "zeros") -> None:
    """Initialise the weights of a classifier as `how` says, and its biases to zero.

    xavier: uniform, with variance 2 / (inputs + outputs) (Glorot and Bengio, 2010). he: normal, with variance
    2 / inputs (He et al., 2015). zeros: the first loss is that of a uniform guess (Big Transfer: Kolesnikov et al.,
    2019); in a classifier of several layers only the last one is zero, since zeros below it would never learn.
    """
    for name in (classifier,) if isinstance(classifier, str) else classifier:
        layers = [layer for layer in module.get_submodule(name).modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        for layer in layers:
            if how == "he":
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            elif how == "zeros" and layer is layers[-1]:
                nn.init.zeros_(layer.weight)
            else:
                nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
