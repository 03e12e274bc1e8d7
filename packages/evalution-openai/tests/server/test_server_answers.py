"""What each route answers, in the shapes that OpenAI's clients read."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

from evalution_core import (
    BaseInferenceSession,
    GenerationRequest,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
)

TEXT = "Tom has 3 apples and gets 4"
CHAT = [{"role": "user", "content": "What is 3 + 4?"}]


def posted(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(client: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = client.post(path, json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def text_of(found: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(
        choice.get("text") or choice.get("delta", {}).get("content", "")
        for chunk in found
        for choice in chunk["choices"]
        if choice["index"] == index
    )


def test_models_route_lists_window_and_capabilities(client: httpx.Client, tiny: Any) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert model["id"] == "tiny"
    assert model["owned_by"] == "evalution"
    assert model["max_model_len"] == tiny.info.max_model_len
    assert model["dtype"] == "float64"
    assert "loglikelihood" in model["capabilities"]


def test_model_is_found_by_its_name(
    client: httpx.Client, serving: Any, mock: BaseInferenceSession
) -> None:
    assert client.get("/v1/models/tiny").json() == client.get("/v1/models").json()["data"][0]
    with_slash = serving(session=mock, model_name="org/mock")
    for spelled in ("org/mock", "org%2Fmock"):
        assert with_slash.get(f"/v1/models/{spelled}").json()["id"] == "org/mock"
    refused = client.get("/v1/models/gpt-4")
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"
    assert "this server has 'tiny'" in refused.json()["error"]["message"]


def test_answers_and_log_have_the_id_of_the_request(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "evalution_openai.server")
    for path, body in (("/tokenize", {"prompt": "a"}), ("/tokenize", {}), ("/none", {})):
        answer = client.post(path, json=body, headers={"X-Request-Id": "trace-17"})
        assert answer.headers["x-request-id"] == "trace-17"
        assert " ms trace-17" in caplog.messages[-1]
    made = {
        client.get("/health", headers=headers).headers["x-request-id"]
        for headers in ({}, {"X-Request-Id": "a b"}, {"X-Request-Id": "a" * 201})
    }
    assert len(made) == 3
    assert all(one.startswith("req-") for one in made)


def test_completion_equals_the_sessions_output(
    client: httpx.Client, tiny: BaseInferenceSession
) -> None:
    (expected,) = tiny.generate([GenerationRequest(TEXT, max_new_tokens=8)])
    answer = posted(client, "/v1/completions", prompt=TEXT, max_tokens=8)
    (choice,) = answer["choices"]
    assert choice["text"] == expected.text
    assert choice["finish_reason"] == expected.finish_reason
    assert answer["object"] == "text_completion"
    assert answer["usage"] == {
        "prompt_tokens": expected.prompt_tokens,
        "completion_tokens": expected.completion_tokens,
        "total_tokens": (expected.prompt_tokens or 0) + (expected.completion_tokens or 0),
    }


def test_texts_and_ids_are_answered_in_order(client: httpx.Client) -> None:
    texts = ["Tom has", "What is 3", "A red"]
    ids = [posted(client, "/tokenize", prompt=text)["tokens"] for text in texts]
    alone = [
        posted(client, "/v1/completions", prompt=text, max_tokens=6)["choices"][0]["text"]
        for text in texts
    ]
    for prompt in (texts, ids):
        choices = posted(client, "/v1/completions", prompt=prompt, max_tokens=6, n=2)["choices"]
        assert [choice["index"] for choice in choices] == list(range(6))
        assert [choice["text"] for choice in choices] == [text for text in alone for _ in range(2)]
    (single,) = posted(client, "/v1/completions", prompt=ids[0], max_tokens=6)["choices"]
    assert single["text"] == alone[0]


def test_a_prompt_counts_once_for_all_its_choices(client: httpx.Client) -> None:
    once = posted(client, "/v1/completions", prompt=TEXT, max_tokens=2, ignore_eos=True)["usage"]
    thrice = posted(client, "/v1/completions", prompt=TEXT, max_tokens=2, n=3, ignore_eos=True)
    assert thrice["usage"]["prompt_tokens"] == once["prompt_tokens"]
    assert thrice["usage"]["completion_tokens"] == 6


def test_a_seed_gives_the_same_sample_and_others_for_other_choices(client: httpx.Client) -> None:
    asked = {"prompt": TEXT, "max_tokens": 12, "temperature": 2.0, "seed": 5, "n": 3}
    first, second = (posted(client, "/v1/completions", **asked)["choices"] for _ in range(2))
    assert [choice["text"] for choice in first] == [choice["text"] for choice in second]
    assert len({choice["text"] for choice in first}) > 1


def test_a_stop_string_ends_the_text(client: httpx.Client) -> None:
    whole = posted(client, "/v1/completions", prompt=TEXT, max_tokens=12)["choices"][0]["text"]
    stop = whole[4:6]
    for asked in (stop, [stop, "never"]):
        (choice,) = posted(client, "/v1/completions", prompt=TEXT, max_tokens=12, stop=asked)[
            "choices"
        ]
        assert choice["text"] == whole[: whole.index(stop)]
        assert choice["finish_reason"] == "stop"


def test_null_is_absent(client: httpx.Client) -> None:
    plain = posted(client, "/v1/completions", prompt=TEXT)
    nulls = dict.fromkeys(["max_tokens", "stop", "n", "seed", "logprobs", "stream", "logit_bias"])
    assert posted(client, "/v1/completions", prompt=TEXT, **nulls)["choices"] == plain["choices"]


def test_stream_joins_to_the_whole_answer(client: httpx.Client) -> None:
    whole = posted(client, "/v1/completions", prompt=TEXT, max_tokens=9)
    found = chunks(
        client, "/v1/completions", prompt=TEXT, max_tokens=9, stream_options={"include_usage": True}
    )
    assert text_of(found) == whole["choices"][0]["text"]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == whole["usage"]
    reasons = [choice["finish_reason"] for chunk in found for choice in chunk["choices"]]
    assert reasons[-1] == whole["choices"][0]["finish_reason"]
    assert set(reasons[:-1]) == {None}
    assert len({chunk["id"] for chunk in found}) == 1


def test_a_stream_without_the_option_has_no_usage(client: httpx.Client) -> None:
    found = chunks(client, "/v1/completions", prompt=TEXT, max_tokens=2)
    assert found
    assert all(chunk["choices"] and "usage" not in chunk for chunk in found)


def test_stream_has_token_ids_with_the_text(
    client: httpx.Client, tiny: BaseInferenceSession
) -> None:
    (expected,) = tiny.generate([GenerationRequest(TEXT, max_new_tokens=9)])
    asked = {"prompt": TEXT, "max_tokens": 9, "return_token_ids": True}
    (choice,) = posted(client, "/v1/completions", **asked)["choices"]
    assert choice["token_ids"] == expected.token_ids
    assert choice["prompt"] == expected.prompt
    assert choice["truncated_tokens"] == 0
    assert choice["prompt_token_ids"] == posted(client, "/tokenize", prompt=TEXT)["tokens"]
    streamed = [c for chunk in chunks(client, "/v1/completions", **asked) for c in chunk["choices"]]
    assert [i for part in streamed for i in part["token_ids"]] == expected.token_ids
    assert streamed[-1]["prompt_token_ids"] == choice["prompt_token_ids"]


def test_long_prompt_is_cut_only_with_truncation_left(client: httpx.Client, tiny: Any) -> None:
    token_ids = [40] * tiny.info.max_model_len
    asked = {"prompt": token_ids, "max_tokens": 4, "return_token_ids": True}
    refused = client.post("/v1/completions", json=asked)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    (choice,) = posted(client, "/v1/completions", **asked, truncation="left")["choices"]
    assert choice["truncated_tokens"] == 4
    assert choice["prompt_token_ids"] == token_ids[4:]


def test_chat_takes_texts_and_parts(client: httpx.Client, tiny: BaseInferenceSession) -> None:
    (expected,) = tiny.generate([GenerationRequest(messages=CHAT, max_new_tokens=6)])
    parts = [{"role": "user", "content": [{"type": "text", "text": CHAT[0]["content"]}]}]
    for messages in (CHAT, parts):
        answer = posted(client, "/v1/chat/completions", messages=messages, max_tokens=6)
        assert answer["object"] == "chat.completion"
        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": expected.text}
        assert choice["finish_reason"] == expected.finish_reason


def test_max_completion_tokens_takes_precedence(client: httpx.Client) -> None:
    limits = {"max_tokens": 9, "max_completion_tokens": 2, "ignore_eos": True}
    answer = posted(client, "/v1/chat/completions", messages=CHAT, **limits)
    assert answer["usage"]["completion_tokens"] == 2


def test_a_chat_stream_begins_with_the_role(client: httpx.Client) -> None:
    asked = {"messages": CHAT, "max_tokens": 6}
    whole = posted(client, "/v1/chat/completions", **asked)
    found = chunks(client, "/v1/chat/completions", **asked, stream_options={"include_usage": True})
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert found[0]["object"] == "chat.completion.chunk"
    assert text_of(found) == whole["choices"][0]["message"]["content"]
    assert found[-1]["usage"] == whole["usage"]


def test_chat_logprobs_are_those_of_the_session(
    client: httpx.Client, tiny: BaseInferenceSession
) -> None:
    (expected,) = tiny.generate([GenerationRequest(messages=CHAT, max_new_tokens=4, logprobs=3)])
    asked = {"messages": CHAT, "max_tokens": 4, "logprobs": True, "top_logprobs": 3}
    (choice,) = posted(client, "/v1/chat/completions", **asked)["choices"]
    content = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == expected.token_logprobs
    assert all(len(entry["top_logprobs"]) == 3 for entry in content)
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in content)
    streamed = [c for chunk in chunks(client, "/v1/chat/completions", **asked)
                for c in chunk["choices"] if c["logprobs"]]  # fmt: skip
    assert [part["logprobs"]["content"] for part in streamed] == [content]


def test_a_part_of_a_character_is_spelled_as_its_id(
    serving: Any, mock: BaseInferenceSession
) -> None:
    body = {"prompt": [195, 164], "echo": True, "logprobs": 1, "max_tokens": 0}
    (choice,) = posted(serving(session=mock), "/v1/completions", **body)["choices"]
    assert choice["text"] == "ä"
    assert choice["logprobs"]["tokens"] == ["token_id:195", "token_id:164"]
    assert len(choice["logprobs"]["top_logprobs"][1]) == 2, "no two of them read alike"


def test_tokens_can_be_spelled_as_ids(client: httpx.Client) -> None:
    asked = {"prompt": TEXT, "max_tokens": 3, "logprobs": 2, "return_token_ids": True}
    (choice,) = posted(client, "/v1/completions", **asked, return_tokens_as_token_ids=True)[
        "choices"
    ]
    spelled = [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == spelled
    tops = zip(spelled, choice["logprobs"]["top_logprobs"], strict=True)
    assert all(token in top and len(top) >= 2 for token, top in tops)


def test_score_equals_the_sessions(client: httpx.Client, tiny: BaseInferenceSession) -> None:
    (expected,) = tiny.loglikelihood([LoglikelihoodRequest(TEXT, " more.")])
    answer = posted(client, "/v1/eval/loglikelihood", context=TEXT, continuation=" more.")
    assert answer["logprob"] == pytest.approx(expected.logprob, abs=1e-9)
    assert answer["is_greedy"] == expected.is_greedy
    assert answer["token_ids"] == expected.token_ids
    assert answer["token_count"] == len(answer["token_logprobs"]) == expected.token_count
    assert answer["prompt_tokens"] == expected.prompt_tokens


def test_a_batch_answers_in_order_and_a_bad_request_fails_alone(client: httpx.Client) -> None:
    items = [
        {"context": TEXT, "continuation": " 3"},
        {"context": TEXT},
        {"context_input_ids": [40, 41], "continuation_input_ids": [42]},
        {"context": TEXT, "continuation_input_ids": [10**6]},
    ]
    results = posted(client, "/v1/eval/loglikelihood", requests=items)["results"]
    assert [sorted(result) == ["error"] for result in results] == [False, True, False, True]
    alone = posted(client, "/v1/eval/loglikelihood", **items[0])
    assert results[0]["logprob"] == pytest.approx(alone["logprob"], abs=1e-9)
    assert "continuation is empty" in results[1]["error"]["message"]
    assert "outside the vocabulary" in results[3]["error"]["message"]


def test_scores_list_the_likeliest_tokens_by_id(
    client: httpx.Client, tiny: BaseInferenceSession
) -> None:
    pair = LoglikelihoodRequest(TEXT, " more.", top_logprobs=3)
    text = RollingLoglikelihoodRequest(TEXT, top_logprobs=2)
    (expected,), (rolled,) = tiny.loglikelihood([pair]), tiny.loglikelihood_rolling([text])
    asked = {"context": TEXT, "continuation": " more.", "top_logprobs": 3}
    for path, body, right in (
        ("/v1/eval/loglikelihood", asked, expected),
        ("/v1/eval/loglikelihood/rolling", {"text": TEXT, "top_logprobs": 2}, rolled),
    ):
        for top, wanted in zip(
            posted(client, path, **body)["top_logprobs"], right.top_logprobs or (), strict=True
        ):
            assert [int(i) for i in top] == list(wanted)
            assert list(top.values()) == pytest.approx(list(wanted.values()), abs=1e-6)
    assert "top_logprobs" not in posted(client, "/v1/eval/loglikelihood/rolling", text=TEXT)


def test_likeliest_tokens_are_refused_beyond_memory_or_by_an_engine_without_them(
    client: httpx.Client, serving: Any, mock_without_rows: BaseInferenceSession
) -> None:
    asked = {"text": "a" * 8001, "top_logprobs": 1000}
    refused = client.post("/v1/eval/loglikelihood/rolling", json=asked)
    assert refused.status_code == 400
    assert "more than the 8000000 that one answer may have" in refused.json()["error"]["message"]
    asked = {"context": "a", "continuation": "b", "top_logprobs": 2}
    refused = serving(session=mock_without_rows).post("/v1/eval/loglikelihood", json=asked)
    assert refused.json()["error"]["code"] == "unsupported"
    assert "can't do top_logprobs=2" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/eval/loglikelihood/rolling", "/v1/eval/rolling"])
def test_a_text_is_scored_as_a_whole(
    client: httpx.Client, tiny: BaseInferenceSession, path: str
) -> None:
    (expected,) = tiny.loglikelihood_rolling([RollingLoglikelihoodRequest(TEXT)])
    answer = posted(client, path, text=TEXT)
    assert answer["logprob"] == pytest.approx(expected.logprob, abs=1e-9)
    assert answer["token_ids"] == expected.token_ids
    results = posted(client, path, requests=[{"text": TEXT}, {"text": ""}])["results"]
    assert results[0]["token_count"] == expected.token_count
    assert "text is empty" in results[1]["error"]["message"]


def test_tokenize_and_detokenize_are_inverse(client: httpx.Client) -> None:
    found = posted(client, "/tokenize", prompt=TEXT, add_special_tokens=False)
    assert found["count"] == len(found["tokens"])
    assert posted(client, "/detokenize", tokens=found["tokens"])["prompt"] == TEXT
    info = client.get("/tokenizer_info").json()
    leading = posted(client, "/tokenize", prompt=TEXT)["tokens"]
    assert leading == [*info["leading_ids"], *found["tokens"]]
    assert posted(client, "/detokenize", tokens=[info["eos_id"]])["prompt"] == info["eos_token"]
    skipped = posted(client, "/detokenize", tokens=[info["eos_id"]], skip_special_tokens=True)
    assert skipped["prompt"] == ""
    assert "messages" in info["chat_template"]


def test_metrics_count_what_was_asked(client: httpx.Client) -> None:
    def figure(name: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return math.fsum(float(line.split()[-1]) for line in lines if line.startswith(name))

    names = 'evalution_requests_total{route="/v1/completions"', 'evalution_tokens_total{kind="comp'
    before = [figure(name) for name in names]
    posted(client, "/v1/completions", prompt=TEXT, max_tokens=3, ignore_eos=True)
    assert [figure(name) for name in names] == [before[0] + 1, before[1] + 3]
    body = {"messages": CHAT, "max_tokens": 4, "ignore_eos": True}
    chunks(client, "/v1/chat/completions", **body)
    assert figure(names[1]) == before[1] + 7, "a stream counts, whether it tells its usage or not"
    assert figure("evalution_requests_inside") == 0


def test_the_document_names_every_route(client: httpx.Client) -> None:
    told = client.get("/openapi.json").json()
    assert told["openapi"].startswith("3.1")
    assert set(told["paths"]) == {
        "/health", "/metrics", "/v1/models", "/v1/models/{model}", "/v1/completions",
        "/v1/chat/completions", "/v1/eval/loglikelihood", "/v1/eval/loglikelihood/rolling",
        "/tokenize", "/detokenize", "/tokenizer_info",
    }  # fmt: skip
