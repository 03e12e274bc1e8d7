"""The README beside the weights."""

from __future__ import annotations

from pathlib import Path

from tiny_model.chat_template import CHAT_TEMPLATE
from tiny_model.llama import LlamaShape
from tiny_model.tokenizer import SPECIAL_TOKENS, TRAINED_TOKENS

_CARD = Path(__file__).with_name("model_card.md")


def model_card(shape: LlamaShape, scores: dict[str, float]) -> str:
    """The card's text."""
    sizes = shape.tensors().values()
    parameters = sum(size[0] * (size[1] if len(size) > 1 else 1) for size in sizes)
    lines = [f"| {name} | {value:.3f} |" for name, value in scores.items()]
    return _CARD.read_text(encoding="utf-8").format(
        parameters=parameters,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        context=shape.context,
        special=", ".join(f"`{token}`" for token in SPECIAL_TOKENS),
        first_pad=TRAINED_TOKENS + len(SPECIAL_TOKENS),
        last_row=shape.vocabulary - 1,
        template=CHAT_TEMPLATE,
        scores="\n".join(["| score | value |", "|---|---|", *lines]),
    )
