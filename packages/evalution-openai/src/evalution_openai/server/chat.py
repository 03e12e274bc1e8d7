"""`/v1/chat/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from evalution_core import GenerationOutput, GenerationRequest, TextDelta
from evalution_openai.server.answers import (
    ChatChoice,
    ChoiceFacts,
    add_token_facts,
    count_usage,
    encode_prompt,
    make_chat_logprobs,
    make_head,
    make_spelling,
)
from evalution_openai.server.bodies import (
    ChatBody,
    check_listed,
    make_chat_requests,
    render_requests,
)
from evalution_openai.server.serving import ServedModel
from evalution_openai.server.streaming import EventStream


async def chat(served: ServedModel, body: ChatBody) -> dict[str, Any] | EventStream:
    """Answer a conversation at once, or as a stream."""
    requests = make_chat_requests(body, served)
    served.validate(requests)
    check_listed(requests, served)
    if variables := body.chat_template_kwargs:
        requests = await asyncio.to_thread(render_requests, requests, variables, served)
    call = _Call(served, body, requests)
    if body.stream:
        return EventStream(call.chunks(), served.secrets)
    return await call.answer()


@dataclass(frozen=True, slots=True)
class _Call:
    served: ServedModel
    body: ChatBody
    requests: Sequence[GenerationRequest]

    async def answer(self) -> dict[str, Any]:
        outputs = await self.served.generate(self.requests)
        return {
            **make_head("chatcmpl", "chat.completion", self.served),
            "choices": [await self._choice(index, output) for index, output in enumerate(outputs)],
            "usage": count_usage(outputs, len(outputs), self.served),
        }

    async def chunks(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield text as it grows; with log-probabilities, which only outputs have, all at once."""
        start = make_head("chatcmpl", "chat.completion.chunk", self.served)
        outputs: dict[int, GenerationOutput] = {}
        begun = False
        async with aclosing(self._events()) as events:
            async for index, event in events:
                if not begun:
                    # Not earlier: a conversation that the session refuses must fail the request.
                    for choice in range(len(self.requests)):
                        role = _part(choice, {"role": "assistant", "content": ""})
                        yield {**start, "choices": [role]}
                    begun = True
                if isinstance(event, GenerationOutput):
                    outputs[index] = event
                yield {**start, "choices": [await self._event_part(index, event)]}
        ordered = [outputs[index] for index in range(len(self.requests))]
        usage = count_usage(ordered, len(ordered), self.served)
        if self.body.stream_options and self.body.stream_options.include_usage:
            yield {**start, "choices": [], "usage": usage}

    async def _events(self) -> AsyncGenerator[tuple[int, TextDelta | GenerationOutput]]:
        if not self.body.logprobs:
            async with aclosing(self.served.stream(self.requests)) as events:
                async for pair in events:
                    yield pair
            return
        for index, output in enumerate(await self.served.generate(self.requests)):
            yield index, output

    async def _choice(self, index: int, output: GenerationOutput) -> ChatChoice:
        choice: ChatChoice = {
            "index": index,
            "message": {"role": "assistant", "content": output.text},
            "logprobs": self._logprobs(output),
            "finish_reason": output.finish_reason,
        }
        if self.body.return_token_ids:
            add_token_facts(choice, output, await encode_prompt(output, self.served))
        return choice

    async def _event_part(self, index: int, event: TextDelta | GenerationOutput) -> dict[str, Any]:
        facts: ChoiceFacts = {}
        if isinstance(event, TextDelta):
            if self.body.return_token_ids:
                facts["token_ids"] = list(event.token_ids)
            return {**_part(index, {"content": event.text}), **facts}
        logprobs = self._logprobs(event)
        delta = {} if logprobs is None else {"content": event.text}
        if self.body.return_token_ids:
            add_token_facts(facts, event, await encode_prompt(event, self.served))
            if logprobs is None:
                facts["token_ids"] = []
        return {**_part(index, delta, event.finish_reason), "logprobs": logprobs, **facts}

    def _logprobs(self, output: GenerationOutput) -> Any:
        if not self.body.logprobs:
            return None
        spelling = make_spelling(self.body, self.served)
        return make_chat_logprobs(output, spelling, self.body.top_logprobs or 0)


def _part(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
