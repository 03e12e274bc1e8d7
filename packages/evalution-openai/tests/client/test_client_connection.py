"""Retries, waits, deadlines, credentials: no request lost, none asked for in vain."""

from __future__ import annotations

import gzip
import json
import logging
import re
import ssl
from collections.abc import Callable
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from evalution_core import (
    ConfigurationError,
    ContextLengthError,
    EngineRuntimeError,
    EngineUnavailableError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RequestFailure,
    UnsupportedRequestError,
)

REQUEST = GenerationRequest("The dog", max_new_tokens=4)
PATH = "/completions"
KEY = "sk-very-secret-4711"


@pytest.fixture
def session(connect: Callable[..., Any], server: Any) -> Any:
    session = connect(scoring="none", batch_size=1)
    session.generate([REQUEST])
    server.requests.clear()
    return session


@pytest.mark.parametrize("code", [408, 409, 429, 500, 502, 503, 504, 529])
def test_temporary_failure_is_retried(
    session: Any, server: Any, clock: Any, faulty: Any, code: int
) -> None:
    (expected,) = session.generate([REQUEST])
    server.fails(PATH, faulty(code), faulty(code))
    (output,) = session.generate([REQUEST])
    assert output == expected
    assert len(server.bodies(PATH)) == 1 + 3
    first, second = clock.slept
    assert 0.25 <= first <= 0.5 <= second <= 1.0, "waits double, each with jitter"


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("refused"),
        httpx.ReadError("reset"),
        httpx.ReadTimeout("slow"),
        httpx.DecodingError("damaged gzip"),
    ],
)
def test_failed_connection_is_retried(session: Any, server: Any, error: Exception) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    server.fails(PATH, fail)
    (output,) = session.generate([REQUEST])
    assert output.finish_reason == "length"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("date", 9.0),
        ("garbage", None),
        ("-3", None),
        ("Mon, 01 Jan 20260000000000000000000 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_obeyed(
    session: Any, server: Any, clock: Any, faulty: Any, value: str, seconds: float | None
) -> None:
    if value == "date":
        value = format_datetime(clock.today().replace(second=9), usegmt=True)
    server.fails(PATH, faulty(429, **{"Retry-After": value}))
    session.generate([REQUEST])
    (slept,) = clock.slept
    assert slept == pytest.approx(seconds) if seconds else 0.25 <= slept <= 0.5


def test_wait_beyond_the_deadline_is_not_started(
    connect: Callable[..., Any], server: Any, clock: Any, faulty: Any
) -> None:
    session = connect(scoring="none", deadline_s=60.0)
    server.fails(PATH, faulty(429, "busy", **{"Retry-After": "3600"}))
    with pytest.raises(EngineRuntimeError, match=r"429: busy; given up after 1 tries.*3600.*60"):
        session.generate([REQUEST])
    assert clock.slept == []


def test_retries_are_limited(connect: Callable[..., Any], server: Any, faulty: Any) -> None:
    session = connect(scoring="none", max_retries=2)
    server.requests.clear()
    server.fails(PATH, *[faulty(503, "no capacity")] * 9)
    with pytest.raises(EngineRuntimeError, match="503: no capacity; given up after 3 tries"):
        session.generate([REQUEST])
    assert len(server.bodies(PATH)) == 3


