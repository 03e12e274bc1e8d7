"""Inspect's `GenerateConfig` as fields of a generation request: exactly, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import (
    Capability,
    ContextLengthError,
    GenerationRequest,
    InvalidRequestError,
    UnsupportedRequestError,
)
from evalution_inspect.messages import (
    ToolFormat,
    describe_tools,
    find_tool_format,
    make_messages,
    make_plain_prompt,
)
from evalution_inspect.models import LoadedModel

if TYPE_CHECKING:
    from inspect_ai.model import ChatMessage, GenerateConfig
    from inspect_ai.tool import ToolChoice, ToolInfo


_INSPECTS_OWN = frozenset(
    {
        "adaptive_connections",
        "attempt_timeout",
        "batch",
        "cache",
        "cache_prompt",
        "fail_on_refusal",
        "internal_tools",
        "max_connections",
        "max_retries",
        "max_tool_output",
        "reasoning_history",
        "stream_idle_timeout",
        "system_message",
        "timeout",
    }
)
"""Settings that Inspect handles itself, or passes only to providers that support them."""
_MAPPED = frozenset(
    {
        "logprobs",
        "max_tokens",
        "num_choices",
        "parallel_tool_calls",
        "prompt_logprobs",
        "seed",
        "stop_seqs",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
    }
)
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "extra_body": ({},),
    "extra_headers": ({},),
    "fallback_models": ([],),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "modalities": ([],),
    "presence_penalty": (0,),
    "reasoning_summary": ("none",),
}
"""Of settings that no engine has: what asks for nothing."""
_SEEDS = 2**63


def check_supported(config: GenerateConfig) -> None:
    """Raise `UnsupportedRequestError` for what no engine can do, by the setting's name.

    A setting that asks for nothing passes.
    """
    for name, value in config.model_dump(exclude_none=True).items():
        if name in _INSPECTS_OWN or name in _MAPPED or value in _NEUTRAL.get(name, ()):
            continue
        raise UnsupportedRequestError(
            f"{name}={value!r} is not supported by the provider evalution; leave it out"
        )
    if (config.prompt_logprobs or 0) > 1:
        raise UnsupportedRequestError(
            f"prompt_logprobs={config.prompt_logprobs}: an engine gives the log-probability of "
            "each prompt token and no alternatives to it; set prompt_logprobs=1"
        )


def map_config(config: GenerateConfig) -> list[dict[str, Any]]:
    """Return a request's fields for each choice that `config` asks for; its length limit apart.

    Greedy without a temperature and with 0; nothing is cut from the distribution then. `top_p` or
    `top_k` without a temperature sample at 1. Choices differ by their seeds, where there is one.

    Raises:
        UnsupportedRequestError: as `check_supported`.
        InvalidRequestError: `top_logprobs` without `logprobs`, or no choice at all.
    """
    check_supported(config)
    choices = 1 if config.num_choices is None else config.num_choices
    if choices < 1:
        raise InvalidRequestError(f"num_choices must be at least 1, got {choices}")
    if config.top_logprobs and not config.logprobs:
        raise InvalidRequestError(f"top_logprobs={config.top_logprobs} needs logprobs=True")
    top_p = 1.0 if config.top_p is None else config.top_p
    top_k = max(0, config.top_k or 0)
    temperature = config.temperature
    if temperature is None and (top_p != 1.0 or top_k > 1):
        temperature = 1.0
    fields: dict[str, Any] = {"stop": list(config.stop_seqs or ())}
    if config.logprobs:
        fields["logprobs"] = config.top_logprobs or 0
    if temperature:
        fields |= {
            "do_sample": True,
            "temperature": float(temperature),
            "top_p": top_p,
            "top_k": top_k,
        }
    return [
        fields | {"seed": (config.seed + choice) % _SEEDS}
        if temperature and config.seed is not None
        else fields
        for choice in range(choices)
    ]


_MAX_TOKENS = 2048
"""The default limit if the model has room: what Inspect's own local providers generate."""


