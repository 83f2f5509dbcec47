"""Tokenizers: texts become tokens, by Hugging Face's tokenizers library."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastimg.errors import UserError
from fastimg.loaders.batch import Field
from fastimg.loaders.decoder import Decoder, Row, Rows
from fastimg.loaders.decoders.arrays import PAD, longest, put_tokens
from fastimg.loaders.errors import ImageError
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.wording import plural

FILE = "tokenizer.json"
DEFAULT_LENGTH = 512  # BERT's, for tokenizers that state no length


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer, from the content of tokenizer.json; texts are truncated to `length` tokens, with special tokens."""

    definition: str
    length: int

    @cached_property
    def digest(self) -> str:
        """A digest of the definition, which decides the tokens of a text; `length`, which truncates, is not in it."""
        return hashlib.sha256(self.definition.encode()).hexdigest()

    @cached_property
    def _engine(self) -> Any:
        from tokenizers import Tokenizer as Engine

        engine = Engine.from_str(self.definition)
        engine.no_padding()
        engine.enable_truncation(self.length)
        return engine

    def tokens(self, data: memoryview | bytes) -> npt.NDArray[np.int32]:
        """The token ids of a text, int32 [n] with n <= length. Raises ImageError if it is not UTF-8, or empty."""
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise ImageError(f"not UTF-8 text ({error.reason} at byte {error.start})") from error
        if not text.strip():
            raise ImageError("an empty text")
        tokens = np.array(self._engine.encode(text).ids, np.int32)
        if not len(tokens):  # the tokenizer drops all characters, and adds no special tokens
            raise ImageError("a text without tokens")
        return tokens

    def cuts(self, count: int) -> bool:
        """Whether a text with this number of tokens may have been truncated."""
        return count >= self.length

    def files(self) -> dict[str, bytes]:
        """The files to write next to a model's weights, by name."""
        return {FILE: self.definition.encode()}


def read_tokenizer(folder: Path, length: int) -> Tokenizer:
    """Read the tokenizer next to a checkpoint. Raises UserError."""
    file = folder / FILE
    try:
        definition = file.read_text(encoding="utf-8")
        json.loads(definition)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: the checkpoint's tokenizer cannot be read ({error}); copy it, too") from error
    return Tokenizer(definition, length)


@dataclass(frozen=True)
class TextDecoder(Decoder):
    """UTF-8 text -> `inputs` [length] int32 tokens; what is read once is tokenised by the loader's threads."""

    tokenizer: Tokenizer

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `Decoder`."""
        return (Field("inputs", (self.tokenizer.length,), np.dtype(np.int32), PAD),)

    def fill_row(self, data: memoryview, draws: Any, row: Row, scratch: Scratch) -> None:
        """See `Decoder`."""
        put_tokens(self.tokenizer.tokens(data), row["inputs"])

    def present(self, inputs: torch.Tensor, rows: Rows) -> torch.Tensor:
        """See `Decoder`."""
        return inputs[:, : longest(rows["inputs"])]

    def describe(self) -> str:
        """See `Decoder`."""
        return f"texts, tokenised as they are read, up to {plural(self.tokenizer.length, 'token')}"
