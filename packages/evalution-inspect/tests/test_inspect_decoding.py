"""Inspect's settings as those of a request."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai.model import GenerateConfig

from evalution_core import InvalidRequestError, UnsupportedRequestError
from evalution_inspect.requests import check_supported, decoding

pytestmark = pytest.mark.wide


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({}, {"stop": []}),
        ({"temperature": 0.0, "top_p": 0.9, "top_k": 5, "seed": 3}, {"stop": []}),
        ({"top_k": 1}, {"stop": []}),
        ({"top_k": -1, "top_p": 1.0}, {"stop": []}),
        ({"stop_seqs": ["\n", "#"]}, {"stop": ["\n", "#"]}),
        ({"logprobs": True}, {"stop": [], "logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 4}, {"stop": [], "logprobs": 4}),
        ({"logprobs": False}, {"stop": []}),
    ],
)
def test_settings_of_greedy_decoding(config: dict[str, Any], fields: dict[str, Any]) -> None:
    assert decoding(GenerateConfig(**config)) == [fields]


@pytest.mark.parametrize(
    ("config", "sampled"),
    [
        ({"temperature": 0.7}, (0.7, 1.0, 0)),
        ({"temperature": 1, "top_k": 0}, (1.0, 1.0, 0)),
        ({"top_p": 0.9}, (1.0, 0.9, 0)),
        ({"top_k": 40, "temperature": 0.5}, (0.5, 1.0, 40)),
    ],
)
def test_settings_of_sampling(config: dict[str, Any], sampled: tuple[float, float, int]) -> None:
    (fields,) = decoding(GenerateConfig(**config))
    assert fields["do_sample"] is True
    assert (fields["temperature"], fields["top_p"], fields["top_k"]) == sampled
    assert "seed" not in fields


@given(choices=st.integers(1, 20), seed=st.integers(0, 2**63 - 1), temperature=st.floats(0.01, 5.0))
def test_each_choice_of_a_seeded_sample_has_a_seed_of_its_own(
    choices: int, seed: int, temperature: float
) -> None:
    config = GenerateConfig(num_choices=choices, seed=seed, temperature=temperature)
    seeds = [fields["seed"] for fields in decoding(config)]
    assert len(set(seeds)) == choices
    assert seeds[0] == seed
    assert all(0 <= one < 2**63 for one in seeds)


@pytest.mark.parametrize(
    "config",
    [
        {"frequency_penalty": 0.5},
        {"presence_penalty": -1.0},
        {"logit_bias": {5: 1.0}},
        {"best_of": 2},
        {"reasoning_effort": "low"},
        {"reasoning_tokens": 100},
        {"reasoning_summary": "auto"},
        {"effort": "low"},
        {"verbosity": "low"},
        {"modalities": ["image"]},
        {"extra_body": {"min_p": 0.1}},
        {"extra_headers": {"a": "b"}},
        {"fallback_models": ["other"]},
        {"prompt_logprobs": 2},
    ],
)
def test_what_no_engine_has_is_refused_by_name(config: dict[str, Any]) -> None:
    ((name, _),) = config.items()
    with pytest.raises(UnsupportedRequestError, match=re.escape(name)):
        check_supported(GenerateConfig(**config))


@pytest.mark.parametrize(
    "config",
    [
        {"frequency_penalty": 0.0},
        {"presence_penalty": 0},
        {"logit_bias": {}},
        {"best_of": 1},
        {"extra_body": {}},
        {"reasoning_summary": "none"},
        {"prompt_logprobs": 1},
        {"max_retries": 3, "timeout": 5, "attempt_timeout": 5, "cache": True, "batch": True},
        {"system_message": "x", "max_tool_output": 5, "internal_tools": False},
        {"max_connections": 5, "adaptive_connections": False, "cache_prompt": "auto"},
        {"reasoning_history": "last", "fail_on_refusal": True, "stream_idle_timeout": 4},
    ],
)
def test_what_asks_for_nothing_or_is_inspects_own_passes(config: dict[str, Any]) -> None:
    check_supported(GenerateConfig(**config))


def test_every_setting_of_inspect_is_mapped_neutral_or_refused() -> None:
    from inspect_ai.model import ResponseSchema
    from inspect_ai.util import JSONSchema

    wanted = GenerateConfig(
        response_schema=ResponseSchema(name="a", json_schema=JSONSchema(type="object")),
        reasoning_mode="pro",
    )
    with pytest.raises(UnsupportedRequestError, match=r"response_schema|reasoning_mode"):
        check_supported(wanted)


def test_settings_that_contradict_each_other_are_invalid() -> None:
    with pytest.raises(InvalidRequestError, match="top_logprobs=2 needs logprobs=True"):
        decoding(GenerateConfig(top_logprobs=2))
    with pytest.raises(InvalidRequestError, match="num_choices must be at least 1, got 0"):
        decoding(GenerateConfig(num_choices=0))
