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

from evalution_core import InvalidRequestError, Message

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.nodes import Node
    from jinja2.parser import Parser


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
        """
        import jinja2  # noqa: PLC0415 - the kit's base imports nothing but core

        try:
            return self._template.render(
                messages=[_with_plain_content(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=list(tools) if tools else None,
                **self.special_tokens,
            )
        except jinja2.TemplateError as error:
            raise InvalidRequestError(f"the chat template refused the messages: {error}") from error


def _with_plain_content(message: Message) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    parts = cast("list[Mapping[str, Any]]", content)
    if any(part.get("type") != "text" for part in parts):
        return dict(message)
    return {**message, "content": "\n".join(str(part["text"]) for part in parts)}


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
