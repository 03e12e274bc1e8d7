"""Sampling, log-probabilities of what is generated, and requests that differ from each other."""

from __future__ import annotations

import math

import pytest

from evalution_conformance.assertions import assert_same_text
from evalution_conformance.probes import PROMPTS, find_plain_completion
from evalution_conformance.subject import Subject
from evalution_conformance.suite import needs
from evalution_core import Capability, GenerationRequest

_HOT = 2.0
_STABLE = 1e-3
"""Up to this tolerance, in nats, every seeded sample has to be the same in any batch."""
_TRIES = 6
_TOP = 3


@needs(Capability.GENERATE)
class SamplingChecks:
    def test_neighbours_change_nothing(self, subject: Subject) -> None:
        """Limits, sampling and stops of one request never affect another."""
        seen = find_plain_completion(subject)
        request = subject.request(seen.prompt)
        expected = subject.complete(request)
        others = [
            subject.request(seen.prompt, max_new_tokens=1),
            subject.request(seen.prompt, stop=[seen.output.text[1:3]]),
            subject.request(PROMPTS[1], max_new_tokens=2 * subject.max_new_tokens),
        ]
        if subject.declares(Capability.SAMPLING):
            others.append(subject.request(PROMPTS[0], do_sample=True, temperature=_HOT))
        for batch in ([request, *others], [*others, request]):
            output = subject.generate(*batch)[batch.index(request)]
            rule = "limits, stops or sampling of a neighbour change the text"
            assert_same_text(subject, request, output, expected, rule)
            assert output.finish_reason == expected.finish_reason, (
                "a neighbour changes finish_reason"
            )

    @needs(Capability.SAMPLING)
    def test_sampling_samples(self, subject: Subject) -> None:
        """`do_sample` draws from the distribution, and so differs from draw to draw."""
        request = subject.request(PROMPTS[1], do_sample=True, temperature=_HOT)
        texts = {output.text for output in subject.generate(*[request] * _TRIES)}
        assert len(texts) > 1, f"{_TRIES} samples at temperature {_HOT} are all {texts.pop()!r}"

    @needs(Capability.SAMPLING)
    def test_sampling_keeps_to_the_allowed_tokens(self, subject: Subject) -> None:
        """`top_k` and `top_p` cut the distribution: with one token left, it is the greedy one."""
        greedy = subject.request(PROMPTS[0])
        expected = subject.complete(greedy)
        for cut in ({"top_k": 1}, {"top_p": 1e-9}):
            request = subject.request(PROMPTS[0], do_sample=True, temperature=_HOT, **cut)
            rule = f"{cut} leaves the greedy token alone"
            assert_same_text(subject, greedy, subject.complete(request), expected, rule)

    @needs(Capability.SAMPLING, Capability.SEED)
    def test_a_seed_fixes_the_sample(self, subject: Subject) -> None:
        """The same seed gives the same sample, whatever else is in the batch."""

        def make_seeded(seed: int) -> GenerationRequest:
            return subject.request(PROMPTS[1], do_sample=True, temperature=_HOT, seed=seed)

        alone = [subject.complete(make_seeded(seed)).text for seed in range(_TRIES)]
        batch = [make_seeded(seed) for seed in reversed(range(_TRIES))]
        batch.insert(1, subject.request(PROMPTS[0]))
        together = [output.text for output in subject.generate(*batch)]
        del together[1]
        same = sum(a == b for a, b in zip(alone, reversed(together), strict=True))
        # Rounding that depends on the batch moves a draw across a border now and then.
        least = _TRIES if subject.tolerance <= _STABLE else _TRIES // 2
        assert same >= least, f"by seed alone {alone}, in a batch {together[::-1]}"
        assert len(set(alone)) > 1, "every seed gives the same sample"

    @needs(Capability.LOGPROBS)
    def test_logprobs_belong_to_the_tokens(self, subject: Subject) -> None:
        """`logprobs=k`: each token's log-probability, and the k most likely tokens of its step."""
        request = subject.request(PROMPTS[0], logprobs=_TOP)
        output = subject.complete(request)
        token_ids, values = output.token_ids, output.token_logprobs
        tops = output.top_logprobs
        assert token_ids is not None, "logprobs were asked for, and token_ids is None"
        assert values is not None, "logprobs were asked for, and token_logprobs is None"
        assert tops is not None, "logprobs were asked for, and top_logprobs is None"
        assert len(values) == len(tops) == len(token_ids), (
            f"{len(token_ids)} tokens, {len(values)} token_logprobs, {len(tops)} top_logprobs"
        )
        for step, (token_id, value, top) in enumerate(zip(token_ids, values, tops, strict=True)):
            assert len(top) == _TOP, f"step {step}: {len(top)} top tokens, asked for {_TOP}"
            assert math.isfinite(value), f"step {step}: log-probability {value}"
            assert value <= subject.tolerance, f"step {step}: log-probability {value} above 0"
            assert max(top.values()) <= value + subject.tolerance, (
                f"step {step}: the greedy token has {value}, another {max(top.values())}"
            )
            assert abs(top.get(token_id, value) - value) <= subject.tolerance, (
                f"step {step}: the token has {value} in token_logprobs and {top[token_id]} on top"
            )

    @needs(Capability.LOGPROBS, Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS)
    def test_generated_tokens_score_the_same(self, subject: Subject) -> None:
        """Log-probabilities of generated tokens are those that scoring gives them."""
        prompt_ids = subject.prompt_ids(PROMPTS[0])
        output = subject.complete(subject.request("", input_ids=prompt_ids, logprobs=0))
        if not output.token_ids:
            pytest.skip("the model ended the probe at once")
        scored = subject.score_ids(prompt_ids, output.token_ids).token_logprobs or []
        generated = output.token_logprobs or []
        differences = [abs(a - b) for a, b in zip(scored, generated, strict=True)]
        assert max(differences) <= subject.tolerance, (
            f"generated with {generated}, scored with {scored}"
        )
