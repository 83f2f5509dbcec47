"""Optimisers by name, timm's and schedule-free ones: what each takes, whose rate serves it, what is refused."""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import timm.optim
import torch

from fastimg.config.commands import Train
from fastimg.config.intent import SCHEDULE_FREE
from fastimg.errors import UsageError, nearest
from fastimg.models.registry import parse_kwargs

from .schedule_free import ScheduleFree

_TIMM: Any = timm.optim  # its stubs do not export what it documents

# Names whose steps have about the size of SGD's, or of AdamW's: the same learning rates serve. Nothing else is tuned.
_LIKE_SGD = (
    *("sgd", "momentum", "nesterov", "nesterovw", "sgdw", "sgdc", "sgdp", "csgdw", "csgdc", "csgdp"),
    "schedule_free_sgd",
)
_DECOUPLED = (
    *("adamw", "adamwlegacy", "adamc", "cadamw", "cadamc", "nadamw", "nadamc", "cnadamw", "cnadamc", "radamw"),
    *("adamp", "cadamp", "adoptw", "adoptc", "cadoptw", "cadoptc", "adan", "adanw", "cadan", "cadanw"),
    *("laprop", "lapropc", "claprop", "adabelief", "radabelief", "mars", "cmars"),
    *("muon", "nmuon", "adamuon", "nadamuon", "schedule_free_adamw"),  # timm scales Muon's steps to AdamW's size
)
_LIKE_ADAMW = frozenset((*_DECOUPLED, "adam", "nadam", "nadamlegacy", "radam", "radamlegacy", "adopt", "cadopt"))

# Arguments that have a flag of their own, or that belong to the loop.
_FLAGS = {
    "lr": "--lr",
    "weight_decay": "--weight-decay",
    "momentum": "--momentum",
    "beta": "--momentum",
    "eps": "--opt-eps",
    "betas": "--opt-betas",
    "foreach": "--opt-impl",
    "fused": "--opt-impl",
}
_INTERNAL = frozenset(("self", "params", "maximize", "capturable", "differentiable", "verbose", "adamw_lr", "beta2"))

# What a sharded weight's optimiser may be: it treats each element by itself, and keeps all of its state by parameter.
ELEMENTWISE = (
    *("adamw", "sgd", "momentum", "nesterov", "adam", "nadam", "radam", "radamw", "adamax", "adagrad", "adadelta"),
    *("rmsprop", "lion", "adamwlegacy", "nadamw"),
)
_PACKAGES = {"kron": "opt_einsum", "apex": "apex", "bitsandbytes": "bitsandbytes"}


def check(config: Train) -> None:
    """Raises UsageError for an optimiser that does not exist or cannot train here, and for settings it does not know.

    Nothing is built: what an optimiser says of its values is refused later (`construction.build_optimizer`).
    """
    name = config.opt
    _check_name(name)
    if config.lr == "auto" and relative(name) is None:
        raise UsageError(
            f"--opt {name}: no learning rate is known to serve it; give --lr, a number or find, and --weight-decay"
        )
    if config.strategy == "fsdp" and name not in ELEMENTWISE:
        raise UsageError(
            f"--opt {name}: looks at whole weights or counts steps for all of them, and --strategy fsdp shares them; "
            f"give one of {', '.join(ELEMENTWISE)}"
        )
    if config.momentum is not None and not takes_momentum(name):
        raise UsageError(f"--momentum has no effect with --opt {name}; leave it out")
    taken = arguments(name)
    for field, value, argument in (("eps", config.opt_eps, "eps"), ("betas", config.opt_betas, "betas")):
        if value is not None and argument not in taken:
            raise UsageError(f"--opt-{field} has no effect with --opt {name}; leave it out")
    if config.opt_betas is not None and len(config.opt_betas) != (count := _betas(name)):
        words = " ".join(f"{beta:g}" for beta in config.opt_betas)
        raise UsageError(f"--opt-betas {words}: {name} has {count}; give {count} numbers")
    for key, value in parsed(config.opt_kwargs).items():
        _check_argument(name, key, value, taken)


