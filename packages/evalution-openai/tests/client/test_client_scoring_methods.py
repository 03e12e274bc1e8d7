"""Which way of scoring is taken, and every lie that it must not be taken in by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from evalution_core import (
    Capability,
    EngineRuntimeError,
    InvalidRequestError,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_enginekit import ByteTokenizer
from evalution_enginekit.mock import MockSession, table

PAIRS = [
    LoglikelihoodRequest("What is 3 + 4?", " It is 7."),
    LoglikelihoodRequest("", "the"),
    LoglikelihoodRequest("a b ", "c"),
]
TEXT = "A text that is longer than one window. " * 10


def shifted(choice: dict[str, Any]) -> None:
    values = choice["logprobs"]["token_logprobs"]
    values[:] = [*values[1:], values[-1]]
    values[0] = None


def late(choice: dict[str, Any]) -> None:
    """Shifted the other way, the first value doubled, so that nothing is missing."""
    values = choice["logprobs"]["token_logprobs"]
    values[:] = [None, values[1], *values[1:-1]]


def generated_alone(choice: dict[str, Any]) -> None:
    for name, listed in choice["logprobs"].items():
        choice["logprobs"][name] = listed[-1:]


def cut(choice: dict[str, Any]) -> None:
    for name, listed in choice["logprobs"].items():
        choice["logprobs"][name] = listed[2:]


def each(value: Any) -> Callable[[dict[str, Any]], None]:
    def lie(choice: dict[str, Any]) -> None:
        values = choice["logprobs"]["token_logprobs"]
        values[1:] = [value] * (len(values) - 1)

    return lie


def nothing(choice: dict[str, Any]) -> None:
    choice["logprobs"] = None


def scaled(choice: dict[str, Any]) -> None:
    """Of a sharper distribution: plausible, consistent, and not what generation says."""
    values = choice["logprobs"]["token_logprobs"]
    values[1:] = [value * 1.7 for value in values[1:]]


LIES = {
    "null": (each(None), "value 0 of .* is None"),
    "all zero": (each(0.0), "all log-probabilities are 0.0"),
    "all alike": (each(-2.5), "all log-probabilities are -2.5"),
    "positive": (each(0.5), "above 0"),
    "not finite": (each(-math.inf), "value 0 of .* is -inf"),
    "shifted": (shifted, "differs by .* nats"),
    "shifted late": (late, "differs .* nats"),
    "none": (nothing, "echo gave logprobs None"),
    "of the generated token alone": (generated_alone, "echo gave 1 token_logprobs for"),
    "cut": (cut, "echo gave .* token_logprobs for"),
    "another distribution": (scaled, "differs from the next-token path"),
}


@pytest.mark.parametrize("name", LIES)
def test_server_with_wrong_logprobs_is_refused_before_the_run(
    connect: Callable[..., Any], server: Any, name: str
) -> None:
    server.lie, reason = LIES[name]
    session = connect()
    assert Capability.LOGLIKELIHOOD not in session.capabilities
    assert Capability.ROLLING not in session.capabilities
    asked = len(server.requests)
    with pytest.raises(UnsupportedRequestError, match=f"echo: .*{reason}"):
        session.loglikelihood(PAIRS)
    with pytest.raises(UnsupportedRequestError, match=r"vLLM, SGLang and .* do$"):
        session.loglikelihood_rolling([RollingLoglikelihoodRequest("a")])
    assert len(server.requests) == asked, "nothing was asked"


def test_a_server_that_cuts_or_adds_tokens_is_refused(
    connect: Callable[..., Any], server: Any
) -> None:
    honest = server.routed

    def adds_bos(path: str, body: dict[str, Any]) -> httpx.Response:
        if path == "/completions":
            body = {**body, "prompt": [256, *body["prompt"]]}
        return honest(path, body)

    server.routed = adds_bos
    with pytest.raises(UnsupportedRequestError, match=r"29 ids were sent|ids were sent and the"):
        connect(scoring="echo").loglikelihood(PAIRS)


def expected_scores() -> Any:
    session = MockSession("scripted", 254, 8)
    return session.loglikelihood(PAIRS), session.loglikelihood_rolling(
        [RollingLoglikelihoodRequest(TEXT)]
    )


def assert_tops(session: Any, text: str = TEXT, count: int = 3) -> None:
    """The likeliest tokens of each position, best first, from the table itself."""
    assert Capability.PROMPT_TOP_LOGPROBS in session.capabilities
    probabilities = table("scripted")
    (found,) = session.loglikelihood([LoglikelihoodRequest("a b", "cd", top_logprobs=count)])
    ids = [*session.tokenizer.leading_ids, *session.tokenizer.encode("a bcd")]
    for at, top in enumerate(found.top_logprobs, len(ids) - 2):
        row = probabilities.row(ids[:at])
        best = sorted(range(256), key=lambda i, row=row: -row[i])[:count]
        assert list(top.items()) == [(i, pytest.approx(row[i], abs=1e-12)) for i in best]
    (rolled,) = session.loglikelihood_rolling([RollingLoglikelihoodRequest(text, top_logprobs=2)])
    assert [len(top) for top in rolled.top_logprobs] == [2] * rolled.token_count


def assert_scores(session: Any) -> None:
    pairs, texts = expected_scores()
    found = session.loglikelihood(PAIRS)
    for left, right in zip(found, pairs, strict=True):
        assert left.token_logprobs == pytest.approx(right.token_logprobs, abs=1e-12)
        assert left.is_greedy == right.is_greedy
        assert left.token_ids == right.token_ids
    (rolled,) = session.loglikelihood_rolling([RollingLoglikelihoodRequest(TEXT)])
    assert rolled.token_logprobs == pytest.approx(texts[0].token_logprobs, abs=1e-12)


def test_echo_by_ids_scores_as_in_process(connect: Callable[..., Any], server: Any) -> None:
    session = connect()
    assert session.describe_execution()["scoring"] == "echo"
    assert session.info.max_model_len == 254, "one token is generated, and the last one is fed"
    assert session.check().outcome == "passed"
    assert_scores(session)
    sent = server.bodies("/completions")[-1]
    assert all(isinstance(token_id, int) for token_id in sent["prompt"])
    with pytest.raises(
        UnsupportedRequestError, match=r"doesn't list them \(echo: the 2 most likely"
    ):
        session.loglikelihood([LoglikelihoodRequest("a", "b", top_logprobs=2)])


def spell_ids(server: Any, most: int = 5) -> None:
    """Have the scripted server spell listed tokens as their ids, and list at most so many."""
    honest = server.routed

    def routed(path: str, body: dict[str, Any]) -> httpx.Response:
        if (body.get("logprobs") or 0) > most:
            message = f"Requested logprobs of more than max allowed: {most}"
            return httpx.Response(400, json={"error": {"message": message}})
        answer = honest(path, body)
        if not body.get("return_tokens_as_token_ids"):
            return answer
        content = answer.json()
        lists = content["choices"][0]["logprobs"]
        lists["tokens"] = [f"token_id:{ord(name)}" for name in lists["tokens"]]
        lists["top_logprobs"] = [
            row and {f"token_id:{ord(name)}": value for name, value in row.items()}
            for row in lists["top_logprobs"]
        ]
        return httpx.Response(200, json=content)

    server.routed = routed


def test_echo_lists_the_likeliest_tokens_where_they_are_spelled_as_ids(
    connect: Callable[..., Any], server: Any
) -> None:
    server.tokenizer.decode = lambda ids, **_: "".join(map(chr, ids))
    spell_ids(server)
    session = connect(dialect="vllm")
    assert session.describe_execution()["scoring"] == "echo"
    assert_tops(session)
    with pytest.raises(InvalidRequestError, match="more than max allowed: 5"):
        session.loglikelihood([LoglikelihoodRequest("a", "b", top_logprobs=6)])


def test_likeliest_tokens_of_another_position_are_not_declared(
    connect: Callable[..., Any], server: Any
) -> None:
    honest = prompt_logprobs(server)

    def routed(path: str, body: dict[str, Any]) -> httpx.Response:
        answer = honest(path, body)
        if body.get("prompt_logprobs", 0) < 2:
            return answer
        content = answer.json()
        listed = content["choices"][0]["prompt_logprobs"]
        own = [str(i) for i in body["prompt"]]
        for at in range(len(listed) - 1, 1, -1):
            listed[at] = {**listed[at - 1], own[at]: listed[at][own[at]]}
        return httpx.Response(200, json=content)

    server.routed = routed
    session = connect(scoring="prompt_logprobs", dialect="vllm")
    assert Capability.LOGLIKELIHOOD in session.capabilities
    with pytest.raises(UnsupportedRequestError, match=r"likeliest .* where they are gen"):
        session.loglikelihood([LoglikelihoodRequest("a", "b", top_logprobs=2)])


def prompt_logprobs(server: Any) -> Callable[[str, dict[str, Any]], httpx.Response]:
    """The scripted server as vLLM: refuses `echo`, lists prompt log-probabilities by id."""
    honest = server.routed

    def routed(path: str, body: dict[str, Any]) -> httpx.Response:
        if body.get("echo"):
            return httpx.Response(400, json={"error": {"message": "no echo"}})
        if "prompt_logprobs" not in body:
            return honest(path, body)
        ids = body["prompt"]
        rows = [server.table.row(ids[:at]) for at in range(1, len(ids))]
        listed: list[Any] = [None]
        for row, own in zip(rows, ids[1:], strict=True):
            best = sorted(range(256), key=lambda i, row=row: -row[i])[: body["prompt_logprobs"]]
            listed.append({str(i): {"logprob": row[i], "rank": 1} for i in {*best, own}})
        choice = {"text": "", "finish_reason": "length", "prompt_logprobs": listed}
        return httpx.Response(200, json={"choices": [choice]})

    return routed


def test_prompt_logprobs_come_after_echo(connect: Callable[..., Any], server: Any) -> None:
    server.routed = prompt_logprobs(server)
    session = connect()
    described = session.describe_execution()
    assert described["scoring"] == "prompt_logprobs"
    assert "no echo" in described["scoring_refused"]["echo"]
    assert_scores(session)
    assert_tops(session)


def test_sglang_logprobs_start_one_token_earlier(connect: Callable[..., Any], server: Any) -> None:
    honest = server.routed
    server.routes |= {"/generate"}

    def routed(path: str, body: dict[str, Any]) -> httpx.Response:
        if path != "/generate":
            refuses = body.get("echo") or "prompt_logprobs" in body
            return httpx.Response(400, text="no") if refuses else honest(path, body)
        ids, start = body["input_ids"], body["logprob_start_len"]
        entries: list[Any] = [[None, ids[start], None]]
        tops: list[Any] = [None]
        for at in range(start + 1, len(ids)):
            row = server.table.row(ids[:at])
            best = sorted(range(256), key=lambda i, row=row: -row[i])[: body["top_logprobs_num"]]
            entries.append([row[ids[at]], ids[at], None])
            tops.append([[row[i], i, None] for i in best])
        meta = {"input_token_logprobs": entries, "input_top_logprobs": tops}
        return httpx.Response(200, json={"text": "", "meta_info": meta})

    server.routed = routed
    session = connect()
    assert session.describe_execution()["scoring"] == "sglang"
    assert_scores(session)
    assert_tops(session)


def own_routes(server: Any) -> dict[str, Any]:
    """Have the scripted server score as Evalution's; what is put into the result is answered."""
    planted: dict[str, Any] = {}
    honest = server.routed
    server.routes |= {"/eval/loglikelihood", "/eval/loglikelihood/rolling"}

    def routed(path: str, body: dict[str, Any]) -> httpx.Response:
        if "/eval/" not in path:
            return honest(path, body)
        before = body.get("context_input_ids") or [256]
        scored = body.get("continuation_input_ids") or [98]
        ids = [*before, *scored]
        rows = [server.table.row(ids[:at]) for at in range(len(before), len(ids))]
        values = [row[i] for row, i in zip(rows, scored, strict=True)]
        answer: dict[str, Any] = {"token_logprobs": values, "token_count": len(values)}
        if count := body.get("top_logprobs"):
            best = [sorted(enumerate(row), key=lambda pair: -pair[1])[:count] for row in rows]
            answer["top_logprobs"] = [{str(i): value for i, value in row} for row in best]
        return httpx.Response(200, json=answer | planted)

    server.routed = routed
    return planted


