"""Messages to prompt text, through the model's own chat template.

Templates come with checkpoints, so they are foreign code: they run in Jinja's sandbox, with the
environment that Transformers documents for them ("Writing a chat template").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from evalution_core import EngineUnavailableError, InvalidRequestError, Message

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.nodes import Node
    from jinja2.parser import Parser

_TEMPLATE_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a template's own expressions raise on messages that it wasn't written for."""


class ChatTemplate:
    """One template with the special tokens it may print (`bos_token`, `eos_token`, …)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None):
        self.source = source
        self.special_tokens = dict(special_tokens or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.special_tokens)

    @cached_property
    def _template(self) -> Template:
        return _environment().from_string(self.source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt text; parts of a message that are all text are joined by a newline.

        Raises:
            InvalidRequestError: the template refuses the messages, with its own reason.
            EngineUnavailableError: Jinja is not installed.
        """
        try:
            import jinja2  # noqa: PLC0415 - extra [tokenizers] or [hf]
        except ImportError as error:
            raise EngineUnavailableError(
                'rendering chat needs jinja2; pip install "evalution-enginekit[tokenizers]"'
            ) from error
        try:
            return self._template.render(
                messages=[_with_plain_content(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=list(tools) if tools else None,
                documents=None,
                **self.special_tokens,
            )
        except (jinja2.TemplateError, *_TEMPLATE_FAULTS) as error:
            raise InvalidRequestError(f"the chat template refused the messages: {error}") from error


def _with_plain_content(message: Message) -> dict[str, Any]:
    """The message with text parts joined; a None is left out, or a template would print it."""
    kept = {name: value for name, value in message.items() if value is not None}
    if isinstance(kept.get("content"), list):
        parts = cast("list[Mapping[str, Any]]", kept["content"])
        if all(part.get("type") == "text" for part in parts):
            kept["content"] = "\n".join(str(part["text"]) for part in parts)
    return kept


def _environment() -> Any:
    from jinja2.ext import loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation_tag()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _generation_tag() -> Any:
    from jinja2.ext import Extension  # noqa: PLC0415

    class GenerationTag(Extension):
        """`{% generation %}` marks the assistant's text for training; it prints its body."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Parser) -> Node | list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return GenerationTag


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _refuse(message: str) -> None:
    import jinja2  # noqa: PLC0415

    raise jinja2.TemplateError(message)


def _now(spelling: str) -> str:
    return datetime.now().astimezone().strftime(spelling)
