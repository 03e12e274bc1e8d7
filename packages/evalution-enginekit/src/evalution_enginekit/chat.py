"""Messages to prompt text, through the model's own chat template.

Templates come with checkpoints, so they are foreign code: they run in Jinja's sandbox, with the
environment that Transformers documents for them ("Writing a chat template").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evalution_core import ConfigurationError, EngineUnavailableError, InvalidRequestError, Model
from evalution_core.plugins import did_you_mean
from evalution_core.redaction import redact
from evalution_core.requests import Message

if TYPE_CHECKING:
    from jinja2 import Template

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")
"""The names of the tokens that templates may print."""
_SET = frozenset(
    {
        "messages",
        "add_generation_prompt",
        "tools",
        "documents",
        "raise_exception",
        "strftime_now",
        "chat_template",  # servers take another template by that name
        *SPECIAL_TOKENS,
    }
)
"""Variables that every template is given, so that callers may not set them."""
_TEMPLATE_FAULTS = (
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    NameError,  # a number beyond floats, which Jinja compiles to the name `inf`
    *(AssertionError, MemoryError, RuntimeError, SyntaxError),  # of what is nested too deeply
)
"""Errors that a template's expressions raise on messages that it wasn't written for."""
_PROBES = [
    [{"role": role, "content": "a"} for role in roles]
    for roles in (["user"], ["system", "user"], ["user", "assistant", "user"])
]


class ChatTemplate:
    """One template with the special tokens it may print (`bos_token`, `eos_token`, …).

    `variables` are further ones that `with_variables` has bound. `tool_source` is the template for
    requests with tools, where a checkpoint has one of its own for them.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
        tool_source: str | None = None,
    ):
        self.source = source
        self.tool_source = tool_source
        self.special_tokens = dict(special_tokens or {})
        self.variables = dict(variables or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.special_tokens, self.variables, self.tool_source)

    @cached_property
    def _template(self) -> Template:
        return _import_sandbox().TemplateEnvironment().from_string(self.source)

    @property
    def source_with_tools(self) -> str:
        """The text that requests with tools are rendered by."""
        return self.tool_source or self.source

    @cached_property
    def _tool_template(self) -> Template:
        return _import_sandbox().TemplateEnvironment().from_string(self.source_with_tools)

    def with_variables(self, variables: Mapping[str, Any]) -> ChatTemplate:
        """This template, rendered with `variables` too; of two with one name, the new one counts.

        Raises:
            ConfigurationError: as `check_variables`, or neither template reads a variable.
            EngineUnavailableError: Jinja is not installed.
        """
        check_variables(variables, self.special_tokens)
        found = set[str]().union(*map(_find_variables, {self.source, self.source_with_tools}))
        read = found - _SET - self.special_tokens.keys()
        for name in variables:
            if name not in read:
                raise ConfigurationError(
                    f"the model's chat template reads no variable {name!r}"
                    f"{did_you_mean(name, read)} (it reads: {', '.join(sorted(read)) or 'none'}); "
                    f"leave it out of chat_template_kwargs"
                )
        bound = {**self.variables, **variables}
        return ChatTemplate(self.source, self.special_tokens, bound, self.tool_source)

    @cached_property
    def _reads_tools(self) -> bool:
        return "tools" in _import_sandbox().find_undeclared(self.source_with_tools)

    @property
    def day(self) -> str | None:
        """Today, as `2026-07-26`, if chats show the date; None for a template that doesn't."""
        if "strftime_now" not in self.source + self.source_with_tools:
            return None
        asked: list[str] = []
        spied = {**self.variables, "strftime_now": asked.append}
        probe = ChatTemplate(self.source, self.special_tokens, spied)
        refused = 0
        for chat in _PROBES:
            try:
                probe.render(chat)
            except InvalidRequestError:
                refused += 1
            except EngineUnavailableError:
                return None  # no chat can be rendered
        if not asked and refused < len(_PROBES):
            return None  # its variables set the date
        return f"{_import_sandbox().datetime.now():%Y-%m-%d}"

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt text; parts of a message that are all text are joined by a newline.

        Raises:
            InvalidRequestError: the template refuses the messages, with its own reason, is broken,
                goes over a limit of `template_sandbox`, or doesn't read the tools it is given.
            EngineUnavailableError: Jinja is not installed.
        """
        sandbox = _import_sandbox()
        try:
            with sandbox.limit_rendering(len(messages)):
                if not tools or self._reads_tools:
                    return (self._tool_template if tools else self._template).render(
                        messages=[_join_text_parts(message) for message in messages],
                        add_generation_prompt=add_generation_prompt,
                        tools=list(tools) if tools else None,
                        documents=None,
                        **self.special_tokens,
                        **self.variables,
                    )
        except (sandbox.jinja2.TemplateError, *_TEMPLATE_FAULTS) as error:
            raise InvalidRequestError(f"the chat template refused the messages: {error}") from error
        raise InvalidRequestError(
            "tools are given and this model's chat template reads none, so the model would never "
            "see them; describe them in a message, or take a model that calls tools"
        )


def _find_variables(source: str) -> set[str]:
    """Return the names of the variables that a template reads and doesn't set."""
    sandbox = _import_sandbox()
    try:
        with sandbox.limit_rendering():
            return sandbox.find_undeclared(source)
    except (sandbox.jinja2.TemplateError, *_TEMPLATE_FAULTS) as error:
        raise ConfigurationError(f"the model's chat template is broken: {error}") from error


