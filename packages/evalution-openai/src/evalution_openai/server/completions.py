"""`/v1/completions`, with the log-probabilities that `echo` asks for, and `/v1/chat/completions`.

The session's scoring path gives the log-probabilities of the prompt's own tokens, and of others if
it has `prompt_top_logprobs`. Else one token is generated at each position; a session that caches
prefixes computes the prompt once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from evalution_core import (
    Capability,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodRequest,
    TextDelta,
)
from evalution_enginekit.fair_queue import count_prompt, count_text
from evalution_openai.server.answers import (
    B,
    ChatChoice,
    ChatDelta,
    ChatLogprobs,
    ChatPart,
    CompletionChoice,
    GenerationCall,
    TokenEntry,
    TokenLists,
    add_token_facts,
    make_chat_logprobs,
    make_spelling,
    make_token_lists,
    read_entries,
)
from evalution_openai.server.bodies import (
    MOST_LISTED_IN_CHAT,
    ChatBody,
    CompletionBody,
    PromptInput,
    check_listed,
    check_repeated,
    count_listed,
    make_chat_requests,
    make_completion_requests,
    read_prompts,
    render_requests,
)
from evalution_openai.server.errors import ApiError, make_unsupported
from evalution_openai.server.serving import LONG_TEXT, ServedModel
from evalution_openai.server.streaming import EventStream

_ECHO_NEEDS = (
    Capability.LOGLIKELIHOOD,
    Capability.LOGPROBS,
    Capability.TOKEN_IDS,
    Capability.IGNORE_EOS,
)


async def score_prompt(
    served: ServedModel, token_ids: Sequence[int], listed: int
) -> list[TokenEntry]:
    """Score the tokens of a prompt, the first without a log-probability.

    Args:
        served: the model.
        token_ids: the prompt; at least one.
        listed: the number of likeliest tokens to list at each position.

    Raises:
        EvalutionError: the session refused the prompt, or failed.
    """
    first = TokenEntry(token_ids[0], None, None)
    if len(token_ids) == 1:
        return [first]
    request = LoglikelihoodRequest(
        context_input_ids=token_ids[:1], continuation_input_ids=token_ids[1:]
    )
    score = await served.calls.score(request)
    if score.token_logprobs is None or len(score.token_logprobs) != len(token_ids) - 1:
        raise make_unsupported("this engine gave no log-probability of each token of the prompt")
    own = list(zip(token_ids[1:], score.token_logprobs, strict=True))
    if not listed or (listed == 1 and score.is_greedy):
        tops: list[dict[int, float]] = [{} for _ in own]
    else:
        tops = await _find_likeliest(served, token_ids, listed)
    # The two paths agree only up to rounding, so the scoring path's value is listed.
    return [
        first,
        *(
            TokenEntry(token_id, logprob, {**top, token_id: logprob})
            for (token_id, logprob), top in zip(own, tops, strict=True)
        ),
    ]


async def _find_likeliest(
    served: ServedModel, token_ids: Sequence[int], listed: int
) -> list[dict[int, float]]:
    """Find the likeliest tokens at each position but the first.

    By generation the longest prefixes come first, and a few at once: all of them need memory as the
    square of the prompt.
    """
    if Capability.PROMPT_TOP_LOGPROBS in served.capabilities:
        request = LoglikelihoodRequest(
            context_input_ids=token_ids[:1],
            continuation_input_ids=token_ids[1:],
            top_logprobs=listed,
        )
        return (await served.calls.score(request)).top_logprobs or []
    tops: list[dict[int, float]] = []
    lengths = range(len(token_ids) - 1, 0, -1)
    for begin in range(0, len(lengths), _PREFIXES):
        requests = [
            GenerationRequest(
                input_ids=token_ids[:length], max_new_tokens=1, logprobs=listed, ignore_eos=True
            )
            for length in lengths[begin : begin + _PREFIXES]
        ]
        for output in await served.calls.complete(requests):
            (entry,) = read_entries(output)
            tops.append(dict(entry.top or {}))
    return tops[::-1]


_PREFIXES = 64


Answer = dict[str, Any] | bytes | EventStream


async def complete(served: ServedModel, body: CompletionBody) -> Answer:
    """Answer a body at once, or as a stream."""
    return await _respond(served, body, _make_call, is_slow=bool(body.echo))


async def _respond(
    served: ServedModel,
    body: B,
    make: Callable[[ServedModel, B], GenerationCall[B]],
    *,
    is_slow: bool,
) -> Answer:
    # Checking, encoding for an echo, and rendering must not hold up other requests.
    if is_slow or body.size > LONG_TEXT:
        call = await served.threads.run(body.size, make, served, body)
    else:
        call = make(served, body)
    return await call.respond()


def _make_call(served: ServedModel, body: CompletionBody) -> _CompletionCall:
    """Make the requests; raise an `ApiError` or `EvalutionError` if they can't be served."""
    prompts = read_prompts(body, served)
    scores = body.echo and count_listed(body) is not None
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens=0 needs echo: nothing else is asked", param="max_tokens")
    check_repeated(sum(map(_measure, prompts)), body, served)
    if body.max_tokens == 0:  # where the session sees none of the prompts
        served.check_ids(chain.from_iterable(prompt.token_ids or () for prompt in prompts))
    if scores:
        if missing := [need.value for need in _ECHO_NEEDS if need not in served.capabilities]:
            raise make_unsupported(
                f"echo with logprobs needs an engine that has {', '.join(missing)}; "
                "/v1/eval/loglikelihood needs less",
                param="echo",
            )
        prompts = [_encode_prompt(prompt, served) for prompt in prompts]
    elif body.echo and any(prompt.text is None for prompt in prompts):
        served.require_tokenizer("echo of token ids")
    requests = make_completion_requests(body, prompts, served)
    if scores:
        # The one token may be an end of text: clients that score take the last entry as generated.
        requests = [
            replace(one, ignore_eos=one.ignore_eos or one.max_new_tokens == 1) for one in requests
        ]
    served.validate(requests)
    check_listed(body, requests, served)
    if body.max_tokens == 0:
        # Once for all choices: no session counts the tokens of a prompt that is only echoed.
        prompts = [
            replace(prompt, token_ids=served.encode_prompt(prompt.text or ""))
            if prompt.token_ids is None
            else prompt
            for prompt in prompts
        ]
    return _CompletionCall(served, body, requests, prompts)


