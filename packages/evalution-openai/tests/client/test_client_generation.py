"""What is sent for a request, and what is made of an answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from evalution_core import (
    Capability,
    ConfigurationError,
    ContextLengthError,
    EngineRuntimeError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    TextDelta,
    UnsupportedRequestError,
)
from evalution_enginekit import ByteTokenizer
from evalution_openai.client.responses import ResponseReader

CHAT = [{"role": "user", "content": "Hi?"}]


def answering(**choice: Any) -> Callable[[httpx.Request], httpx.Response]:
    whole = {"finish_reason": "stop", **choice}
    return lambda _: httpx.Response(200, json={"choices": [whole]})


def last_body(server: Any, path: str) -> dict[str, Any]:
    return server.bodies(path)[-1]


@pytest.fixture
def textual(connect: Callable[..., Any], server: Any) -> Any:
    """A session on a server without tokenizer routes."""
    server.routes -= {"/tokenize", "/detokenize"}
    return connect()


def test_text_and_messages_go_as_they_are(textual: Any, server: Any) -> None:
    text, chat = textual.generate(
        [
            GenerationRequest("Hello", max_new_tokens=3),
            GenerationRequest(messages=CHAT, max_new_tokens=3),
        ]
    )
    sent = last_body(server, "v1/completions")
    assert (sent["prompt"], sent["max_tokens"], sent["temperature"]) == ("Hello", 3, 0.0)
    assert sent["model"] == "scripted"
    assert "seed" not in sent
    assert last_body(server, "/chat/completions")["messages"] == CHAT
    assert text.prompt == "Hello"
    assert chat.prompt == '[{"role": "user", "content": "Hi?"}]'
    assert (text.prompt_tokens, text.completion_tokens, text.finish_reason) == (5, 3, "length")


def test_fields_that_a_server_ignores_are_refused(textual: Any, connect: Any, server: Any) -> None:
    for request, named in (
        (GenerationRequest(messages=CHAT, add_generation_prompt=False), "add_generation_prompt"),
        (GenerationRequest("a", num_beams=2), "num_beams=2"),
        (GenerationRequest(input_ids=[1, 2]), "input_ids"),
        (GenerationRequest("a", ignore_eos=True), "ignore_eos"),
        (GenerationRequest("a", logprobs=1), "logprobs=1"),
        (GenerationRequest(messages=CHAT, tools=[{"type": "function"}]), "tools"),
        (GenerationRequest("a", truncation="error"), "truncation='error'"),
    ):
        with pytest.raises(UnsupportedRequestError, match=named):
            textual.generate([request])
    server.owner = "vllm"
    open_end = GenerationRequest(messages=CHAT, add_generation_prompt=False, max_new_tokens=2)
    connect().generate([open_end])
    assert last_body(server, "/chat/completions")["add_generation_prompt"] is False


def test_sampling_is_asked_for_by_name(textual: Any, server: Any) -> None:
    request = GenerationRequest(
        "a", max_new_tokens=1, do_sample=True, temperature=0.7, top_p=0.9, top_k=5
    )
    textual.generate([request])
    sent = last_body(server, "v1/completions")
    assert (sent["temperature"], sent["top_p"], sent["top_k"]) == (0.7, 0.9, 5)
    with pytest.raises(UnsupportedRequestError, match="seed=1"):
        textual.generate([GenerationRequest("a", do_sample=True, temperature=1.0, seed=1)])


def test_extra_stop_strings_are_matched_by_the_client(textual: Any, server: Any) -> None:
    (whole,) = textual.generate([GenerationRequest("a", max_new_tokens=12)])
    stops = ["\x00", "\x01", "\x02", "\x03", whole.text[6:8]]
    (cut,) = textual.generate([GenerationRequest("a", max_new_tokens=12, stop=stops)])
    assert last_body(server, "v1/completions")["stop"] == stops[:4]
    assert cut.text == whole.text[: whole.text.find(stops[-1])]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        *(("stop", "stop"), ("length", "length"), ("content_filter", "stop")),
        *(("tool_calls", "stop"), ("model_length", "length"), ("MAX_TOKENS", "length")),
    ],
)
def test_finish_reasons_are_the_contracts(textual: Any, server: Any, sent: str, found: str) -> None:
    server.fails("/completions", answering(text="x", finish_reason=sent))
    (output,) = textual.generate([GenerationRequest("a")])
    assert output.finish_reason == found
    assert output.runtime["finish_reason"] == sent


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("abort", r"aborted the completion: .*'abort'"),
        ("insufficient_system_resource", "aborted the completion"),
        ({"a": 1}, r"that is no text: {'a': 1}"),
    ],
)
def test_aborted_completion_is_a_failure(
    textual: Any, server: Any, reason: Any, message: str
) -> None:
    server.fails("/completions", answering(text="half", finish_reason=reason))
    with pytest.raises(EngineRuntimeError, match=message):
        textual.generate([GenerationRequest("a")])


def test_null_content_is_empty_text_and_reasoning_is_separate(textual: Any, server: Any) -> None:
    call = [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]
    message = {"content": None, "reasoning_content": "hm", "tool_calls": call}
    server.fails("/chat/completions", answering(message=message, finish_reason="tool_calls"))
    (output,) = textual.generate([GenerationRequest(messages=CHAT)])
    assert output.text == ""
    assert output.runtime["reasoning"] == "hm"
    assert output.runtime["tool_calls"] == call
    server.fails("/completions", answering(text=["no", "text"]))
    with pytest.raises(EngineRuntimeError, match="the answer's text is not a string"):
        textual.generate([GenerationRequest("a")])
    server.fails("/completions", lambda _: httpx.Response(200, json={"choices": []}))
    with pytest.raises(EngineRuntimeError, match="has no choice"):
        textual.generate([GenerationRequest("a")])


def test_streams_give_deltas_and_timings(textual: Any, server: Any) -> None:
    (expected,) = textual.generate([GenerationRequest("Hello", max_new_tokens=9)])
    asked = [(n, GenerationRequest("Hello", max_new_tokens=9)) for n in range(3)]
    texts = dict.fromkeys(range(3), "")
    outputs: dict[int, Any] = {}
    for key, event in textual.stream(asked):
        if isinstance(event, TextDelta):
            texts[key] += event.text
        else:
            outputs[key] = event
    assert set(texts.values()) == {expected.text}
    for output in outputs.values():
        assert (output.text, output.completion_tokens) == (expected.text, 9)
        assert output.runtime.keys() == {"finish_reason", "first_text_s", "total_s"}
    assert last_body(server, "v1/completions")["stream_options"] == {"include_usage": True}


def test_reasoning_of_a_stream_is_joined(connect: Callable[..., Any], server: Any) -> None:
    server.routes -= {"/tokenize"}
    session = connect(timings=True)
    deltas = [{"reasoning_content": "h"}, {"reasoning_content": "m"}, {"content": "Yes"}]
    events = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    lines = "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in events)
    server.fails("/chat/completions", lambda _: httpx.Response(200, text=f": hello\n\n{lines}"))
    (output,) = session.generate([GenerationRequest(messages=CHAT)])
    assert (output.text, output.runtime["reasoning"]) == ("Yes", "hm")


def test_stream_that_breaks_off_after_text_is_a_failure(
    textual: Any, server: Any, as_stream: Any
) -> None:
    choice = {"text": "half a", "finish_reason": "stop"}
    broken = as_stream({"choices": [choice], "usage": {}}, ends=False)
    server.fails("/completions", lambda _: broken)
    (*deltas, (_, failure)) = textual.stream([(0, GenerationRequest("a"))])
    assert "".join(event.text for _, event in deltas) == "half a"
    assert isinstance(failure, RequestFailure)
    assert "before [DONE]; the stream broke off" in str(failure.error)


def test_line_separator_within_a_text_does_not_end_the_line(textual: Any, server: Any) -> None:
    event = {"choices": [{"text": "a\u2028b\x85", "finish_reason": "stop"}]}
    text = f"data: {json.dumps(event, ensure_ascii=False)}\n\ndata: [DONE]\n\n"
    server.fails("/completions", lambda _: httpx.Response(200, text=text))
    (_, output) = list(textual.stream([(0, GenerationRequest("a"))]))[-1]
    assert output.text == "a\u2028b\x85"
    assert len(server.bodies("/completions")) == 1


@pytest.mark.parametrize("line", [b"dat\xff: {}", b"d: {}", b'data: {"choices": "\xff"}'])
def test_damaged_line_of_a_stream_is_not_passed_over(
    textual: Any, server: Any, line: bytes
) -> None:
    events = b'data: {"choices": [{"text": "hi", "finish_reason": null}]}\n\n' + line
    whole = events + b"\n\ndata: [DONE]\n\n"
    server.fails("/completions", lambda _: httpx.Response(200, content=whole))
    (_, (_, failure)) = textual.stream([(0, GenerationRequest("a"))])
    assert isinstance(failure, RequestFailure)
    assert "/v1/completions" in str(failure.error)
    assert "the stream broke off after its beginning was handed on" in str(failure.error)


def test_error_event_fails_the_request(textual: Any, server: Any) -> None:
    text = 'data: {"error": {"message": "too long", "type": "invalid_request_error"}}\n\n'
    server.fails("/completions", lambda _: httpx.Response(200, text=text))
    ((_, failure),) = textual.stream([(0, GenerationRequest("a"))])
    assert isinstance(failure.error, InvalidRequestError)
    assert "too long" in str(failure.error)


def test_stream_that_fails_before_text_is_retried(textual: Any, server: Any) -> None:
    text = 'data: {"error": {"message": "busy", "code": 503}}\n\n'
    server.fails("/completions", lambda _: httpx.Response(200, text=text))
    events = list(textual.stream([(0, GenerationRequest("a", max_new_tokens=4))]))
    assert events[-1][1].finish_reason == "length"


@pytest.mark.parametrize(
    "event", ['{"choices": {"a": 1}}', '{"choices": ["a", null]}', "[" * 100_000]
)
def test_malformed_event_fails_the_request(textual: Any, server: Any, event: str) -> None:
    answers = [lambda _: httpx.Response(200, text=f"data: {event}\n\n")] * 99
    server.fails("/completions", *answers)
    *_, (_, failure) = textual.stream([(0, GenerationRequest("a"))])
    assert isinstance(failure.error, EngineRuntimeError)
    assert "/completions " in str(failure.error)


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": [{"t": 1}]},
        {"tokens": ["5"], "token_logprobs": [-1], "top_logprobs": [{"token_id:5": "a"}]},
        {"tokens": ["5"], "token_logprobs": [-1], "top_logprobs": [{"token_id:5": math.nan}]},
        {"tokens": ["5"], "token_logprobs": [-1], "top_logprobs": [{"token_id:5": 5.0}]},
    ],
)
def test_malformed_log_probabilities_are_named(logprobs: Any) -> None:
    choice = {"text": "a", "logprobs": logprobs}
    with pytest.raises(EngineRuntimeError, match="the answer's log-probabilities are none: "):
        ResponseReader(1).read_event({"choices": [choice]})


def test_null_error_in_an_event_is_ignored(textual: Any, server: Any) -> None:
    event = {"error": None, "choices": [{"text": "hi", "finish_reason": "stop"}]}
    text = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"
    server.fails("/completions", lambda _: httpx.Response(200, text=text))
    (_, delta), (_, output) = textual.stream([(0, GenerationRequest("a"))])
    assert (delta.text, output.text) == ("hi", "hi")


def test_answering_model_is_reported(textual: Any, server: Any) -> None:
    answer = {"model": "another", "choices": [{"text": "hi", "finish_reason": "stop"}]}
    server.fails("/completions", lambda _: httpx.Response(200, json=answer))
    (output,) = textual.generate([GenerationRequest("a")])
    assert output.runtime["model"] == "another"


def test_extra_body_takes_precedence_and_null_removes(
    connect: Callable[..., Any], server: Any
) -> None:
    server.routes -= {"/tokenize"}
    session = connect(extra_body={"provider": {"order": ["x"]}, "temperature": None}, api="chat")
    session.generate([GenerationRequest(messages=CHAT, max_new_tokens=2)])
    sent = last_body(server, "/chat/completions")
    assert sent["provider"] == {"order": ["x"]}
    assert "temperature" not in sent


def test_chat_api_accepts_messages_only(connect: Callable[..., Any]) -> None:
    session = connect(api="chat")
    assert Capability.LOGLIKELIHOOD not in session.capabilities
    with pytest.raises(UnsupportedRequestError, match="api='chat' a request needs messages"):
        session.generate([GenerationRequest("plain text")])
    with pytest.raises(InvalidRequestError, match="needs input_ids, rendered_prompt"):
        session.generate([GenerationRequest()])


def test_completions_render_chat_here_or_not_at_all(
    connect: Callable[..., Any], server: Any
) -> None:
    session = connect(Model("scripted", tokenizer=ByteTokenizer()), api="completions")
    (output,) = session.generate([GenerationRequest(messages=CHAT, max_new_tokens=2)])
    assert output.prompt == "<user>Hi?<assistant>"
    server.routes -= {"/tokenize"}
    with pytest.raises(UnsupportedRequestError, match="lacks the capability 'chat'"):
        connect(api="completions").generate([GenerationRequest(messages=CHAT)])


def test_openai_dialect_uses_its_own_field_names(connect: Callable[..., Any], server: Any) -> None:
    session = connect(dialect="openai", scoring="none")
    session.generate([GenerationRequest(messages=CHAT, max_new_tokens=2)])
    sent = last_body(server, "/chat/completions")
    assert sent["max_completion_tokens"] == 2
    assert "max_tokens" not in sent
    assert not server.bodies("/tokenize")


def test_a_local_tokenizer_renders_encodes_and_cuts(
    connect: Callable[..., Any], server: Any
) -> None:
    session = connect(Model("scripted", tokenizer=ByteTokenizer()))
    messages = GenerationRequest(messages=CHAT, max_new_tokens=2)
    long = GenerationRequest("x" * 400, max_new_tokens=4)
    rendered, cut = session.generate([messages, long])
    assert rendered.prompt == "<user>Hi?<assistant>"
    assert not server.bodies("/chat/completions")
    assert cut.truncated_tokens == 401 - (session.info.max_model_len - 4)
    assert len(last_body(server, "v1/completions")["prompt"]) in (7, session.info.max_model_len - 4)
    with pytest.raises(ContextLengthError, match="forbids a cut"):
        session.generate([GenerationRequest("x" * 400, max_new_tokens=4, truncation="error")])
    bare = connect(Model("scripted", tokenizer=ByteTokenizer(has_template=False)))
    with pytest.raises(InvalidRequestError, match="need a chat template"):
        bare.generate([messages])


@pytest.mark.parametrize(("usage", "takes"), [([1], True), ({"prompt_tokens": 3}, False)])
def test_use_of_ids_is_read_from_the_usage_if_there_is_any(
    connect: Callable[..., Any], server: Any, usage: Any, takes: bool
) -> None:
    answer = {"choices": [{"text": "a", "finish_reason": "stop"}], "usage": usage}
    server.fails("/completions", lambda _: httpx.Response(200, json=answer))
    session = connect(scoring="none")
    assert (Capability.TOKEN_IDS in session.capabilities) == takes


def test_server_side_template_is_rendered_to_ids(connect: Callable[..., Any], server: Any) -> None:
    server.has_template = True
    session = connect()
    closed = GenerationRequest(messages=CHAT, max_new_tokens=2, add_generation_prompt=False)
    (opened, ended) = session.generate([GenerationRequest(messages=CHAT, max_new_tokens=2), closed])
    assert (opened.prompt, ended.prompt) == ("<user>Hi?<assistant>", "<user>Hi?")
    assert not server.bodies("/chat/completions")
    given, text = session.loglikelihood(
        [
            LoglikelihoodRequest(continuation="Yes", messages=CHAT),
            LoglikelihoodRequest(opened.prompt, "Yes"),
        ]
    )
    assert given.token_logprobs == text.token_logprobs


def test_chat_whose_text_has_other_ids_goes_to_the_chat_route(
    connect: Callable[..., Any], server: Any
) -> None:
    """Llama 2's text has a space after each special token, which is encoded as one more."""
    server.has_template = True
    server.fails("/detokenize", lambda _: httpx.Response(200, json={"prompt": "<user> Hi there!"}))
    session = connect()
    (output,) = session.generate([GenerationRequest(messages=CHAT, max_new_tokens=2)])
    assert last_body(server, "/chat/completions")["messages"] == CHAT
    assert output.finish_reason == "length"