def read_chat_template(
    file: Path, settings: Mapping[str, Any], specials: Mapping[str, str]
) -> ChatTemplate | None:
    """Return the template: files go before the configuration, and named ones first.

    Raises:
        ConfigurationError: a file isn't UTF-8, or as `choose_template`.
    """
    files = [file.with_name("chat_template.jinja")]
    files += sorted(file.parent.glob("additional_chat_templates/*.jinja"))
    found = {each.stem: _read_text(each) for each in files if each.is_file()}
    if not found:
        return choose_template(settings.get("chat_template"), specials)
    default = {"default": found.pop("chat_template")} if "chat_template" in found else {}
    return choose_template({**default, **found}, specials)


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not UTF-8: {error}; copy it again") from error


def choose_template(source: Any, specials: Mapping[str, str]) -> ChatTemplate | None:
    """Return the default one of a checkpoint's templates, with the one for tools.

    Raises:
        ConfigurationError: `source` is neither a text, nor a list or mapping of named ones.
    """
    named: list[tuple[Any, Any]] = [] if source is None else [("default", source)]
    if isinstance(source, dict):
        named = [*cast("dict[Any, Any]", source).items()]
    elif isinstance(source, list):
        entries = cast("list[Any]", source)
        objects: list[dict[str, Any]] = [
            entry if isinstance(entry, dict) else {"template": entry} for entry in entries
        ]
        named = [(entry.get("name"), entry.get("template")) for entry in objects]
    for name, template in named:
        if not (isinstance(name, str) and isinstance(template, str)):
            raise ConfigurationError(
                f"the model's chat_template has {template!r} under the name {name!r}, and both "
                "must be texts; copy the model's tokenizer again"
            )
    templates: dict[str, str] = dict(named)
    if "default" not in templates:
        return None
    return ChatTemplate(templates["default"], specials, tool_source=templates.get("tool_use"))


def bind_template(model: Model, template: ChatTemplate | None) -> ChatTemplate | None:
    """`template`, rendered with what `model.chat_template_kwargs` says.

    Raises:
        ConfigurationError: it says something and there is no template, or as `with_variables`.
        EngineUnavailableError: Jinja is not installed.
    """
    variables = model.chat_template_kwargs
    if not variables:
        return template
    if template is None:
        check_variables(variables)
        raise ConfigurationError(
            f"model.chat_template_kwargs sets {', '.join(variables)}, and this model has no chat "
            f"template that could read it; leave it out, or set tokenizer_path to the tokenizer of "
            f"the matching chat model"
        )
    return template.with_variables(variables)


def check_variables(variables: Mapping[str, Any], special_tokens: Iterable[str] = ()) -> None:
    """Refuse what can't be a variable of a chat template.

    Servers are sent the variables, and journals distinguish answers by them, so a value must be one
    of JSON. A date, as YAML reads it from `2026-07-26`, is none.

    Raises:
        ConfigurationError: a name is one that templates are given anyway, or a value isn't plain.
    """
    for name, value in variables.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - YAML's 1: 2
            raise ConfigurationError(
                f"a name in model.chat_template_kwargs must be text, got {name!r}; quote it"
            )
        if not _is_plain(value):
            raise ConfigurationError(
                f"model.chat_template_kwargs[{name!r}] must be text, a finite number, true, false, "
                f"null, or a list or mapping of those whose names are text, got {redact(value)!r}; "
                f"quote what is meant as text"
            )
        if name in _SET or name in special_tokens:
            raise ConfigurationError(
                f"model.chat_template_kwargs may not set {name!r}: a chat template is given that "
                f"one anyway; leave it out"
            )


def _is_plain(value: object) -> bool:
    match value:
        case None | bool() | int() | str():
            return True
        case float():
            return math.isfinite(value)
        case list() | tuple():
            return all(_is_plain(member) for member in cast("Sequence[object]", value))
        case Mapping():
            members = cast("Mapping[object, object]", value).items()
            return all(isinstance(name, str) and _is_plain(each) for name, each in members)
        case _:
            return False


def _join_text_parts(message: Message) -> dict[str, Any]:
    """The message with text parts joined; a None is left out, or a template would print it."""
    kept = {name: value for name, value in message.items() if value is not None}
    if isinstance(kept.get("content"), list):
        parts = cast("list[Mapping[str, Any]]", kept["content"])
        if all(part.get("type") == "text" for part in parts):
            kept["content"] = "\n".join(str(part["text"]) for part in parts)
    return kept


def _import_sandbox() -> Any:
    try:
        import_module("jinja2")  # an extra
        return import_module("evalution_enginekit.template_sandbox")
    except ImportError as error:
        raise EngineUnavailableError(
            'rendering chat needs jinja2; pip install "evalution-enginekit[tokenizers]"'
        ) from error
