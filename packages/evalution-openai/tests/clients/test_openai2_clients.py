"""LiteLLM and `llm`, which pin openai below 3, LangChain and Instructor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from evalution_core import BaseInferenceSession, GenerationRequest

pytest.importorskip("llm", reason="llm isn't installed; see tools/envs")
pytestmark = pytest.mark.wide
TEXT = "Tom has 3 apples and gets 4"
CHAT: Any = [{"role": "user", "content": "What is 3 + 4?"}]


class Answer(BaseModel):
    number: int


@pytest.fixture
def texts(tiny: BaseInferenceSession) -> tuple[str, str]:
    """What the session says to TEXT and to CHAT in eight tokens."""
    first, second = tiny.generate(
        [
            GenerationRequest(TEXT, max_new_tokens=8),
            GenerationRequest(messages=CHAT, max_new_tokens=8),
        ]
    )
    return first.text, second.text


# In a process of its own: it leaves an event loop open.
LITELLM = """
import json, sys
import litellm
url, text, chat = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
found = {}
for provider in ("openai", "hosted_vllm"):
    asked = {"model": f"{provider}/tiny", "api_base": url, "api_key": "none",
             "messages": chat, "max_tokens": 8, "temperature": 0}
    answer = litellm.completion(**asked)
    parts = litellm.completion(**asked, stream=True)
    found[provider] = {
        "whole": answer.choices[0].message.content,
        "streamed": "".join(part.choices[0].delta.content or "" for part in parts),
        "tokens": answer.usage.completion_tokens,
    }
scored = litellm.text_completion(
    model="text-completion-openai/tiny", api_base=url, api_key="none", prompt=text,
    max_tokens=1, echo=True, logprobs=1,
).choices[0]
found["scored"] = {"text": scored.text, "tokens": list(scored.logprobs.tokens),
                   "logprobs": list(scored.logprobs.token_logprobs)}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def by_litellm(url: str) -> dict[str, Any]:
    # Else it asks the network for prices when it is imported.
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [sys.executable, "-c", LITELLM, f"{url}/v1", TEXT, json.dumps(CHAT)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm_chats(by_litellm: dict[str, Any], texts: tuple[str, str], provider: str) -> None:
    found = by_litellm[provider]
    assert found["whole"] == found["streamed"] == texts[1]
    assert found["tokens"] > 0


def test_litellm_scores_by_echo(by_litellm: dict[str, Any]) -> None:
    found = by_litellm["scored"]
    assert found["text"].startswith(TEXT)
    assert len(found["logprobs"]) == len(found["tokens"])
    assert found["logprobs"][0] is None
    assert all(value <= 0 for value in found["logprobs"][1:])


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_llm_prompts(
    url: str, texts: tuple[str, str], tmp_path: Path, kind: str, streamed: bool
) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- {{model_id: tiny, model_name: tiny, api_base: {url}/v1, "
        f"completion: {str(kind == 'completion').lower()}}}\n"
    )
    prompt, expected = (TEXT, texts[0]) if kind == "completion" else (CHAT[0]["content"], texts[1])
    command = [
        sys.executable, "-m", "llm", "-m", "tiny", prompt, "-o", "max_tokens", "8",
        "--key", "none", "--no-log", *([] if streamed else ["--no-stream"]),
    ]  # fmt: skip
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == expected.rstrip("\n")


def test_langchain_chats_and_completes(url: str, texts: tuple[str, str]) -> None:
    from langchain_openai import ChatOpenAI, OpenAI

    asked: Any = {"model": "tiny", "base_url": f"{url}/v1", "api_key": "none", "temperature": 0}
    chat, completion = ChatOpenAI(**asked, max_tokens=8), OpenAI(**asked, max_tokens=8)
    question = CHAT[0]["content"]
    assert chat.invoke(question).content == texts[1]
    assert "".join(str(part.content) for part in chat.stream(question)) == texts[1]
    assert [answer.content for answer in chat.batch([question] * 2)] == [texts[1]] * 2
    assert completion.invoke(TEXT) == "".join(completion.stream(TEXT)) == texts[0]


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("json_schema", "ask for JSON in the prompt"),
        ("json_mode", "ask for JSON in the prompt"),
        ("function_calling", "describe them in a message"),
    ],
)
def test_structured_output_of_langchain_is_refused_with_advice(
    url: str, method: Any, advice: str
) -> None:
    from langchain_openai import ChatOpenAI
    from openai import BadRequestError

    chat = ChatOpenAI(model="tiny", base_url=f"{url}/v1", api_key="none")  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match=advice):
        chat.with_structured_output(Answer, method=method).invoke("What is 3 + 4?")


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        ("MD_JSON", "incomplete due to a max_tokens length limit"),  # it answers, if not JSON
        ("JSON", "ask for JSON in the prompt"),
        ("TOOLS", "describe them in a message"),
    ],
)
def test_instructor_reads_text_and_is_refused_constraints(
    url: str, mode: str, outcome: str
) -> None:
    import instructor
    import openai

    sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    client = instructor.from_openai(sdk, mode=instructor.Mode[mode])
    with pytest.raises(Exception, match=outcome):
        client.chat.completions.create(
            model="tiny", response_model=Answer, max_retries=0, max_tokens=8, messages=CHAT
        )
