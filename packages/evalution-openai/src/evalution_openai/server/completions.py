"""Log-probabilities of a prompt, for completions with `echo`.

The session's scoring path gives those of the prompt's own tokens. What else was likely at each
place it tells of nobody, so each place is asked for one token by the next-token path; a session
that keeps prefixes computes the prompt once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, overload

from evalution_core import (
    Capability,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodRequest,
    RequestFailure,
    TextDelta,
)
from evalution_openai.server.answers import (
    CompletionChoice,
    TokenEntry,
    TokenLists,
    add_facts,
    counted_usage,
    encoded_prompt,
    entries_of,
    head,
    spelling_of,
    token_lists,
)
from evalution_openai.server.bodies import CompletionBody
from evalution_openai.server.errors import Problem, unsupported
from evalution_openai.server.prompts import (
    PromptInput,
    check_listed,
    completion_requests,
    listed_logprobs,
    prompts_of,
)
from evalution_openai.server.serving import Served
from evalution_openai.server.streaming import EventStream

_NEEDED = (
    Capability.LOGLIKELIHOOD,
    Capability.LOGPROBS,
    Capability.TOKEN_IDS,
    Capability.IGNORE_EOS,
)


def check_can_echo(served: Served) -> None:
    """Raise a `Problem` where the engine can't score prompts token by token."""
    missing = [capability.value for capability in _NEEDED if not served.can(capability)]
    if missing:
        raise unsupported(
            f"echo with logprobs needs an engine that has {', '.join(missing)}; "
            "/v1/eval/loglikelihood needs less",
            param="echo",
        )


def echo_request(request: GenerationRequest, token_ids: Sequence[int]) -> GenerationRequest:
    """The request that generates after the echo, on the ids that are echoed.

    Of one token, an end of text counts too: clients that score take the last entry for generated.
    """
    return replace(
        request,
        prompt=None,
        input_ids=token_ids,
        ignore_eos=request.ignore_eos or request.max_new_tokens == 1,
    )


async def prompt_entries(served: Served, token_ids: Sequence[int], listed: int) -> list[TokenEntry]:
    """The tokens of a prompt, the first without a log-probability.

    Args:
        served: whose session scores.
        token_ids: the prompt; at least one.
        listed: how many of the likeliest tokens to list at each place.

    Raises:
        EvalutionError: the session refused the prompt, or failed.
    """
    first = TokenEntry(token_ids[0], None, None)
    if len(token_ids) == 1:
        return [first]
    request = LoglikelihoodRequest(
        context_input_ids=token_ids[:1], continuation_input_ids=token_ids[1:]
    )
    (score,) = await served.loglikelihood.results([request])
    if isinstance(score, RequestFailure):
        raise score.error
    if score.token_logprobs is None or len(score.token_logprobs) != len(token_ids) - 1:
        raise unsupported("this engine gave no log-probability of each token of the prompt")
    own = list(zip(token_ids[1:], score.token_logprobs, strict=True))
    if not listed or (listed == 1 and score.is_greedy):
        tops: list[dict[int, float]] = [{} for _ in own]
    else:
        tops = await _likeliest(served, token_ids, listed)
    # One path's value for one token: the two agree up to the arithmetic only.
    return [
        first,
        *(
            TokenEntry(token_id, logprob, {**top, token_id: logprob})
            for (token_id, logprob), top in zip(own, tops, strict=True)
        ),
    ]


async def _likeliest(
    served: Served, token_ids: Sequence[int], listed: int
) -> list[dict[int, float]]:
    """The likeliest tokens at each place but the first."""
    tops: list[dict[int, float]] = [{} for _ in token_ids[1:]]
    asked = NextTokens(token_ids, listed)
    async with aclosing(served.generation.finished(asked)) as outputs:
        async for index, output in outputs:
            (entry,) = entries_of(output)
            tops[-1 - index] = dict(entry.top or {})
    return tops


