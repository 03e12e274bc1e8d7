"""What the forward pass of a loaded model may be asked for, found out on the model itself.

Nobody keeps a list of architectures here: what a model can do is tried on it, once, when a session
is built. A form whose logits aren't those of the model's own plain forward pass isn't used.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from evalution_core import ConfigurationError
from evalution_transformers.forward import CausalModel
from evalution_transformers.probe import Probe
from evalution_transformers.tree_mask import MASKED_ATTENTION

_log = logging.getLogger(__name__)
_OWN_WINDOW = re.compile(r"(window(_size|_len(gth)?)?|local_attention)$")
"""What a configuration calls a reach of attention that its model sees to by itself."""
_WINDOW_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_UNBOUNDED_WINDOW = 2048
"""For a model that names no limit; lm-evaluation-harness takes the same."""
_KEYED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers that hold keys and values, and nothing else, of what they have seen."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How this model is scored.

    `packs`: sequences that share a prefix may share its computation, side by side in one pass.
    `why_not` says why it doesn't. `splits`: the output layer may be applied to single rows.
    `alike`: rows of one padded pass must be equally long. `pads`: prompts of different lengths may
    be completed in one batch, the shorter ones behind padding.
    """

    splits: bool
    packs: bool
    additive_mask: bool
    alike: bool
    pads: bool
    why_not: str | None


def examine(model: CausalModel, max_model_len: int) -> Architecture:
    """Try the forms of forward pass on a few tokens, against the model's plain one.

    Raises:
        ConfigurationError: the model isn't causal.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ConfigurationError(
            f"{name} is an encoder-decoder; this engine runs causal models alone"
        )
    config = text_config(model.config)
    probe = Probe(model, int(config.vocab_size))
    if not probe.is_causal():
        raise ConfigurationError(
            f"the logits of {name} at a token depend on the tokens after it; this engine runs "
            f"causal models alone{_outliers(model.config)}"
        )
    splits = probe.splits()
    attention = str(getattr(config, "_attn_implementation", None))
    why_not = _obstacle(model, config, attention, max_model_len)
    if why_not is None and not probe.packs(splits=splits, attention=attention):
        why_not = "its logits differ when prefixes are shared"
    alike = rotates_by_length(config)
    return Architecture(
        splits=splits,
        packs=why_not is None,
        additive_mask=MASKED_ATTENTION.get(attention, False),
        alike=alike,
        pads=not alike and probe.pads(),
        why_not=why_not,
    )


def _outliers(config: Any) -> str:
    """What quantisation by bitsandbytes does to a causal model, where it may be the reason."""
    settings: Any = getattr(config, "quantization_config", None)
    if not (getattr(settings, "load_in_8bit", False) and settings.llm_int8_threshold):
        return ""
    return (
        f" (its 8-bit layers look for outliers in all tokens of a batch: set llm_int8_threshold=0 "
        f"in place of {settings.llm_int8_threshold})"
    )


def text_config(config: Any) -> Any:
    """The configuration of the decoder of text, in a model that has other parts too."""
    return config.get_text_config(decoder=True)


def window_of(model: CausalModel, asked: int | None) -> int:
    """Tokens that the model is fed at most: what is asked for, or what its configuration says.

    Raises:
        ConfigurationError: more is asked for than the model has.
    """
    config = text_config(model.config)
    found = [getattr(config, name, None) for name in _WINDOW_NAMES]
    own = next((value for value in found if isinstance(value, int) and value > 1), None)
    if asked is None and own is None:
        _log.warning(
            "%s names no longest sequence; max_model_len=%d is taken for it, or set another",
            type(model).__name__,
            _UNBOUNDED_WINDOW,
        )
    if asked is None:
        return own or _UNBOUNDED_WINDOW
    if asked < 2 or (own is not None and asked > own):
        limit = "no limit of the model's" if own is None else f"the model's own {own}"
        raise ConfigurationError(f"max_model_len={asked} must be between 2 and {limit}")
    return asked


def _obstacle(model: CausalModel, config: Any, attention: str, max_model_len: int) -> str | None:
    """What a few tokens can't show: windows longer than they are, and states that aren't keys."""
    if attention not in MASKED_ATTENTION:
        return f"attention {attention!r} takes no mask of ours"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it takes no positions of ours"
    if getattr(model, "_is_stateful", False):
        return "it keeps a state in place of keys and values"
    return unshared(config, max_model_len)


def unshared(config: Any, max_model_len: int) -> str | None:
    """What a configuration has against sharing prefixes, which a few tokens can't show."""
    kinds: Iterable[str] = getattr(config, "layer_types", None) or ()
    narrow = _narrowest_window(config)
    if narrow is not None and narrow < max_model_len:
        return f"its attention reaches {narrow} tokens back, and max_model_len is {max_model_len}"
    if (own := _own_window(config)) is not None:
        return f"its own code bounds the reach of its attention ({own})"
    if odd := set(kinds) - _KEYED_LAYERS:
        return f"it has layers of the kind {', '.join(sorted(odd))}"
    if rotates_by_length(config):
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


def _own_window(config: Any) -> str | None:
    """A window that isn't in the mask: upstream's masks know the two names of `_narrowest_window`.

    What such a model cuts off goes by columns, and in a row of ours a column is no position.
    """
    told: Mapping[str, Any] = config.to_dict()
    return next(
        (
            f"{name}={value}"
            for name, value in sorted(told.items())
            if type(value) is int and name != "sliding_window" and _OWN_WINDOW.search(name)
        ),
        None,
    )


def rotates_by_length(config: Any) -> bool:
    """Whether the rotary embedding depends on the longest sequence of a batch."""
    found: Any = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(found, Mapping):
        return False
    table = cast("Mapping[str, Any]", found)
    nested = [cast("Mapping[str, Any]", v) for v in table.values() if isinstance(v, Mapping)]
    kinds = {entry.get("rope_type", entry.get("type")) for entry in (table, *nested)}
    return bool(kinds & {"dynamic", "longrope"})
