"""Tokens that a rollout server sampled, held against the training model's distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

import numpy as np

from evalution.fidelity.lockstep import RowSource
from evalution.fidelity.requests import Window
from evalution_core import BaseInferenceSession, Capability, GenerationRequest, RequestFailure
from evalution_training.rollout_causes import rescale_rows

NEEDED: Final = frozenset(
    {Capability.GENERATE, Capability.TOKEN_IDS, Capability.SAMPLING, Capability.IGNORE_EOS}
)
_PROMPT, _COMPLETION = 32, 32
_STEPS = 20
_SURE = 4.0
"""Standard errors from the asked temperature at which it is called wrong."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Sampled completions as windows; `logprobs` are the server's own, None where it gives none."""

    windows: Sequence[Window]
    logprobs: Sequence[Sequence[float]] | None


@dataclass(frozen=True, slots=True)
class SampleFigures:
    """Figures of sampled tokens, with r = p(training) / p(rollout) of each.

    `k1` is the mean of -ln r and `k3` that of r - 1 - ln r: both estimate KL(rollout ‖ training) in
    nats where tokens are sampled at temperature 1 (J. Schulman, Approximating KL Divergence, 2020).
    `temperature` is the likeliest one by the training model, `z` the distance of the samples from
    `asked` in standard errors (score test).
    """

    tokens: int
    asked: float
    temperature: float
    z: float
    k1: float | None
    k3: float | None

    @property
    def has_wrong_temperature(self) -> bool:
        return abs(self.z) > _SURE

    def describe(self) -> str:
        return (
            f"tokens are sampled at temperature {self.temperature:.3g} where {self.asked:g} was "
            "asked for"
        )


def sample_tokens(
    session: BaseInferenceSession,
    windows: Sequence[Window],
    count: int,
    temperature: float,
    seed: int,
) -> Samples | None:
    """Sample about `count` tokens after the beginnings of windows; None if the session can't.

    Completions go on past the end of a text. Otherwise the token that ended one would be missing
    from it, and the tokens that are left would be no sample of the distributions.
    """
    capabilities = session.capabilities
    if not capabilities >= NEEDED:
        return None
    has_logprobs = Capability.LOGPROBS in capabilities
    requests = [
        GenerationRequest(
            input_ids=list(window.input_ids[: max(1, min(_PROMPT, len(window.input_ids) // 2))]),
            max_new_tokens=_COMPLETION,
            do_sample=True,
            temperature=temperature,
            ignore_eos=True,
            seed=seed * count + at if Capability.SEED in capabilities else None,
            logprobs=0 if has_logprobs else None,
        )
        for at, window in enumerate(islice(cycle(windows), -(-count // _COMPLETION)))
    ]
    sampled: list[Window] = []
    logprobs: list[Sequence[float]] = []
    for request, output in zip(requests, session.generate(requests), strict=True):
        if output.token_ids:
            prompt = list(request.input_ids or ())
            sampled.append(Window(prompt + output.token_ids, len(prompt)))
            logprobs.append(list(output.token_logprobs or ())[: len(output.token_ids)])
    is_complete = all(
        len(own) == len(window.scored_ids) for own, window in zip(logprobs, sampled, strict=True)
    )
    return Samples(sampled, logprobs if is_complete else None)


def measure_samples(training: RowSource, samples: Samples, asked: float) -> SampleFigures | None:
    """Hold sampled tokens against the training model's rows; None if it gives none of them."""
    inverse = 1 / asked
    score, information, ratios, tokens = _read_scores(training, samples, inverse)
    if not tokens or information <= 0:
        return None
    z = score / math.sqrt(information)
    # Newton's method on a concave log-likelihood, at most twice or half as far a step; if the
    # temperature isn't called wrong, one step.
    for _ in range(_STEPS):
        step = min(max(inverse + score / information, inverse / 2), inverse * 2)
        is_done = abs(z) <= _SURE or abs(step - inverse) < 1e-3 * inverse
        inverse = step
        if is_done:
            break
        score, information, _, _ = _read_scores(training, samples, inverse)
    k1 = k3 = None
    if ratios is not None:
        k1, k3 = float(-ratios.mean()), float((np.expm1(ratios) - ratios).mean())
    return SampleFigures(tokens, asked, 1 / inverse, z, k1, k3)


def _read_scores(
    training: RowSource, samples: Samples, inverse: float
) -> tuple[float, float, np.ndarray[tuple[int], np.dtype[np.float64]] | None, int]:
    """Return derivative and information of the log-likelihood of 1/T, ln r, and the tokens."""
    score = information = 0.0
    own: list[float] = []
    ratios: list[float] = []
    done = [0] * len(samples.windows)
    for at, block in training.read(samples.windows):
        if not isinstance(block, np.ndarray) or isinstance(block, RequestFailure):
            continue
        begin, done[at] = done[at], done[at] + len(block)
        ids = np.asarray(samples.windows[at].scored_ids[begin : done[at]])
        chosen = block[np.arange(len(ids)), ids].astype(np.float64)
        weights = np.exp(rescale_rows(block, inverse))
        logits = np.where(weights > 0, block, 0.0)
        means = (weights * logits).sum(1)
        score += float((chosen - means).sum())
        information += float((weights * np.square(logits - means[:, None])).sum())
        own += chosen.tolist()
        if samples.logprobs is not None:
            ratios += (chosen - np.asarray(samples.logprobs[at][begin : done[at]])).tolist()
    return score, information, np.asarray(ratios) if ratios else None, len(own)
