"""The session's requests of a body for completions or chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from evalution_core import Capability, ConfigurationError, GenerationRequest, Message
from evalution_enginekit import ChatTemplate
from evalution_openai.server.bodies import ChatBody, ChatMessage, CompletionBody, GenerationBody
from evalution_openai.server.errors import Problem, unsupported
from evalution_openai.server.serving import Served, WholeTokenizer

_COMPLETION_TOKENS, _CHAT_TOKENS = 16, 256
"""How many are generated where a body doesn't say; the first is OpenAI's."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
}
"""Fields that no engine has, and what asks for nothing of them."""


_SEEDS = 2**63
_MOST_LISTED = 8_000_000
"""Log-probabilities in one answer: each takes some 100 bytes while the answer is made."""


@dataclass(frozen=True, slots=True)
class PromptInput:
    """One prompt of a body, as text or as ids; ids count where there are both."""

    text: str | None = None
    token_ids: Sequence[int] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        return {"prompt": self.text} if self.token_ids is None else {"input_ids": self.token_ids}


def prompts_of(body: CompletionBody, served: Served) -> list[PromptInput]:
    """The prompts of a body, of which there is at least one."""
    prompt: Any = body.prompt
    if isinstance(prompt, str):
        return [PromptInput(text=prompt)]
    if prompt and isinstance(prompt[0], int):
        return [PromptInput(token_ids=cast("list[int]", prompt))]
    if not prompt:
        raise Problem(400, "prompt is empty", param="prompt")
    check_count(len(prompt) * (body.n or 1), served)
    return [
        PromptInput(text=one) if isinstance(one, str) else PromptInput(token_ids=one)
        for one in cast("list[str | list[int]]", prompt)
    ]


def check_count(count: int, served: Served) -> None:
    """Raise a `Problem` for more prompts in one body than the operator allows."""
    limit = served.settings.max_prompts
    if count > limit:
        raise Problem(400, f"{count} prompts in one request; this server takes {limit}")


def check_listed(requests: Sequence[GenerationRequest], served: Served) -> None:
    """Raise a `Problem` where the log-probabilities that are asked for are too many to hold."""
    listed = max((request.logprobs or 0 for request in requests), default=0)
    if listed <= 1:
        return
    places = sum(
        min(request.max_new_tokens, served.max_model_len or request.max_new_tokens)
        + len(request.input_ids or ())
        for request in requests
    )
    if listed * places > _MOST_LISTED:
        raise Problem(
            400,
            f"{listed} log-probabilities at up to {places} tokens are more than the {_MOST_LISTED} "
            "that one answer may have; ask for fewer, or for fewer tokens or choices",
            param="logprobs",
        )


def completion_requests(
    body: CompletionBody, prompts: Sequence[PromptInput], served: Served
) -> list[GenerationRequest]:
    """`n` requests of each prompt, in the order of the choices."""
    if body.best_of not in (None, body.n or 1):
        raise unsupported(f"best_of={body.best_of} is not supported; ask for n", param="best_of")
    limit = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    options = _options(body, served) | {
        "max_new_tokens": max(1, limit),
        "logprobs": listed_logprobs(body),
    }
    return [
        GenerationRequest(**prompt.fields, **_seeded(options, choice))
        for prompt in prompts
        for choice in range(body.n or 1)
    ]


def listed_logprobs(body: CompletionBody) -> int | None:
    """How many tokens to list at each position; None: no log-probabilities at all."""
    if isinstance(body.logprobs, bool):
        return 1 if body.logprobs else None
    return body.logprobs


def chat_requests(body: ChatBody, served: Served) -> list[GenerationRequest]:
    """`n` requests of the conversation."""
    _check_tools(body, served)
    if body.top_logprobs and not body.logprobs:
        raise Problem(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    limit = body.max_completion_tokens or body.max_tokens or _chat_tokens(served)
    options = _options(body, served) | {
        "messages": dumped(body.messages),
        "add_generation_prompt": body.add_generation_prompt is not False,
        "tools": body.tools or None,
        "max_new_tokens": limit,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
    }
    return [GenerationRequest(**_seeded(options, choice)) for choice in range(body.n or 1)]


def rendered_requests(
    requests: Sequence[GenerationRequest], variables: Mapping[str, Any], served: Served
) -> list[GenerationRequest]:
    """The requests of one conversation as texts, rendered with variables that are the client's own.

    The session would render with its model's alone. Rendering takes time: call it on a thread.

    Raises:
        Problem: the session keeps its template to itself, or it doesn't read such a variable.
        InvalidRequestError: the template refuses the messages.
    """
    tokenizer = served.tokenizer
    template = tokenizer.chat_template if isinstance(tokenizer, WholeTokenizer) else None
    if not isinstance(template, ChatTemplate) or not template.source:
        raise unsupported(
            "chat_template_kwargs of a request need the model's chat template, which this engine "
            "doesn't give; leave the field out",
            param="chat_template_kwargs",
        )
    first = requests[0]
    try:
        template = template.with_variables(variables)
    except ConfigurationError as error:
        raise Problem(400, str(error), param="chat_template_kwargs") from error
    text = template.render(
        first.messages or (),
        add_generation_prompt=first.add_generation_prompt,
        tools=first.tools,
    )
    return [
        replace(request, messages=None, rendered_prompt=text, tools=None) for request in requests
    ]


def dumped(messages: Sequence[ChatMessage]) -> list[Message]:
    """Messages as the session takes them; what is null is absent."""
    return [message.model_dump(exclude_none=True) for message in messages]


def _chat_tokens(served: Served) -> int:
    held = served.max_model_len
    return _CHAT_TOKENS if held is None else max(1, min(_CHAT_TOKENS, held // 2))


def _check_tools(body: ChatBody, served: Served) -> None:
    if body.tools and not served.can(Capability.TOOLS):
        raise unsupported(
            "this model's engine has no tools: leave `tools` out, or describe them in a message",
            param="tools",
        )
    if body.tool_choice not in (None, "none", "auto"):
        raise unsupported(
            f"tool_choice={body.tool_choice!r} is not supported; only 'none' and 'auto' are",
            param="tool_choice",
        )


def _options(body: GenerationBody, served: Served) -> dict[str, Any]:
    for name, neutral in _NEUTRAL.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            raise unsupported(f"{name}={value!r} is not supported", param=name)
    if body.response_format is not None and body.response_format.type != "text":
        raise unsupported(
            f"response_format {body.response_format.type!r} is not supported; only 'text' is",
            param="response_format",
        )
    sampled = bool(body.temperature)
    return {
        "stop": [body.stop] if isinstance(body.stop, str) else list(body.stop or ()),
        "do_sample": sampled,
        "temperature": body.temperature or 0.0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "top_k": max(0, body.top_k or 0),
        "seed": body.seed if sampled else None,
        "ignore_eos": bool(body.ignore_eos),
        "truncation": truncation_of(body, served),
    }


def truncation_of(body: GenerationBody, served: Served) -> Literal["left", "error"]:
    """A prompt isn't cut unless the client says so, or the engine can do nothing else."""
    if body.truncation is not None:
        return body.truncation
    return "error" if served.can(Capability.TRUNCATION) else "left"


def _seeded(options: dict[str, Any], choice: int) -> dict[str, Any]:
    """Choices of one prompt differ by their seeds, where there is one."""
    seed = options["seed"]
    return options if seed is None else options | {"seed": (seed + choice) % _SEEDS}