@dataclass(frozen=True, slots=True)
class PromptRequests:
    """One request a choice, all of the same prompt.

    `token_ids` are the prompt's, None if they are unknown. `fills_context`: the
    limit of the length is where the model's context ends. `tool_format` is set if there are tools.
    """

    requests: list[GenerationRequest]
    token_ids: list[int] | None
    fills_context: bool
    tool_format: ToolFormat | None


@dataclass(frozen=True, slots=True)
class RequestWriter:
    """Writes requests for one loaded model, and refuses what it can't do before anything runs."""

    loaded: LoadedModel
    use_chat_template: bool
    tool_format: ToolFormat | None

    def write(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> PromptRequests:
        """The requests.

        Raises:
            UnsupportedRequestError: the engine or the model can't do what is asked for.
            InvalidRequestError: no engine could.
            ContextLengthError: the prompt leaves no room for an answer.
        """
        choices = map_config(config)
        form = self._check_tools(tools, tool_choice, config)
        fields = self._make_prompt(messages, tools)
        token_ids = self.loaded.prompt_ids(fields)
        if config.prompt_logprobs:
            self._check_prompt_scores(token_ids)
        limit, fills_context = self._find_limit(token_ids, config.max_tokens)
        fields |= {"max_new_tokens": limit}
        if Capability.TRUNCATION in self.loaded.capabilities:
            # An agent is to see that its conversation is too long; a cut would hide it.
            fields["truncation"] = "error"
        requests = [GenerationRequest(**fields, **choice) for choice in choices]
        return PromptRequests(requests, token_ids, fills_context, form)

    def _make_prompt(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolInfo]
    ) -> dict[str, Any]:
        if not self.use_chat_template:
            return make_plain_prompt(messages)
        fields: dict[str, Any] = {"messages": make_messages(messages)}
        return fields | {"tools": describe_tools(tools)} if tools else fields

    def _find_limit(self, token_ids: list[int] | None, asked: int | None) -> tuple[int, bool]:
        """Return the token limit, and True if the model's context is the limit."""
        wanted = _MAX_TOKENS if asked is None else asked
        held = self.loaded.max_model_len
        if held is None or token_ids is None:
            return wanted, False
        room = held - len(token_ids)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(token_ids)} tokens and the model's context holds {held}: "
                "there is no room for an answer"
            )
        return min(wanted, room), room < wanted

    def _check_tools(
        self, tools: Sequence[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ToolFormat | None:
        if not tools:
            return None
        engine = self.loaded.engine_name
        if Capability.TOOLS not in self.loaded.capabilities:
            raise UnsupportedRequestError(
                f"the task gives tools ({', '.join(tool.name for tool in tools)}) and engine "
                f"{engine} lacks the capability 'tools'"
            )
        if not self.use_chat_template:
            raise UnsupportedRequestError("tools need the chat template: use_chat_template=true")
        if tool_choice not in ("auto", "none"):
            raise UnsupportedRequestError(
                f"tool_choice={tool_choice!r} can't be enforced; only 'auto' and 'none' can"
            )
        if config.parallel_tool_calls is False:
            raise UnsupportedRequestError(
                "parallel_tool_calls=False can't be enforced; leave it out"
            )
        if self.tool_format is not None:
            return self.tool_format
        template = self.loaded.chat_template
        if template is None:
            raise UnsupportedRequestError(
                f"tools are given and engine {engine} doesn't show the model's chat template, nor "
                "so the form of its tool calls; say it: -M tool_format=NAME"
            )
        return find_tool_format(template.source_with_tools)

    def _check_prompt_scores(self, token_ids: list[int] | None) -> None:
        lacking = {Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS} - self.loaded.capabilities
        if lacking:
            names = ", ".join(sorted(repr(capability.value) for capability in lacking))
            raise UnsupportedRequestError(
                f"prompt_logprobs: engine {self.loaded.engine_name} lacks the capability {names}"
            )
        if token_ids is None:
            raise UnsupportedRequestError(
                f"prompt_logprobs: engine {self.loaded.engine_name} doesn't report the ids of the "
                "prompt; set tokenizer_path, so that it is encoded here"
            )
