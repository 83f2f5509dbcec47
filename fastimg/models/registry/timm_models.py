"""timm's models by name or by a repository of the hub, built for a size of images."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import Any

import timm
import timm.models._builder
import torch
from huggingface_hub import constants, get_session
from timm.data.config import resolve_model_data_config

from fastimg.config.training import HUB_PREFIX
from fastimg.errors import UsageError, UserError, nearest, reason_of
from fastimg.models.heads import HeadInit, init_head
from fastimg.system.hub import asking_hub

from .model import Model, Preprocessing, is_convolutional

_substituting = threading.Lock()


def timm_model(
    arch: str,
    num_classes: int,
    pretrained: bool,
    kwargs: dict[str, Any],
    img_size: int | None,
    head_init: HeadInit,
    size_flag: str,
) -> Model:
    """A model of timm's, or of a repository of the hub. Raises UsageError and UserError."""
    published, config, stated = _on_hub(arch) if arch.startswith(HUB_PREFIX) else (arch, _config(arch), {})
    kwargs = {**stated, **kwargs}
    given = kwargs
    native_size = 0 if config is None else int(config.input_size[-1])
    if img_size is None and isinstance(kwargs.get("img_size"), int):
        img_size = kwargs["img_size"]
    if img_size is not None and config is not None and config.fixed_input_size and img_size != config.input_size[-1]:
        kwargs = {"img_size": img_size, **kwargs}
    if pretrained and published == arch and not timm.is_model_pretrained(arch):
        raise UsageError(f"--pretrained: timm has no weights for {arch}; leave it out, or give --weights FILE")
    try:
        with _reachable_hub() if pretrained else nullcontext():
            module = timm.create_model(arch, num_classes=num_classes, pretrained=pretrained, **kwargs)
    except TypeError as error:
        if not given and kwargs:
            raise _cannot_be_built(arch, size_flag, kwargs["img_size"], native_size, error) from error
        raise UsageError(f"--model-kwargs: {arch} does not accept them: {error}") from error
    except Exception as error:
        if "img_size" in kwargs and "img_size" not in given and isinstance(error, AssertionError | ValueError):
            raise _cannot_be_built(arch, size_flag, kwargs["img_size"], native_size, error) from error
        if pretrained:
            raise UserError(download_message(arch, error)) from error
        if not kwargs:
            raise
        settings = ", ".join(f"{name}={value}" for name, value in kwargs.items())
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise UsageError(
            f"--model-kwargs: {arch} cannot be built with {settings} ({reason}); change or remove them"
        ) from error
    new_head = None
    if pretrained and config is not None and config.classifier and config.num_classes != num_classes:
        init_head(module, config.classifier, head_init)
        new_head = head_init
    data = resolve_model_data_config(module)  # type: ignore[no-untyped-call]
    _check_levels(arch, data)
    native_size = native_size or int(data["input_size"][-1])
    size = img_size or data["input_size"][-1]
    preprocessing = Preprocessing(
        train_size=size,
        val_size=size,
        val_resize=math.floor(size / data["crop_pct"]),
        interpolation="bicubic" if data["interpolation"] == "bicubic" else "bilinear",
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
    ).of(kwargs.get("in_chans", 3))
    classifier: str | tuple[str, ...] = config.classifier if config is not None and config.classifier else ()
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    convolutional = is_convolutional(module)
    return Model(module, published, kwargs, names, preprocessing, convolutional, native_size, new_head=new_head)


def state_dict_filter(model: Model) -> Callable[..., dict[str, torch.Tensor]] | None:
    """timm's own function (state_dict, module) -> state_dict for weights of the model; None if it has none.

    timm gives it only to its own loading of published weights, so the model is made once more, without memory, and
    with a substitute for that loading. Other threads go on to load as ever.
    """
    if not timm.is_model(model.arch):
        return None
    own = threading.get_ident()
    found: list[Callable[..., dict[str, torch.Tensor]] | None] = []
    with _substituting:
        loading = timm.models._builder.load_pretrained

        def substitute(*args: Any, **kwargs: Any) -> None:
            if threading.get_ident() == own:
                found.append(kwargs.get("filter_fn"))
            else:
                loading(*args, **kwargs)

        timm.models._builder.load_pretrained = substitute
        try:
            with torch.device("meta"):
                timm.create_model(model.arch, pretrained=True, **model.kwargs)
        finally:
            timm.models._builder.load_pretrained = loading
    return found[0] if found else None


