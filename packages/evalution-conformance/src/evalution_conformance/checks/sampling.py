"""Sampling, log-probabilities of what is generated, and requests that differ from each other."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from evalution_conformance.assertions import (
    assert_has_values,
    assert_same_text,
    assert_same_values,
    assert_tokens_agree,
)
from evalution_conformance.probes import PROMPTS, find_plain_completion, make_long_ids
from evalution_conformance.reference_values import top2_gaps
from evalution_conformance.rows import read_rows
from evalution_conformance.subject import Subject, collect_outputs
from evalution_conformance.suite import needs
from evalution_core import (
    Capability,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    UnsupportedRequestError,
)
from evalution_core.requests import DistributionRequest

_HOT = 2.0
_STABLE = 1e-3
"""Up to this tolerance, in nats, every seeded sample has to be the same in any batch."""
_COLD = 0.01
_COLD_TIE = 0.1
"""Half of the lead, in nats, below which a token at the low temperature may be the next one."""
_COLD_LENGTH = 4
"""Tokens where near ties can't be seen: the fewer there are, the fewer ties."""
_TRIES = 6
_ROUNDS = 3
_DRAWS, _LENGTH = 16, 8
_SHORT = 2
_OPEN_STEPS = 2
_TOP = 3
_HEAD = 5
_USUAL_TOP_K = 64
_USUAL_TOP_P = 0.95
"""Wide cuts that a checkpoint's files may ask for, and no request did."""
_WIDE_CUTS: tuple[dict[str, Any], ...] = ({}, {"top_p": 0.99}, {"top_k": 1000})
"""Settings that leave what another one leaves."""
_LISTED = 10
_FIERY = 10.0
"""A temperature beyond the usual ones."""
_LONG = 144
"""Tokens of a completion, and of its prompt at most, that pass borders of a cache's pages."""
_MANY = 96
_DEVIATIONS = 6
"""Standard deviations that a count of draws is off by chance once in a thousand million times."""
_RARE = 0.05
"""Chance below which a token isn't waited for."""
_RAREST = 0.02
"""As `_RARE`, of all tokens beyond a cut together: they are waited for until one comes."""
_NEVER = 1e-6
"""Chance at which something is taken for certain."""


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
            if output.text == expected.text:
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

    @needs(Capability.SAMPLING)
    def test_top_k_draws_among_the_k_likeliest(self, subject: Subject) -> None:
        """With `top_k=2`, each token drawn is one of the two likeliest, and both are drawn."""
        known = dict(_find_open_steps(subject)) if subject.declares(Capability.LOGPROBS) else {}
        for prompt, likeliest in known.items():
            for also in _WIDE_CUTS[:2]:
                _assert_drawn(subject, prompt, likeliest, temperature=_HOT, top_k=2, **also)
        for prompt in () if known else PROMPTS[:_OPEN_STEPS]:
            drawn = _draw(subject, prompt, temperature=_HOT, top_k=2)
            texts = {output.text for output in drawn}
            assert len(texts) <= 2, f"top_k=2 after {prompt!r} draws {len(texts)} tokens"

    @needs(Capability.SAMPLING, Capability.LOGPROBS)
    def test_top_p_draws_within_its_mass(self, subject: Subject) -> None:
        """With `top_p`, tokens of the smallest set that reaches that probability are drawn."""
        for prompt, likeliest in _find_open_steps(subject):
            first, second = sorted(map(math.exp, likeliest.values()))[:-3:-1]
            for also in _WIDE_CUTS[::2]:
                cut = {"top_p": first + second / 2, **also}
                _assert_drawn(subject, prompt, likeliest, temperature=1.0, **cut)

    @needs(Capability.SAMPLING, Capability.LOGPROBS)
    def test_any_token_may_be_drawn(self, subject: Subject) -> None:
        """With `top_k=0` and `top_p=1.0` nothing is cut, and heat makes tokens more alike."""
        steps = _read_steps(subject, _HEAD)
        for prompt, likeliest in sorted(steps, key=lambda step: -max(step[1].values()))[:1]:
            with suppress(InvalidRequestError, UnsupportedRequestError):  # a limit that is said
                _assert_heated(subject, prompt, likeliest, _FIERY, top_k=_HEAD)
        if not subject.declares(Capability.DISTRIBUTIONS):
            for prompt, likeliest in steps:
                _assert_drawn_outside(subject, prompt, likeliest, temperature=1.0)
            return
        for prompt, row in _read_rows(subject).items():
            _assert_drawn_outside(subject, prompt, row, temperature=1.0)
            _assert_drawn_outside(subject, prompt, _heat(row, _HOT), temperature=_HOT)
            _assert_heated(subject, prompt, row, _HOT)

    @needs(Capability.SAMPLING)
    def test_a_low_temperature_is_nearly_greedy(self, subject: Subject) -> None:
        """At temperature 0.01 a sample is the greedy text, up to the first near tie.

        A hot neighbour and further settings change nothing in that.
        """
        top = 2 if subject.declares(Capability.LOGPROBS) else None
        differing: list[str] = []
        for index, prompt in enumerate(PROMPTS):
            length = subject.max_new_tokens if top else _COLD_LENGTH
            greedy = subject.request(prompt, logprobs=top, max_new_tokens=length)
            expected = subject.complete(greedy)
            cold = replace(greedy, logprobs=None, do_sample=True, temperature=_COLD)
            asked = [replace(cold, **also) for also in _WIDE_CUTS]
            asked.insert(index % 2 * len(asked), replace(cold, temperature=_HOT))
            outputs = subject.generate(*asked)
            del outputs[index % 2 * len(_WIDE_CUTS)]
            for also, found in zip(_WIDE_CUTS, outputs, strict=True):
                rule = f"a sample at temperature {_COLD}, {also}, isn't the greedy text"
                if top:
                    gaps = top2_gaps(expected.top_logprobs or [])
                    near = max(_COLD_TIE, subject.tolerance)
                    text, token_ids = expected.text, expected.token_ids
                    assert_tokens_agree(subject, found, text, token_ids, gaps, rule, tolerance=near)
                elif found.text != expected.text:
                    differing.append(f"{rule}: expected {expected.text!r}, got {found.text!r}")
        assert len(differing) <= len(PROMPTS) * len(_WIDE_CUTS) // 2, differing[0]

    @needs(Capability.SAMPLING)
    def test_samples_of_one_prompt_are_drawn_apart(self, subject: Subject) -> None:
        """Without a seed, each sample is a draw of its own: in a batch, a stream or calls."""
        request = _make_sampled(subject)
        keyed = [(n, request) for n in range(_TRIES)]
        drawn = {
            "in a batch": subject.generate(*[request] * _TRIES),
            "in a stream": collect_outputs(subject.session.generate_continuous(keyed)).values(),
            "one call after another": [subject.complete(request) for _ in range(_TRIES)],
        }
        for how, outputs in drawn.items():
            texts = {output.text for output in outputs}
            assert len(texts) > _TRIES // 2, (
                f"{_TRIES} samples at temperature {_HOT} {how} are {len(texts)} texts: {texts}"
            )

    @needs(Capability.SAMPLING, Capability.SEED)
    def test_a_seed_is_its_own_requests(self, subject: Subject) -> None:
        """Neighbours with other seeds or none, and later requests, are drawn apart from it."""
        free = _make_sampled(subject)
        seeded = [replace(free, seed=seed) for seed in range(_TRIES)]
        texts = {output.text for output in subject.generate(*seeded)}
        assert len(texts) > _TRIES // 2, f"{_TRIES} seeds in a batch give {len(texts)} texts"
        beside, after = set[str](), set[str]()
        for _ in range(_ROUNDS):
            beside.add(subject.generate(seeded[0], free)[1].text)
            after.add(subject.complete(free).text)
        for where, texts in (("beside", beside), ("after", after)):
            assert len(texts) > 1, (
                f"{_ROUNDS} samples without a seed {where} one with a seed are all {texts.pop()!r}"
            )

    @needs(Capability.SAMPLING, Capability.SEED)
    def test_a_seed_fixes_the_sample_in_a_stream(self, subject: Subject) -> None:
        """A stream draws for a seed as `generate` does."""
        seeded, least = _make_seeded(subject)
        found = collect_outputs(subject.session.generate_continuous(enumerate(seeded)))
        expected = subject.generate(*seeded)
        same = sum(found[seed].text == output.text for seed, output in enumerate(expected))
        assert same >= least, (
            f"of {len(seeded)} seeds, {same} give a stream the sample that they give generate"
        )

    @needs(Capability.SAMPLING, Capability.SEED)
    def test_a_seed_fixes_the_sample(self, subject: Subject) -> None:
        """The same seed gives the same sample, whatever else is in the batch."""
        seeded, least = _make_seeded(subject)
        alone = [subject.complete(request).text for request in seeded]
        batch = [*reversed(seeded)]
        batch.insert(1, subject.request(PROMPTS[0]))
        together = [output.text for output in subject.generate(*batch)]
        del together[1]
        same = sum(a == b for a, b in zip(alone, reversed(together), strict=True))
        assert same >= least, f"by seed alone {alone}, in a batch {together[::-1]}"
        assert len(set(alone)) > 1, "every seed gives the same sample"

    @needs(Capability.LOGPROBS)
    def test_logprobs_belong_to_the_tokens(self, subject: Subject) -> None:
        """`logprobs=k`: each token's log-probability, and the k most likely tokens of its step."""
        request = subject.request(PROMPTS[0], logprobs=_LISTED)
        try:
            first = subject.complete(request)
        except (InvalidRequestError, UnsupportedRequestError):  # it lists fewer, and says so
            request.logprobs = _TOP
            first = subject.complete(request)
        _assert_listed(subject, request, first)
        # On the way to a sample logits are scaled and cut: not so those that are reported.
        asked = [replace(request, temperature=_HOT)]
        if subject.declares(Capability.SAMPLING):
            asked.append(replace(request, do_sample=True, temperature=_HOT, top_k=_TOP))
        outputs = subject.generate(*asked)
        for wanted, output in zip(asked, outputs, strict=True):
            _assert_listed(subject, wanted, output)
        assert_same_values(subject, outputs[0], first, f"greedy at temperature {_HOT} and without")

    @needs(Capability.LOGPROBS, Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS)
    def test_generated_tokens_score_the_same(self, subject: Subject) -> None:
        """Log-probabilities of generated tokens are those that scoring gives them."""
        request = subject.request("", input_ids=subject.prompt_ids(PROMPTS[0]), logprobs=0)
        text = subject.complete(request).text
        requests = [request, replace(request, stop=[text[len(text) // 2 :][:2] or "e"])]
        if subject.declares(Capability.SAMPLING):
            cut = {"temperature": _HOT, "top_k": _TOP}
            requests.append(replace(request, do_sample=True, **cut))
        length = min(_LONG, (subject.session.info.max_model_len or _LONG) // 2)
        long_ids = make_long_ids(subject.codec, length, seed=10)
        ignore_eos = subject.declares(Capability.IGNORE_EOS)
        long = replace(request, max_new_tokens=length, ignore_eos=ignore_eos)
        requests.append(replace(long, input_ids=long_ids))
        compared = 0
        for asked, output in zip(requests, subject.generate(*requests), strict=True):
            if output.token_ids:
                compared += 1
                scored = subject.score_ids(asked.input_ids or (), output.token_ids)
                rule = f"the tokens of {output.text!r} as scored and as generated"
                assert_has_values(subject, scored, output.token_logprobs or [], rule)
        if not compared:
            pytest.skip("the model ended the probe at once")


def _assert_listed(subject: Subject, request: GenerationRequest, output: GenerationOutput) -> None:
    """Each token has a log-probability, and as many likeliest ones as were asked for."""
    token_ids, values = output.token_ids, output.token_logprobs
    tops = output.top_logprobs
    assert token_ids is not None, "logprobs were asked for, and token_ids is None"
    assert values is not None, "logprobs were asked for, and token_logprobs is None"
    assert tops is not None, "logprobs were asked for, and top_logprobs is None"
    assert len(values) == len(tops) == len(token_ids), (
        f"{len(token_ids)} tokens, {len(values)} token_logprobs, {len(tops)} top_logprobs"
    )
    for step, (token_id, value, top) in enumerate(zip(token_ids, values, tops, strict=True)):
        assert len(top) == request.logprobs, (
            f"step {step}: {len(top)} top tokens, asked for {request.logprobs}"
        )
        assert math.isfinite(value), f"step {step}: log-probability {value}"
        assert value <= subject.tolerance, f"step {step}: log-probability {value} above 0"
        assert request.do_sample or max(top.values()) <= value + subject.tolerance, (
            f"step {step}: the greedy token has {value}, another {max(top.values())}"
        )
        assert not any(map(math.isnan, top.values())), f"step {step}: a NaN among {top}"
        # A token that isn't listed is at most as likely as the last that is.
        listed = top.get(token_id, min(value, *top.values()))
        assert abs(listed - value) <= subject.tolerance, (
            f"step {step}: the token has {value} in token_logprobs, and by the top {listed}"
        )


def _make_seeded(subject: Subject) -> tuple[list[GenerationRequest], int]:
    """Make requests by seed, and say how many samples must be the same another time.

    Where rounding depends on the batch, a draw crosses a border now and then, and what follows is
    another text: there the samples are short.
    """
    is_exact = subject.tolerance <= _STABLE
    tries, length = (_TRIES, subject.max_new_tokens) if is_exact else (2 * _TRIES, _SHORT)
    free = subject.request(PROMPTS[1], do_sample=True, temperature=_HOT, max_new_tokens=length)
    seeded = [replace(free, seed=seed) for seed in range(tries)]
    return seeded, tries if is_exact else tries // 3


def _make_sampled(subject: Subject) -> GenerationRequest:
    """Make a request whose samples are hardly ever the same."""
    return subject.request(PROMPTS[1], do_sample=True, temperature=_HOT, max_new_tokens=_LENGTH)


def _read_steps(subject: Subject, count: int) -> list[tuple[str, dict[int, float]]]:
    """Return the probes that aren't ended at once, with the likeliest ids of the first token."""
    requests = [subject.request(prompt, max_new_tokens=1, logprobs=count) for prompt in PROMPTS]
    return [
        (prompt, output.top_logprobs[0])
        for prompt, output in zip(PROMPTS, subject.generate(*requests), strict=True)
        if output.top_logprobs and len(output.top_logprobs[0]) > 1
    ]


def _read_rows(subject: Subject) -> dict[str, dict[int, float]]:
    """Return probes with the log-probabilities of all ids as the first token."""
    prompts = PROMPTS[:_OPEN_STEPS]
    ids = map(subject.prompt_ids, prompts)
    requests = [DistributionRequest([*fed, fed[-1]], len(fed)) for fed in ids]
    rows = read_rows(subject.session, requests)
    return {prompt: dict(enumerate(row)) for prompt, (row,) in zip(prompts, rows, strict=True)}


def _find_open_steps(subject: Subject) -> list[tuple[str, dict[int, float]]]:
    """Return the probes whose first token is the least certain, with its likeliest ids."""
    found = _read_steps(subject, _TOP)
    if not found:
        pytest.skip("the model ends every probe at once")
    found.sort(key=lambda step: math.fsum(sorted(map(math.exp, step[1].values()))[-2:]))
    return found[:_OPEN_STEPS]


def _draw(
    subject: Subject, prompt: str, *, begin: int = 0, count: int = _DRAWS, **settings: Any
) -> list[GenerationOutput]:
    """Draw the first token after `prompt`, by seeds from `begin` on where the session has them."""
    request = subject.request(prompt, max_new_tokens=1, do_sample=True, **settings)
    seeded = subject.declares(Capability.SEED)
    seeds = range(begin, begin + count) if seeded else [None] * count
    return subject.generate(*(replace(request, seed=seed) for seed in seeds))


def _count_draws(chance: float) -> int:
    """Return after how many draws something of this chance is certain to have come."""
    return math.ceil(math.log(_NEVER) / math.log1p(-chance))


def _assert_drawn(
    subject: Subject, prompt: str, likeliest: Mapping[int, float], temperature: float, **cut: Any
) -> None:
    """Tokens drawn are the two likeliest, or as likely as the second up to rounding; both come."""
    first, second = sorted(likeliest.values(), reverse=True)[:2]
    least = second - 2 * subject.tolerance
    allowed = {token_id for token_id, value in likeliest.items() if value >= least}
    chance = 1 / (1 + math.exp((first - second) / temperature))
    # Of two cuts, the first changes the probabilities that the second counts.
    is_certain = len(allowed) == 2 and chance >= _RARE and len(cut) == 1
    missing = set(allowed)
    rule = f"{cut} after {prompt!r}"
    for begin in range(0, _count_draws(chance) if is_certain else 1, _DRAWS):
        drawn = _draw(subject, prompt, begin=begin, temperature=temperature, logprobs=0, **cut)
        ids = {output.token_ids[0] for output in drawn if output.token_ids}
        assert ids <= allowed, f"{rule} draws {sorted(ids)}, and may draw {sorted(allowed)}"
        missing -= ids
        # EOS shows as a completion without tokens: one of the two may be it.
        if len(missing) <= any(not output.token_ids for output in drawn):
            return
    assert not (is_certain and missing), f"{rule} never draws {sorted(missing)}"


def _assert_drawn_outside(
    subject: Subject, prompt: str, likeliest: Mapping[int, float], *, temperature: float
) -> None:
    """Tokens are drawn beyond the likeliest that are known, if these leave enough to the rest."""
    ordered = sorted(likeliest, key=likeliest.__getitem__, reverse=True)
    masses = [*accumulate(math.exp(likeliest[token_id]) for token_id in ordered)]
    by_mass = bisect_left(masses, _USUAL_TOP_P) + 1
    codec = subject.session.tokenizer
    end = None if codec is None else codec.eos_id
    for length in {min(by_mass, len(ordered)), min(_USUAL_TOP_K, len(ordered))}:
        head, mass = set[int | None](ordered[:length]), masses[length - 1]
        draws = _count_draws(1 - mass) if mass <= 1 - _RAREST else 0
        for begin in range(0, draws, _DRAWS):
            drawn = _draw(subject, prompt, begin=begin, temperature=temperature)
            # EOS shows as a completion without tokens.
            ids = {output.token_ids[0] if output.token_ids else end for output in drawn}
            if ids - head:
                break
        else:
            assert not draws, (
                f"{draws} draws at temperature {temperature:g} after {prompt!r} are all among the "
                f"{length} likeliest tokens, which hold {mass:.2f} of the probability, as if cut"
            )


def _heat(row: Mapping[int, float], temperature: float) -> dict[int, float]:
    """Return the log-probabilities at a temperature, of these tokens alone."""
    total = math.log(math.fsum(math.exp(value / temperature) for value in row.values()))
    return {token_id: value / temperature - total for token_id, value in row.items()}


def _assert_heated(
    subject: Subject, prompt: str, row: Mapping[int, float], temperature: float, **cut: Any
) -> None:
    """Tokens that heat makes rarer are drawn about as seldom as it makes them."""
    row, heated = _heat(row, 1.0), _heat(row, temperature)
    rarer = {token_id for token_id, value in row.items() if value > heated[token_id]}
    chance = math.fsum(math.exp(heated[token_id]) for token_id in rarer)
    drawn = _draw(subject, prompt, count=_MANY, temperature=temperature, logprobs=0, **cut)
    hits = sum(o.token_ids[0] in rarer for o in drawn if o.token_ids)
    most = _MANY * chance + _DEVIATIONS * (1 + math.sqrt(_MANY * chance * (1 - chance)))
    assert hits <= most, (
        f"of {_MANY} draws at temperature {temperature:g} after {prompt!r}, {hits} are of tokens "
        f"that hold {chance:.2f} of the probability there: by chance, at most {most:.0f} are"
    )
