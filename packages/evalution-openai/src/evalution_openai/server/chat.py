"""`/v1/chat/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from evalution_core import GenerationOutput, TextDelta
from evalution_openai.server.answers import (
    ChatChoice,
    ChoiceFacts,
    GenerationCall,
    add_token_facts,
    encode_prompt,
    make_chat_logprobs,
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
    return await _ChatCall(served, body, requests).respond()


class _ChatCall(GenerationCall[ChatBody]):
    id_prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    @property
    def needs_whole(self) -> bool:
        return bool(self.body.logprobs)

    async def make_choices(self, outputs: Sequence[GenerationOutput]) -> Sequence[ChatChoice]:
        choices: list[ChatChoice] = []
        for index, output in enumerate(outputs):
            choice: ChatChoice = {
                "index": index,
                "message": {"role": "assistant", "content": output.text},
                "logprobs": self._make_logprobs(output),
                "finish_reason": output.finish_reason,
            }
            if self.body.return_token_ids:
                add_token_facts(choice, output, await encode_prompt(output, self.served))
            choices.append(choice)
        return choices

    def make_first_parts(self) -> Iterable[dict[str, Any]]:
        role = {"role": "assistant", "content": ""}
        return [_make_part(index, role) for index in range(len(self.requests))]

    async def make_part(self, index: int, event: TextDelta | GenerationOutput) -> dict[str, Any]:
        facts: ChoiceFacts = {}
        if isinstance(event, TextDelta):
            if self.body.return_token_ids:
                facts["token_ids"] = list(event.token_ids)
            return {**_make_part(index, {"content": event.text}), **facts}
        logprobs = self._make_logprobs(event)
        delta = {} if logprobs is None else {"content": event.text}
        if self.body.return_token_ids:
            add_token_facts(facts, event, await encode_prompt(event, self.served))
            if logprobs is None:
                facts["token_ids"] = []
        return {**_make_part(index, delta, event.finish_reason), "logprobs": logprobs, **facts}

    def _make_logprobs(self, output: GenerationOutput) -> Any:
        if not self.body.logprobs:
            return None
        spelling = make_spelling(self.body, self.served)
        return make_chat_logprobs(output, spelling, self.body.top_logprobs or 0)


def _make_part(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> Any:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
