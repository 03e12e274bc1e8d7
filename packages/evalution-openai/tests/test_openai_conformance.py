"""The conformance kit through client, HTTP, server and reference engine, on each way of asking."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the extra `server` isn't installed: no starlette")
pytest.importorskip("uvicorn", reason="the extra `server` isn't installed: no uvicorn")

from evalution import suites
from evalution_conformance import EngineConformance
from evalution_core import LoglikelihoodRequest, Model, RollingLoglikelihoodRequest
from evalution_core.builtins import builtin_path
from evalution_openai.engine import OpenAICompatible
from evalution_openai.server import build_openai_compatible_server
from evalution_reference.engine import Reference


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


PORT = _free_port()
URL = f"http://127.0.0.1:{PORT}"
TOKENIZER = str(builtin_path("builtin:tiny", "safetensors"))


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """The reference engine in float64 behind Evalution's own server."""
    engine = Reference(dtype="float64")
    with build_openai_compatible_server(engine=engine, model="builtin:tiny", port=PORT):
        yield


ENCODING_CHECKS = frozenset(
    {
        "boundary",
        "scoring",
        "test_ids_are_completed_as_their_text",
        "test_messages_are_completed_as_their_rendering",
        "test_rendered_chat_has_one_bos",
        "test_a_long_prompt_is_cut_from_the_left",
        "test_a_limit_without_room_for_a_prompt_is_refused",
        "test_bad_requests_are_refused_by_index",
        "test_requests_come_back_untouched",
        "test_completions_equal_the_reference",
        "test_chat_equals_the_reference",
        "test_describe_execution_is_json_safe_and_stable",
        "test_template_variables_are_not_dropped",
        "test_the_self_check_passes",
        "test_rolled_ids_are_their_text",
        "test_an_empty_text_is_refused",
        "test_rolling_equals_the_reference",
        "test_windows_equal_the_reference",
    }
)
"""Checks that depend on who renders, encodes and scores; text mode runs the whole kit."""


class TestServerTokenizes(EngineConformance):
    """Text goes as it is; scoring by Evalution's own routes."""

    engine = OpenAICompatible(base_url=URL)
    model = Model(path="builtin:tiny")


class TestLocalTokenizer(EngineConformance):
    """Prompts are rendered and encoded here; token ids go, and log-probabilities come with ids."""

    engine = OpenAICompatible(base_url=URL, batch_size="auto")
    model = Model(path="builtin:tiny", tokenizer_path=TOKENIZER)
    checks = ENCODING_CHECKS | {
        "top_logprobs",
        "test_token_ids_end_with_the_stop",
        "test_multi_byte_characters_are_whole",
        "test_a_stream_completes_as_generate_does",
        "test_deltas_join_to_the_output",
    }


class TestEchoScoring(EngineConformance):
    """As with a foreign server: encoded by `/tokenize`, scored by `echo`, every answer streamed."""

    engine = OpenAICompatible(base_url=URL, scoring="echo", timings=True)
    model = Model(path="builtin:tiny")
    checks = ENCODING_CHECKS | {
        "test_a_stop_is_found_across_tokens",
        "test_deltas_join_to_the_output",
    }


@pytest.mark.parametrize(
    ("engine", "model"),
    [
        (TestServerTokenizes.engine, TestServerTokenizes.model),
        (TestLocalTokenizer.engine, TestLocalTokenizer.model),
        (TestEchoScoring.engine, TestEchoScoring.model),
    ],
    ids=["text", "ids", "echo"],
)
def test_likeliest_tokens_come_over_http_as_from_the_reference_engine(
    engine: OpenAICompatible, model: Model
) -> None:
    pairs = [LoglikelihoodRequest("Tom has 3", f" {n} apples.", top_logprobs=n) for n in (1, 4)]
    text = RollingLoglikelihoodRequest("The red cat sleeps. " * 60, top_logprobs=2)
    found: list[list[dict[int, float]]] = []
    for one, of in ((engine, model), (Reference(dtype="float64"), Model("builtin:tiny"))):
        with one.build(of) as session:
            outputs = [*session.loglikelihood(pairs), *session.loglikelihood_rolling([text])]
            found.append([top for output in outputs for top in output.top_logprobs or ()])
    assert [list(top) for top in found[0]] == [list(top) for top in found[1]]
    for top, expected in zip(*found, strict=True):
        assert top == pytest.approx(expected, abs=1e-6)


def test_suites_score_over_http_as_on_the_reference_engine() -> None:
    tests = (
        suites.MultipleChoice(
            data="builtin:tiny/choices",
            prompt="question",
            choices="choices",
            target="answer",
            max_rows=6,
        ),
        suites.Perplexity(data="builtin:tiny/prose", text="text", max_rows=3),
        suites.Generation(
            data="builtin:tiny/sums",
            prompt="Question: {question}\nAnswer:",
            target="answer",
            max_rows=4,
        ),
    )
    scores: list[dict[str, float | None]] = []
    for engine in (OpenAICompatible(base_url=URL), Reference(dtype="float64")):
        with engine.model(path="builtin:tiny") as run:
            for suite in tests:
                run.run(suite)
        assert [(suite.n, suite.failed) for suite in run.result.suites] == [(6, 0), (3, 0), (4, 0)]
        scores.append(
            {
                f"{suite.name} {name}": metric.value
                for suite in run.result.suites
                for name, metric in suite.metrics.items()
            }
        )
    assert scores[0] == pytest.approx(scores[1], rel=1e-12), "batches differ in their rounding"
