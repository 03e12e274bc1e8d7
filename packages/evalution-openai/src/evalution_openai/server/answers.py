"""The answers of completions and chat, as clients of OpenAI read them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from evalution_core import GenerationOutput
from evalution_openai.server.bodies import GenerationBody
from evalution_openai.server.errors import unsupported
from evalution_openai.server.serving import ID_SPELLING, Served

Finish = Literal["stop", "length"] | None

_PROCESS = secrets.token_hex(8)
_NUMBERS = count()
"""Together the id of an answer."""


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenLists(TypedDict):
    """Log-probabilities of a completion: one entry a token; null where nothing comes before it."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Alternative(TypedDict):
    token: str
    logprob: float | None
    bytes: list[int] | None


class ChatToken(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(TypedDict):
    content: list[ChatToken] | None


class ChoiceFacts(TypedDict):
    """What a choice tells beside OpenAI's fields, with `return_token_ids`."""

    prompt_token_ids: NotRequired[list[int] | None]
    token_ids: NotRequired[list[int] | None]
    prompt: NotRequired[str | None]
    truncated_tokens: NotRequired[int | None]


class CompletionChoice(ChoiceFacts):
    index: int
    text: str
    logprobs: TokenLists | None
    finish_reason: Finish


class CompletionAnswer(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str


class ChatChoice(ChoiceFacts):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatAnswer(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: NotRequired[Usage | None]


def head(prefix: str, kind: str, served: Served) -> dict[str, Any]:
    """The fields that begin an answer, and every chunk of a stream."""
    return {
        "id": f"{prefix}-{_PROCESS}{next(_NUMBERS):08x}",
        "object": kind,
        "created": int(time.time()),
        "model": served.name,
    }


def counted_usage(
    outputs: Sequence[GenerationOutput], choices: int, served: Served
) -> Usage | None:
    """Tokens of the outputs, put down in the metrics as well; None if unknown.

    Each prompt has `choices` outputs in a row, and counts once.
    """
    prompts = _total(output.prompt_tokens for output in outputs[::choices])
    completions = _total(output.completion_tokens for output in outputs)
    if prompts is None or completions is None:
        return None
    served.metrics.prompt_tokens.inc(prompts)
    served.metrics.completion_tokens.inc(completions)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": completions,
        "total_tokens": prompts + completions,
    }


def _total(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


async def encoded_prompt(output: GenerationOutput, served: Served) -> list[int] | None:
    """Ids of an output's prompt as the session encoded it; None where that can't be known."""
    # On a thread: a long prompt must not hold up the others.
    return await asyncio.to_thread(served.prompt_ids, output.prompt)


def add_facts(
    choice: ChoiceFacts, output: GenerationOutput, prompt_ids: Sequence[int] | None
) -> None:
    """Tell the token ids of a choice and of its prompt, and what was cut from it."""
    cut = output.truncated_tokens or 0
    choice["prompt_token_ids"] = list(prompt_ids[cut:]) if prompt_ids is not None else None
    choice["token_ids"] = output.token_ids
    choice["prompt"] = output.prompt
    choice["truncated_tokens"] = output.truncated_tokens


Spelling = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token with its log-probability and the likeliest ones at its place.

    None: there is nothing before it.
    """

    token_id: int
    logprob: float | None
    top: Mapping[int, float] | None


def spelling_of(body: GenerationBody, served: Served) -> Spelling:
    if body.return_tokens_as_token_ids:
        return lambda token_id: f"{ID_SPELLING}{token_id}"
    return served.spelling


def entries_of(output: GenerationOutput) -> list[TokenEntry]:
    """The generated tokens; the chosen one is among the listed, as with vLLM.

    Raises:
        Problem: the session gave no log-probabilities.
    """
    if output.token_ids is None or output.token_logprobs is None:
        raise unsupported("this engine gave no log-probabilities of what it generated")
    tops = output.top_logprobs or [{} for _ in output.token_ids]
    return [
        TokenEntry(token_id, logprob, {**top, token_id: logprob})
        for token_id, logprob, top in zip(
            output.token_ids, output.token_logprobs, tops, strict=True
        )
    ]


def token_lists(entries: Sequence[TokenEntry], spelling: Spelling, offset: int = 0) -> TokenLists:
    """The four lists of a completion; `offset` is where its text begins."""
    tokens = [spelling(entry.token_id) for entry in entries]
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_listed(entry.top, spelling) for entry in entries],
        "text_offset": offsets,
    }


def _listed(top: Mapping[int, float] | None, spelling: Spelling) -> dict[str, float] | None:
    """By text. Of two tokens with the same text the likelier one stays."""
    if top is None:
        return None
    listed: dict[str, float] = {}
    for token_id, logprob in sorted(top.items(), key=lambda pair: -pair[1]):
        listed.setdefault(spelling(token_id), logprob)
    return listed


def chat_logprobs(output: GenerationOutput, spelling: Spelling, count: int) -> ChatLogprobs:
    """The tokens of a message, each with `count` alternatives."""
    content: list[ChatToken] = []
    for entry in entries_of(output):
        best = sorted((entry.top or {}).items(), key=lambda pair: -pair[1])[:count]
        content.append(
            {
                **_alternative(spelling(entry.token_id), entry.logprob),
                "top_logprobs": [_alternative(spelling(i), value) for i, value in best],
            }
        )
    return {"content": content}


def _alternative(token: str, logprob: float | None) -> Alternative:
    known = not token.startswith(ID_SPELLING)
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()) if known else None}