class NextTokens(Sequence[GenerationRequest]):
    """One token after each beginning of a prompt, the longest first.

    What that one computes serves the others, where a session keeps prefixes. Each is made when the
    session takes it: all of them together would need memory as the square of the prompt.
    """

    def __init__(self, token_ids: Sequence[int], listed: int):
        self._token_ids = token_ids
        self._listed = listed

    def __len__(self) -> int:
        return len(self._token_ids) - 1

    @overload
    def __getitem__(self, index: int) -> GenerationRequest: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[GenerationRequest]: ...
    def __getitem__(self, index: int | slice) -> GenerationRequest | Sequence[GenerationRequest]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return GenerationRequest(
            input_ids=self._token_ids[: len(self) - index],
            max_new_tokens=1,
            logprobs=self._listed,
            ignore_eos=True,
        )


_LONG = 32_768
"""Characters or ids of prompts that it takes a while to check."""


async def complete(served: Served, body: CompletionBody) -> dict[str, Any] | EventStream:
    """Answer a body at once, or as a stream."""
    # Prompts are checked here, and with an echo encoded: a long one must not hold up the others.
    if body.echo or _is_long(body.prompt):
        call = await asyncio.to_thread(_Call.of, served, body)
    else:
        call = _Call.of(served, body)
    if body.stream:
        return EventStream(call.chunks())
    return await call.answer()


