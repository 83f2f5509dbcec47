"""Hugging Face's text encoders as token classifiers: `hf:NAME` or `hf:FOLDER`, with their weights."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from fastimg.config.training import HF_PREFIX
from fastimg.errors import UsageError, UserError, reason_of
from fastimg.loaders.extras import install
from fastimg.wording import plural

from .tokenizer import DEFAULT_LENGTH, Tokenizer

Pooling = Literal["mean", "cls", "last"]
_MAX_LENGTH = 100_000  # tokens; a tokenizer without a limit states an absurdly large one


class TextClassifier(nn.Module):
    """Tokens [B, L], negative for padding -> logits [B, classes].

    The encoder's last hidden states are pooled into an embedding [B, D]: their `mean` over real tokens, the first
    (`cls`) or the `last` one. A row of nothing but padding counts as one token, so that its embedding is not NaN.
    """

    def __init__(self, encoder: nn.Module, width: int, classes: int, pooling: Pooling, pad: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(width, classes)
        self.pooling = pooling
        self.pad = pad

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """See the class."""
        real = tokens >= 0
        ids = tokens.masked_fill(~real, self.pad).long()
        return self.read(ids, torch.cat([torch.ones_like(ids[:, :1]), real[:, 1:].long()], dim=1))

    def read(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The same, from the inputs of Hugging Face's models: ids [B, L], and a mask [B, L], 1 for real tokens."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state  # [B, L, D]
        logits: torch.Tensor = self.classifier(self.pool(states, attention_mask))
        return logits

    def transformer_layers(self) -> list[nn.Module]:
        """The encoder's layers: the list of modules that holds the most parameters."""
        lists = [child for child in self.encoder.modules() if isinstance(child, nn.ModuleList)]
        return list(max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()), default=()))

    def pool(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Pool states [B, L, D] into embeddings [B, D]."""
        if self.pooling == "cls":
            return states[:, 0]
        if self.pooling == "last":
            last = mask.sum(dim=1).clamp(min=1) - 1
            return states[torch.arange(len(states), device=states.device), last]
        weight = mask[:, :, None].to(states.dtype)
        return (states * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def short_name(arch: str) -> str:
    """An architecture in the name of a run: of a folder its own name."""
    name = arch.removeprefix(HF_PREFIX)
    return Path(name).name if name != arch else arch.replace("/", "-")


def load_encoder(arch: str, kwargs: dict[str, Any], length: int | None) -> tuple[nn.Module, Tokenizer, dict[str, Any]]:
    """Encoder, tokenizer and settings (`config`, `pooling`, `length`, `pad`) of `hf:NAME`. Raises UserError."""
    name = arch.removeprefix(HF_PREFIX)
    transformers = _library()
    folder = Path(name).expanduser()
    local = folder.is_dir()
    if not local and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise UserError(f"--arch {arch}: no such folder; give a model's folder, or a name on Hugging Face's hub")
    pooling = kwargs.pop("pooling", None)
    try:
        with _quiet():
            # Without trust_remote_code, transformers asks in the terminal whether to run code that comes with a model.
            encoder, loading = transformers.AutoModel.from_pretrained(
                str(folder) if local else name, output_loading_info=True, trust_remote_code=False, **kwargs
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(folder) if local else name, use_fast=True, trust_remote_code=False
            )
            stated = _sentence_transformer(str(folder) if local else name)
    except TypeError as error:
        raise UsageError(f"--model-kwargs: {arch} does not accept them: {error}") from error
    except Exception as error:
        raise UserError(_reason(arch, error, local)) from error
    encoder = _encoder_only(encoder)
    config: Any = encoder.config
    own = encoder.state_dict()
    if absent := sorted(name for name in loading["missing_keys"] if name in own):
        raise UserError(
            f"--arch {arch}: its weights lack {len(absent)} of the encoder's {plural(len(own), 'tensor')} "
            f"({absent[0]}, for example); give a model with all of them"
        )
    if not tokenizer.is_fast:
        raise UserError(f"--arch {arch}: has no fast tokenizer (tokenizer.json); choose a model that has one")
    if pooling is None:
        pooling = stated.get("pooling") or ("last" if _causal(config) else "mean")
    if pooling not in ("mean", "cls", "last"):
        raise UsageError(f"--model-kwargs pooling={pooling}: give mean, cls or last")
    limit = stated.get("length") or min(int(tokenizer.model_max_length), _MAX_LENGTH)
    positions = getattr(config, "max_position_embeddings", None) or _MAX_LENGTH
    longest = min(int(tokenizer.model_max_length), positions)
    limit = DEFAULT_LENGTH if limit >= _MAX_LENGTH else limit
    if length is not None and length > longest:
        raise UsageError(
            f"--max-length {length}: {arch} accepts texts of up to {plural(longest, 'token')}; give that or less"
        )
    pad = tokenizer.pad_token_id
    settings = {
        "config": config.to_dict(),
        "pooling": pooling,
        "length": length or min(limit, longest),
        "pad": 0 if pad is None else int(pad),
        "normalize": bool(stated.get("normalize")),
    }
    definition = tokenizer.backend_tokenizer.to_str()
    return encoder.float(), Tokenizer(definition, settings["length"]), json.loads(json.dumps(settings, default=str))


def empty_encoder(settings: dict[str, Any]) -> nn.Module:
    """Build the encoder from a checkpoint's settings, without weights."""
    transformers = _library()
    values = dict(settings["config"])
    with _quiet():
        config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
        encoder = transformers.AutoModel.from_config(config, dtype=torch.float32)
    return _encoder_only(encoder)


def _encoder_only(model: Any) -> nn.Module:
    """The encoder alone, without a decoder and without its own pooler, whose weights would never be trained."""
    encoder: Any = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    if isinstance(getattr(encoder, "pooler", None), nn.Module):
        encoder.pooler = None
    if getattr(encoder.config, "use_cache", False):
        encoder.config.use_cache = False  # a causal model's keys and values, for generating, which nobody reads
    module: nn.Module = encoder
    return module


def width_of(encoder: nn.Module) -> int:
    """The size of a hidden state. Raises UserError."""
    config: Any = encoder.config
    for name in ("hidden_size", "d_model", "dim", "n_embd"):
        if isinstance(value := getattr(config, name, None), int):
            return value
    raise UserError(f"{type(encoder).__name__}: its configuration states no hidden size; choose a text encoder")


def _library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UsageError(f"texts need transformers: `{install('text')}`") from error
    return transformers


def _causal(config: Any) -> bool:
    return any("CausalLM" in name or "LMHead" in name for name in getattr(config, "architectures", None) or ())


def _sentence_transformer(name: str) -> dict[str, Any]:
    """What a sentence-transformers folder states besides the encoder: pooling, length, and whether it normalises."""
    from transformers.utils.hub import cached_file

    def read(file: str, kind: type[Any]) -> Any:
        path = cached_file(
            name, file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
        )
        content: Any = None
        with suppress(ValueError, RecursionError):
            content = json.loads(Path(path).read_text(encoding="utf-8")) if path else kind()
        if not isinstance(content, kind):
            raise ValueError(f"its {file} is not what sentence-transformers writes")
        return content

    modules = read("modules.json", list)
    if not modules:
        return {}
    if not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules):
        raise ValueError("its modules.json names modules without a type and a path")
    settings: dict[str, Any] = {}
    types = {str(module["type"]).rpartition(".")[2]: module["path"] for module in modules}
    if "Pooling" in types and (pooling := read(f"{types['Pooling']}/config.json", dict)):
        for kind, key in (
            ("mean", "pooling_mode_mean_tokens"),
            ("cls", "pooling_mode_cls_token"),
            ("last", "pooling_mode_lasttoken"),
        ):
            if pooling.get(key) or pooling.get("pooling_mode") == kind:
                settings["pooling"] = kind
    settings["normalize"] = "Normalize" in types
    length = read("sentence_bert_config.json", dict).get("max_seq_length")
    return {**settings, "length": length} if type(length) is int and length > 0 else settings


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's progress bars and reports; its errors are reported by the caller."""
    from transformers.utils import logging as library

    logging: Any = library
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


def _reason(arch: str, error: Exception, local: bool) -> str:
    if local:
        return f"--arch {arch}: cannot be loaded ({reason_of(error)}); give the folder of a Hugging Face text encoder"
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    return (
        f"--arch {arch}: could not be downloaded from Hugging Face's hub ({reason_of(cause)}); check the name, "
        "connect to the network once, or give a folder as hf:PATH"
    )