def parsed(pairs: Sequence[str]) -> dict[str, Any]:
    """--opt-kwargs as arguments. Raises UsageError for what is not name=value."""
    words = {"true": True, "false": False, "none": None}
    return {
        key: words.get(value.lower(), value) if isinstance(value, str) else value
        for key, value in parse_kwargs(pairs, "--opt-kwargs").items()
    }


def _check_name(name: str) -> None:
    """Raises UsageError for a name that is unknown, or whose optimiser cannot run here."""
    known: list[str] = [*_TIMM.list_optimizers(), *SCHEDULE_FREE]
    if name not in known:
        near = nearest(name.lower(), known) or f"; there are {', '.join(known)}"
        raise UsageError(f"--opt {name}: no such optimiser{near}")
    if name in SCHEDULE_FREE:
        return
    info = _TIMM.get_optimizer_info(name)
    if info.second_order:
        raise UsageError(f"--opt {name}: needs second derivatives, which a step does not compute; choose another")
    home = info.opt_class if isinstance(info.opt_class, str) else info.opt_class.__module__.rpartition(".")[2]
    package = _PACKAGES.get(home.partition(".")[0])
    if package is not None and find_spec(package) is None:
        raise UsageError(f"--opt {name}: needs {package}, which is not installed; install it, or choose another")
    if isinstance(info.opt_class, str) and not torch.cuda.is_available():
        raise UsageError(f"--opt {name}: {package}'s optimisers need a CUDA device; choose another")


def _check_argument(name: str, key: str, value: Any, taken: Mapping[str, Any]) -> None:
    if key in _FLAGS:
        raise UsageError(f"--opt-kwargs {key}={value}: there is a flag for it; use {_FLAGS[key]} instead")
    own = [known for known in taken if known not in _FLAGS and known not in _INTERNAL]
    if key not in own:
        near = nearest(key, own) or (f"; it has {', '.join(own)}" if own else "; it has none")
        raise UsageError(f"--opt-kwargs {key}={value}: {name} has no such argument{near}")


def relative(name: str) -> Literal["adamw", "sgd"] | None:
    """The tuned optimiser whose learning rates serve this one; None where nothing is known."""
    return "sgd" if name in _LIKE_SGD else "adamw" if name in _LIKE_ADAMW else None


def weight_decay(name: str) -> float:
    """The default: AdamW's where the decay is apart from the gradient, SGD's for its like, else none."""
    return 0.05 if name in _DECOUPLED else 5e-5 if name in _LIKE_SGD else 0.0


def takes_momentum(name: str) -> bool:
    """Whether --momentum has an effect; 0.9 is the default then."""
    if name in SCHEDULE_FREE:
        return name == "schedule_free_sgd"
    return bool(_TIMM.get_optimizer_info(name).has_momentum)


def optimizer_class(name: str) -> Any:
    """The class, without the arguments that the name stands for."""
    if name in SCHEDULE_FREE:
        return ScheduleFree
    return _TIMM.get_optimizer_class(name, bind_defaults=False)


def implied(name: str) -> dict[str, Any]:
    """The arguments that a name stands for: `lambc` is `Lamb` with `trust_clip`."""
    return {} if name in SCHEDULE_FREE else dict(_TIMM.get_optimizer_info(name).defaults or {})


@cache
def arguments(name: str) -> Mapping[str, Any]:
    """The arguments of an optimiser by name, with `betas` where it has some."""
    taken = dict(inspect.signature(optimizer_class(name)).parameters)
    if name == "schedule_free_adamw":
        return {**taken, "betas": None}
    if name == "schedule_free_sgd":
        taken.pop("eps")
    return taken


def _betas(name: str) -> int:
    return 2 if name in SCHEDULE_FREE else int(_TIMM.get_optimizer_info(name).num_betas)
