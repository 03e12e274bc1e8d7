"""Clients that pin openai below 3: LiteLLM and `llm`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalution_core import BaseInferenceSession, GenerationRequest

pytest.importorskip("llm", reason="llm isn't installed; see tools/envs")
pytestmark = pytest.mark.wide
TEXT = "Tom has 3 apples and gets 4"
CHAT: Any = [{"role": "user", "content": "What is 3 + 4?"}]


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
