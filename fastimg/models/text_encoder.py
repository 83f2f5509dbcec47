"""Hugging Face's text encoders as classifiers of tokens: `hf:NAME` or `hf:FOLDER`, with the weights that they have."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from fastimg.config.training import HF_PREFIX
from fastimg.errors import UsageError, UserError, reason_of
from fastimg.wording import plural

from .tokenizer import DEFAULT_LENGTH, Tokenizer

Pooling = Literal["mean", "cls", "last"]
_EXTRA = "texts need transformers: `pip install 'fastimg[text]'`, or `uv pip install transformers`"
_SANE = 100_000  # tokens; a tokenizer without a limit states an absurd one


class TextClassifier(nn.Module):
    """tokens [B, L], negative ones being padding -> logits [B, classes].

    The encoder's last hidden states are pooled into an embedding [B, D]: their `mean` over real tokens, the first
    (`cls`) or the `last`. A row that is all padding counts as one token, so that it is a number.
    """

    def __init__(self, encoder: nn.Module, width: int, classes: int, pooling: Pooling, pad: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(width, classes)
        self.pooling, self.pad = pooling, pad

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """See the class."""
        real = tokens >= 0
        ids = tokens.masked_fill(~real, self.pad).long()
        return self.read(ids, torch.cat([torch.ones_like(ids[:, :1]), real[:, 1:].long()], dim=1))

    def read(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The same with what Hugging Face's models take: ids [B, L], and a mask [B, L] of ones for real tokens."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state  # [B, L, D]
        logits: torch.Tensor = self.classifier(self.pool(states, attention_mask))
        return logits

    def transformer_layers(self) -> list[nn.Module]:
        """The encoder's layers: of all its lists of modules the one that holds the most parameters."""
        lists = [child for child in self.encoder.modules() if isinstance(child, nn.ModuleList)]
        return list(max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()), default=()))

    def pool(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """States [B, L, D] -> [B, D]."""
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
    pooling, limit = kwargs.pop("pooling", None), None
    try:
        with _quiet():
            # Without trust_remote_code transformers asks at the terminal whether to run code that a model brings.
            encoder, loading = transformers.AutoModel.from_pretrained(
                str(folder) if local else name, output_loading_info=True, trust_remote_code=False, **kwargs
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(folder) if local else name, use_fast=True, trust_remote_code=False
            )
            stated = _sentence_transformer(str(folder) if local else name)
    except TypeError as error:
        raise UsageError(f"--model-kwargs: {arch} does not take them: {error}") from error
    except Exception as error:
        raise UserError(_reason(arch, error, local)) from error
    encoder = _without_rest(encoder)
    config: Any = encoder.config
    own = encoder.state_dict()
    if absent := sorted(name for name in loading["missing_keys"] if name in own):
        raise UserError(
            f"--arch {arch}: its weights lack {len(absent)} of the encoder's {plural(len(own), 'tensor')} "
            f"({absent[0]}, say); "
            "give a model with all of them"
        )
    if not tokenizer.is_fast:
        raise UserError(f"--arch {arch}: has no compiled tokenizer (tokenizer.json); choose a model that has one")
    if pooling is None:
        pooling = stated.get("pooling") or ("last" if _causal(config) else "mean")
    if pooling not in ("mean", "cls", "last"):
        raise UsageError(f"--model-kwargs pooling={pooling}: give mean, cls or last")
    limit = stated.get("length") or min(int(tokenizer.model_max_length), _SANE)
    positions = getattr(config, "max_position_embeddings", None) or _SANE
    most = min(int(tokenizer.model_max_length), positions)
    limit = DEFAULT_LENGTH if limit >= _SANE else limit
    if length is not None and length > most:
        raise UsageError(
            f"--max-length {length}: {arch} takes texts of up to {plural(most, 'token')}; give that or less"
        )
    pad = tokenizer.pad_token_id
    settings = {
        "config": config.to_dict(),
        "pooling": pooling,
        "length": length or min(limit, most),
        "pad": 0 if pad is None else int(pad),
        "normalize": bool(stated.get("normalize")),
    }
    definition = tokenizer.backend_tokenizer.to_str()
    return encoder.float(), Tokenizer(definition, settings["length"]), json.loads(json.dumps(settings, default=str))


def empty_encoder(settings: dict[str, Any]) -> nn.Module:
    """The encoder of a checkpoint's settings, without weights."""
    transformers = _library()
    values = dict(settings["config"])
    with _quiet():
        config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
        encoder = transformers.AutoModel.from_config(config, dtype=torch.float32)
    return _without_rest(encoder)


def _without_rest(model: Any) -> nn.Module:
    """The encoder alone: no decoder, and no pooler of its own, whose weights would never learn."""
    encoder: Any = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    if isinstance(getattr(encoder, "pooler", None), nn.Module):
        encoder.pooler = None
    module: nn.Module = encoder
    return module


def width_of(encoder: nn.Module) -> int:
    """Numbers in a hidden state."""
    config: Any = encoder.config
    for name in ("hidden_size", "d_model", "dim", "n_embd"):
        if isinstance(value := getattr(config, name, None), int):
            return value
    raise UserError(f"{type(encoder).__name__}: its configuration states no hidden size; choose a text encoder")


def _library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UsageError(_EXTRA) from error
    return transformers


def _causal(config: Any) -> bool:
    return any("CausalLM" in name or "LMHead" in name for name in getattr(config, "architectures", None) or ())


def _sentence_transformer(name: str) -> dict[str, Any]:
    """What a sentence-transformers folder states beside the encoder: pooling, length, and whether it normalises."""
    from transformers.utils.hub import cached_file

    def read(file: str) -> Any:
        path = cached_file(
            name, file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
        )
        return json.loads(Path(path).read_text(encoding="utf-8")) if path else None

    modules = read("modules.json")
    if not modules:
        return {}
    found: dict[str, Any] = {}
    types = {str(module["type"]).rpartition(".")[2]: module["path"] for module in modules}
    if "Pooling" in types and (pooling := read(f"{types['Pooling']}/config.json")):
        for kind, key in (
            ("mean", "pooling_mode_mean_tokens"),
            ("cls", "pooling_mode_cls_token"),
            ("last", "pooling_mode_lasttoken"),
        ):
            if pooling.get(key) or pooling.get("pooling_mode") == kind:
                found["pooling"] = kind
    found["normalize"] = "Normalize" in types
    length = (read("sentence_bert_config.json") or {}).get("max_seq_length")
    return {**found, "length": length} if isinstance(length, int) else found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's progress bars and reports; its errors are ours to tell."""
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
        f"--arch {arch}: could not be had from Hugging Face's hub "
        f"({reason_of(cause)}); check the name, connect to the network once, or "
        "give a folder: hf:PATH"
    )
