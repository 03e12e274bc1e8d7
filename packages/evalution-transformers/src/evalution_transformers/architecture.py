"""What the forward pass of a loaded model may be asked for, found out on the model itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache

from evalution_core import ConfigurationError
from evalution_transformers.forward import CausalModel, Forward, Inputs
from evalution_transformers.tree_mask import MASKED_ATTENTION, as_attention_mask, tree_mask

_TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 2e-1}
"""By how much logits of two right forms may differ, as a share of the logits' own spread."""
_KEYED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers that hold keys and values, and nothing else, of what they have seen."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How this model is scored.

    `packs`: sequences that share a prefix may share its computation, side by side in one pass.
    `why_not` says why it doesn't. `alike`: rows of one padded pass must be equally long.
    """

    splits: bool
    packs: bool
    additive_mask: bool
    alike: bool
    why_not: str | None


def examine(model: CausalModel, max_model_len: int) -> Architecture:
    """Try the forms of forward pass on a few tokens, against the model's plain one.

    Raises:
        ConfigurationError: the model is no decoder of text.
    """
    config = text_config(model.config)
    if getattr(model.config, "is_encoder_decoder", False):
        raise ConfigurationError(
            f"{type(model).__name__} is an encoder-decoder; this engine runs causal models alone"
        )
    probe = _Probe(model, int(config.vocab_size))
    splits = probe.agrees(probe.split_logits)
    attention = str(getattr(config, "_attn_implementation", None))
    why_not = _obstacle(model, config, attention, max_model_len)
    if why_not is None and not probe.agrees(lambda: probe.packed_logits(splits, attention)):
        why_not = "its logits differ when prefixes are shared"
    return Architecture(
        splits=splits,
        packs=why_not is None,
        additive_mask=MASKED_ATTENTION.get(attention, False),
        alike=_rotates_by_length(config),
        why_not=why_not,
    )


def text_config(config: Any) -> Any:
    """The configuration of the decoder of text, in a model that has other parts too."""
    return config.get_text_config(decoder=True)


def _obstacle(model: CausalModel, config: Any, attention: str, max_model_len: int) -> str | None:
    """What a few tokens can't show: windows longer than they are, and states that aren't keys."""
    if attention not in MASKED_ATTENTION:
        return f"attention {attention!r} takes no mask of ours"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it takes no positions of ours"
    if getattr(model, "_is_stateful", False):
        return "it keeps a state in place of keys and values"
    kinds: Iterable[str] = getattr(config, "layer_types", None) or ()
    narrow = _narrowest_window(config)
    if narrow is not None and narrow < max_model_len:
        return f"its attention reaches {narrow} tokens back, and max_model_len is {max_model_len}"
    if odd := set(kinds) - _KEYED_LAYERS:
        return f"it has layers of the kind {', '.join(sorted(odd))}"
    if _rotates_by_length(config):
        return "its rotary embedding depends on the longest sequence of a batch"
    return None


def _narrowest_window(config: Any) -> int | None:
    kinds = set(cast("Iterable[str]", getattr(config, "layer_types", None) or ()))
    slides = not kinds or "sliding_attention" in kinds
    if slides and not getattr(config, "use_sliding_window", True):
        slides = False
    windows = [getattr(config, "sliding_window", None) if slides else None]
    windows.append(getattr(config, "attention_chunk_size", None))
    return min((int(window) for window in windows if window), default=None)


def _rotates_by_length(config: Any) -> bool:
    found: Any = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(found, Mapping):
        return False
    table = cast("Mapping[str, Any]", found)
    nested = [cast("Mapping[str, Any]", v) for v in table.values() if isinstance(v, Mapping)]
    kinds = {entry.get("rope_type", entry.get("type")) for entry in (table, *nested)}
    return bool(kinds & {"dynamic", "longrope"})


class _Probe:
    """Two short sequences with a common beginning, and their logits by the model's plain pass."""

    def __init__(self, model: CausalModel, vocab_size: int):
        ids = [(7919 * at + 13) % vocab_size for at in range(13)]
        self._model = model
        self._head, self._left, self._right = ids[:6], ids[6:10], ids[10:]
        with torch.no_grad():
            self._expected = torch.cat(
                (self._plain(self._head + self._left), self._plain(self._head + self._right)[6:])
            )

    def agrees(self, found: Any) -> bool:
        """Whether a way of computing the logits works and gives the same."""
        try:
            with torch.no_grad():
                logits = cast(Tensor, found())
        except (
            AttributeError,
            IndexError,
            NotImplementedError,
            RuntimeError,
            TypeError,
            ValueError,
        ):
            # A model that doesn't take this form says so in its own way.
            return False
        expected, logits = self._expected.double().cpu(), logits.double().cpu()
        spread = float(expected.std())
        tolerance = _TOLERANCES.get(self._model.dtype, 2e-1) * max(spread, 1e-3)
        return bool(torch.isfinite(logits).all()) and bool(
            (logits - expected).abs().max() <= tolerance
        )

    def split_logits(self) -> Tensor:
        """The output layer on the last hidden states, each sequence by itself."""
        forward = Forward(self._model, splits=True)
        if not forward.splits:
            raise NotImplementedError
        whole = [self._logits(forward, self._head + part) for part in (self._left, self._right)]
        return torch.cat((whole[0], whole[1][6:]))

    def packed_logits(self, splits: bool, attention: str) -> Tensor:
        """Half of the beginning from a cache, and the rest of it with both ends in one pass."""
        forward = Forward(self._model, splits=splits)
        cache = DynamicCache()
        head = self._logits(forward, self._head[:3], cache=cache)
        token_ids = self._head[3:] + self._left + self._right
        positions = [3, 4, 5, 6, 7, 8, 9, 6, 7, 8]
        owners = [0] * 3 + [1] * 4 + [2] * 3
        seen = tree_mask(
            owners, [[True, False, False], [True, True, False], [True, False, True]], 3
        )
        seen = seen.to(self._model.device)
        mask = as_attention_mask(seen, self._model.dtype, additive=MASKED_ATTENTION[attention])
        rest = self._logits(forward, token_ids, positions, mask, cache)
        return torch.cat((head, rest))

    def _plain(self, token_ids: list[int]) -> Tensor:
        ids = torch.tensor([token_ids], device=self._model.device)
        return self._model(input_ids=ids, use_cache=False).logits[0]

    def _logits(
        self,
        forward: Forward,
        token_ids: list[int],
        positions: list[int] | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        device = self._model.device
        columns = torch.arange(len(token_ids), device=device)
        placed = None if positions is None else torch.tensor([positions], device=device)
        inputs = Inputs(torch.tensor([token_ids], device=device), placed, mask, cache)
        return torch.cat(list(forward.logits(inputs, torch.zeros_like(columns), columns)))
