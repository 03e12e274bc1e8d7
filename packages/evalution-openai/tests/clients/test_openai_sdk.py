"""OpenAI's own SDK: in step, asynchronous, streamed, and as a scorer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evalution_core import BaseInferenceSession, GenerationRequest, LoglikelihoodRequest

openai = pytest.importorskip("openai", reason="openai isn't installed; see tools/envs")
pytestmark = pytest.mark.wide

TEXT = "Tom has 3 apples and gets 4"
CHAT: Any = [{"role": "user", "content": "What is 3 + 4?"}]


@pytest.fixture
def sdk(url: str) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_model_is_listed(sdk: Any) -> None:
    assert [model.id for model in sdk.models.list()] == ["tiny"]
    assert sdk.models.retrieve("tiny").id == "tiny"


def test_answer_and_error_have_the_id_of_the_request(sdk: Any) -> None:
    headers = {"X-Request-Id": "trace-17"}
    answer = sdk.completions.create(model="tiny", prompt=TEXT, max_tokens=1, extra_headers=headers)
    assert answer._request_id == "trace-17"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("gpt-4")
    assert caught.value.request_id.startswith("req-")


def test_completions(sdk: Any, tiny: BaseInferenceSession) -> None:
    (expected,) = tiny.generate([GenerationRequest(TEXT, max_new_tokens=8)])
    answer = sdk.completions.create(model="tiny", prompt=TEXT, max_tokens=8)
    assert answer.choices[0].text == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.usage.completion_tokens == expected.completion_tokens
    parts = sdk.completions.create(model="tiny", prompt=TEXT, max_tokens=8, stream=True)
    assert "".join(part.choices[0].text for part in parts) == expected.text


def test_chat(sdk: Any, tiny: BaseInferenceSession) -> None:
    (expected,) = tiny.generate([GenerationRequest(messages=CHAT, max_new_tokens=8)])
    asked: dict[str, Any] = {"model": "tiny", "messages": CHAT, "max_completion_tokens": 8}
    answer = sdk.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == expected.text
    tokens = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in tokens) == expected.text
    assert all(len(entry.top_logprobs) == 2 for entry in tokens)
    options = {"include_usage": True}
    parts = list(sdk.chat.completions.create(**asked, stream=True, stream_options=options))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == expected.text
    assert parts[-1].usage.completion_tokens == expected.completion_tokens


def test_many_at_once(url: str, tiny: BaseInferenceSession) -> None:
    prompts = [f"Tom has {number} apples and" for number in range(12)]
    expected = tiny.generate([GenerationRequest(prompt, max_new_tokens=6) for prompt in prompts])

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:

            async def one(prompt: str) -> str:
                parts = await client.completions.create(
                    model="tiny", prompt=prompt, max_tokens=6, stream=True
                )
                return "".join([part.choices[0].text async for part in parts])

            return await asyncio.gather(*(one(prompt) for prompt in prompts))

    assert asyncio.run(ask()) == [output.text for output in expected]


def test_scores_by_echo(sdk: Any, tiny: BaseInferenceSession) -> None:
    token_ids = [40, 41, 42, 43, 44]
    request = LoglikelihoodRequest(
        context_input_ids=token_ids[:2], continuation_input_ids=token_ids[2:]
    )
    (expected,) = tiny.loglikelihood([request])
    answer = sdk.completions.create(
        model="tiny", prompt=token_ids, max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    lists = answer.choices[0].logprobs
    assert lists.token_logprobs[0] is None
    assert len(lists.tokens) == len(lists.top_logprobs) == len(lists.text_offset) == 6
    assert sum(lists.token_logprobs[2:5]) == pytest.approx(expected.logprob, abs=1e-4)


def test_errors_map_to_the_sdks_classes(sdk: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="not served here"):
        sdk.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.BadRequestError, match="max_model_len") as caught:
        sdk.completions.create(model="tiny", prompt="a" * 5000)
    assert caught.value.code == "context_length_exceeded"