class _CompletionCall(GenerationCall[CompletionBody]):
    id_prefix = "cmpl"
    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self,
        served: ServedModel,
        body: CompletionBody,
        requests: Sequence[GenerationRequest],
        prompts: Sequence[PromptInput],
    ):
        super().__init__(served, body, requests)
        self._prompts = list(prompts)
        self._scored: list[list[TokenEntry]] = [[] for _ in prompts]
        known = enumerate(prompt.token_ids for prompt in prompts)
        self.prompt_ids.update((at, token_ids) for at, token_ids in known if token_ids is not None)

    @property
    def needs_whole(self) -> bool:
        return self.listed is not None or self.body.max_tokens == 0

    def outputs(self) -> AsyncGenerator[tuple[int, object]]:
        return self._make_empty_outputs() if self.body.max_tokens == 0 else super().outputs()

    async def _make_empty_outputs(self) -> AsyncGenerator[tuple[int, GenerationOutput]]:
        for index in range(len(self.requests)):
            yield index, await self._make_empty_output(index)

    async def _make_empty_output(self, index: int) -> GenerationOutput:
        """Make the output of a prompt of which only the echo is wanted."""
        token_ids = self._prompts[index // self.choices].token_ids
        return GenerationOutput(
            await self._echo_text(index),
            "",
            token_ids=[],
            finish_reason="length",
            prompt_tokens=None if token_ids is None else len(token_ids),
            completion_tokens=0,
        )

    async def prepare(self) -> None:
        if not self.body.echo:
            return
        if self.listed is not None:
            self._scored = await self._score_prompts(self.listed)
        for index in range(len(self.requests)):
            await self._echo_text(index)

    async def _score_prompts(self, listed: int) -> list[list[TokenEntry]]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(score_prompt(self.served, prompt.token_ids or (), listed))
                    for prompt in self._prompts
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    def count_places(self, output: GenerationOutput) -> int:
        return super().count_places(output) + max(map(len, self._scored), default=0)

    def make_choice(self, index: int, output: GenerationOutput) -> CompletionChoice:
        at = index // self.choices
        echo = (self._prompts[at].text or "") if self.body.echo else ""
        lists: TokenLists | None = None
        if self.listed is not None:
            scored, spelling = self._scored[at], make_spelling(self.body, self.served)
            entries = [*scored, *read_entries(output)]
            lists = make_token_lists(entries, spelling, 0 if scored else len(echo))
        choice: CompletionChoice = {
            "index": index,
            "text": echo + output.text,
            "logprobs": lists,
            "finish_reason": output.finish_reason,
        }
        if self.body.return_token_ids:
            add_token_facts(choice, output, self.prompt_ids[at])
        return choice

    def make_whole_part(self, index: int, output: GenerationOutput) -> CompletionChoice:
        return self.make_choice(index, output)

    async def make_first_parts(self) -> Iterable[CompletionChoice]:
        if self.needs_whole or not self.body.echo:
            return []
        echoing = range(len(self.requests))
        return [self._make_text_part(index, await self._echo_text(index)) for index in echoing]

    async def make_part(self, index: int, event: TextDelta | GenerationOutput) -> CompletionChoice:
        if isinstance(event, TextDelta):
            return self._make_text_part(index, event.text, event.token_ids)
        part = self._make_text_part(index, "")
        part["finish_reason"] = event.finish_reason
        if self.body.return_token_ids:
            add_token_facts(part, event, await self.find_prompt_ids(index, event))
            part["token_ids"] = []
        return part

    def _make_text_part(
        self, index: int, text: str, token_ids: Sequence[int] = ()
    ) -> CompletionChoice:
        part: CompletionChoice = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": None,
        }
        if self.body.return_token_ids:
            part["token_ids"] = list(token_ids)
        return part

    async def _echo_text(self, index: int) -> str:
        at = index // self.choices
        prompt = self._prompts[at]
        if prompt.text is not None:
            return prompt.text
        decode = self.served.require_tokenizer("echo of token ids").decode
        token_ids = list(prompt.token_ids or ())
        run = self.served.threads.run
        text = await run(len(token_ids), decode, token_ids, skip_special_tokens=False)
        self._prompts[at] = replace(prompt, text=text)
        return text


