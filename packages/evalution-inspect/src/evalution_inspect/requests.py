"""What Inspect asks for, as requests of one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import (
    Capability,
    ContextLengthError,
    GenerationRequest,
    UnsupportedRequestError,
)
from evalution_inspect.decoding import decoding
from evalution_inspect.loaded import LoadedModel
from evalution_inspect.messages import conversation, plain_prompt
from evalution_inspect.tool_calls import ToolFormat, declared, format_of

if TYPE_CHECKING:
    from inspect_ai.model import ChatMessage, GenerateConfig
    from inspect_ai.tool import ToolChoice, ToolInfo

_MAX_TOKENS = 2048
"""Where nobody says and the model has room: what Inspect's own local providers generate."""


@dataclass(frozen=True, slots=True)
class PromptRequests:
    """One request a choice, all of the same prompt.

    `token_ids` are the prompt's, None where the session doesn't tell them. `fills_context`: the
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
        choices = decoding(config)
        form = self._checked_tools(tools, tool_choice, config)
        fields = self._prompt(messages, tools)
        token_ids = self.loaded.prompt_ids(fields)
        if config.prompt_logprobs:
            self._check_prompt_scores(token_ids)
        limit, fills_context = self._limit(token_ids, config.max_tokens)
        fields |= {"max_new_tokens": limit}
        if self.loaded.can(Capability.TRUNCATION):
            # An agent is to see that its conversation is too long; a cut would hide it.
            fields["truncation"] = "error"
        requests = [GenerationRequest(**fields, **choice) for choice in choices]
        return PromptRequests(requests, token_ids, fills_context, form)

    def _prompt(self, messages: Sequence[ChatMessage], tools: Sequence[ToolInfo]) -> dict[str, Any]:
        if not self.use_chat_template:
            return plain_prompt(messages)
        fields: dict[str, Any] = {"messages": conversation(messages)}
        return fields | {"tools": declared(tools)} if tools else fields

    def _limit(self, token_ids: list[int] | None, asked: int | None) -> tuple[int, bool]:
        """How many tokens may be generated, and whether the model's context is what limits it."""
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

    def _checked_tools(
        self, tools: Sequence[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ToolFormat | None:
        if not tools:
            return None
        engine = self.loaded.engine_name
        if not self.loaded.can(Capability.TOOLS):
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
                f"tools are given and engine {engine} doesn't tell the model's chat template, nor "
                "so the form of its tool calls; say it: -M tool_format=NAME"
            )
        return format_of(template.source)

    def _check_prompt_scores(self, token_ids: list[int] | None) -> None:
        lacking = {Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS} - self.loaded.capabilities
        if lacking:
            names = ", ".join(sorted(repr(capability.value) for capability in lacking))
            raise UnsupportedRequestError(
                f"prompt_logprobs: engine {self.loaded.engine_name} lacks the capability {names}"
            )
        if token_ids is None:
            raise UnsupportedRequestError(
                f"prompt_logprobs: engine {self.loaded.engine_name} doesn't tell the ids of the "
                "prompt; set tokenizer_path, so that it is encoded here"
            )