def test_chat_whose_text_alone_has_other_ids_is_refused(
    connect: Callable[..., Any], server: Any
) -> None:
    """Tokenizers that clean up spaces spoil some texts and no others."""
    server.has_template = True
    session = connect()
    server.fails("/detokenize", lambda _: httpx.Response(200, json={"prompt": "<user>Hi,"}))
    chat = [GenerationRequest(messages=[{"role": "user", "content": "Hi ,"}], max_new_tokens=2)]
    with pytest.raises(
        UnsupportedRequestError, match=r"encodes to others.*set tokenizer_path.*api"
    ):
        session.generate(chat)
    (output,) = session.generate(chat)
    assert output.prompt == "<user>Hi ,<assistant>"


def test_ids_from_vllm_are_decoded_by_the_local_tokenizer(
    connect: Callable[..., Any], server: Any
) -> None:
    server.owner = "vllm"
    session = connect(Model("scripted", tokenizer=ByteTokenizer()), scoring="none")
    assert {Capability.LOGPROBS, Capability.IGNORE_EOS, Capability.SEED} <= session.capabilities
    ids = [104, 105, 33, 257]
    logprobs = {
        "tokens": [f"token_id:{i}" for i in ids],
        "token_logprobs": [-0.1, -0.2, -0.3, -0.4],
        "top_logprobs": [
            {f"token_id:{i}": -0.1, "token_id:9": -3.0, "token_id:8": -4.0} for i in ids
        ],
    }
    server.fails("/completions", answering(text="hi!", token_ids=ids, logprobs=logprobs))
    (output,) = session.generate([GenerationRequest("a", max_new_tokens=9, logprobs=2, stop=["!"])])
    sent = last_body(server, "v1/completions")
    assert sent["return_token_ids"] is sent["return_tokens_as_token_ids"] is True
    assert (output.text, output.token_ids, output.finish_reason) == ("hi", [104, 105], "stop")
    assert output.token_logprobs == [-0.1, -0.2]
    assert output.top_logprobs == [{104: -0.1, 9: -3.0}, {105: -0.1, 9: -3.0}]
    server.fails("/completions", answering(text="hi!", token_ids=ids))
    (output,) = session.generate([GenerationRequest("a", max_new_tokens=9)])
    assert (output.text, output.token_ids) == ("hi!", [104, 105, 33])
    without = connect(scoring="none")
    assert Capability.LOGPROBS not in without.capabilities
    server.fails("/completions", answering(text="hi!", token_ids=ids))
    (output,) = without.generate([GenerationRequest("a", max_new_tokens=9)])
    assert (output.text, output.token_ids) == ("hi!", None)


