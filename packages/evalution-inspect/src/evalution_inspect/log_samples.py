"""A run's samples as Inspect's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from inspect_ai.log import EvalError, EvalSample
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.scorer import Score

from evalution.results import SampleResult

_ROLES: dict[str, type[ChatMessage]] = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
    "tool": ChatMessageTool,
}


def eval_sample(sample: SampleResult, model: str) -> EvalSample:
    """The sample with its row as id.

    A score stands under the name of its metric. What was extracted, such as the log-probability of
    each choice, and the counted tokens are metadata. Where nothing was prompted, as in a
    perplexity, the input is the text that was scored.
    """
    asked = _input(sample)
    messages: list[ChatMessage] = (
        [ChatMessageUser(content=asked)] if isinstance(asked, str) else list(asked)
    )
    usage = _usage(sample.tokens)
    output = ModelOutput(model=model, usage=usage, error=sample.error)
    if sample.prediction is not None:
        answer = ChatMessageAssistant(content=sample.prediction, model=model, source="generate")
        output = ModelOutput(
            model=model, choices=[ChatCompletionChoice(message=answer)], usage=usage
        )
        messages.append(answer)
    return EvalSample(
        id=sample.index,
        epoch=1,
        input=asked,
        target=sample.target or "",
        messages=messages,
        output=output,
        scores=_scores(sample),
        metadata={"extracted": dict(sample.extracted), "tokens": dict(sample.tokens)},
        model_usage={model: usage} if usage else {},
        error=told_error(sample.error) if sample.error else None,
    )


def told_error(message: str) -> EvalError:
    """An error of which only the words are known."""
    return EvalError(message=message, traceback=message, traceback_ansi=message)


def total_usage(samples: Sequence[EvalSample], model: str) -> dict[str, ModelUsage]:
    """Tokens of all samples; empty where the engine counted none."""
    counted = [sample.model_usage[model] for sample in samples if model in sample.model_usage]
    if not counted:
        return {}
    total = counted[0]
    for usage in counted[1:]:
        total = total + usage
    return {model: total}


def _input(sample: SampleResult) -> str | list[ChatMessage]:
    prompt = sample.prompt
    if prompt is None or isinstance(prompt, str):
        return prompt or sample.target or ""
    return [_message(message) for message in prompt]


def _message(message: Mapping[str, Any]) -> ChatMessage:
    kind = _ROLES.get(str(message.get("role")), ChatMessageUser)
    content: Any = message.get("content")
    if isinstance(content, list):
        parts = cast("list[Mapping[str, Any]]", content)
        content = "\n".join(str(part.get("text", "")) for part in parts)
    return kind(content=content or "")


def _scores(sample: SampleResult) -> dict[str, Score]:
    found: dict[str, Score] = {}
    for name, value in sample.metrics.items():
        taken = sample.extracted.get(name)
        found[name] = Score(
            value=value, answer=taken if isinstance(taken, str) else sample.prediction
        )
    return found


def _usage(tokens: Mapping[str, int]) -> ModelUsage | None:
    """Return the prompt with its scored continuations, and the answer; None if nothing counted."""
    if not tokens:
        return None
    fed, generated = tokens.get("prompt", 0) + tokens.get("scored", 0), tokens.get("completion", 0)
    return ModelUsage(input_tokens=fed, output_tokens=generated, total_tokens=fed + generated)
