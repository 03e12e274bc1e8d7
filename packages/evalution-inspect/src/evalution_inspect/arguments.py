"""Arguments given as `-M name=value`: an engine with its options, a model, and its prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from evalution_core import BaseEngine, ConfigurationError, Model, load_engine
from evalution_core.discovery import available
from evalution_core.options import option_fields
from evalution_core.plugins import did_you_mean
from evalution_inspect.messages import ToolFormat

_MODEL_FIELDS = (
    "chat_template_kwargs",
    "label",
    "model_kwargs",
    "revision",
    "tokenizer_kwargs",
    "tokenizer_path",
    "trust_remote_code",
)
_FORMATS: tuple[ToolFormat, ...] = get_args(ToolFormat)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one model.

    `use_chat_template`: messages are rendered with the model's chat template; else a single user
    message is completed as plain text. `tool_format`: how the model writes a tool call; None: by
    its chat template.
    """

    engine: BaseEngine
    model: Model
    use_chat_template: bool = True
    tool_format: ToolFormat | None = None


def parse_arguments(
    name: str, given: Mapping[str, Any], *, base_url: str | None, api_key: str | None
) -> Arguments:
    """Read the arguments of the model `name`; nothing is loaded but the engine's module.

    What is neither a field of the model nor an argument of this provider is an option of the
    engine. Options whose names are taken by those stand in a mapping `options`.

    Raises:
        ConfigurationError: no engine is named, an argument isn't known, or its value doesn't fit.
        UnknownEngineError: no engine of that name is installed; says what to install.
    """
    left = dict(given)
    kind = load_engine(_check_engine_name(left.pop("engine", None)))
    rendered = left.pop("use_chat_template", True)
    if not isinstance(rendered, bool):
        raise ConfigurationError(f"-M use_chat_template must be true or false, got {rendered!r}")
    tool_format = left.pop("tool_format", None)
    if tool_format is not None and tool_format not in _FORMATS:
        raise ConfigurationError(
            f"-M tool_format must be one of {', '.join(_FORMATS)}, got {tool_format!r}"
        )
    described = {field: left.pop(field) for field in _MODEL_FIELDS if field in left}
    options = _read_options(kind, left, base_url, api_key)
    engine = kind.from_options(options)
    model = Model(path=name or engine.default_model(), **described)
    return Arguments(engine, model, rendered, tool_format)


def _check_engine_name(given: object) -> str:
    if isinstance(given, str) and given:
        return given
    listed = ", ".join(entry.name for entry in available()) or "none"
    asked = "no engine is named" if given is None else f"-M engine must be a name, got {given!r}"
    raise ConfigurationError(f"{asked}; say which, as -M engine=NAME (installed: {listed})")


def _read_options(
    kind: type[BaseEngine], left: dict[str, Any], base_url: str | None, api_key: str | None
) -> dict[str, Any]:
    spelled = left.pop("options", {})
    if not isinstance(spelled, Mapping):
        raise ConfigurationError(f"-M options must be a mapping of engine options, got {spelled!r}")
    options = dict(cast("Mapping[str, Any]", spelled))
    if twice := sorted(options.keys() & left.keys()):
        raise ConfigurationError(f"given twice, as -M and in -M options: {', '.join(twice)}")
    options |= left
    known = {option.name for option in option_fields(kind)}
    for name, flag, value in (
        ("base_url", "--model-base-url", base_url),
        ("api_key", "api_key", api_key),
    ):
        if value is not None and name not in options:
            if name not in known:
                raise ConfigurationError(
                    f"{flag} is given and engine {kind.__name__} has no option {name!r}"
                )
            options[name] = value
    _check_names(kind.__name__, left, known)
    return options


def _check_names(engine: str, left: Mapping[str, Any], known: set[str]) -> None:
    """Raise for a name that is neither an engine's option nor an argument of the provider."""
    own = {"engine", "options", "tool_format", "use_chat_template", *_MODEL_FIELDS}
    for name in left:
        if name not in known:
            raise ConfigurationError(
                f"-M {name} is not known{did_you_mean(name, own | known)} (options of engine "
                f"{engine}: {', '.join(sorted(known)) or 'none'}; of the provider: "
                f"{', '.join(sorted(own))})"
            )