def _check_levels(arch: str, data: Mapping[str, Any]) -> None:
    """Raises UserError for a configuration, as a repository of the hub states it, in other units than timm's."""
    if not all(0 <= value <= 1 for value in data["mean"]) or not all(0 < value <= 1 for value in data["std"]):
        raise UserError(
            f"--arch {arch}: its config.json states mean {list(data['mean'])} and std {list(data['std'])}, which are "
            "shares of white in timm, from 0 to 1; correct a copy of it, or name another model"
        )


def _config(arch: str) -> timm.models.PretrainedCfg | None:
    """What timm knows of the published weights of a model. Raises UsageError for an unknown name."""
    if not timm.is_model(arch):
        raise UsageError(f"--arch {arch}: timm has no such model{nearest(arch.split('.')[0], timm.list_models())}")
    try:
        return timm.get_pretrained_cfg(arch)
    except RuntimeError as error:
        name = arch.split(".")[0]
        tags = timm.list_pretrained(f"{name}.*")
        raise UsageError(f"--arch {arch}: {error} It has {', '.join(tags) or f'none: use {name}'}") from error


def _on_hub(arch: str) -> tuple[str, timm.models.PretrainedCfg, dict[str, Any]]:
    """timm's name of a model in a repository of the hub, what its weights are, and the arguments it was made with.

    Reads the repository's config.json, from the hub's cache without a network. Raises UsageError and UserError.
    """
    try:
        with asking_hub(f"--arch {arch}"), _reachable_hub():
            stated, name, arguments = timm.models.load_model_config_from_hf(arch.removeprefix(HUB_PREFIX))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"--arch {arch}: not a model of timm's ({reason_of(error)}); choose another one") from error
    if not timm.is_model(name):
        raise UsageError(f"--arch {arch}: this version of timm has no model {name!r}; install a newer one")
    known = {field.name for field in fields(timm.models.PretrainedCfg)}
    config = timm.models.PretrainedCfg(**{key: value for key, value in stated.items() if key in known})
    return name, config, dict(arguments or {})


def _cannot_be_built(arch: str, flag: str, size: int, native_size: int, error: Exception) -> UsageError:
    """The error for an image size that timm itself refuses."""
    reason = (str(error).splitlines() or [""])[0]
    because = f" ({reason})" if reason else ""
    return UsageError(
        f"{flag} {size}: {arch} cannot be built for images of {size} pixels{because}; its own size is {native_size}"
    )


@contextmanager
def _reachable_hub() -> Iterator[None]:
    """Use only the cache of Hugging Face's hub if the hub does not answer a request: its own retries take a minute."""
    offline = constants.HF_HUB_OFFLINE
    failure: Exception | None = None
    if not offline:
        try:
            get_session().head(constants.ENDPOINT, timeout=10)
        except Exception as error:  # noqa: BLE001 - depends on the HTTP library that the hub uses
            failure = error
    constants.HF_HUB_OFFLINE = offline or failure is not None
    try:
        yield
    except OSError:  # raised by the hub for files missing from its cache
        if failure is None:
            raise
        raise ConnectionError(str(failure)) from failure
    finally:
        constants.HF_HUB_OFFLINE = offline


def download_message(arch: str, error: Exception) -> str:
    """What is said of weights that did not arrive: the first cause, and what to do."""
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    return (
        f"--pretrained: the weights of {arch} could not be downloaded ({reason_of(cause)}); connect to the network "
        "once, give --weights FILE, or leave --pretrained out to train from random weights"
    )
