"""Variables of the chat template: the server's own, a request's, and a client's of ours."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evalution_core import (
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    builtin_path,
    load_engine,
)
from evalution_openai import OpenAICompatible

CHAT = [{"role": "user", "content": "say"}]
TEMPLATE = (
    "{{ messages[0]['content'] }}{% if thinks is defined and not thinks %} quickly{% endif %}"
    "{{ tone }}{% if add_generation_prompt %}:{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a chat template that reads `thinks` and `tone`."""
    found = tmp_path_factory.mktemp("model") / "templated"
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), found)
    (found / "chat_template.jinja").write_text(TEMPLATE)
    return found


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[BaseInferenceSession]:
    model = Model(str(folder), chat_template_kwargs={"tone": " softly"})
    with load_engine("Reference")().build(model) as built:
        yield built


@pytest.fixture(scope="module")
def templated(serving: Any, session: BaseInferenceSession) -> httpx.Client:
    return serving(session=session, model_name="templated")


def prompt_of(client: httpx.Client, **fields: Any) -> str:
    body = {"messages": CHAT, "max_tokens": 1, "return_token_ids": True, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["prompt"]


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "say softly:"),
        ({"chat_template_kwargs": {}}, "say softly:"),
        ({"chat_template_kwargs": None}, "say softly:"),
        ({"chat_template_kwargs": {"thinks": False}}, "say quickly softly:"),
        ({"chat_template_kwargs": {"thinks": True, "tone": "!"}}, "say!:"),
        (
            {"chat_template_kwargs": {"thinks": False}, "add_generation_prompt": False},
            "say quickly softly",
        ),
    ],
)
def test_a_request_may_set_variables_besides_the_servers(
    templated: httpx.Client, fields: dict[str, Any], prompt: str
) -> None:
    assert prompt_of(templated, **fields) == prompt


def test_every_choice_and_a_stream_have_the_variables(
    templated: httpx.Client, session: BaseInferenceSession
) -> None:
    body = {"messages": CHAT, "max_tokens": 4, "chat_template_kwargs": {"thinks": False}}
    answer = templated.post("/v1/chat/completions", json={**body, "n": 2}).json()
    asked = GenerationRequest(rendered_prompt="say quickly softly:", max_new_tokens=4)
    (expected,) = session.generate([asked])
    assert [choice["message"]["content"] for choice in answer["choices"]] == [expected.text] * 2
    lines = templated.post("/v1/chat/completions", json={**body, "stream": True}).text.split("\n")
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    parts = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(parts) == expected.text


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"thinsk": False}, "reads no variable 'thinsk'; did you mean 'thinks'? (it reads: thinks"),
        ({"messages": []}, "may not set 'messages': a chat template is given that one anyway"),
    ],
)
def test_a_wrong_variable_of_a_request_is_told(
    templated: httpx.Client, variables: dict[str, Any], told: str
) -> None:
    body = {"messages": CHAT, "chat_template_kwargs": variables}
    answer = templated.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert told in error["message"]
    assert error["param"] == "chat_template_kwargs"


class Closed(BaseInferenceSession):
    """Renders chats by itself, and gives nobody its tokenizer."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.GENERATE, Capability.CHAT})

    def generate(self, requests: Any, *, batch_size: int | None = None) -> Any:
        return [GenerationOutput("", "x", r.metadata) for r in requests]

    def loglikelihood(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def gc(self) -> None: ...

    def close(self) -> None: ...


def test_a_session_that_keeps_its_template_to_itself_takes_none(serving: Any) -> None:
    client = serving(session=Closed())
    body = {"messages": CHAT, "chat_template_kwargs": {"thinks": False}}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "chat_template_kwargs of a request need the model's chat template, which this engine "
        "doesn't give; leave the field out"
    )


def test_a_client_of_ours_renders_with_the_servers_variables_and_its_own(
    templated: httpx.Client, session: BaseInferenceSession
) -> None:
    info = templated.get("/tokenizer_info").json()
    assert (info["chat_template"], info["chat_template_kwargs"]) == (TEMPLATE, {"tone": " softly"})
    asked = [GenerationRequest(messages=CHAT, max_new_tokens=1)]
    scored = [LoglikelihoodRequest(messages=CHAT, continuation=" it")]
    url = str(templated.base_url)
    for variables, api, prompt in (
        ({}, "completions", "say softly:"),
        ({"thinks": False}, "auto", "say quickly softly:"),
        ({"tone": "!"}, "auto", "say!:"),
    ):
        engine = OpenAICompatible.from_options({"base_url": url, "api": api})
        with engine.build(Model("templated", chat_template_kwargs=variables)) as remote:
            assert remote.generate(asked)[0].prompt == prompt
            (score,) = remote.loglikelihood(scored)
        (expected,) = session.loglikelihood([LoglikelihoodRequest(prompt, " it")])
        assert score.logprob == pytest.approx(expected.logprob, abs=1e-9)
    with pytest.raises(ConfigurationError, match="reads no variable 'x' "):
        OpenAICompatible(base_url=url).build(Model("templated", chat_template_kwargs={"x": 1}))
    engine = OpenAICompatible(base_url=url, api="chat")
    with engine.build(Model("templated", chat_template_kwargs={"thinks": False})) as remote:
        assert (
            remote.generate(asked)[0].text
            == session.generate(
                [GenerationRequest(rendered_prompt="say quickly softly:", max_new_tokens=1)]
            )[0].text
        )


def test_a_context_takes_no_variables_of_its_own(templated: httpx.Client) -> None:
    body = {"messages": CHAT, "continuation": "a", "chat_template_kwargs": {"thinks": False}}
    answer = templated.post("/v1/eval/loglikelihood", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "a context is rendered with the variables that the server was started with; leave "
        "chat_template_kwargs out, or send the rendered text as context"
    )