def test_a_wrong_answer_of_the_own_routes_is_left_out_or_named(
    connect: Callable[..., Any], server: Any
) -> None:
    server.owner, planted = "evalution", own_routes(server)
    session = connect(scoring="evalution")
    planted |= {"token_ids": "x", "prompt_tokens": [1, 2], "truncated_tokens": {}}
    (pair,) = session.loglikelihood([LoglikelihoodRequest("a", "b")])
    (text,) = session.loglikelihood_rolling([RollingLoglikelihoodRequest("b")])
    assert pair.token_count == text.token_count == 1
    assert pair.token_ids is pair.prompt_tokens is pair.truncated_tokens is text.token_ids is None
    planted["top_logprobs"] = [{"98": "x"}]
    for score, request in (
        (session.loglikelihood, LoglikelihoodRequest("a", "b", top_logprobs=1)),
        (session.loglikelihood_rolling, RollingLoglikelihoodRequest("b", top_logprobs=1)),
    ):
        with pytest.raises(EngineRuntimeError, match=r"^top_logprobs: value 0 of 1 is 'x'"):
            score([request])


def test_stepwise_scoring_is_used_only_with_stepwise_top(
    connect: Callable[..., Any], server: Any
) -> None:
    server.lie = nothing
    assert connect().describe_execution()["scoring"] is None
    session = connect(stepwise_top=300)
    assert session.describe_execution()["scoring"] == "stepwise"
    pairs, _ = expected_scores()
    for found, expected in zip(session.loglikelihood(PAIRS), pairs, strict=True):
        assert found.token_logprobs == pytest.approx(expected.token_logprobs, abs=1e-12)
        assert found.is_greedy == expected.is_greedy


