"""Answers of completions and chat in OpenAI's forms, with usage and log-probabilities."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Literal, NamedTuple, NotRequired, TypeVar

from typing_extensions import TypedDict

from evalution_core import GenerationOutput, GenerationRequest, RequestFailure, TextDelta
from evalution_openai.server.bodies import MOST_LISTED, GenerationBody, check_listed_places
from evalution_openai.server.errors import make_unsupported
from evalution_openai.server.serving import ID_SPELLING, ServedModel
from evalution_openai.server.streaming import EventStream, encode_in_steps, encode_json, make_id

Finish = Literal["stop", "length"] | None


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenLists(TypedDict):
    """Log-probabilities of a completion, an entry for each token; null for a first one."""

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
    """Fields of a choice beyond OpenAI's, with `return_token_ids`."""

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


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatPart(ChoiceFacts):
    """A part of a choice; the first has the role, the last the reason for the end."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatChunk(TypedDict):
    """One event of a stream; a last one may have the usage and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatPart]
    usage: NotRequired[Usage | None]


B = TypeVar("B", bound=GenerationBody)


class _Counts(NamedTuple):
    """Tokens of an output, None where unknown."""

    prompt: int | None
    completion: int | None


class GenerationCall(ABC, Generic[B]):
    """The requests of one body, and their answer: whole, or as a stream of chunks."""

    id_prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    most_listed: ClassVar[int] = MOST_LISTED
    """Log-probabilities in one answer, or in one event of a stream."""

    def __init__(self, served: ServedModel, body: B, requests: Sequence[GenerationRequest]):
        self.served = served
        self.body = body
        self.requests = requests
        self.listed = requests[0].logprobs
        """The number of likeliest tokens to list at each position; None: no log-probabilities."""
        self.choices = body.n or 1
        """Choices of each prompt; they are in a row."""
        self.prompt_ids: dict[int, Sequence[int] | None] = {}
        """Ids of the prompts that were encoded, None where they are unknown."""

    @property
    def needs_whole(self) -> bool:
        """True if a choice is sent at once: only whole outputs have log-probabilities."""
        return self.listed is not None

    async def prepare(self) -> None:
        """Wait for everything that whole choices need beside their outputs."""

    def outputs(self) -> AsyncGenerator[tuple[int, object]]:
        """Return the outputs and failures as they finish, by the indices of their choices."""
        return self.served.calls.events(self.requests)

    @abstractmethod
    def make_choice(self, index: int, output: GenerationOutput) -> Mapping[str, Any]:
        """Make a choice of a whole answer, after `prepare`; it may take long."""

    @abstractmethod
    def make_whole_part(self, index: int, output: GenerationOutput) -> Mapping[str, Any]:
        """Make the part of a stream that is a whole choice, like `make_choice`."""

    def count_places(self, output: GenerationOutput) -> int:
        """Count the positions with log-probabilities of a choice."""
        return len(output.token_ids or ())

    @abstractmethod
    async def make_first_parts(self) -> Iterable[Mapping[str, Any]]:
        """Make the parts that a stream begins with."""

    @abstractmethod
    async def make_part(self, index: int, event: TextDelta | GenerationOutput) -> Mapping[str, Any]:
        """Make the part of choice `index` for more text, or for its end."""

    async def find_prompt_ids(self, index: int, output: GenerationOutput) -> Sequence[int] | None:
        """Encode the prompt of choice `index` as the session did; None where that is unknown."""
        at = index // self.choices
        if at not in self.prompt_ids:
            # On a thread: a long prompt must not hold up other requests.
            encode, text = self.served.encode_prompt, output.prompt
            self.prompt_ids[at] = await self.served.threads.run(len(text), encode, text)
        return self.prompt_ids[at]

    async def respond(self) -> dict[str, Any] | bytes | EventStream:
        """Answer as the body wants it."""
        if self.body.stream:
            return EventStream(self._chunks(), self.served.secrets)
        await self.prepare()
        counts: dict[int, _Counts] = {}
        choices: dict[int, Any] = {}
        places = 0
        async with aclosing(self._whole_outputs()) as outputs:
            async for index, output in outputs:
                counts[index] = _Counts(output.prompt_tokens, output.completion_tokens)
                if self.listed is None:
                    choices[index] = self.make_choice(index, output)
                    continue
                make = partial(self.make_choice, index, output)
                choices[index] = await self._encode(make, output, self.listed, places)
                places += self.count_places(output)
        head = self._make_head(self.kind)
        made = [choices[index] for index in range(len(self.requests))]
        usage = self._count_usage(counts)
        if self.listed is None:
            return {**head, "choices": made, "usage": usage}
        # The choices are encoded.
        begin, end = encode_json(head)[:-1], encode_json({"usage": usage})[1:]
        return b"".join([begin, b',"choices":[', b",".join(made), b"],", end])

    async def _whole_outputs(self) -> AsyncGenerator[tuple[int, GenerationOutput]]:
        """Yield the outputs as they finish, once everything is there to make a choice of each."""
        async with aclosing(self.outputs()) as outputs:
            async for index, event in outputs:
                output = _check_event(event)
                assert isinstance(output, GenerationOutput), output
                if self.listed is not None:
                    check_logprobs(output)
                if self.body.return_token_ids:
                    await self.find_prompt_ids(index, output)
                yield index, output

    async def _encode(
        self, make: Callable[[], Any], output: GenerationOutput, listed: int, places: int = 0
    ) -> bytes:
        """Make a choice or a chunk with log-probabilities on a thread, and encode it there.

        They take much more memory than their JSON, and that thread makes one at a time. One after
        the other as outputs finish, they hold up others less than a whole answer at the end would.

        Args:
            make: makes it.
            output: of this output.
            listed: the likeliest tokens at each position.
            places: the positions with log-probabilities in the answer's choices so far.

        Raises:
            ApiError: one answer, or event, would have too many log-probabilities.
        """
        own = self.count_places(output)
        check_listed_places(listed, places + own, "logprobs", self.most_listed)
        return await self.served.threads.run(own * (1 + listed), lambda: encode_in_steps(make()))

    async def _chunks(self) -> AsyncGenerator[dict[str, Any] | bytes]:
        head = self._make_head(self.chunk_kind)
        counts: dict[int, _Counts] = {}
        has_begun = False
        if self.needs_whole:
            await self.prepare()
            events = self._whole_outputs()
        else:
            events = self.served.calls.events(self.requests, deltas=True)
        async with aclosing(events):
            async for index, result in events:
                event = _check_event(result)
                # Not earlier: a prompt that the session refuses must fail the request.
                for part in () if has_begun else await self.make_first_parts():
                    yield {**head, "choices": [part]}
                has_begun = True
                if isinstance(event, GenerationOutput):
                    counts[index] = _Counts(event.prompt_tokens, event.completion_tokens)
                if self.needs_whole and isinstance(event, GenerationOutput):
                    make = partial(self._make_whole_chunk, head, index, event)
                    listed = self.listed
                    yield make() if listed is None else await self._encode(make, event, listed)
                else:
                    yield {**head, "choices": [await self.make_part(index, event)]}
        usage = self._count_usage(counts)
        if self.body.stream_options and self.body.stream_options.include_usage:
            yield {**head, "choices": [], "usage": usage}

    def _make_whole_chunk(
        self, head: Mapping[str, Any], index: int, output: GenerationOutput
    ) -> dict[str, Any]:
        return {**head, "choices": [self.make_whole_part(index, output)]}

    def _make_head(self, kind: str) -> dict[str, Any]:
        """Make the first fields of an answer and of every chunk of a stream."""
        return {
            "id": make_id(self.id_prefix),
            "object": kind,
            "created": int(time.time()),
            "model": self.served.name,
        }

    def _count_usage(self, counts: Mapping[int, _Counts]) -> Usage | None:
        """Add up the tokens, in the metrics as well; None if unknown. A prompt counts once."""
        prompts = _total(
            counts[index].prompt for index in range(0, len(self.requests), self.choices)
        )
        completions = _total(count.completion for count in counts.values())
        if prompts is None or completions is None:
            return None
        self.served.metrics.prompt_tokens.inc(prompts)
        self.served.metrics.completion_tokens.inc(completions)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": completions,
            "total_tokens": prompts + completions,
        }


