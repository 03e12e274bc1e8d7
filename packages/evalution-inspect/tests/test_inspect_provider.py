"""The provider itself: sessions that are shared, tasks that give up, tools, retries."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from inspect_ai.model import (
    ChatMessageUser,
    ContentReasoning,
    GenerateConfig,
    get_model,
)
from inspect_ai.tool import ToolFunction

from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    SessionClosedError,
    UnsupportedRequestError,
)
from evalution_core.builtins import builtin_path
from evalution_inspect.models import MODEL_CACHE
from evalution_inspect.provider import ModelSetupError

pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore"),  # it is another project's code that warns
]


@pytest.fixture
def scripted_engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of that name."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return import_module("scripted_engine")


@pytest.fixture
def scripted(scripted_engine: Any) -> Callable[..., Any]:
    """Makes a model of Inspect on the engine `Scripted`, with the options that it is given."""
    return scripted_engine.scripted


def get_session(model: Any) -> Any:
    return model.api._loaded.session


def test_equal_models_share_a_session_until_the_last_closes(
    scripted: Any,
) -> None:
    gc.collect()  # a model of another test would share the session, and keep it open
    first, second, other = scripted(), scripted(role="grader"), scripted(batch_size=5)
    assert get_session(first) is get_session(second)
    assert get_session(first) is not get_session(other)
    assert first.api.connection_key() == second.api.connection_key()
    assert first.api.connection_key() != other.api.connection_key()
    session = get_session(first)
    first.api.close()
    first.api.close()
    assert session.preferred_batch_size == 4
    session.gc()
    second.api.close()
    with pytest.raises(SessionClosedError, match="is closed; build a new session"):
        session.gc()
    other.api.close()


def test_garbage_collected_model_closes_its_session(scripted: Any) -> None:
    model = scripted(batch_size=6)
    session = get_session(model)
    del model
    gc.collect()
    with pytest.raises(SessionClosedError, match="is closed; build a new session"):
        session.gc()
    assert not any(loaded.session is session for loaded in MODEL_CACHE._models)


@pytest.mark.parametrize(
    ("options", "connections"), [({}, 8), ({"batch_size": 40}, 80), ({"limit": 3}, 3)]
)
def test_connections_are_two_batches_within_the_engines_limit(
    scripted: Any, options: dict[str, int], connections: int
) -> None:
    model = scripted(**options)
    assert model.api.max_connections() == connections
    model.api.close()


def test_cancelled_task_cancels_its_request_alone(scripted: Any) -> None:
    model = scripted(batch_size=1)
    session = get_session(model)

    async def ask() -> str:
        endless = asyncio.create_task(model.generate("endless", config=GenerateConfig()))
        await asyncio.to_thread(session.begun.wait)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        # The one slot is free again, or this would wait for a million tokens.
        answer = await model.generate([ChatMessageUser(content="tool:")])
        return answer.completion

    assert asyncio.run(ask()) == "It is 7."
    model.api.close()


def test_agent_calls_a_tool_and_its_reasoning_is_separate(
    scripted_engine: Any, evaluate: Any
) -> None:
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.solver import generate, use_tools

    task = Task(
        dataset=[Sample(input="What is 3 + 4?")],
        solver=[use_tools(scripted_engine.add()), generate()],
    )
    log = evaluate(task, model="evalution/any", model_args={"engine": "Scripted"})
    assert log.status == "success", log.error
    asked, called, told, answered = log.samples[0].messages
    assert (asked.role, told.role, told.content) == ("user", "tool", "7")
    (call,) = called.tool_calls
    assert (call.function, call.arguments) == ("add", {"x": 3, "y": 4})
    assert log.samples[0].output.stop_reason == "stop"
    assert answered.text == "It is 7."
    (reasoning,) = (part for part in answered.content if isinstance(part, ContentReasoning))
    assert reasoning.reasoning == "now I know"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tool_choice": "any"}, "tool_choice='any' can't be enforced"),
        ({"tool_choice": ToolFunction("add")}, "can't be enforced; only 'auto' and 'none'"),
        ({"config": GenerateConfig(parallel_tool_calls=False)}, "parallel_tool_calls=False"),
    ],
)
def test_unenforceable_tool_settings_are_refused(
    scripted: Any, scripted_engine: Any, asked: dict[str, Any], said: str
) -> None:
    model = scripted()
    with pytest.raises(UnsupportedRequestError, match=said.replace("(", r"\(")):
        asyncio.run(model.generate("a", tools=[scripted_engine.add()], **asked))
    model.api.close()


def test_engine_without_tools_refuses_them(scripted: Any, scripted_engine: Any) -> None:
    model = scripted(lacks="tools")
    with pytest.raises(UnsupportedRequestError, match=r"tools \(add\) and engine Scripted lacks"):
        asyncio.run(model.generate("a", tools=[scripted_engine.add()]))
    model.api.close()


def test_template_decides_on_tools(scripted_engine: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), folder)
    source = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{{ messages[0].content }}"
    (folder / "chat_template.jinja").write_text(source)
    tools = [scripted_engine.add()]
    model = get_model(f"evalution/{folder}", engine="Reference", memoize=False)
    config = GenerateConfig(max_tokens=2)
    plain, given = (asyncio.run(model.generate("a", tools=t, config=config)) for t in ([], tools))
    assert given.usage is not None
    assert plain.usage is not None
    assert given.usage.input_tokens > plain.usage.input_tokens + 10
    model.api.close()
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(source)
    model = get_model(f"evalution/{folder}", engine="Reference", memoize=False)
    again = asyncio.run(model.generate("a", tools=tools, config=config))
    assert again.usage is not None
    assert again.usage.input_tokens == given.usage.input_tokens
    model.api.close()
    model = get_model("evalution/builtin:tiny", engine="Reference", memoize=False)
    with pytest.raises(UnsupportedRequestError, match="template doesn't know any"):
        asyncio.run(model.generate("a", tools=tools))
    model.api.close()


def test_chat_is_rendered_with_the_models_variables(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}{{ tone }}")
    model: Any = get_model(
        f"evalution/{folder}",
        engine="Reference",
        chat_template_kwargs={"tone": "!"},
        memoize=False,
    )
    assert model.api._loaded.model.chat_template_kwargs == {"tone": "!"}
    assert model.api._loaded.chat_template.render([{"content": "say"}]) == "say!"
    asyncio.run(model.generate("say"))
    model.api.close()


def test_model_without_a_chat_template_is_refused_with_advice(scripted: Any) -> None:
    with pytest.raises(ModelSetupError, match="no chat template; -M use_chat_template=false"):
        scripted(template=False)
    scripted(template=False, use_chat_template=False).api.close()


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("generate", "engine Scripted doesn't generate text, and Inspect needs that"),
        ("chat", "engine Scripted takes no chat messages with any; -M use_chat_template=false"),
    ],
)
def test_engine_without_generation_or_chat_is_refused(scripted: Any, lacks: str, said: str) -> None:
    before = list(MODEL_CACHE._models)
    with pytest.raises(ModelSetupError, match=said):
        scripted(lacks=lacks)
    assert list(MODEL_CACHE._models) == before


@pytest.mark.parametrize(
    ("lacks", "config", "said"),
    [
        ("loglikelihood", {"prompt_logprobs": 1}, "lacks the capability 'loglikelihood'"),
        ("token_ids", {"prompt_logprobs": 1}, "lacks the capability 'token_ids'"),
        (None, {"logprobs": True}, "it lacks the capability 'logprobs'"),
        ("sampling", {"temperature": 0.5}, "it lacks the capability 'sampling'"),
        ("seed", {"temperature": 0.5, "seed": 1}, "it lacks the capability 'seed'"),
    ],
)
def test_lacking_capability_is_named_in_the_refusal(
    scripted: Any, lacks: str | None, config: dict[str, Any], said: str
) -> None:
    model = scripted(lacks=lacks)
    with pytest.raises(UnsupportedRequestError, match=said):
        asyncio.run(model.generate("tool:", config=GenerateConfig(**config)))
    model.api.close()


def test_other_event_loops_than_asyncio_are_refused(scripted: Any) -> None:
    model = scripted()
    call = model.api.generate([ChatMessageUser(content="tool:")], [], "auto", GenerateConfig())
    with pytest.raises(ConfigurationError, match="set INSPECT_ASYNC_BACKEND=asyncio"):
        call.send(None)
    model.api.close()


def test_concurrent_prompts_are_scored_separately(scripted: Any, scripted_engine: Any) -> None:
    model = scripted()
    texts = ["ab"[length % 2] * length for length in range(1, 90)]

    async def ask() -> list[list[float]]:
        config = GenerateConfig(max_tokens=1, prompt_logprobs=1)
        outputs = await asyncio.gather(*(model.generate(text, config=config) for text in texts))
        return [
            [token.logprob for token in output.choices[0].prompt_logprobs.content]
            for output in outputs
        ]

    # All but BOS, which has nothing before it.
    expected = [[scripted_engine.value_of(i) for i in f"user:{text};".encode()] for text in texts]
    assert asyncio.run(ask()) == expected
    model.api.close()


def test_only_a_lost_connection_is_retried(scripted: Any) -> None:
    model = scripted()
    lost = EngineRuntimeError("given up")
    lost.__cause__ = httpx.ConnectError("refused")
    assert model.api.should_retry(lost)
    assert not model.api.should_retry(EngineRuntimeError("the runtime died"))
    assert not model.api.should_retry(httpx.ConnectError("refused"))
    model.api.close()


def test_text_is_encoded_by_the_models_tokenizer(scripted: Any) -> None:
    model = scripted()
    assert asyncio.run(model.api.tokenize("é")) == list("é".encode())
    assert asyncio.run(model.api.count_text_tokens("éé")) == 4
    model.api.close()


def test_too_few_connections_are_warned_of_once(
    scripted: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = scripted(batch_size=64)
    with caplog.at_level(logging.WARNING, logger="evalution_inspect"):
        for _ in range(2):
            asyncio.run(model.generate("tool:"))
    (warned,) = (r for r in caplog.records if r.name.startswith("evalution_inspect"))
    assert "--max-connections 128 keeps it busy" in warned.getMessage()
    model.api.close()
