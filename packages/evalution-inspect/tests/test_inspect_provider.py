"""The provider itself: sessions that are shared, tasks that give up, tools, retries."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import httpx
import pytest
from inspect_ai.model import (
    ChatMessageUser,
    ContentReasoning,
    GenerateConfig,
    get_model,
)
from inspect_ai.tool import Tool, ToolFunction, tool

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    EngineRuntimeError,
    Model,
    SessionClosedError,
    UnsupportedRequestError,
    neutral,
    register_engine,
)
from evalution_enginekit import ChatTemplate, TokenEvent, TokenFeed, TokenScore, TokenSession
from evalution_enginekit.byte_tokenizer import ByteTokenizer
from evalution_enginekit.scheduling import refill
from evalution_enginekit.tokens import TokenPrompt, TokenSpan
from evalution_inspect.errors import ModelSetupError
from evalution_inspect.loaded import SHELF
from evalution_inspect.prompt_scoring import PromptScorer

pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore"),  # it is another project's code that warns
]

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools[0]['function']['name'] }};{% endif %}"
    "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }};{% endfor %}"
)
CAN = frozenset(Capability) - {
    Capability.ATTACH,
    Capability.BEAMS,
    Capability.LOGPROBS,
    Capability.MULTIMODAL,
}
REPLIES = {
    "tool:": "<think>now I know</think>It is 7.",
    "add;": '<tool_call>{"name": "add", "arguments": {"x": 3, "y": 4}}</tool_call>',
}


@register_engine("Scripted")
@dataclass(slots=True)
class Scripted(BaseEngine):
    """Replies by what the prompt holds, byte by byte; `…` where nothing fits, for ever."""

    batch_size: int = neutral(default=4)
    limit: int | None = neutral(default=None)
    template: bool = True
    lacks: str | None = None

    capabilities = CAN

    @property
    def requests_limit(self) -> int | None:
        return self.limit

    def build(self, model: Model) -> ScriptedSession:
        return ScriptedSession(self)


class ScriptedSession(TokenSession):
    def __init__(self, engine: Scripted):
        tokenizer = ByteTokenizer()
        tokenizer.chat_template = ChatTemplate(TEMPLATE) if engine.template else None
        super().__init__(
            engine="Scripted",
            capabilities=CAN - {engine.lacks},  # pyright: ignore[reportOperatorIssue]
            tokenizer=tokenizer,
            max_model_len=1_000_000,
            batch_size=engine.batch_size,
            dtype="float64",
        )
        self.begun = threading.Event()

    def _generate_tokens(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        return refill(feed, self._batch_size, _Reply, self._step)

    def _step(self, replies: list[_Reply]) -> list[TokenEvent]:
        self.begun.set()
        return [reply.step() for reply in replies]

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        yield [
            TokenScore([value_of(i) for i in span.token_ids[span.start :]], True) for span in spans
        ]


def value_of(token_id: int) -> float:
    return -1 - token_id / 256


class _Reply:
    def __init__(self, prompt: TokenPrompt):
        self._prompt = prompt
        text = bytes(i for i in prompt.token_ids if i < 256).decode()
        found = next((reply for sign, reply in REPLIES.items() if sign in text), None)
        self._left = list((found or "").encode())
        self._is_endless = found is None
        self._count = 0
        self.is_done = False

    def step(self) -> TokenEvent:
        eos = ByteTokenizer().eos_id
        token = self._left.pop(0) if self._left else ord(".") if self._is_endless else eos
        assert token is not None
        self._count += 1
        self.is_done = token == eos or self._count >= self._prompt.max_new_tokens
        return TokenEvent(self._prompt.key, [token])


@tool
def add() -> Tool:
    async def execute(x: int, y: int) -> str:
        """Add two numbers.

        Args:
            x: The first.
            y: The second.
        """
        return str(x + y)

    return execute


def scripted(**options: Any) -> Any:
    return get_model("evalution/any", engine="Scripted", memoize=False, **options)


def session_of(model: Any) -> ScriptedSession:
    return cast(Any, model.api)._loaded.session


def test_models_of_the_same_engine_and_weights_share_a_session_until_the_last_is_closed() -> None:
    first, second, other = scripted(), scripted(role="grader"), scripted(batch_size=5)
    assert session_of(first) is session_of(second)
    assert session_of(first) is not session_of(other)
    assert first.api.connection_key() == second.api.connection_key()
    assert first.api.connection_key() != other.api.connection_key()
    session = session_of(first)
    first.api.close()
    first.api.close()
    assert session.preferred_batch_size == 4
    session.gc()
    second.api.close()
    with pytest.raises(SessionClosedError):
        session.gc()
    other.api.close()


def test_a_model_that_nobody_holds_gives_its_session_back() -> None:
    model = scripted(batch_size=6)
    session = session_of(model)
    del model
    gc.collect()
    with pytest.raises(SessionClosedError):
        session.gc()
    assert not any(held.loaded.session is session for held in SHELF._held)


@pytest.mark.parametrize(
    ("options", "connections"), [({}, 8), ({"batch_size": 40}, 80), ({"limit": 3}, 3)]
)
def test_connections_are_two_batches_within_the_engines_limit(
    options: dict[str, int], connections: int
) -> None:
    model = scripted(**options)
    assert model.api.max_connections() == connections
    model.api.close()


def test_a_cancelled_task_gives_up_its_request_and_others_go_on() -> None:
    model = scripted(batch_size=1)
    session = session_of(model)

    async def ask() -> str:
        endless = asyncio.create_task(model.generate("for ever", config=GenerateConfig()))
        await asyncio.to_thread(session.begun.wait)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        # The one slot is free again, or this would wait for a million tokens.
        answer = await model.generate([ChatMessageUser(content="tool:")])
        return answer.completion

    assert asyncio.run(ask()) == "It is 7."
    model.api.close()


def test_an_agent_calls_a_tool_and_its_reasoning_stands_apart(evaluate: Any) -> None:
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.solver import generate, use_tools

    task = Task(dataset=[Sample(input="What is 3 + 4?")], solver=[use_tools(add()), generate()])
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
def test_what_cannot_be_asked_of_tools_is_refused(asked: dict[str, Any], said: str) -> None:
    model = scripted()
    with pytest.raises(UnsupportedRequestError, match=said.replace("(", r"\(")):
        asyncio.run(model.generate("a", tools=[add()], **asked))
    model.api.close()


def test_tools_are_refused_by_an_engine_that_has_none() -> None:
    model = get_model("evalution/builtin:tiny", engine="Reference", memoize=False)
    with pytest.raises(UnsupportedRequestError, match=r"tools \(add\) and engine Reference lacks"):
        asyncio.run(model.generate("a", tools=[add()]))
    model.api.close()


def test_a_model_without_a_chat_template_says_how_to_use_it() -> None:
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
def test_an_engine_that_cannot_answer_at_all_is_refused_at_once(lacks: str, said: str) -> None:
    before = [held.loaded for held in SHELF._held]
    with pytest.raises(ModelSetupError, match=said):
        scripted(lacks=lacks)
    assert [held.loaded for held in SHELF._held] == before


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
def test_what_an_engine_lacks_is_refused_by_its_name(
    lacks: str | None, config: dict[str, Any], said: str
) -> None:
    model = scripted(lacks=lacks)
    with pytest.raises(UnsupportedRequestError, match=said):
        asyncio.run(model.generate("tool:", config=GenerateConfig(**config)))
    model.api.close()


def test_another_event_loop_than_asyncios_is_refused() -> None:
    model = scripted()
    call = model.api.generate([ChatMessageUser(content="tool:")], [], "auto", GenerateConfig())
    with pytest.raises(ConfigurationError, match="set INSPECT_ASYNC_BACKEND=asyncio"):
        call.send(None)
    model.api.close()


def test_prompts_of_many_tasks_are_scored_each_for_itself() -> None:
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
    expected = [[value_of(i) for i in f"user:{text};".encode()] for text in texts]
    assert asyncio.run(ask()) == expected
    model.api.close()


def test_prompts_that_wait_for_their_scores_are_told_when_the_model_closes() -> None:
    scoring, go_on = threading.Event(), threading.Event()

    class Slow(ScriptedSession):
        def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
            if len(spans[0].token_ids) == 9:  # not those of the self check
                scoring.set()
                assert go_on.wait(60)
            yield from super()._score_tokens(spans)

    async def ask(scorer: PromptScorer) -> None:
        first = asyncio.ensure_future(scorer.logprobs([256, *b"abcdefgh"]))
        assert await asyncio.to_thread(scoring.wait, 60)
        waiting = asyncio.ensure_future(scorer.logprobs([256, *b"ab"]))
        await asyncio.sleep(0)
        scorer.close()
        with pytest.raises(SessionClosedError, match="closed meanwhile"):
            await waiting
        with pytest.raises(SessionClosedError, match="make a new one"):
            await scorer.logprobs([256, *b"ab"])
        go_on.set()
        assert len(await first) == 8, "what was in the session is the session's to end"

    with Slow(Scripted()) as session:
        asyncio.run(asyncio.wait_for(ask(PromptScorer(session)), 60))


def test_only_a_lost_connection_is_tried_again() -> None:
    model = scripted()
    lost = EngineRuntimeError("given up")
    lost.__cause__ = httpx.ConnectError("refused")
    assert model.api.should_retry(lost)
    assert not model.api.should_retry(EngineRuntimeError("the runtime died"))
    assert not model.api.should_retry(httpx.ConnectError("refused"))
    model.api.close()


def test_text_is_counted_and_encoded_by_the_models_own_tokenizer() -> None:
    model = scripted()
    assert asyncio.run(model.api.tokenize("é")) == list("é".encode())
    assert asyncio.run(model.api.count_text_tokens("éé")) == 4
    model.api.close()


def test_an_engine_that_runs_more_than_inspect_asks_for_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = scripted(batch_size=64)
    with caplog.at_level(logging.WARNING, logger="evalution_inspect"):
        for _ in range(2):
            asyncio.run(model.generate("tool:"))
    (warned,) = (r for r in caplog.records if r.name.startswith("evalution_inspect"))
    assert "--max-connections 128 keeps it busy" in warned.getMessage()
    model.api.close()
