"""Inspect's settings as those of a request."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai.model import GenerateConfig

from evalution_core import InvalidRequestError, UnsupportedRequestError
from evalution_inspect.requests import check_supported, map_config

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
def test_greedy_settings(config: dict[str, Any], fields: dict[str, Any]) -> None:
    assert map_config(GenerateConfig(**config)) == [fields]


@pytest.mark.parametrize(
    ("config", "sampled"),
    [
        ({"temperature": 0.7}, (0.7, 1.0, 0)),
        ({"temperature": 1, "top_k": 0}, (1.0, 1.0, 0)),
        ({"top_p": 0.9}, (1.0, 0.9, 0)),
        ({"top_k": 40, "temperature": 0.5}, (0.5, 1.0, 40)),
    ],
)
def test_sampling_settings(config: dict[str, Any], sampled: tuple[float, float, int]) -> None:
    (fields,) = map_config(GenerateConfig(**config))
    assert fields["do_sample"] is True
    assert (fields["temperature"], fields["top_p"], fields["top_k"]) == sampled
    assert "seed" not in fields


@given(choices=st.integers(1, 20), seed=st.integers(0, 2**63 - 1), temperature=st.floats(0.01, 5.0))
def test_choices_have_different_seeds(choices: int, seed: int, temperature: float) -> None:
    config = GenerateConfig(num_choices=choices, seed=seed, temperature=temperature)
    seeds = [fields["seed"] for fields in map_config(config)]
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
def test_unsupported_setting_is_refused_by_name(config: dict[str, Any]) -> None:
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
def test_neutral_settings_and_those_of_inspect_pass(config: dict[str, Any]) -> None:
    check_supported(GenerateConfig(**config))


def test_unknown_settings_are_refused() -> None:
    from inspect_ai.model import ResponseSchema
    from inspect_ai.util import JSONSchema

    wanted = GenerateConfig(
        response_schema=ResponseSchema(name="a", json_schema=JSONSchema(type="object")),
        reasoning_mode="pro",
    )
    with pytest.raises(UnsupportedRequestError, match=r"response_schema|reasoning_mode"):
        check_supported(wanted)


def test_contradicting_settings_are_invalid() -> None:
    with pytest.raises(InvalidRequestError, match="top_logprobs=2 needs logprobs=True"):
        map_config(GenerateConfig(top_logprobs=2))
    with pytest.raises(InvalidRequestError, match="num_choices must be at least 1, got 0"):
        map_config(GenerateConfig(num_choices=0))
