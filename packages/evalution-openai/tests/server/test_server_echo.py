"""Prompts scored by completions with echo: the form in which lm-eval and others ask for scores."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from evalution_core import BaseInferenceSession, LoglikelihoodRequest

TEXT = "Tom has 3 apples. How many apples does Tom have?"


def echoed(client: httpx.Client, prompt: Any, **body: Any) -> dict[str, Any]:
    asked = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, **body}
    answer = client.post("/v1/completions", json=asked)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice


def ids_of(client: httpx.Client, text: str) -> list[int]:
    return client.post("/tokenize", json={"prompt": text}).json()["tokens"]


def test_echo_lists_every_prompt_token_and_one_generated(client: httpx.Client) -> None:
    token_ids = ids_of(client, TEXT)
    lists = echoed(client, token_ids)["logprobs"]
    assert {len(entries) for entries in lists.values()} == {len(token_ids) + 1}
    assert lists["token_logprobs"][0] is None
    assert lists["top_logprobs"][0] is None
    assert all(value <= 0 for value in lists["token_logprobs"][1:])


def test_ids_to_score_without_bos_are_logged_once(
    serving: Any, tiny: BaseInferenceSession, caplog: pytest.LogCaptureFixture
) -> None:
    client = serving(session=tiny)
    token_ids = ids_of(client, TEXT)
    echoed(client, token_ids)
    echoed(client, TEXT)
    assert caplog.messages == []
    echoed(client, token_ids[1:])
    echoed(client, token_ids[1:])
    (message,) = caplog.messages
    assert f"came as ids that don't begin with {token_ids[:1]}" in message
    assert "tokenizer_backend=huggingface and add_bos_token=True" in message


@pytest.mark.parametrize("cut", [1, 3, 9])
def test_sums_and_greediness_are_the_sessions(
    client: httpx.Client, tiny: BaseInferenceSession, cut: int
) -> None:
    token_ids = ids_of(client, TEXT)
    lists = echoed(client, token_ids)["logprobs"]
    for end in range(cut + 1, len(token_ids) + 1):
        request = LoglikelihoodRequest(
            context_input_ids=token_ids[:cut], continuation_input_ids=token_ids[cut:end]
        )
        (expected,) = tiny.loglikelihood([request])
        values = lists["token_logprobs"][cut:end]
        assert sum(values) == pytest.approx(expected.logprob, abs=1e-9)
        best = [max(top.values()) for top in lists["top_logprobs"][cut:end]]
        assert (values == best) == expected.is_greedy


def test_the_listed_tokens_are_the_likeliest_and_the_own_one(
    client: httpx.Client, tiny: BaseInferenceSession
) -> None:
    token_ids = ids_of(client, TEXT)[:6]
    lists = echoed(client, token_ids, logprobs=3, return_tokens_as_token_ids=True)["logprobs"]
    size = client.get("/tokenizer_info").json()["vocabulary_size"]
    for at in range(1, len(token_ids)):
        everything = [
            LoglikelihoodRequest(
                context_input_ids=token_ids[:at], continuation_input_ids=[token_id]
            )
            for token_id in range(size)
        ]
        scores = [output.logprob for output in tiny.loglikelihood(everything)]
        best = sorted(range(size), key=lambda i: -scores[i])[:3]
        expected = {f"token_id:{i}": scores[i] for i in {*best, token_ids[at]}}
        # The likeliest are those of rows, in float32.
        assert lists["top_logprobs"][at] == pytest.approx(expected, abs=1e-6)


def test_echo_lists_a_generated_end_of_text(client: httpx.Client) -> None:
    asked = {"max_tokens": 60, "return_token_ids": True}
    for question in ("What is 3 + 4?", "What is 2 + 2?", "What is 1 + 5?"):
        chat = [{"role": "user", "content": question}]
        answer = client.post("/v1/chat/completions", json={"messages": chat, **asked})
        (whole,) = answer.json()["choices"]
        assert whole["finish_reason"] == "stop"
        prompt = whole["prompt_token_ids"] + whole["token_ids"]
        lists = echoed(client, prompt, return_tokens_as_token_ids=True)["logprobs"]
        assert len(lists["tokens"]) == len(prompt) + 1
        eos = client.get("/tokenizer_info").json()["eos_ids"]
        assert lists["tokens"][-1] in [f"token_id:{token_id}" for token_id in eos]
        assert lists["token_logprobs"][-1] is not None


def test_echo_without_new_tokens_returns_the_prompt(client: httpx.Client) -> None:
    choice = echoed(client, TEXT, max_tokens=0)
    assert choice["text"] == TEXT
    assert len(choice["logprobs"]["tokens"]) == len(ids_of(client, TEXT))
    bare = client.post("/v1/completions", json={"prompt": TEXT, "echo": True, "max_tokens": 0})
    assert bare.json()["choices"][0]["text"] == TEXT
    assert bare.json()["choices"][0]["logprobs"] is None


def test_text_and_ids_give_the_same_answer(client: httpx.Client) -> None:
    by_text, by_ids = echoed(client, TEXT), echoed(client, ids_of(client, TEXT))
    for name in ("tokens", "text_offset"):
        assert by_text["logprobs"][name] == by_ids["logprobs"][name]
    # The shape of a batch moves the last digits.
    found, expected = (each["logprobs"]["token_logprobs"][1:] for each in (by_text, by_ids))
    assert found == pytest.approx(expected, abs=1e-5)
    assert by_text["text"].startswith(TEXT)


def test_an_echo_can_be_streamed(client: httpx.Client) -> None:
    asked = {"prompt": TEXT, "echo": True, "max_tokens": 4}
    (whole,) = client.post("/v1/completions", json=asked).json()["choices"]
    lines = client.post("/v1/completions", json={**asked, "stream": True}).text.split("\n\n")
    parts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["text"]
    assert whole["text"].startswith(TEXT)


def test_many_prompts_are_scored_at_once(client: httpx.Client) -> None:
    prompts = [ids_of(client, TEXT)[:length] for length in (1, 2, 7)]
    asked = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1}
    choices = client.post("/v1/completions", json=asked).json()["choices"]
    for prompt, choice in zip(prompts, choices, strict=True):
        alone = echoed(client, prompt)["logprobs"]
        assert choice["logprobs"]["tokens"] == alone["tokens"]
        found = choice["logprobs"]["token_logprobs"][1:]
        assert found == pytest.approx(alone["token_logprobs"][1:], abs=1e-9)


@pytest.mark.parametrize("asked", [{"logprobs": 0}, {}])
@pytest.mark.parametrize("prompt", [[2_000_000], [[7, 8], [568]]])
def test_echo_of_an_id_outside_the_vocabulary_is_refused(
    client: httpx.Client, prompt: Any, asked: Any
) -> None:
    body = {"prompt": prompt, "echo": True, "max_tokens": 0, **asked}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    largest = 568 if isinstance(prompt[0], list) else 2_000_000
    assert message == f"token id {largest} is outside the vocabulary of 568 tokens"


def test_texts_of_as_many_tokens_as_a_vocabulary_has_are_kept(
    mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalution_openai.server import serving
    from evalution_openai.server.settings import ServerSettings

    monkeypatch.setattr(serving, "_MOST_SPELLED", 3)
    served = serving.ServedModel(mock, "mock", ServerSettings(), serving.Metrics(lambda: None))
    assert "".join(map(served.spell, [97, 98, 99, 100, 97, 101, 102])) == "abcdaef"
    assert len(served._spelled) <= 3  # pyright: ignore[reportPrivateUsage]