@pytest.mark.parametrize("timings", [False, True])
def test_a_chat_of_vllm_is_its_text_and_not_its_ids(
    connect: Callable[..., Any], server: Any, timings: bool
) -> None:
    """Its ids include the reasoning, and the first event of its stream has none."""
    server.owner = "vllm"
    model = Model("scripted", tokenizer=ByteTokenizer())
    session = connect(model, api="chat", timings=timings)
    message = {"content": "hi", "reasoning_content": "hm"}
    events: list[dict[str, Any]] = [
        {"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
        {"delta": {"reasoning_content": "hm"}, "finish_reason": None, "token_ids": [104, 109]},
        {"delta": {"content": "hi"}, "finish_reason": "stop", "token_ids": [104, 105]},
    ]
    lines = "".join(f"data: {json.dumps({'choices': [event]})}\n\n" for event in events)
    server.fails(
        "/chat/completions",
        (lambda _: httpx.Response(200, text=f"{lines}data: [DONE]\n\n"))
        if timings
        else answering(message=message, token_ids=[104, 109, 104, 105]),
    )
    (output,) = session.generate([GenerationRequest(messages=CHAT, max_new_tokens=9)])
    assert (output.text, output.runtime["reasoning"]) == ("hi", "hm")
    assert output.token_ids is None


def test_finish_reason_in_each_event_ends_no_text(textual: Any, server: Any) -> None:
    events = [{"choices": [{"text": t, "finish_reason": "stop"}]} for t in ("It ", "is", " 42")]
    lines = "".join(f"data: {json.dumps(event)}\n\ndata: \n\n" for event in events)
    server.fails("/completions", lambda _: httpx.Response(200, text=f"{lines}data: [DONE]\n\n"))
    *deltas, (_, output) = textual.stream([(0, GenerationRequest("a"))])
    assert (output.text, output.finish_reason) == ("It is 42", "stop")
    assert "".join(delta.text for _, delta in deltas) == "It is 42"


@pytest.mark.parametrize("choice", [{"index": 0}, {"message": None}, {"delta": {"content": "4"}}])
def test_choice_without_text_is_no_empty_answer(textual: Any, server: Any, choice: Any) -> None:
    answer = {"choices": [{**choice, "finish_reason": "stop"}]}
    server.fails("/completions", lambda _: httpx.Response(200, json=answer))
    with pytest.raises(EngineRuntimeError, match="the choice has no text and no message"):
        textual.generate([GenerationRequest("a")])


@pytest.mark.parametrize("timings", [False, True])
def test_prompt_that_the_server_cuts_is_a_failure(
    connect: Callable[..., Any], server: Any, as_stream: Any, timings: bool
) -> None:
    session = connect(scoring="none", timings=timings)
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    answer = {"choices": [{"text": "abc", "finish_reason": "stop"}], "usage": usage}
    made = as_stream if timings else (lambda answer: httpx.Response(200, json=answer))
    server.fails("/completions", lambda _: made(answer))
    with pytest.raises(EngineRuntimeError, match=r"8 ids were sent and the server fed 3.*max_mod"):
        session.generate([GenerationRequest("The dog", max_new_tokens=8)])


@pytest.mark.parametrize("choice", [{"text": "42"}, {"message": {"content": "42"}}])
def test_whole_answer_in_place_of_a_stream_is_read(textual: Any, server: Any, choice: Any) -> None:
    server.fails("/completions", answering(**choice))
    *_, (_, output) = textual.stream([(0, GenerationRequest("a"))])
    assert (output.text, output.finish_reason) == ("42", "stop")


def test_error_in_place_of_a_stream_is_the_servers_own(textual: Any, server: Any) -> None:
    error = {"error": {"message": "maximum context length is 9", "code": 400}}
    server.fails("/completions", lambda _: httpx.Response(200, json=error))
    ((_, failure),) = textual.stream([(0, GenerationRequest("a"))])
    assert isinstance(failure.error, ContextLengthError)


def test_empty_finish_reason_ends_no_stream(textual: Any, server: Any) -> None:
    pieces = [("He", ""), ("llo", ""), ("!", "length")]
    events = [{"choices": [{"text": text, "finish_reason": why}]} for text, why in pieces]
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    server.fails("/completions", lambda _: httpx.Response(200, text=f"{lines}data: [DONE]\n\n"))
    *_, (_, output) = textual.stream([(0, GenerationRequest("a"))])
    assert (output.text, output.finish_reason) == ("Hello!", "length")


def test_model_name_is_the_given_or_the_first_listed_one(
    connect: Callable[..., Any], server: Any
) -> None:
    for session, name in (
        (connect(Model()), "scripted"),
        (connect(Model("other"), allow_unlisted=True), "other"),
        (connect(Model("other"), model_name="scripted"), "scripted"),
    ):
        session.generate([GenerationRequest("a", max_new_tokens=1)])
        assert last_body(server, "v1/completions")["model"] == name
    server.routes -= {"/models"}
    with pytest.raises(ConfigurationError, match=r"lists no model; set model.path or model_name"):
        connect(Model())


def test_a_window_beyond_the_servers_is_refused(connect: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="max_model_len=999 is more than the 256"):
        connect(max_model_len=999)
    assert connect(max_model_len=64).info.max_model_len == 64


@pytest.mark.parametrize(("batch_size", "most"), [("auto", 64), (None, 64), (3, 3), (0, 1)])
def test_batch_size_bounds_the_requests_in_flight(connect: Any, batch_size: Any, most: int) -> None:
    session = connect(scoring="none", batch_size=batch_size)
    assert session.info.preferred_batch_size == most
    requests = [GenerationRequest(f"a {number}", max_new_tokens=2) for number in range(20)]
    assert len(session.generate(requests)) == 20
