"""Behaviour that was seen of servers, and the errors and descriptions that follow from it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution_core import (
    Capability,
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_reference import Reference
from evalution_tinker import Tinker
from evalution_tinker.load import read_attachment
from evalution_tinker.upstream import align_logprobs, are_greedy, take_tops

tinker: Any = pytest.importorskip("tinker", reason="tinker is not installed")

# tinker 0.24 and 0.38 leave a connection open however they are closed.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <(function _SelectorTransport|socket\.socket)"
    ":pytest.PytestUnraisableExceptionWarning"
)

TINY = Model("builtin:tiny")
QUESTION = "Question: What is 8 - 5?\nAnswer:"
RIGHT = LoglikelihoodRequest(QUESTION, " 8 - 5 = 3")
WRONG = LoglikelihoodRequest(QUESTION, " 8 - 5 = 4")


@given(
    st.lists(st.floats(-30, 0) | st.just(-math.inf), min_size=1, max_size=20),
    st.integers(1, 20),
    st.booleans(),
)
def test_both_forms_of_prompt_logprobs_are_aligned(
    values: list[float], start: int, is_short: bool
) -> None:
    length = len(values) + 1
    listed = values if is_short else [None, *values]
    assert align_logprobs(listed, length, start) == values[start - 1 :]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (None, "returned no prompt log-probabilities"),
        ([-1.0], "returned 1 log-probabilities of a prompt of 3 tokens, which are neither 3 nor 2"),
        ([None, -1.0, None], "returned None as a log-probability"),
        ([-1.0, float("nan")], "returned nan as a log-probability"),
        ([0.5, -1.0], r"returned 0\.5 as a log-probability, which is a number up to 0"),
    ],
)
def test_other_prompt_logprobs_are_refused(listed: Any, message: str) -> None:
    with pytest.raises(EngineRuntimeError, match=message):
        align_logprobs(listed, 3, 1)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (None, None),
        ([None, [(1, -0.5)], [(2, -1.0)]], True),
        ([[(1, -0.5)], [(2, -1.0)]], True),
        ([None, [(1, -0.5)], [(9, -0.9)]], False),
        ([None, None, [(2, -1.0)]], None),
        ([[(1, -0.5)]], None),
    ],
)
def test_is_greedy_is_decided_by_value(rows: Any, expected: bool | None) -> None:
    assert are_greedy([-0.5, -1.0], rows, 3) is expected


def test_impossible_token_is_not_greedy() -> None:
    assert are_greedy([-math.inf], [None, [(1, -0.5)]], 2) is False


@pytest.mark.parametrize("quirk", ["short", "no-topk", "no-suffix"])
def test_server_with_a_quirk_scores_as_one_without(server: Any, quirk: str) -> None:
    with Tinker(base_url=server.url).build(TINY) as session:
        expected = session.loglikelihood([RIGHT, WRONG])
    server.quirks.add(quirk)
    with Tinker(base_url=server.url).build(TINY) as session:
        found = session.loglikelihood([RIGHT, WRONG])
        described = session.describe_execution()
    assert [output.logprob for output in found] == [output.logprob for output in expected]
    assert [output.is_greedy for output in found] == [True, False]
    assert described["is_greedy_by"] == ("greedy sample" if quirk == "no-topk" else "top-k")
    assert described["scores_suffixes_alone"] is (quirk != "no-suffix")


def test_likeliest_tokens_are_those_of_the_reference(server: Any) -> None:
    pairs = [replace(RIGHT, top_logprobs=3), replace(WRONG, top_logprobs=1)]
    text = RollingLoglikelihoodRequest("The red cat sleeps. " * 60, top_logprobs=2)
    with Tinker(base_url=server.url).build(TINY) as session:
        found = [*session.loglikelihood(pairs), *session.loglikelihood_rolling([text])]
    with Reference().build(TINY) as session:
        expected = [*session.loglikelihood(pairs), *session.loglikelihood_rolling([text])]
    for output, right in zip(found, expected, strict=True):
        tops = zip(output.top_logprobs or (), right.top_logprobs or (), strict=True)
        for top, wanted in tops:
            assert list(top) == list(wanted)
            assert top == pytest.approx(wanted, abs=1e-4)


def test_likeliest_tokens_that_a_server_leaves_out_are_refused(server: Any) -> None:
    server.quirks.add("no-topk")
    with Tinker(base_url=server.url).build(TINY) as session:
        assert Capability.PROMPT_TOP_LOGPROBS not in session.capabilities
        with pytest.raises(UnsupportedRequestError, match="leaves out topk_prompt_logprobs"):
            session.loglikelihood([replace(RIGHT, top_logprobs=2)])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "likeliest tokens of 0 positions of a prompt of 3 tokens"),
        ([[(1, -0.5)]], "likeliest tokens of 1 positions of a prompt of 3 tokens"),
        ([None, [(1, -0.5)], [(2, -1.0)]], "the 2 most likely tokens of a position .* and 1 came"),
        ([None, None, [(2, -1.0), (3, -2.0)]], "the 2 most likely tokens .* and 0 came"),
    ],
)
def test_incomplete_likeliest_tokens_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(EngineRuntimeError, match=message):
        take_tops(rows, 3, 1, 2)


@pytest.mark.parametrize("quirk", ["silent", "odd"])
def test_scoring_on_a_server_that_cannot_score_is_refused_with_the_reason(
    server: Any, quirk: str
) -> None:
    server.quirks.add(quirk)
    reason = {"silent": "returned no prompt log-probabilities", "odd": r"neither \d+ nor \d+"}[
        quirk
    ]
    with Tinker(base_url=server.url).build(TINY) as session:
        assert Capability.LOGLIKELIHOOD not in session.capabilities
        with pytest.raises(UnsupportedRequestError, match=reason):
            session.loglikelihood([RIGHT])
        with pytest.raises(UnsupportedRequestError, match=reason):
            session.loglikelihood_rolling([RollingLoglikelihoodRequest("a text")])
        (output,) = session.generate([GenerationRequest(QUESTION, max_new_tokens=8)])
        assert output.text == " 8 - 5 = 3"


@pytest.mark.parametrize("quirk", ["json-only", "no-ids"])
def test_incompatible_client_and_server_versions_are_named(server: Any, quirk: str) -> None:
    server.quirks.add(quirk)
    expected = (
        rf"tinker {tinker.__version__} can't read the answers of the server at {server.url} "
        r"\(Protocol server 0\.1\), which speaks an older form of the protocol; upgrade the server"
    )
    with pytest.raises(EngineUnavailableError, match=expected):
        Tinker(base_url=server.url).build(TINY)


def test_stop_that_comes_with_the_tokens_is_cut(server: Any) -> None:
    with Tinker(base_url=server.url).build(TINY) as session:
        (output,) = session.generate([GenerationRequest(QUESTION, stop=[" ="], max_new_tokens=40)])
        (ended,) = session.generate([GenerationRequest(QUESTION, max_new_tokens=40)])
    assert (output.text, output.finish_reason) == (" 8 - 5", "stop")
    assert (ended.text, ended.finish_reason) == (" 8 - 5 = 3\n#### 3", "stop")
    assert ended.token_ids is not None
    assert ended.completion_tokens == len(ended.token_ids) + 1, "the end of sequence counts"


def test_stops_are_sent_as_texts_or_as_ids(server: Any) -> None:
    both = GenerationRequest(QUESTION, stop=["\n"], max_new_tokens=2, ignore_eos=True)
    with Tinker(base_url=server.url).build(TINY) as session:
        server.asked.clear()
        session.generate([GenerationRequest(QUESTION, stop=["\n"], max_new_tokens=2)])
        session.generate([both])
        session.generate([GenerationRequest(QUESTION, max_new_tokens=2)])
    stops = [request["sampling_params"]["stop"] for request in server.asked]
    assert stops == [["\n"], [], [563]], "text; nothing at all; the end of sequence"


def test_top_k_beyond_the_vocabulary_is_sent_as_its_size(server: Any) -> None:
    sampled = GenerationRequest(QUESTION, max_new_tokens=1, do_sample=True, temperature=1.0)
    with Tinker(base_url=server.url).build(TINY) as session:
        session.generate([replace(sampled, top_k=top_k) for top_k in (0, 9, 1000)])
    sent = {request["sampling_params"].get("top_k") for request in server.asked[-3:]}
    assert sent == {-1, 9, server.tokenizer.vocabulary_size}


def test_empty_prompt_and_a_prompt_of_one_token_are_answered(server: Any) -> None:
    with Tinker(base_url=server.url).build(TINY) as session:
        one = GenerationRequest(input_ids=[5], max_new_tokens=1)
        outputs = session.generate([GenerationRequest("", max_new_tokens=1), one])
        assert [output.completion_tokens for output in outputs] == [1, 1]
        (score,) = session.loglikelihood([LoglikelihoodRequest("", "The")])
        assert score.token_count == len(score.token_ids or ())


def test_window_leaves_room_for_the_sampled_token(server: Any) -> None:
    server.window = 64
    try:
        with Tinker(base_url=server.url).build(TINY) as session:
            assert session.info.max_model_len == 62
            long = LoglikelihoodRequest("word " * 200, " cat")
            assert session.loglikelihood([long])[0].truncated_tokens
            session.loglikelihood_rolling([RollingLoglikelihoodRequest("word " * 200)])
        with pytest.raises(ConfigurationError, match="max_model_len=63 is more than the server's"):
            Tinker(base_url=server.url, max_model_len=63).build(TINY)
        server.window = None
        with (
            Tinker(base_url=server.url).build(TINY) as session,
            pytest.raises(UnsupportedRequestError, match="the server reports no window"),
        ):
            session.generate([GenerationRequest(QUESTION, truncation="error")])
    finally:
        server.window = 514


def test_first_model_of_the_server_is_the_default(server: Any) -> None:
    engine = Tinker(base_url=server.url, tokenizer_path="builtin:tiny")
    assert engine.default_model() == "builtin:tiny"
    with engine.build(Model()) as session:
        assert session.describe_execution()["model"] == "builtin:tiny"


def test_unknown_model_is_refused_when_the_session_is_built(server: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no model 'builtin:tinny'; did you mean 'builtin"
    ):
        Tinker(base_url=server.url, tokenizer_path="builtin:tiny").build(Model("builtin:tinny"))


def test_weights_need_a_tokenizer_that_is_named(server: Any) -> None:
    with pytest.raises(ConfigurationError, match="set tokenizer_path to a folder or a Hub id"):
        Tinker(base_url=server.url).build(Model("tinker://run/weights/last"))


def test_missing_or_refused_key_is_a_configuration_error(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="environment variable NO_KEY, which isn't set"):
        Tinker(base_url=server.url, api_key_env="NO_KEY").build(TINY)
    server.quirks.add("forbidden")
    with pytest.raises(ConfigurationError, match=r"refuses the key in TINKER_API_KEY \(HTTP 401\)"):
        Tinker(base_url=server.url).build(TINY)


def test_key_from_a_file_is_used_without_its_line_break(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FILE_KEY", "tml-from-a-file\n")
    Tinker(base_url=server.url, api_key_env="FILE_KEY").build(TINY).close()
    monkeypatch.setenv("FILE_KEY", "tml-one\ntml-two")
    with pytest.raises(ConfigurationError, match="the key in FILE_KEY has a line break") as raised:
        Tinker(base_url=server.url, api_key_env="FILE_KEY").build(TINY)
    assert "tml-" not in str(raised.value)


def test_key_that_the_client_rejects_is_an_error(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_KEY", "no-prefix")
    with pytest.raises(EngineRuntimeError, match=r"a sampling client failed: .*'tml-' prefix"):
        Tinker(base_url=server.url, api_key_env="ODD_KEY").build(TINY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "file:///etc/passwd"}, "must begin with http:// or https://"),
        ({"batch_size": 0}, "'batch_size' of engine Tinker must be at least 1, got 0"),
        ({"max_model_len": 1}, "'max_model_len' of engine Tinker must be at least 2, got 1"),
        (
            {"base_url": "http://bob:hunter2@host:80"},
            r"name and password, .* of 'http://\*\*\*@host",
        ),
        ({"base_url": "http://host:port"}, r"is not a URL: 'http://host:port' \(nonnumeric port"),
        ({"timeout_s": 0.0}, r"'timeout_s' of engine Tinker must be above 0.*, got 0"),
        ({"timeout_s": float("nan")}, r"'timeout_s' of engine Tinker.*, got .?nan"),
        ({"request_timeout_s": float("inf")}, r"86400.*, got .?inf"),
        ({"base_uri": "x"}, "no option 'base_uri'; did you mean 'base_url'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Tinker(**options).build(TINY)


@pytest.mark.parametrize("field", [{"revision": "main"}, {"model_kwargs": {"load_in_4bit": True}}])
def test_fields_that_the_server_decides_are_refused(server: Any, field: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"takes no model.{next(iter(field))}"):
        Tinker(base_url=server.url).build(Model("builtin:tiny", **field))


def test_session_attaches_to_the_callers_client_and_leaves_it_open(server: Any) -> None:
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-x")
    made = service.create_sampling_client(base_model="builtin:tiny")
    sampling = made.result() if hasattr(made, "result") else made
    for handles in (
        {"sampling_client": sampling, "model_name": "builtin:tiny"},
        {"service_client": service, "model_name": "builtin:tiny", "backend": "tinker"},
    ):
        with Tinker().attach(handles) as session:
            assert session.loglikelihood([RIGHT])[0].is_greedy
            assert session.describe_execution()["attached"] is True
    with Tinker(tokenizer_path="builtin:tiny").attach({"sampling_client": sampling}) as session:
        assert session.loglikelihood([RIGHT])[0].is_greedy
    if hasattr(service, "close"):
        service.close("success").result()


def test_spec_with_the_training_backend_runs_on_the_same_server(
    server: Any, tmp_path: Path
) -> None:
    pytest.importorskip("evalution_training", reason="evalution-training is not installed")
    runner: Any = pytest.importorskip("evalution", reason="the runner is not installed")
    specs: Any = pytest.importorskip("evalution.yaml_spec.run_spec", reason="the runner is too old")
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "engine: Tinker\n"
        f"backend: {{kind: tinker, params: {{base_url: '{server.url}'}}}}\n"
        "model: {name: 'builtin:tiny', renderer_name: chatml}\n"
        "tests: [{type: perplexity, data: 'builtin:tiny/prose', text: text, max_rows: 3}]\n"
    )
    loaded = specs.load_spec(str(spec))
    result = runner.run(
        engine=loaded.engine,
        backend=loaded.backend,
        tests=loaded.tests,
        output=tmp_path / "run",
    )
    engine = {"type": "Tinker", "base_url": server.url}
    right = runner.run(engine=specs.parse_engine(engine), model=TINY, tests=loaded.tests)
    values = [run.suites[0].metrics["word_perplexity"].value for run in (result, right)]
    assert values[0] == pytest.approx(values[1])
    assert result.engine["execution"]["attached"] is True
    written = (tmp_path / "run" / "results.json").read_text(encoding="utf-8")
    assert "tml-a-key-of-the-tests" not in written


@pytest.mark.parametrize(
    ("handles", "message"),
    [
        ({"model": 1, "tokenizer": 2}, r"it got a mapping with model, tokenizer$"),
        ({}, r"it got a mapping with nothing$"),
        ([1], r"it got a list$"),
        ({"service_client": 1}, r"it got a mapping with service_client$"),
        (
            {"service_client": 1, "model_name": "m"},
            r"its service_client must have create_sampling_client\(\), got a int",
        ),
        ({"sampling_client": "x"}, r"its sampling_client must have sample\(\), got a str"),
    ],
)
def test_handles_of_another_kind_are_refused(handles: Any, message: str) -> None:
    wanted = "sampling_client, or training_client, or service_client and model_name"
    with pytest.raises(ConfigurationError, match=wanted) as raised:
        Tinker(tokenizer_path="builtin:tiny").attach(handles)
    raised.match(message)


@pytest.mark.parametrize(
    ("checkpoints", "taken"),
    [
        ({}, {"base_model": "m"}),
        ({"init_from_checkpoint": "tinker://a"}, {"model_path": "tinker://a"}),
        (
            {"load_checkpoint_path": "tinker://b", "init_from_checkpoint": "tinker://a"},
            {"model_path": "tinker://b"},
        ),
    ],
)
def test_checkpoint_of_the_backend_takes_the_place_of_its_model(
    checkpoints: dict[str, str], taken: dict[str, str]
) -> None:
    class Service:
        def create_sampling_client(self, **asked: str) -> Any:
            made.append(asked)
            return Client()

    class Client:
        def sample(self) -> None: ...

    made: list[dict[str, str]] = []
    handles = {"service_client": Service(), "model_name": "m", **checkpoints}
    found = read_attachment(handles, connect_s=9.0, save_s=9.0)
    assert made == [taken]
    assert (found.model, found.base_model) == (next(iter(taken.values())), "m")


def test_client_without_a_model_name_needs_a_tokenizer(server: Any) -> None:
    class Client:
        def sample(self) -> None: ...

    with pytest.raises(ConfigurationError, match="set tokenizer_path"):
        Tinker().attach({"sampling_client": Client()})
