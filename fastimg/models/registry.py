"""Models by name: timm's, torchvision's as `torchvision/NAME`, ours as `fastimg/NAME`, Hugging Face's text encoders
as `hf:NAME`; timm's in repositories of the hub as `hf-hub:USER/NAME`, which checkpoints state by timm's own names.

A model stays pure: precision, data parallelism and freezing are applied from outside.
"""

import ast
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import timm
import torch
import torchvision
from huggingface_hub import constants, get_session
from safetensors import SafetensorError, safe_open
from timm.data.config import resolve_model_data_config
from timm.models._manipulate import adapt_input_conv
from torch import nn

from fastimg.augment import Policy
from fastimg.config.training import HF_PREFIX, HUB_PREFIX
from fastimg.errors import UsageError, UserError, nearest, reason_of
from fastimg.system.hub import asking_hub
from fastimg.wording import plural

from .blocks import blocks
from .blurpool import blur_strides
from .heads import HIDDEN, HeadInit, HeadKind, init_head, replace_head
from .networks import airnet
from .text_encoder import TextClassifier, empty_encoder, load_encoder, width_of
from .tokenizer import Tokenizer

OWN_PREFIX = "fastimg/"
OWN = {"fastimg/airnet": airnet.AirNet}


PixelType = Literal["uint8", "uint16", "float32"]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How images become the model's input. Sizes are in pixels.

    mean and std are for channels in 0..1; where a `field` of arrays is read in place of images, for its values.
    """

    train_size: int
    val_size: int
    val_resize: int
    interpolation: Literal["bilinear", "bicubic"]
    mean: tuple[float, ...]  # a number for each channel
    std: tuple[float, ...]
    field: str | None = None  # bands that are read in place of images
    dtype: PixelType = "uint8"  # of the levels: uint16 of images of 16 bits

    @property
    def channels(self) -> int:
        """Channels of the images: 3 for RGB, 1 for gray, others of bands."""
        return len(self.mean)

    @property
    def depth(self) -> int:
        """Bits of an image's channel, to which it is decoded."""
        return 16 if self.dtype == "uint16" and self.field is None else 8

    @property
    def is_deep(self) -> bool:
        """Whether what is read is anything but an image of 8 bits: bands, or 16 bits."""
        return self.field is not None or self.dtype != "uint8"

    @property
    def policy(self) -> Policy:
        """The policy that only normalises."""
        return Policy(mean=self.mean, std=self.std, as_stored=self.field is not None)

    def blank(self, batch: int, size: int, device: torch.device) -> torch.Tensor:
        """Blank images [batch, C, size, size] as the loader gives them: channels-last, of their type."""
        shape = (batch, size, size, self.channels)
        return torch.zeros(shape, dtype=getattr(torch, self.dtype), device=device).permute(0, 3, 1, 2)

    def of(self, channels: int) -> "Preprocessing":
        """The same for images of so many channels: where that changes, each mean is the mean of all."""
        if channels == self.channels:
            return self
        mean, std = ((sum(values) / len(values),) * channels for values in (self.mean, self.std))
        return replace(self, mean=mean, std=std)


# For models that read texts and have no pixels.
NO_PIXELS = Preprocessing(
    train_size=1, val_size=1, val_resize=1, interpolation="bilinear", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
)


@dataclass(frozen=True, kw_only=True)
class TextSide:
    """The part of a model that reads texts: the tokenizer, and the settings to rebuild the encoder from."""

    tokenizer: Tokenizer
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The two encoders of a model of images and texts, each without a classifier; they share the model's parameters."""

    image: "Model"
    text: "Model"
    combiner: Literal["concat", "gated"]
    text_width: int  # features of a text

    @property
    def reader(self) -> TextSide:
        """What reads the texts."""
        assert self.text.text is not None
        return self.text.text


@dataclass(frozen=True)
class Model:  # more than 12 fields: what the trainer needs to know, in one place
    """A module, with what the trainer needs to know about it."""

    module: nn.Module
    arch: str
    kwargs: dict[str, Any]
    classifier: tuple[str, ...]  # prefixes of the classifier's parameters
    preprocessing: Preprocessing  # the model's own
    convolutional: bool
    native_size: int = 0  # image size it was published for, whatever size it is built for; 0 for text models
    blurpool: bool = False
    text: TextSide | None = None  # None: it reads images
    head: HeadKind = "linear"
    head_hidden: int = 0  # units in an mlp's hidden layer
    pair: Pair | None = None  # of a model of images and texts; then the rest is about its images
    new_head: HeadInit | None = None  # how a new classifier on a trained trunk was initialised; None: not a new one

    def example(self, size: int, batch: int = 1) -> torch.Tensor:
        """A blank input: images [batch, channels, size, size], or tokens [batch, size]."""
        if self.text is None:
            return torch.zeros(batch, self.preprocessing.channels, size, size)
        return torch.zeros(batch, size, dtype=torch.int32)


