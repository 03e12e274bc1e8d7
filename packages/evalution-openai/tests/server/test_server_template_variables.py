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
    load_engine,
)
from evalution_core.builtins import builtin_path
from evalution_enginekit import ByteTokenizer, ChatTemplate
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
def separated(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `folder` with a template that prints special tokens."""
    found = tmp_path_factory.mktemp("model") / "separated"
    shutil.copytree(folder, found)
    (found / "chat_template.jinja").write_text(
        "{{ messages[0]['content'] }}{{ sep_token }}{{ tone }}{{ pad_token }}{{ unk_token }}:"
    )
    settings = found / "tokenizer_config.json"
    config = json.loads(settings.read_text()) if settings.is_file() else {}
    settings.write_text(json.dumps({**config, "sep_token": "####", "unk_token": {"content": "?"}}))
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


@pytest.mark.parametrize("gives", [None, ByteTokenizer(has_template=False)])
def test_a_client_of_ours_is_refused_where_no_request_may_have_variables(
    serving: Any, gives: ByteTokenizer | None
) -> None:
    session = Closed()
    if gives is not None:
        session.tokenizer = gives  # pyright: ignore[reportAttributeAccessIssue]
    client = serving(session=session, model_name="closed")
    if gives is not None:
        assert client.get("/tokenizer_info").json()["special_tokens"] is None
    url = str(client.base_url)
    own = ByteTokenizer()
    own.chat_template = ChatTemplate(TEMPLATE)
    variables = {"thinks": False}
    for tokenizer, api in ((None, "auto"), (None, "chat"), (own, "chat")):
        engine = OpenAICompatible.from_options({"base_url": url, "api": api})
        with pytest.raises(ConfigurationError) as caught:
            engine.build(Model("closed", tokenizer=tokenizer, chat_template_kwargs=variables))
        assert str(caught.value) == (
            "engine OpenAICompatible takes no model.chat_template_kwargs: the server renders the "
            "chat, and its engine gives it no chat template to render with variables of a request; "
            "start the server with these chat_template_kwargs, or with an engine that gives its "
            "chat template, or set tokenizer_path and api='completions' so that chats are rendered "
            "here"
        )
        engine.build(Model("closed", tokenizer=tokenizer)).close()
    for api in ("auto", "completions"):
        engine = OpenAICompatible.from_options({"base_url": url, "api": api})
        model = Model("closed", tokenizer=own, chat_template_kwargs=variables)
        engine.build(model).close()


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


def test_a_client_of_ours_renders_with_all_special_tokens_of_the_server(
    serving: Any, separated: Path
) -> None:
    asked = [GenerationRequest(messages=CHAT, max_new_tokens=1)]
    model = Model(str(separated), chat_template_kwargs={"tone": " softly"})
    with load_engine("Reference")().build(model) as session:
        client = serving(session=session, model_name="separated")
        told = client.get("/tokenizer_info").json()["special_tokens"]
        assert (told["sep_token"], told["unk_token"]) == ("####", "?")
        pad = told.get("pad_token", "")
        (expected,) = session.generate(asked)
        assert expected.prompt == f"say#### softly{pad}?:"
        url = str(client.base_url)
        for variables, tone in (({}, " softly"), ({"tone": "!"}, "!")):
            engine = OpenAICompatible(base_url=url, api="completions")
            with engine.build(Model("separated", chat_template_kwargs=variables)) as remote:
                assert remote.generate(asked)[0].prompt == f"say####{tone}{pad}?:"


OWN_VARIABLES = (
    "a context is rendered with the variables that the server was started with; leave "
    "chat_template_kwargs out, or send the rendered text as context"
)


@pytest.mark.parametrize(
    "context",
    [
        {"messages": CHAT, "continuation": "a"},
        {"requests": [{"messages": CHAT, "continuation": "a"}]},
        {"requests": []},
    ],
)
def test_a_context_takes_no_variables_of_its_own(
    templated: httpx.Client, context: dict[str, Any]
) -> None:
    body = {**context, "chat_template_kwargs": {"thinks": False}}
    answer = templated.post("/v1/eval/loglikelihood", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"] == OWN_VARIABLES
    assert (error["code"], error["param"]) == ("unsupported", "chat_template_kwargs")
    without = templated.post("/v1/eval/loglikelihood", json={**body, "chat_template_kwargs": {}})
    assert without.status_code == 200


def test_variables_of_one_context_fail_that_one_alone(templated: httpx.Client) -> None:
    one = {"messages": CHAT, "continuation": "a"}
    wrong = {**one, "chat_template_kwargs": {"thinks": False}}
    answer = templated.post("/v1/eval/loglikelihood", json={"requests": [one, wrong, one]})
    assert answer.status_code == 200, answer.text
    first, refused, last = answer.json()["results"]
    assert refused["error"]["message"] == OWN_VARIABLES
    assert refused["error"]["code"] == "unsupported"
    alone = templated.post("/v1/eval/loglikelihood", json=one).json()
    assert first["logprob"] == last["logprob"] == pytest.approx(alone["logprob"], abs=1e-9)
