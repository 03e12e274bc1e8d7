"""Forms of the forward pass that a loaded model allows, tried on the model itself.

There is no list of architectures here: each form is tried on a few tokens, once, when a session is
built. One whose logits differ from those of the model's own plain forward pass isn't used.
"""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig

from evalution_core import ConfigurationError
from evalution_enginekit.model_source import choose_window
from evalution_enginekit.self_check import logits_alike, probe_ids
from evalution_transformers.forward import (
    MASKED_ATTENTION,
    Forward,
    SharedPrefix,
)
from evalution_transformers.generate import clear_settings
from evalution_transformers.linear import use_fast_linear
from evalution_transformers.upstream import CausalModel

_log = logging.getLogger(__name__)

_LOUD = 1e4
"""Logits of this size show what is done to them: a cap of 30 leaves small ones nearly alone."""
_ULPS = 1
"""The same sums in the same order: equal up to a step of the dtype."""
_REFUSALS = (
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors of models that don't take a form of input."""
_OWN_WINDOW = re.compile(r"(window(_size|_len(gth)?)?|local_attention)$")
"""Names in a configuration for a reach of attention that its model sees to by itself."""
_WINDOW_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_UNBOUNDED_WINDOW = 2048
"""For a model that names no limit; lm-evaluation-harness takes the same."""
_KEYED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers that hold keys and values, and nothing else, of what they have seen."""


class Probe:
    """Runs two short sequences with a common beginning, in its plain pass and in other forms."""

    def __init__(self, model: CausalModel, vocab_size: int):
        ids = probe_ids(vocab_size)
        self._model = model
        self._head, self._left, self._right = ids[:6], ids[6:10], ids[10:]
        with torch.no_grad():
            self._with_left = self._plain(self._head + self._left)
            self._with_right = self._plain(self._head + self._right)

    def is_causal(self) -> bool:
        """Return whether the logits of the common beginning don't depend on what follows it."""
        return self._alike(self._with_left[:6], self._with_right[:6])

    def splits(self) -> bool:
        """Return whether logits are the output layer's on the last hidden states, nothing more.

        The layer's input is made large, so that a cap or a scale of the logits can't hide.
        """
        token_ids = self._head + self._left
        factor = _LOUD / max(float(self._with_left.abs().max()), 1e-3)
        try:
            layer = self._model.get_output_embeddings()
            # Both by the same product of matrices: two differ by more than a step of the dtype.
            with torch.no_grad(), use_fast_linear(self._model), _louder(layer, factor):
                own = self._plain(token_ids).double()
                parts = self._logits(Forward(self._model, splits=True), token_ids).double()
        except _REFUSALS:
            return False
        allowed = _ULPS * torch.finfo(self._model.dtype).eps * float(own.abs().max())
        return bool((own - parts).abs().max() <= allowed)

    def shares_prefixes(self, *, splits: bool) -> bool:
        """Return whether sequences behind one cached beginning may stand side by side in a row."""
        both = torch.cat((self._with_left, self._with_right[6:]))
        expected = torch.cat((both, both[3:]))
        return self._agrees(expected, lambda: self._run_shared(splits))

    def pads(self) -> bool:
        """Return whether `generate` gives a padded prompt the logits that it gives it alone."""
        longer, shorter = self._head + self._left, self._right
        gap = len(longer) - len(shorter)
        token_ids = torch.tensor([longer, [0] * gap + shorter], device=self._model.device)
        mask = torch.ones_like(token_ids)
        mask[1, :gap] = 0
        settings = GenerationConfig(
            max_new_tokens=2,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        try:
            with torch.no_grad(), clear_settings(self._model):
                found: Any = self._model.generate(
                    input_ids=token_ids, attention_mask=mask, generation_config=settings
                )
                first: list[int] = found.sequences[:, len(longer)].tolist()
                alone = [
                    self._plain([*ids, first[at]])[-2:] for at, ids in enumerate((longer, shorter))
                ]
        except _REFUSALS:
            return False
        together = torch.stack(tuple(found.logits), dim=1)
        return self._alike(torch.cat(alone), together.flatten(0, 1))

    def _agrees(self, expected: Tensor, found: Callable[[], Tensor]) -> bool:
        try:
            with torch.no_grad():
                return self._alike(expected, found())
        except _REFUSALS:
            return False

    def _alike(self, expected: Tensor, found: Tensor) -> bool:
        """Return whether each row of `found` is the expected one, up to the order of sums."""
        expected, found = expected.double().cpu(), found.double().cpu()
        distances = (found - expected).square().mean(dim=-1).sqrt()
        dtype = str(self._model.dtype).removeprefix("torch.")
        return logits_alike(distances.tolist(), expected.std(dim=-1).tolist(), dtype)

    def _run_shared(self, splits: bool) -> Tensor:
        """Run half of the beginning into a cache, then its rest with both ends, in two rows."""
        forward = Forward(self._model, splits=splits)
        prefix = SharedPrefix(forward)
        ((_, begun),) = prefix.passes(self._head[:3], 0, 3)
        first = torch.arange(3, device=forward.device)
        head = forward.logits(begun, torch.zeros_like(first), first)
        rest, left, right = self._head[3:], self._left, self._right
        inputs = prefix.continue_with(
            [rest + left + right, rest + right + left],
            [[3, 4, 5, 6, 7, 8, 9, 6, 7, 8], [3, 4, 5, 6, 7, 8, 6, 7, 8, 9]],
            [[10] * 3 + [7] * 4 + [10] * 3, [10] * 3 + [6] * 3 + [10] * 4],
        )
        rows = torch.tensor([0] * 10 + [1] * 10, device=forward.device)
        swapped = [0, 1, 2, 6, 7, 8, 9, 3, 4, 5]
        columns = torch.tensor([*range(10), *swapped], device=forward.device)
        return torch.cat((head, forward.logits(inputs, rows, columns)))

    def _plain(self, token_ids: list[int]) -> Tensor:
        ids = torch.tensor([token_ids], device=self._model.device)
        return self._model(input_ids=ids, use_cache=False).logits[0]

    def _logits(self, forward: Forward, token_ids: list[int]) -> Tensor:
        columns = torch.arange(len(token_ids), device=forward.device)
        return forward.logits(forward.inputs([token_ids]), torch.zeros_like(columns), columns)


@contextmanager
def _louder(layer: torch.nn.Module | None, factor: float) -> Generator[None]:
    """Multiply the input of the layer."""
    if layer is None:
        raise NotImplementedError

    def multiply(_: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (cast("Tensor", inputs[0]) * factor, *inputs[1:])

    hook = layer.register_forward_pre_hook(multiply)
    try:
        yield
    finally:
        hook.remove()


@dataclass(frozen=True, slots=True)
class Architecture:
    """The forms of forward pass that a model allows.

    Attributes:
        splits: the output layer may be applied to single rows.
        shares_prefixes: sequences that share a prefix may share its computation, side by side in
            one pass; `obstacle` says why not.
        equal_lengths: rows of one padded pass must be equally long.
        pads: prompts of different lengths may be completed in one batch, the shorter ones behind
            padding.
    """

    splits: bool
    shares_prefixes: bool
    equal_lengths: bool
    pads: bool
    obstacle: str | None


def probe_architecture(model: CausalModel, max_model_len: int) -> Architecture:
    """Try the forms of forward pass on a few tokens, against the model's plain one.

    Raises:
        ConfigurationError: the model isn't causal.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ConfigurationError(
            f"{name} is an encoder-decoder; this engine runs causal models alone"
        )
    config = read_text_config(model.config)
    probe = Probe(model, int(config.vocab_size))
    if not probe.is_causal():
        raise ConfigurationError(
            f"the logits of {name} at a token depend on the tokens after it; this engine runs "
            f"causal models alone, and 8-bit layers of bitsandbytes with llm_int8_threshold=0"
        )
    splits = probe.splits()
    attention = str(getattr(config, "_attn_implementation", None))
    obstacle = _obstacle(model, config, attention, max_model_len)
    if obstacle is None and not probe.shares_prefixes(splits=splits):
        obstacle = "its logits differ when prefixes are shared"
    equal_lengths = rotates_by_length(config)
    return Architecture(
        splits=splits,
        shares_prefixes=obstacle is None,
        equal_lengths=equal_lengths,
        pads=not equal_lengths and probe.pads(),
        obstacle=obstacle,
    )


def read_text_config(config: Any) -> Any:
    """Return the configuration of the text decoder, in a model that has other parts too."""
    return config.get_text_config(decoder=True)


def find_window(model: CausalModel, asked: int | None) -> int:
    """Return the tokens that the model is fed at most: `asked`, else the limit it declares.

    Raises:
        ConfigurationError: `asked` is more than the model has.
    """
    config = read_text_config(model.config)
    found = [getattr(config, name, None) for name in _WINDOW_NAMES]
    own = next((value for value in found if isinstance(value, int) and value > 1), None)
    if asked is None and own is None:
        _log.warning(
            "%s names no longest sequence; max_model_len=%d is taken for it, or set another",
            type(model).__name__,
            _UNBOUNDED_WINDOW,
        )
    return choose_window(asked, own, unlimited=_UNBOUNDED_WINDOW)


def _obstacle(model: CausalModel, config: Any, attention: str, max_model_len: int) -> str | None:
    """Return what speaks against sharing prefixes though a few tokens can't show it."""
    if attention not in MASKED_ATTENTION:
        return f"attention {attention!r} takes no mask of ours"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it takes no positions of ours"
    if getattr(model, "_is_stateful", False):
        return "it keeps a state in place of keys and values"
    return find_config_obstacle(config, max_model_len)


def find_config_obstacle(config: Any, max_model_len: int) -> str | None:
    """Return what in a configuration speaks against sharing prefixes; None if nothing does."""
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
    slides = getattr(config, "use_sliding_window", True) and (
        not kinds or "sliding_attention" in kinds
    )
    windows = [
        getattr(config, "sliding_window", None) if slides else None,
        getattr(config, "attention_chunk_size", None),
    ]
    return min((int(window) for window in windows if window), default=None)


def _own_window(config: Any) -> str | None:
    """Return a window that isn't in the mask, which knows the names of `_narrowest_window` alone.

    Such a model cuts off by columns, and in a row of ours a column is no position.
    """
    declared: Mapping[str, Any] = config.to_dict()
    return next(
        (
            f"{name}={value}"
            for name, value in sorted(declared.items())
            if type(value) is int and name != "sliding_window" and _OWN_WINDOW.search(name)
        ),
        None,
    )


def rotates_by_length(config: Any) -> bool:
    """Return whether the rotary embedding depends on the longest sequence of a batch."""
    found: Any = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(found, Mapping):
        return False
    table = cast("Mapping[str, Any]", found)
    nested = [cast("Mapping[str, Any]", v) for v in table.values() if isinstance(v, Mapping)]
    kinds = {entry.get("rope_type", entry.get("type")) for entry in (table, *nested)}
    return bool(kinds & {"dynamic", "longrope"})
