"""Choosing the next token of one sequence from its logits."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from evalution_enginekit import TokenPrompt

_SEED_BITS = 63


class Choice:
    """How one prompt's tokens are chosen, with random numbers of its own.

    The same seed gives the same numbers, whatever else is in the batch, and torch's global random
    state is left alone.
    """

    def __init__(self, prompt: TokenPrompt):
        self._prompt = prompt
        self._generator: torch.Generator | None = None
        if prompt.do_sample and prompt.temperature > 0:
            seed = secrets.randbits(_SEED_BITS) if prompt.seed is None else prompt.seed
            self._generator = torch.Generator().manual_seed(seed % (1 << _SEED_BITS))

    @property
    def is_greedy(self) -> bool:
        return self._generator is None

    def draw(self, logits: Tensor) -> int:
        """A sample of `logits` [vocab], for a prompt that isn't greedy.

        The logits pass temperature, `top_k` and `top_p` in the order of Transformers: `top_k` keeps
        ties with the k-th largest, `top_p` the smallest set of likeliest tokens that reach it.
        """
        assert self._generator is not None
        prompt = self._prompt
        values = (logits.cpu() if logits.device.type == "mps" else logits).double()
        # The top logit becomes 0 before the division, so that a tiny temperature can't overflow it.
        scaled = (values - values.max()) / prompt.temperature
        scaled, token_ids = scaled.sort(descending=True, stable=True)
        if 0 < prompt.top_k < len(scaled):
            scaled = scaled[scaled >= scaled[prompt.top_k - 1]]
        weights = scaled.exp()
        cumulative = weights.cumsum(0)
        if prompt.top_p < 1:
            kept = int(((cumulative - weights) < prompt.top_p * cumulative[-1]).sum())
            cumulative = cumulative[: max(1, kept)]
        number = torch.rand((), dtype=torch.float64, generator=self._generator)
        place = torch.searchsorted(
            cumulative, number.to(cumulative.device) * cumulative[-1], right=True
        )
        return int(token_ids[min(int(place), len(cumulative) - 1)])


class GlobalNumbers:
    """Random numbers of a search of upstream's, which draws them from torch's global state.

    The state is as it was found when the search is over, and while `put_back` is entered.
    """

    def __init__(self, seed: int | None):
        self._seed = secrets.randbits(_SEED_BITS) if seed is None else seed % (1 << _SEED_BITS)
        self._found: list[Tensor] = []

    def __enter__(self) -> None:
        self._found = _global_states()
        torch.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        _set_global_states(self._found)

    @contextmanager
    def put_back(self) -> Generator[None]:
        own = _global_states()
        _set_global_states(self._found)
        try:
            yield
        finally:
            self._found = _global_states()
            _set_global_states(own)


def _global_states() -> list[Tensor]:
    """Of the CPU, and of each device that a seed reaches."""
    state = [torch.get_rng_state()]
    if torch.accelerator.is_available():
        device: Any = torch.get_device_module(torch.accelerator.current_accelerator())
        every: Any = getattr(device, "get_rng_state_all", None)
        state += [device.get_rng_state()] if every is None else every()
    return state


def _set_global_states(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if torch.accelerator.is_available():
        device: Any = torch.get_device_module(torch.accelerator.current_accelerator())
        every: Any = getattr(device, "set_rng_state_all", None)
        if every is None:
            device.set_rng_state(states[1])
        else:
            every(states[1:])


def top_logprobs(logits: Tensor, token_id: int, count: int) -> tuple[float, dict[int, float]]:
    """The log-probability of a token and the `count` likeliest, from `logits` [vocab]."""
    values = logits if logits.dtype == torch.float64 else logits.float()
    logprobs = values.log_softmax(dim=-1)
    best = logprobs.topk(min(count, len(logprobs)))
    top = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return float(logprobs[token_id]), top
