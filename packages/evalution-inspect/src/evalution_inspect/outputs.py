"""Turns a session's answers into Inspect's output, with reasoning in `<think>` apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    Content,
    ContentReasoning,
    ContentText,
    Logprob,
    Logprobs,
    ModelOutput,
    ModelUsage,
    StopReason,
    TopLogprob,
)

from evalution_core import GenerationOutput
from evalution_inspect.messages import split_tool_calls
from evalution_inspect.models import LoadedModel
from evalution_inspect.requests import PromptRequests

if TYPE_CHECKING:
    from inspect_ai.tool import ToolCall


_OPEN, _CLOSE = "<think>", "</think>"


def split_reasoning(prompt: str, text: str) -> tuple[str | None, str]:
    """Reasoning and answer of a completion; None where there is no reasoning.

    It begins at a leading `<think>`, which a chat template may have put at the end of the prompt.
    Where nothing closes it, because the length ran out, all of the text is reasoning.
    """
    begun = text.lstrip()
    if begun.startswith(_OPEN):
        begun = begun.removeprefix(_OPEN)
    elif not prompt.rstrip().endswith(_OPEN):
        return None, text
    reasoning, _, answer = begun.partition(_CLOSE)
    return reasoning.strip() or None, answer.lstrip()


_PART_OF_A_CHARACTER = "\ufffd"


class OutputWriter:
    """Writes the outputs of one loaded model.

    Args:
        loaded: spells its tokens.
        name: what Inspect calls the model.
        is_chat: whether reasoning is looked for, which a plain completion has not.
    """

    def __init__(self, loaded: LoadedModel, name: str, *, is_chat: bool):
        self._loaded = loaded
        self._name = name
        self._is_chat = is_chat

    def make_output(
        self,
        asked: PromptRequests,
        outputs: Sequence[GenerationOutput],
        prompt_values: Sequence[float] | None,
    ) -> ModelOutput:
        """One choice an output; `prompt_values` are of all prompt tokens but the first."""
        prompt_logprobs = None
        if prompt_values and asked.token_ids is not None:
            pairs = zip(asked.token_ids[1:], prompt_values, strict=True)
            prompt_logprobs = Logprobs(content=[self._make_logprob(i, value) for i, value in pairs])
        return ModelOutput(
            model=self._name,
            choices=[self._make_choice(asked, output, prompt_logprobs) for output in outputs],
            usage=_count_usage(outputs),
            metadata=_read_facts(outputs),
        )

    def make_too_long(self, reason: str) -> ModelOutput:
        """The answer to a prompt that the model's context doesn't hold, as agents expect it."""
        return ModelOutput.from_content(
            self._name, reason, stop_reason="model_length", error=reason
        )

    def _make_choice(
        self, asked: PromptRequests, output: GenerationOutput, prompt_logprobs: Logprobs | None
    ) -> ChatCompletionChoice:
        reasoning, text = None, output.text
        if self._is_chat:
            reasoning, text = split_reasoning(output.prompt, text)
            reasoning = reasoning or (output.runtime or {}).get("reasoning")
        calls: list[ToolCall] = []
        if asked.tool_format is not None:
            text, calls = split_tool_calls(text, asked.tool_format)
        content: str | list[Content] = text
        if reasoning:
            content = [ContentReasoning(reasoning=reasoning), ContentText(text=text)]
        return ChatCompletionChoice(
            message=ChatMessageAssistant(
                content=content, tool_calls=calls or None, model=self._name, source="generate"
            ),
            stop_reason="tool_calls" if calls else _find_stop_reason(asked, output),
            logprobs=self._make_logprobs(output),
            prompt_logprobs=prompt_logprobs,
        )

    def _make_logprobs(self, output: GenerationOutput) -> Logprobs | None:
        if output.token_ids is None or output.token_logprobs is None:
            return None
        listed = output.top_logprobs or [None] * len(output.token_ids)
        tokens = zip(output.token_ids, output.token_logprobs, listed, strict=True)
        return Logprobs(content=[self._make_logprob(*token) for token in tokens])

    def _make_logprob(
        self, token_id: int, value: float, top: dict[int, float] | None = None
    ) -> Logprob:
        listed = None
        if top:
            ordered = sorted(top.items(), key=lambda pair: -pair[1])
            listed = [TopLogprob(**self._spell(i), logprob=logprob) for i, logprob in ordered]
        return Logprob(**self._spell(token_id), logprob=value, top_logprobs=listed)

    def _spell(self, token_id: int) -> dict[str, Any]:
        text = self._loaded.spell(token_id)
        known = self._loaded.tokenizer is not None and _PART_OF_A_CHARACTER not in text
        return {"token": text, "bytes": list(text.encode()) if known else None}


def _find_stop_reason(asked: PromptRequests, output: GenerationOutput) -> StopReason:
    if output.finish_reason == "length":
        return "model_length" if asked.fills_context else "max_tokens"
    return "stop" if output.finish_reason == "stop" else "unknown"


def _count_usage(outputs: Sequence[GenerationOutput]) -> ModelUsage | None:
    """The prompt counted once; None where the engine doesn't count."""
    prompt = outputs[0].prompt_tokens
    completions = [output.completion_tokens for output in outputs]
    if prompt is None or None in completions:
        return None
    generated = sum(count or 0 for count in completions)
    return ModelUsage(input_tokens=prompt, output_tokens=generated, total_tokens=prompt + generated)


def _read_facts(outputs: Sequence[GenerationOutput]) -> dict[str, Any] | None:
    """Return facts about the first output that Inspect has no field for."""
    found: dict[str, Any] = dict(outputs[0].runtime or {})
    found.pop("reasoning", None)
    if outputs[0].truncated_tokens:
        found["truncated_tokens"] = outputs[0].truncated_tokens
    return found or None
