"""An engine that replies by a script, models of Inspect on it, and a tool that they may call."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from inspect_ai.model import get_model
from inspect_ai.tool import Tool, tool

from evalution_core import BaseEngine, Capability, Model, register_engine, speed_only
from evalution_core.encoding import TokenSpan
from evalution_enginekit import ChatTemplate, PromptQueue, TokenEvent, TokenScore, TokenSession
from evalution_enginekit.batching import run_continuous_batching
from evalution_enginekit.generation import TokenPrompt
from evalution_enginekit.mock import ByteTokenizer

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools[0]['function']['name'] }};{% endif %}"
    "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }};{% endfor %}"
)
CAN = frozenset(Capability) - {
    Capability.ATTACH,
    Capability.BEAMS,
    Capability.LOGPROBS,
    Capability.MULTIMODAL,
    Capability.DISTRIBUTIONS,
    Capability.PROMPT_TOP_LOGPROBS,
}
REPLIES = {
    "tool:": "<think>now I know</think>It is 7.",
    "add;": '<tool_call>{"name": "add", "arguments": {"x": 3, "y": 4}}</tool_call>',
}


@register_engine("Scripted")
@dataclass(slots=True)
class Scripted(BaseEngine):
    """Replies by what the prompt holds, byte by byte; `…` where nothing fits, for ever."""

    batch_size: int = speed_only(default=4)
    limit: int | None = speed_only(default=None)
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

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        return run_continuous_batching(feed, self._batch_size, _Reply, self._step)

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
