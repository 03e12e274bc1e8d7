"""The engine as configuration."""

from __future__ import annotations

import pytest

from evalution_core import ConfigurationError, Model, load_engine
from evalution_openai.address import Address
from evalution_openai.engine import OpenAICompatible


def test_engine_is_found_by_its_name() -> None:
    assert load_engine("openai_compatible") is OpenAICompatible


def test_options_have_the_documented_defaults() -> None:
    engine = OpenAICompatible()
    assert engine.base_url == "http://127.0.0.1:8000"
    assert (engine.timeout_s, engine.batch_size) == (300.0, 4)
    assert OpenAICompatible("http://x", "key").api_key == "key"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout_s", 0.0),
        ("deadline_s", -1.0),
        ("batch_size", -1),
        ("max_retries", -1),
        ("requests_per_minute", 0),
        ("tokens_per_minute", 0),
        ("max_model_len", 1),
    ],
)
def test_a_number_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(
        ConfigurationError, match=f"option '{name}' of engine OpenAICompatible must be "
    ):
        OpenAICompatible(**{name: value})  # pyright: ignore[reportArgumentType]


def test_stepwise_scoring_has_to_be_allowed() -> None:
    with pytest.raises(
        ConfigurationError, match="a request for each token; allow it with stepwise"
    ):
        OpenAICompatible(scoring="stepwise")
    assert OpenAICompatible(scoring="stepwise", stepwise_top=5).stepwise_top == 5


@pytest.mark.parametrize(
    ("url", "api", "root"),
    [
        ("http://h:1", "http://h:1/v1", "http://h:1"),
        ("http://h:1/", "http://h:1/v1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1/v1", "http://h:1"),
        ("https://h/api/v1", "https://h/api/v1", "https://h/api"),
        ("https://h/paas/v4", "https://h/paas/v4", "https://h/paas"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai", "https://h/v1beta/openai"),
        ("http://[::1]:8000", "http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://h/v1x.d/", "http://h/v1x.d/v1", "http://h/v1x.d"),
        ("http://v2", "http://v2/v1", "http://v2"),
    ],
)
def test_routes_are_found_with_and_without_v1(url: str, api: str, root: str) -> None:
    assert Address.parse(url) == Address(api, root)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://h/v1",
        "http://",
        "v1",
        " http://h",
        "http://[::1",
        "https://h/v1?api-version=1",
        "https://h/v1?",
        "https://h/v1#part",
        "https://h/v1/chat/completions",
        "https://h/v1/models",
        "htp:/foo",
        "http:/foo",
        "http://a b/v1",
        "http://h:port/v1",
    ],
)
def test_invalid_base_url_is_refused_before_anything_is_built(url: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url must be an http or https URL"):
        OpenAICompatible(url)


def test_secrets_are_not_shown() -> None:
    engine = OpenAICompatible(
        "https://me:hunter22@h/v1",
        "sk-4711-4711",
        extra_headers={"X-Api-Key": "k-0815-0815", "X-Odd": "odd-0815-0815"},
    )
    shown = repr(engine.to_dict())
    assert not any(secret in shown for secret in ("hunter22", "sk-4711", "0815"))
    assert not any(secret in repr(engine) for secret in ("hunter22", "sk-4711", "0815"))


def test_several_answers_of_a_request_are_refused() -> None:
    engine = OpenAICompatible("http://127.0.0.1:1", extra_body={"n": 2})
    with pytest.raises(ConfigurationError, match="extra_body has n=2, and one answer of each"):
        engine.build(Model("m"))