@dataclass(frozen=True, slots=True)
class _Call:
    served: Served
    body: CompletionBody
    prompts: Sequence[PromptInput]
    requests: Sequence[GenerationRequest]

    @classmethod
    def of(cls, served: Served, body: CompletionBody) -> _Call:
        """Raises a `Problem` or an `EvalutionError` for what can't be served."""
        prompts = prompts_of(body, served)
        listed = listed_logprobs(body)
        if body.max_tokens == 0 and not body.echo:
            raise Problem(400, "max_tokens=0 needs echo: nothing else is asked", param="max_tokens")
        if body.echo and listed is not None:
            check_can_echo(served)
            prompts = [_as_ids(prompt, served) for prompt in prompts]
        elif body.echo and any(prompt.text is None for prompt in prompts):
            served.codec("echo of token ids")
        requests = completion_requests(body, prompts, served)
        if body.echo and listed is not None:
            requests = [echo_request(one, one.input_ids or ()) for one in requests]
        served.admit(requests)
        check_listed(requests, served)
        return cls(served, body, prompts, requests)

    @property
    def choices(self) -> int:
        return self.body.n or 1

    async def answer(self) -> dict[str, Any]:
        outputs = await self._outputs()
        scored = await self._prompt_entries()
        choices = [
            await self._choice(index, output, scored[index // self.choices])
            for index, output in enumerate(outputs)
        ]
        return {
            **head("cmpl", "text_completion", self.served),
            "choices": choices,
            "usage": counted_usage(outputs, self.choices, self.served),
        }

    async def chunks(self) -> AsyncGenerator[dict[str, Any]]:
        """Text as it grows; with log-probabilities, which only a finished output has, at once."""
        start = head("cmpl", "text_completion", self.served)
        if listed_logprobs(self.body) is not None or self.body.max_tokens == 0:
            whole = await self.answer()
            usage = whole["usage"]
            for choice in whole["choices"]:
                yield {**start, "choices": [choice]}
        else:
            outputs: dict[int, GenerationOutput] = {}
            echoed = not self.body.echo
            async with aclosing(self.served.generation.stream_of(self.requests)) as events:
                async for index, event in events:
                    if not echoed:
                        # Not before: a prompt that the session refuses is no stream at all.
                        for choice in range(len(self.requests)):
                            echo = await self._part(choice, TextDelta(self._shown(choice)))
                            yield {**start, "choices": [echo]}
                        echoed = True
                    if isinstance(event, GenerationOutput):
                        outputs[index] = event
                    yield {**start, "choices": [await self._part(index, event)]}
            ordered = [outputs[index] for index in range(len(self.requests))]
            usage = counted_usage(ordered, self.choices, self.served)
        if self.body.stream_options and self.body.stream_options.include_usage:
            yield {**start, "choices": [], "usage": usage}

    async def _outputs(self) -> list[GenerationOutput]:
        if self.body.max_tokens == 0:
            return [self._nothing(index) for index in range(len(self.requests))]
        return await self.served.generation.outputs(self.requests)

    def _nothing(self, index: int) -> GenerationOutput:
        """What a prompt of which only the echo is wanted gives."""
        prompt = self.prompts[index // self.choices]
        token_ids = prompt.token_ids
        if token_ids is None:
            token_ids = self.served.prompt_ids(prompt.text or "")
        return GenerationOutput(
            self._shown(index),
            "",
            token_ids=[],
            finish_reason="length",
            prompt_tokens=None if token_ids is None else len(token_ids),
            completion_tokens=0,
        )

    async def _prompt_entries(self) -> list[list[TokenEntry]]:
        listed = listed_logprobs(self.body)
        if not self.body.echo or listed is None:
            return [[] for _ in self.prompts]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(prompt_entries(self.served, prompt.token_ids or (), listed))
                    for prompt in self.prompts
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _choice(
        self, index: int, output: GenerationOutput, scored: list[TokenEntry]
    ) -> CompletionChoice:
        shown = self._shown(index) if self.body.echo else ""
        lists: TokenLists | None = None
        if listed_logprobs(self.body) is not None:
            spelling = spelling_of(self.body, self.served)
            generated = entries_of(output) if output.token_ids != [] else []
            lists = token_lists([*scored, *generated], spelling, 0 if scored else len(shown))
        choice: CompletionChoice = {
            "index": index,
            "text": shown + output.text,
            "logprobs": lists,
            "finish_reason": output.finish_reason,
        }
        if self.body.return_token_ids:
            add_facts(choice, output, await self._prompt_ids(index, output))
        return choice

    async def _part(self, index: int, event: TextDelta | GenerationOutput) -> CompletionChoice:
        is_last = isinstance(event, GenerationOutput)
        choice: CompletionChoice = {
            "index": index,
            "text": "" if is_last else event.text,
            "logprobs": None,
            "finish_reason": event.finish_reason if is_last else None,
        }
        if self.body.return_token_ids:
            if is_last:
                add_facts(choice, event, await self._prompt_ids(index, event))
            choice["token_ids"] = [] if is_last else list(event.token_ids)
        return choice

    async def _prompt_ids(self, index: int, output: GenerationOutput) -> Sequence[int] | None:
        known = self.prompts[index // self.choices].token_ids
        return await encoded_prompt(output, self.served) if known is None else known

    def _shown(self, index: int) -> str:
        prompt = self.prompts[index // self.choices]
        if prompt.text is not None:
            return prompt.text
        codec = self.served.codec("echo of token ids")
        return codec.decode(list(prompt.token_ids or ()), skip_special_tokens=False)


def _is_long(prompt: str | Sequence[str | int | Sequence[int]]) -> bool:
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return len(prompt) > _LONG
    return sum(1 if isinstance(one, int) else len(one) for one in prompt) > _LONG


def _as_ids(prompt: PromptInput, served: Served) -> PromptInput:
    """The prompt with its ids, which are what is echoed."""
    if prompt.token_ids is not None:
        return prompt
    token_ids = served.prompt_ids(prompt.text or "")
    if token_ids is None:
        raise unsupported(
            "echo of a text with logprobs needs the tokenizer of the model, which this engine "
            "doesn't give; send token ids",
            param="prompt",
        )
    if not token_ids:
        raise Problem(400, "the prompt has no token to echo", param="prompt")
    return PromptInput(prompt.text, token_ids)