def test_stepwise_scoring_lists_at_most_what_a_step_has(
    connect: Callable[..., Any], server: Any
) -> None:
    server.tokenizer.decode = lambda ids, **_: "".join(map(chr, ids))
    spell_ids(server, most=300)
    session = connect(scoring="stepwise", stepwise_top=260, dialect="vllm")
    assert_tops(session, "A short text.")  # a request a token
    with pytest.raises(
        UnsupportedRequestError, match=r"top_logprobs=261 is more than stepwise_top"
    ):
        session.loglikelihood([LoglikelihoodRequest("a", "b", top_logprobs=261)])


def test_unlisted_token_is_an_error(connect: Callable[..., Any], server: Any) -> None:
    server.lie = nothing
    session = connect(stepwise_top=300)
    honest = server.routed

    def lists_two(path: str, body: dict[str, Any]) -> httpx.Response:
        return honest(path, {**body, "logprobs": 2} if "logprobs" in body else body)

    server.routed = lists_two
    with pytest.raises(EngineRuntimeError, match=r"not among the .* stepwise_top"):
        session.loglikelihood([LoglikelihoodRequest("a", "\x01\x02")])


def test_without_a_tokenizer_there_are_no_ids_to_score(
    connect: Callable[..., Any], server: Any
) -> None:
    server.routes -= {"/tokenize", "/detokenize"}
    session = connect()
    assert Capability.TOKEN_IDS not in session.capabilities
    with pytest.raises(UnsupportedRequestError, match=r"no /tokenize .* set tokenizer_path to"):
        session.loglikelihood(PAIRS)
    local = connect(Model("scripted", tokenizer=ByteTokenizer()))
    assert local.describe_execution()["scoring"] == "echo"
    assert_scores(local)


def test_null_logprob_fails_its_own_request(connect: Callable[..., Any], server: Any) -> None:
    session = connect()
    server.lie = each(None)
    with pytest.raises(EngineRuntimeError, match="value 0 of 1 is None"):
        session.loglikelihood([LoglikelihoodRequest("a", "b")])


def test_scoring_none_sends_no_probe(connect: Callable[..., Any], server: Any) -> None:
    session = connect(scoring="none")
    assert not any("echo" in body for body in server.bodies("/completions"))
    with pytest.raises(UnsupportedRequestError, match="scoring='none'"):
        session.loglikelihood(PAIRS)