_EXAMPLES = {"--model-kwargs": "pad_type=same", "--opt-kwargs": "nesterov=True"}  # of arguments
_RUN_CODE = {  # arguments that would let a file execute code
    "checkpoint_path": "older versions of timm execute code in such files; use --weights FILE instead",
    "trust_remote_code": "fastimg does not execute code that comes with a model; choose a model that needs none",
}


def parse_kwargs(pairs: Iterable[str], flag: str = "--model-kwargs") -> dict[str, Any]:
    """Parse `name=value` pairs; values are Python literals, or else strings. Raises UsageError naming `flag`."""
    kwargs = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{flag} {pair}: give name=value, such as {_EXAMPLES[flag]}")
        if name in _RUN_CODE:
            raise UsageError(f"{flag} {pair}: {_RUN_CODE[name]}")
        try:
            kwargs[name] = ast.literal_eval(value)
            json.dumps(kwargs[name])  # checkpoints store them as JSON
        except (ValueError, SyntaxError):
            kwargs[name] = value
        except TypeError as error:
            raise UsageError(f"{flag} {pair}: not a number, string, list or dict; give one of them") from error
    return kwargs


def check_kwargs(kwargs: Mapping[str, Any], img_size: int | None, size_flag: str) -> None:
    """Refuse arguments that contradict the input fastimg provides, or have a flag of their own. Raises UsageError."""
    if kwargs.get("in_chans", 3) not in (1, 3):
        raise UsageError(
            f"--model-kwargs in_chans={kwargs['in_chans']}: images have 3 channels, or 1 of gray; give one of them"
        )
    for name, flag in (("num_classes", "--num-classes"), ("pretrained", "--pretrained")):
        if name in kwargs:
            raise UsageError(f"--model-kwargs {name}={kwargs[name]}: there is a flag for it; use {flag} instead")
    if img_size is not None and kwargs.get("img_size", img_size) not in (img_size, (img_size, img_size)):
        raise UsageError(
            f"--model-kwargs img_size={kwargs['img_size']} contradicts {size_flag} {img_size}; remove img_size"
        )


def build(
    arch: str,
    num_classes: int,
    *,
    pretrained: bool = False,
    weights: Path | None = None,
    kwargs: Mapping[str, Any] | None = None,
    img_size: int | None = None,
    size_flag: str = "--img-size",
    classes: tuple[str, ...] | None = None,
    head_init: HeadInit = "zeros",
    blurpool: bool = False,
    head: HeadKind = "linear",
    head_hidden: int = 0,
    max_length: int | None = None,
    text: TextSide | None = None,
) -> Model:
    """Create a model on the CPU.

    If `weights` belong to a model with other `classes`, only their trunk is loaded. `hf:` models come with their
    weights, unless `text` describes the encoder of a checkpoint.

    Raises UsageError for an unknown name or argument, and UserError if weights cannot be read or do not fit.
    """
    kwargs = dict(kwargs or {})
    _check_channels(arch, kwargs)
    if arch.startswith(HF_PREFIX):
        model = _text(arch, num_classes, kwargs, head_init, max_length, text)
    elif arch.startswith(OWN_PREFIX):
        model = _own(arch, num_classes, pretrained, kwargs)
    elif arch.startswith("torchvision/"):
        model = _torchvision(arch, num_classes, pretrained, kwargs, head_init)
    else:
        model = _timm(arch, num_classes, pretrained, kwargs, img_size, head_init, size_flag)
    if blurpool:
        if blur_strides(model.module) == 0:
            raise UsageError(
                f"--blurpool: {arch} has no max pooling and no strided convolution of 16 channels; leave it out"
            )
        model = replace(model, blurpool=True)
    if head == "mlp":
        hidden = head_hidden or HIDDEN
        replace_head(model.module, model.classifier, hidden, arch)
        if pretrained or model.text is not None:
            init_head(model.module, model.classifier, head_init)
            model = replace(model, new_head=head_init)
        model = replace(model, head="mlp", head_hidden=hidden)
    if weights is not None:
        tensors, metadata = read_weights(weights)
        tensors = _folded(model, tensors, weights)
        if classes is not None and _stated_classes(metadata) not in (None, classes):
            tensors = {name: value for name, value in tensors.items() if not name.startswith(_head_prefixes(model))}
        kept = load_weights(model, tensors, f"--weights {weights}", head_init=head_init)
        stated = _stated_preprocessing(model.preprocessing, metadata).of(model.preprocessing.channels)
        model = replace(model, preprocessing=stated, new_head=None if kept else head_init)
    return model