def test_retries_are_logged_once_for_all_requests(
    connect: Callable[..., Any], server: Any, faulty: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session = connect(scoring="none", batch_size=2)
    server.fails(PATH, *[faulty(500, "no luck")] * 5)
    session.generate([REQUEST] * 2)
    (line,) = caplog.messages
    pattern = r"/v1/completions answered 500: no luck; trying again in \d\.\d s, retry 2 of 5"
    assert re.fullmatch(pattern, line)


def test_a_refused_request_fails_alone(session: Any, server: Any, faulty: Any) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        bad = server.tokenizer.decode(body["prompt"]) == "bad"
        return faulty(400, "bad prompt")(request) if bad else server.routed(PATH, body)

    server.fails(PATH, *[answer] * 5)
    prompts = ["a", "b", "bad", "c", "d"]
    requests = ((p, GenerationRequest(p, max_new_tokens=2, metadata={"p": p})) for p in prompts)
    results = dict(session.generate_continuous(requests))
    assert sorted(results) == sorted(prompts)
    failure = results.pop("bad")
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, InvalidRequestError)
    assert "/v1/completions answered 400: bad prompt" in str(failure.error)
    assert failure.metadata == {"p": "bad"}
    assert not any(isinstance(result, RequestFailure) for result in results.values())
    server.fails(PATH, *[answer] * 2)
    with pytest.raises(InvalidRequestError, match=r"1 of 2 requests refused, .*: \[1\]") as caught:
        session.generate([GenerationRequest(p, max_new_tokens=2) for p in ("a", "bad")])
    assert set(caught.value.failures) == {1}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"message": "x", "code": "context_length_exceeded"}}, ContextLengthError),
        ({"message": "This model's maximum context length is 8"}, ContextLengthError),
        ({"error": {"message": "x", "code": "unsupported"}}, UnsupportedRequestError),
        ({"detail": [{"msg": "field required"}]}, InvalidRequestError),
        ({"error": "flat"}, InvalidRequestError),
    ],
)
def test_statuses_map_to_error_classes(
    session: Any, server: Any, body: dict[str, Any], kind: type[Exception]
) -> None:
    server.fails(PATH, lambda _: httpx.Response(400, json=body))
    with pytest.raises(kind) as caught:
        session.generate([REQUEST])
    assert type(caught.value) is kind


def test_unreachable_server_is_named(connect: Callable[..., Any], server: Any) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    server.fails("/models", *[refuse] * 9)
    with pytest.raises(
        EngineUnavailableError, match=r"no server answers at http://server\.test/v1"
    ):
        connect()


def test_a_key_that_is_not_accepted_stops_the_build(
    connect: Callable[..., Any], server: Any, faulty: Any
) -> None:
    server.fails("/models", faulty(401, f"wrong key {KEY}"))
    with pytest.raises(ConfigurationError, match=r"401: wrong key \*\*\*; set api_key") as caught:
        connect(api_key=KEY)
    assert KEY not in str(caught.value)


def test_403_is_about_the_key_until_a_request_was_answered(
    connect: Callable[..., Any], server: Any, faulty: Any
) -> None:
    server.fails("/models", faulty(403, "who are you"))
    with pytest.raises(ConfigurationError, match="403: who are you; set api_key"):
        connect()
    server.fails("/tokenize", faulty(403, "Missing Authentication Token"))  # a gateway's 404
    session = connect()
    assert session.describe_execution()["tokenizer"] is None
    server.fails(PATH, faulty(403, "flagged for violence"))
    with pytest.raises(InvalidRequestError, match="violence; it answered others, so it refuses"):
        session.generate([REQUEST])
    assert session.generate([REQUEST])


def test_route_of_special_tokens_may_be_refused(
    connect: Callable[..., Any], server: Any, faulty: Any
) -> None:
    server.fails("/tokenizer_info", faulty(403))
    assert connect().describe_execution()["tokenizer"] == "server"


def test_servers_tokenizer_is_asked_again_like_any_route(
    session: Any, server: Any, faulty: Any
) -> None:
    server.fails("/tokenize", *[faulty(502)] * 3)
    (output,) = session.generate([GenerationRequest("A new text", max_new_tokens=4)])
    assert output.finish_reason == "length"


def test_a_redirect_is_not_followed(session: Any, server: Any) -> None:
    elsewhere = httpx.Response(307, headers={"location": "https://elsewhere.test/v1/completions"})
    server.fails(PATH, lambda _: elsewhere)
    with pytest.raises(EngineRuntimeError, match=r"redirects to https://elsewhere\.test.*base_url"):
        session.generate([REQUEST])
    assert {request.url.host for request in server.requests} == {"server.test"}