def _check_event(event: object) -> TextDelta | GenerationOutput:
    """Return an event; raise the error of a request that failed."""
    if isinstance(event, RequestFailure):
        raise event.error
    assert isinstance(event, TextDelta | GenerationOutput), event
    return event


def _total(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def add_token_facts(
    choice: ChoiceFacts, output: GenerationOutput, prompt_ids: Sequence[int] | None
) -> None:
    """Add the token ids of a choice and of its prompt, and the tokens cut from it."""
    cut = output.truncated_tokens or 0
    choice["prompt_token_ids"] = list(prompt_ids[cut:]) if prompt_ids is not None else None
    choice["token_ids"] = output.token_ids
    choice["prompt"] = output.prompt
    choice["truncated_tokens"] = output.truncated_tokens


Spelling = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token with its log-probability and the likeliest tokens at its position.

    Both are None for a first token.
    """

    token_id: int
    logprob: float | None
    top: Mapping[int, float] | None


def make_spelling(body: GenerationBody, served: ServedModel) -> Spelling:
    if body.return_tokens_as_token_ids:
        return lambda token_id: f"{ID_SPELLING}{token_id}"
    return served.spell


def check_logprobs(output: GenerationOutput) -> None:
    """Raise an `ApiError` if the session returned no log-probabilities of what it generated."""
    if output.token_ids is None or (output.token_ids and output.token_logprobs is None):
        raise make_unsupported("this engine gave no log-probabilities of what it generated")


def read_entries(output: GenerationOutput) -> list[TokenEntry]:
    """Read the generated tokens; the chosen one is always among the listed, as with vLLM."""
    check_logprobs(output)
    ids, values = output.token_ids or [], output.token_logprobs or []
    tops = output.top_logprobs or [{} for _ in ids]
    return [
        TokenEntry(token_id, logprob, {**top, token_id: logprob})
        for token_id, logprob, top in zip(ids, values, tops, strict=True)
    ]


def make_token_lists(
    entries: Sequence[TokenEntry], spelling: Spelling, offset: int = 0
) -> TokenLists:
    """Make the four lists of a completion whose text begins at `offset`."""
    tokens = [spelling(entry.token_id) for entry in entries]
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_list_by_text(entry.top, spelling) for entry in entries],
        "text_offset": offsets,
    }


def _list_by_text(top: Mapping[int, float] | None, spelling: Spelling) -> dict[str, float] | None:
    """List by text; of two tokens with the same text the likelier one."""
    if top is None:
        return None
    listed: dict[str, float] = {}
    for token_id, logprob in sorted(top.items(), key=lambda pair: -pair[1]):
        listed.setdefault(spelling(token_id), logprob)
    return listed


def make_chat_logprobs(output: GenerationOutput, spelling: Spelling, count: int) -> ChatLogprobs:
    """Make the entries of a message's tokens, each with `count` alternatives."""
    content: list[ChatToken] = []
    for entry in read_entries(output):
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