def _folded(model: Model, tensors: dict[str, torch.Tensor], weights: Path) -> dict[str, torch.Tensor]:
    """Weights whose first convolution reads RGB, for a model of another number of channels: folded as timm folds them.

    Raises UserError for weights of one channel and a model of more.
    """
    config = getattr(model.module, "pretrained_cfg", None) or {}
    first = config.get("first_conv") or ()
    channels = model.preprocessing.channels
    own = model.module.state_dict()
    for name in (f"{layer}.weight" for layer in ((first,) if isinstance(first, str) else first)):
        if name not in tensors or name not in own or tensors[name].shape[1:] == own[name].shape[1:]:
            continue
        theirs = int(tensors[name].shape[1])
        if channels == 3 or (theirs != 3 and (channels != 1 or theirs % 3)):
            raise UserError(
                f"--weights {weights}: they read images of {plural(theirs, 'channel')}, which cannot be folded to "
                f"{channels}; add --in-chans {theirs}, or give weights for RGB"
            )
        tensors = {**tensors, name: adapt_input_conv(channels, tensors[name])}
    return tensors


def _check_channels(arch: str, kwargs: Mapping[str, Any]) -> None:
    """Raises UsageError for a model that is not timm's and should read other images than RGB."""
    if kwargs.get("in_chans", 3) != 3 and (arch.startswith((HF_PREFIX, OWN_PREFIX, "torchvision/"))):
        raise UsageError(f"--in-chans {kwargs['in_chans']}: {arch} reads only RGB images; choose one of timm's models")


def _timm(
    arch: str,
    num_classes: int,
    pretrained: bool,
    kwargs: dict[str, Any],
    img_size: int | None,
    head_init: HeadInit,
    size_flag: str,
) -> Model:
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
            raise UserError(_download_message(arch, error)) from error
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
    convolutional = _convolutional(module)
    return Model(module, published, kwargs, names, preprocessing, convolutional, native_size, new_head=new_head)


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


def _text(
    arch: str,
    num_classes: int,
    kwargs: dict[str, Any],
    head_init: HeadInit,
    max_length: int | None,
    text: TextSide | None,
) -> Model:
    if text is None:
        encoder, tokenizer, settings = load_encoder(arch, dict(kwargs), max_length)
        text = TextSide(tokenizer=tokenizer, settings=settings)
    else:
        encoder = empty_encoder(text.settings)
    settings = text.settings
    module = TextClassifier(encoder, width_of(encoder), num_classes, settings["pooling"], settings["pad"])
    init_head(module, "classifier", head_init)
    return Model(module, arch, kwargs, ("classifier",), NO_PIXELS, False, text=text, new_head=head_init)


def _own(arch: str, num_classes: int, pretrained: bool, kwargs: dict[str, Any]) -> Model:
    if arch not in OWN:
        raise UsageError(f"--arch {arch}: fastimg has no such model of its own{nearest(arch, OWN)}")
    if pretrained:
        raise UsageError(f"--pretrained: there are no weights for {arch}; leave it out, or give --weights FILE")
    try:
        module = OWN[arch](num_classes, **kwargs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"--model-kwargs: {arch} does not accept them: {reason_of(error)}") from error
    size = airnet.SIZE
    preprocessing = Preprocessing(
        train_size=size, val_size=size, val_resize=size, interpolation="bilinear", mean=airnet.MEAN, std=airnet.STD
    )
    return Model(module, arch, kwargs, ("head",), preprocessing, True, size)