def test_key_is_sent_and_never_shown(
    connect: Callable[..., Any],
    server: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("THE_KEY", KEY)
    header = "header-secret-0815"
    session = connect(
        scoring="none", api_key_env="THE_KEY", extra_headers={"X-Api-Key": header, "X-Job": "7"}
    )

    def parrot(request: httpx.Request) -> httpx.Response:
        said = f"{request.headers['authorization']} {request.headers['x-api-key']}"
        choice = {"text": said, "finish_reason": "stop", "stop_reason": said}
        return httpx.Response(200, json={"choices": [choice], "system_fingerprint": said})

    server.fails(PATH, parrot, lambda r: httpx.Response(400, text=r.headers["authorization"]))
    (output,) = session.generate([REQUEST])
    with pytest.raises(InvalidRequestError) as caught:
        session.generate([REQUEST])
    assert server.requests[-1].headers["x-job"] == "7"
    seen = repr(output) + str(caught.value) + json.dumps(session.describe_execution()) + caplog.text
    assert KEY not in seen
    assert header not in seen


def test_key_of_a_header_is_not_repeated_without_its_word(
    connect: Callable[..., Any], server: Any
) -> None:
    session = connect(extra_headers={"X-Authorization": f"Bearer {KEY}"})
    server.fails(PATH, lambda _: httpx.Response(400, text=f"wrong: {KEY}"))
    with pytest.raises(InvalidRequestError, match="wrong: ") as caught:
        session.generate([REQUEST])
    assert KEY not in str(caught.value)


def test_own_authorization_takes_the_place_of_the_keys(
    connect: Callable[..., Any], server: Any
) -> None:
    connect(api_key=KEY, extra_headers={"authorization": "Token other-key-123"})
    assert server.requests[0].headers.get_list("authorization") == ["Token other-key-123"]


@pytest.mark.parametrize("name", ["X-Ключ", "X Y", ""])
def test_name_that_no_header_can_have_is_refused(connect: Callable[..., Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match="which names no HTTP header: a name has letters"):
        connect(extra_headers={name: "value"})


def test_a_key_that_is_not_set_is_named(
    connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY_KEY", "\n")
    for name in ("NO_SUCH_KEY", "EMPTY_KEY"):
        with pytest.raises(ConfigurationError, match=f"'{name}', which isn't set"):
            connect(api_key_env=name)


def test_line_break_after_a_key_is_not_part_of_it(
    connect: Callable[..., Any], server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", f"{KEY}\n")
    connect(api_key_env="THE_KEY", extra_headers={"X-Api-Key": " header-secret-0815\n"})
    headers = server.requests[0].headers
    assert (headers["authorization"], headers["x-api-key"]) == (
        f"Bearer {KEY}",
        "header-secret-0815",
    )


@pytest.mark.parametrize("secret", [f"{KEY}\nsecond line", f"{KEY}é", f"{KEY}\x7f"])
@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("api_key", "^option 'api_key' of engine OpenAICompatible"),
        ("api_key_env", "^the key in THE_KEY"),
        ("extra_headers", r"^option 'extra_headers' \('X-Api-Key'\) of engine"),
    ],
)
def test_a_key_that_no_header_can_carry_is_refused_unshown(
    connect: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    named: str,
    secret: str,
) -> None:
    if option == "api_key_env":
        monkeypatch.setenv("THE_KEY", secret)
    given = {"api_key_env": "THE_KEY", "extra_headers": {"X-Api-Key": secret}}
    message = f"{named}.* has a line break or another .* (without it|to the key alone)"
    with pytest.raises(ConfigurationError, match=message) as caught:
        connect(**{option: given.get(option, secret)})
    assert KEY not in str(caught.value)


def test_429_lowers_what_is_in_flight_and_answers_raise_it(
    connect: Callable[..., Any], server: Any, faulty: Any
) -> None:
    session = connect(scoring="none", batch_size=8)
    assert session._loop.depth == 8
    server.fails(PATH, faulty(429, **{"Retry-After": "1"}))
    session.generate([REQUEST])
    assert session._loop.depth == 4
    session.generate([REQUEST] * 40)
    assert session._loop.depth == 8


@pytest.mark.parametrize("timings", [False, True])
@pytest.mark.parametrize("in_choice", [False, True])
def test_an_error_within_an_answer_is_one_of_its_status(
    connect: Callable[..., Any], server: Any, in_choice: bool, timings: bool
) -> None:
    session = connect(scoring="none", batch_size=8, timings=timings)

    def refuse(code: int) -> httpx.Response:
        error = {"error": {"code": code, "message": "said upstream"}}
        answer = {"choices": [{"text": "", "finish_reason": "error", **error}]}
        text = json.dumps(answer if in_choice else error)
        return httpx.Response(200, text=f"data: {text}\n\n" if timings else text)

    server.fails(PATH, lambda _: refuse(429), lambda _: refuse(502))
    (output,) = session.generate([REQUEST])
    assert output.finish_reason == "length"
    assert session._loop.depth == 4, "halved by the 429"
    server.fails(PATH, lambda _: refuse(400))
    with pytest.raises(InvalidRequestError, match="/v1/completions answered 400: said upstream"):
        session.generate([REQUEST])


def test_a_broken_answer_is_asked_for_again(session: Any, server: Any) -> None:
    server.fails(PATH, lambda _: httpx.Response(200, text='{"choices": [{"text": "ha'))
    (output,) = session.generate([REQUEST])
    assert output.finish_reason == "length"
    server.fails(PATH, *[lambda _: httpx.Response(200, text="<no html>")] * 9)
    with pytest.raises(EngineRuntimeError, match="JSON: '<no html>'; given up after 6 tries"):
        session.generate([REQUEST])


def test_requests_and_tokens_a_minute_are_kept(
    connect: Callable[..., Any], server: Any, clock: Any
) -> None:
    slow = connect(scoring="none", batch_size=1, requests_per_minute=30)
    before = clock.time
    slow.generate([REQUEST] * 11)
    assert clock.time - before == pytest.approx(22.0, abs=3.0), "30 a minute, /tokenize too"
    metered = connect(scoring="none", batch_size=1, tokens_per_minute=66)
    before = clock.time
    metered.generate([REQUEST] * 7)
    assert clock.time - before == pytest.approx(60.0, abs=12.0), "11 tokens a request"


@pytest.mark.parametrize("key", ["EMPTY", "anything", "not-needed"])
def test_key_that_is_a_word_is_not_removed_from_answers(
    connect: Callable[..., Any], server: Any, key: str
) -> None:
    session = connect(scoring="none", api_key=key, extra_headers={"X-Token-Mode": "text"})
    choice = {"text": f"{key} text", "finish_reason": "stop"}
    server.fails(PATH, lambda _: httpx.Response(200, json={"choices": [choice]}))
    (output,) = session.generate([REQUEST])
    assert output.text == f"{key} text"


def test_endless_answer_is_cut_off(
    session: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalution_openai.client import connection as connection

    monkeypatch.setattr(connection, "_LONGEST_ANSWER", 1000)
    bomb = httpx.Response(
        200, headers={"content-encoding": "gzip"}, content=gzip.compress(b" " * 1_000_000)
    )
    server.fails(PATH, lambda _: bomb)
    with pytest.raises(EngineRuntimeError, match="answered more than 1000 bytes"):
        session.generate([REQUEST])


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (
            ssl.SSLCertVerificationError(1, "CERTIFICATE_VERIFY_FAILED"),
            "the certificate isn't accepted .*set SSL_CERT_FILE",
        ),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), "WRONG_VERSION.* plain http"),
    ],
)
def test_tls_failure_is_reported_and_not_retried(
    connect: Callable[..., Any], server: Any, cause: ssl.SSLError, message: str
) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(str(cause)) from cause

    if isinstance(cause, ssl.SSLCertVerificationError):
        cause.verify_message = "self-signed certificate"
    server.fails("/models", fail)
    with pytest.raises(ConfigurationError, match=message):
        connect()
    assert len(server.requests) == 1


def test_tokens_that_a_stream_did_not_use_are_given_back(
    connect: Callable[..., Any], server: Any, clock: Any, as_stream: Any
) -> None:
    session = connect(scoring="none", batch_size=1, tokens_per_minute=200, timings=True)
    usage = {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}
    answer = {"choices": [{"text": "abc", "finish_reason": "stop"}], "usage": usage}
    server.fails(PATH, *[lambda _: as_stream(answer)] * 4)
    before = clock.time
    session.generate([GenerationRequest("The dog", max_new_tokens=200)] * 4)
    assert clock.time - before < 20.0, "11 tokens a request, where 208 were held back"


def test_scores_cost_tokens_too(connect: Callable[..., Any], clock: Any) -> None:
    session = connect(batch_size=1, tokens_per_minute=60)
    requests = [LoglikelihoodRequest("The dog", " runs")] * 8
    before = clock.time
    session.loglikelihood(requests)
    assert clock.time - before > 7 * 12.0, "12 ids a request, and one generated"