def _measure(prompt: PromptInput) -> int:
    """Count the characters or ids of a prompt."""
    return len(prompt.text or prompt.token_ids or ())


def _encode_prompt(prompt: PromptInput, served: ServedModel) -> PromptInput:
    """Return the prompt with its ids, which are echoed."""
    if prompt.token_ids is not None:
        served.note_ids(prompt.token_ids)
        return prompt
    token_ids = served.encode_prompt(prompt.text or "")
    if token_ids is None:
        raise make_unsupported(
            "echo of a text with logprobs needs the tokenizer of the model, which this engine "
            "doesn't give; send token ids",
            param="prompt",
        )
    if not token_ids:
        raise ApiError(400, "the prompt has no token to echo", param="prompt")
    return PromptInput(prompt.text, token_ids)


async def chat(served: ServedModel, body: ChatBody) -> Answer:
    """Answer a conversation at once, or as a stream."""
    return await _respond(served, body, _make_chat, is_slow=bool(body.chat_template_kwargs))


def _make_chat(served: ServedModel, body: ChatBody) -> _ChatCall:
    """Make the requests; raise an `ApiError` or `EvalutionError` if they can't be served."""
    requests = make_chat_requests(body, served)
    served.validate(requests[:1])  # choices differ in their seeds alone
    size = sum(count_prompt(requests[0]))
    check_repeated(size, body, served)
    check_listed(body, requests, served)
    if variables := body.chat_template_kwargs:
        served.check_length(size + count_text(variables, served.max_text))
        requests = render_requests(requests, variables, served)
    return _ChatCall(served, body, requests)


class _ChatCall(GenerationCall[ChatBody]):
    id_prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    most_listed = MOST_LISTED_IN_CHAT

    def make_choice(self, index: int, output: GenerationOutput) -> ChatChoice:
        choice: ChatChoice = {
            "index": index,
            "message": {"role": "assistant", "content": output.text},
            "logprobs": self._make_logprobs(output),
            "finish_reason": output.finish_reason,
        }
        if self.body.return_token_ids:
            add_token_facts(choice, output, self.prompt_ids[index // self.choices])
        return choice

    def make_whole_part(self, index: int, output: GenerationOutput) -> ChatPart:
        part = _make_chat_part(index, {"content": output.text})
        part["logprobs"] = self._make_logprobs(output)
        part["finish_reason"] = output.finish_reason
        if self.body.return_token_ids:
            add_token_facts(part, output, self.prompt_ids[index // self.choices])
        return part

    async def make_first_parts(self) -> Iterable[ChatPart]:
        role: ChatDelta = {"role": "assistant", "content": ""}
        return [_make_chat_part(index, role) for index in range(len(self.requests))]

    async def make_part(self, index: int, event: TextDelta | GenerationOutput) -> ChatPart:
        if isinstance(event, TextDelta):
            part = _make_chat_part(index, {"content": event.text})
            if self.body.return_token_ids:
                part["token_ids"] = list(event.token_ids)
            return part
        part = _make_chat_part(index, {})
        part["finish_reason"] = event.finish_reason
        if self.body.return_token_ids:
            add_token_facts(part, event, await self.find_prompt_ids(index, event))
            part["token_ids"] = []
        return part

    def _make_logprobs(self, output: GenerationOutput) -> ChatLogprobs | None:
        if self.listed is None:
            return None
        return make_chat_logprobs(output, make_spelling(self.body, self.served), self.listed)


def _make_chat_part(index: int, delta: ChatDelta) -> ChatPart:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
