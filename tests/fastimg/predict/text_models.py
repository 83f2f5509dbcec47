"""A checkpoint that reads texts, made in a moment."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from fastimg.models.registry import TextSide, build
from fastimg.models.tokenizer import Tokenizer as TextTokens
from fastimg.train.checkpoints.format import Card, save

WORDS = ("[PAD]", "[UNK]", "good", "bad", "film", "the", "a", "was", "very", "not")


def save_text_run(run: Path, num_classes: int) -> Path:
    """A run of a BERT with two layers, ten words and random weights, whose folder `hf:tiny` does not exist."""
    engine = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    engine.pre_tokenizer = Whitespace()
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes).to_dict()
    settings = json.loads(json.dumps({"config": config, "pooling": "mean", "length": 12, "pad": 0}, default=str))
    text = TextSide(tokenizer=TextTokens(engine.to_str(), 12), settings=settings)
    torch.manual_seed(0)
    model = build("hf:tiny", num_classes, head_init="he", text=text)
    card = Card(
        arch="hf:tiny",
        kwargs={},
        classes=("bad", "good"),
        num_classes=num_classes,
        step=1,
        epoch=1,
        preprocessing=model.preprocessing,
        metrics={},
        text=settings,
    )
    return save(run, card, model.module.state_dict(), {}, files=text.tokenizer.files())
