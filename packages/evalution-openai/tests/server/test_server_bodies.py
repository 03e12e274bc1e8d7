"""Bodies that would cost the server much: they are refused before or while they are parsed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from evalution_core import BaseInferenceSession, GenerationRequest, LoglikelihoodRequest


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("ChatBody", b'{"messages":[%s{"role":"a"}]}' % (b'{"role":"a"},' * 70_000)),
        ("ChatBody", b'{"messages":[{"role":"a","content":[%s]}]}' % (b'{"type":"a"},' * 70_000)),
        ("ChatBody", b'{"messages":[{"role":"a"}],"tools":[%s{}]}' % (b"{}," * 200_000)),
        ("LoglikelihoodBody", b'{"requests":[%s{}]}' % (b"{}," * 200_000)),
        ("LoglikelihoodBody", b'{"messages":[{"role":%s1}]}' % (b"[" * 200_001)),
        ("RollingBody", b'{"requests":["%s"]}' % (b'","' * 200_000)),
        ("CompletionBody", b'{%s"prompt":"a"}' % (b'"x":1,' * 200_000)),
        ("CompletionBody", b'{"logit_bias":{%s"x":1}}' % (b'"x":1,' * 200_000)),
        ("CompletionBody", b'{"prompt":[%s1]}' % (b"1," * 3_000_000)),
    ],
)
def test_body_of_which_too_much_would_be_made_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch, kind: str, body: bytes
) -> None:
    from evalution_openai.server import bodies
    from evalution_openai.server.errors import ApiError
    from evalution_openai.server.json_route import _parse_body

    monkeypatch.setattr(bodies.Body, "parse", None)
    most = "3000000 values" if b"prompt" in body[:9] else "200000 objects, lists and strings, "
    with pytest.raises(ApiError, match=f"^the request's body has more than the {most}") as found:
        _parse_body(getattr(bodies, kind), body)
    assert found.value.status == 400
    assert found.value.answer["error"]["code"] == "body_too_complex"
    assert str(found.value).endswith("that this server takes; send it in parts")


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        (b'{"prompt": ["a", "b"]}', True),
        (b'{"prompt": ["a", "b", "c"]}', False),
        (b'{"prompt": [[1, 2, 3, 4, 5, 6, 7, 8], [9]]}', True),
        (b'{"prompt": [[1], [2], [3]]}', False),
        (rb'{"prompt": "{[{[ \"{\" [[[ \\"}', True),
        (rb'{"prompt": "\\", "x": [{}, 1]}', False),
        (b'{"prompt": ["a", "{{{{{{{', True),
        (b'{"prompt": "' + rb"\"" * 100_000, True),
        (b'"\\', True),
        (b"[1,2,3,4,5,6,7]", True),
        (b"[1,2,3,4,5,6,7,8,9,10,11]", False),
        (b'"1,2,3,4,5,6,7,8,9,10,11"', True),
    ],
)
def test_text_of_a_body_is_no_structure(
    monkeypatch: pytest.MonkeyPatch, body: bytes, passes: bool
) -> None:
    from evalution_openai.server import json_route
    from evalution_openai.server.errors import ApiError

    monkeypatch.setattr(json_route, "_MOST_PARTS", 5)
    monkeypatch.setattr(json_route, "_MOST_VALUES", 10)
    if passes:
        json_route._check_parts(body)
    else:
        with pytest.raises(
            ApiError, match=r"more than the (5 objects, lists and strings|10 values)"
        ):
            json_route._check_parts(body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("ChatBody", {"messages": [{"role": "a"}], "tools": [1] * 10}),
        ("ChatBody", {"messages": [1] * 10}),
        ("ChatBody", {"messages": [{"role": "a", "content": [1] * 10}]}),
        ("LoglikelihoodBody", {"requests": [1] * 10}),
        ("RollingBody", {"input_ids": ["a"] * 10}),
        ("DetokenizeBody", {"tokens": ["a"] * 10}),
    ],
)
def test_wrong_list_is_one_error(kind: str, body: Any) -> None:
    from evalution_openai.server import bodies

    with pytest.raises(ValidationError) as found:
        getattr(bodies, kind).parse(json.dumps(body).encode())
    assert found.value.error_count() <= 2  # the content of a message may be a text too


def test_bias_of_many_tokens_is_refused_as_one(client: httpx.Client) -> None:
    bias = {str(i): "wrong" for i in range(1000)}
    answer = client.post("/v1/completions", json={"prompt": "a", "logit_bias": bias})
    assert answer.json()["error"]["code"] == "unsupported"
    message = answer.json()["error"]["message"]
    assert message.startswith("logit_bias={'0': 'wrong', ")
    assert len(message) < 200


class Watched(list[int]):
    """Counts what is read of it."""

    read = 0

    def __iter__(self) -> Iterator[int]:
        for item in super().__iter__():
            self.read += 1
            yield item


def test_a_text_that_is_too_long_is_counted_up_to_the_limit(mock: BaseInferenceSession) -> None:
    from evalution_openai.server.errors import ApiError
    from evalution_openai.server.serving import Metrics, ServedModel
    from evalution_openai.server.settings import ServerSettings

    served = ServedModel(mock, "mock", ServerSettings(max_text=20), Metrics(lambda: None))
    for make in (
        lambda messages: GenerationRequest(messages=messages),
        lambda messages: LoglikelihoodRequest("", "", messages=messages),
    ):
        listed = Watched(range(1000))
        with pytest.raises(ApiError, match=r"^a text of at least 21 characters or token ids is"):
            served.check_request(make([{"role": "user", "x": [listed]}]))
        assert listed.read <= 21