def _torchvision(arch: str, num_classes: int, pretrained: bool, kwargs: dict[str, Any], head_init: HeadInit) -> Model:
    name = arch.removeprefix("torchvision/")
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise UsageError(f"--arch {arch}: torchvision has no such classifier{nearest(name, names)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about the initialisation of GoogLeNet and Inception
            module = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **kwargs)
    except TypeError as error:
        raise UsageError(f"--model-kwargs: {arch} does not accept them: {error}") from error
    if getattr(module, "aux_logits", False):
        raise UsageError(f"--arch {arch}: has auxiliary heads; add --model-kwargs aux_logits=False init_weights=True")
    linears = [n for n, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    published = torchvision.models.get_model_weights(name).DEFAULT
    transforms = published.transforms()
    preprocessing = Preprocessing(
        train_size=transforms.crop_size[0],
        val_size=transforms.crop_size[0],
        val_resize=transforms.resize_size[0],
        interpolation="bicubic" if transforms.interpolation.value == "bicubic" else "bilinear",
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
    )
    native_size = preprocessing.val_size
    model = Model(module, arch, kwargs, (linears[-1],), preprocessing, _convolutional(module), native_size)
    if pretrained:
        try:
            tensors = published.get_state_dict(progress=False, check_hash=True)
        except Exception as error:
            raise UserError(_download_message(arch, error)) from error
        kept = load_weights(model, tensors, f"torchvision's {name}", head_init=head_init)
        model = replace(model, new_head=None if kept else head_init)
    return model


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


def _download_message(arch: str, error: Exception) -> str:
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    return (
        f"--pretrained: the weights of {arch} could not be downloaded ({reason_of(cause)}); connect to the network "
        "once, give --weights FILE, or leave --pretrained out to train from random weights"
    )


def _convolutional(module: nn.Module) -> bool:
    """Whether there is more than one convolution; a transformer has one, for its patches."""
    return sum(isinstance(m, nn.Conv2d) for m in module.modules()) > 1


def weights_file(path: Path) -> Path:
    """The file that --weights names: itself, or the model in a run's or checkpoint's directory. Raises UserError."""
    inside = ("best/model.safetensors", "last/model.safetensors", "model.safetensors")
    file = next((path / name for name in inside if (path / name).exists()), path) if path.is_dir() else path
    if file.name == "training.pt" and (beside := file.with_name("model.safetensors")).exists():
        raise UserError(f"--weights {path}: contains the optimiser's state; the weights are in {beside}")
    if not file.is_file():
        reason = "a folder without model.safetensors" if file.is_dir() else "no such file"
        raise UserError(f"--weights {path}: {reason}; give a weights file, or a run directory")
    return file


def read_metadata(file: Path) -> dict[str, str]:
    """The metadata of a safetensors file; empty for any other file. Raises UserError."""
    if file.suffix != ".safetensors":
        return {}
    try:
        with safe_open(file, framework="pt") as opened:
            return dict(opened.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise UserError(f"--weights {file}: not a complete safetensors file ({error}); copy it again") from error


def read_weights(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors by name, and metadata, from a safetensors file or a checkpoint of plain tensors. No code is executed.

    Wrappers that trainers leave behind (`state_dict`, `model`, `module.`) are removed. Raises UserError.
    """
    path = weights_file(path)
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(f"--weights {path}: not a complete safetensors file ({error}); copy it again") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about files that are not checkpoints; the error says so
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        readable = isinstance(error, UnpicklingError | RuntimeError | OSError)  # others describe the pickle's bytes
        reason = reason_of(error).split(". ")[0] if readable else "not written by torch.save"
        raise UserError(
            f"--weights {path}: cannot be read as plain tensors ({reason}); save it as safetensors, or with "
            "torch.save(model.state_dict(), FILE)"
        ) from error
    for key in ("state_dict_ema", "state_dict", "model_ema", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict):
        raise UserError(f"--weights {path}: contains no named tensors; save a state_dict")
    tensors = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise UserError(f"--weights {path}: contains no named tensors; save a state_dict")
    for prefix in ("module.", "_orig_mod.", "model."):
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors, {}


def load_weights(
    model: Model,
    tensors: Mapping[str, torch.Tensor],
    origin: str,
    *,
    strict_head: bool = False,
    head_init: HeadInit = "zeros",
) -> bool:
    """Copy weights into the model. A missing classifier, or one of another width, is initialised; the rest must fit.

    Returns whether the classifier came from the weights. Raises UserError.
    """
    own = model.module.state_dict()
    in_head = _head_prefixes(model)
    head = [name for name in own if name.startswith(in_head)]
    kept = strict_head or all(name in tensors and tensors[name].shape == own[name].shape for name in head)
    if not kept:
        tensors = {name: value for name, value in tensors.items() if not name.startswith(in_head)}
        init_head(model.module, model.classifier, head_init)
    optional = {name for name in own if name.endswith("num_batches_tracked")}
    if not strict_head:
        optional |= set(head)
    missing = [name for name in own if name not in tensors and name not in optional]
    unknown = [name for name in tensors if name not in own]
    shapes = [
        f"{name} {list(tensors[name].shape)} for {list(own[name].shape)}"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    mismatches = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for what, names in (("missing", missing), ("unknown", unknown), ("of another shape", shapes))
        if names
    ]
    if mismatches:
        raise UserError(
            f"{origin}: not the weights of {model.arch}: of {plural(len(own), 'tensor')}, {'; '.join(mismatches)}; "
            "give the --arch (and --model-kwargs) that they were trained with"
        )
    model.module.load_state_dict(tensors, strict=False)
    return kept


def _head_prefixes(model: Model) -> tuple[str, ...]:
    return tuple(f"{name}." for name in model.classifier)


def _stated_classes(metadata: Mapping[str, str]) -> tuple[str, ...] | None:
    """What the outputs stand for, as a weights file written by fastimg states it."""
    if "fastimg" not in metadata:
        return None
    card = json.loads(metadata["fastimg"])
    targets = card.get("targets", [])
    if not targets or (len(targets) == 1 and targets[0]["kind"] == "class"):
        return tuple(card["classes"])
    return output_names((target["name"], target.get("classes", [])) for target in targets)


def output_names(targets: Iterable[tuple[str, Iterable[str]]]) -> tuple[str, ...]:
    """What the outputs of several targets stand for, by name and classes: `target=class`, or a number's `target`."""
    return tuple(name for target, classes in targets for name in [f"{target}={each}" for each in classes] or [target])


def _stated_preprocessing(own: Preprocessing, metadata: Mapping[str, str]) -> Preprocessing:
    """The preprocessing that a weights file states: all of it in fastimg's own, else `mean` and `std` entries."""
    if "fastimg" in metadata:
        import msgspec

        return msgspec.convert(json.loads(metadata["fastimg"])["preprocessing"], Preprocessing)
    stated: dict[str, tuple[float, ...]] = {}
    for key in ("mean", "std"):
        try:
            values = tuple(float(value) for value in metadata[key].split(","))
        except (KeyError, ValueError):
            continue
        if len(values) == own.channels:
            stated[key] = values
    return replace(own, **stated)  # type: ignore[arg-type]


def freeze(model: Model, what: str) -> int:
    """Freeze the `backbone`, which is everything but the classifier, or the first N blocks, as `blocks` lists them.

    Of a model of images and texts, the `backbone` is both encoders; `image` or `text` freezes one of them.
    Returns the number of trainable parameters. Raises UsageError if there would be none, or `what` is neither.
    """
    if model.pair is not None:
        sides = {"backbone": ("image.", "text."), "image": ("image.",), "text": ("text.",)}
        if what not in sides:
            raise UsageError(f"--freeze {what}: with --text-arch, give backbone (both encoders), image or text")
        frozen = {name for name, _ in model.module.named_parameters() if name.startswith(sides[what])}
    elif what == "backbone":
        in_head = _head_prefixes(model)
        frozen = {name for name, _ in model.module.named_parameters() if not name.startswith(in_head)}
    else:
        parts = blocks(model.module)
        most = len(parts) - 1
        if not (what.isdecimal() and 1 <= int(what) <= most):
            raise UsageError(
                f"--freeze {what}: {model.arch} has {plural(len(parts), 'block')}, stem and head included; give a "
                f"number from 1 to {most}, or backbone"
            )
        frozen = {name for block in parts[: int(what)] for name in block.parameters}
    for name, parameter in model.module.named_parameters():
        parameter.requires_grad_(name not in frozen and name not in fixed(model.module))
    count = sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    if count == 0:
        raise UsageError(f"--freeze {what}: {model.arch} has no separate classifier layer; leave --freeze out")
    return count


def fixed(module: nn.Module) -> set[str]:
    """The names of the parameters that a model never trains, as some of ours say in a method `fixed`."""
    names = getattr(module, "fixed", None)
    return set(names()) if callable(names) else set()


def train_mode(module: nn.Module) -> None:
    """Set training mode, except for frozen modules.

    A module whose parameters are all frozen keeps its batch norm statistics, and its dropout stays off.
    """
    module.train()
    for child in module.modules():
        own = list(child.parameters())
        if own and not any(p.requires_grad for p in own):
            child.eval()
