"""`--model_args` of lm-eval: an engine with its options, a model, and settings of the bridge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from evalution_core import BaseEngine, ConfigurationError, Model, load_engine
from evalution_core.options import option_fields
from evalution_core.plugins import did_you_mean
from evalution_lm_eval.collection import OnFailure
from evalution_lm_eval.requests import DEFAULT_MAX_GEN_TOKS

_PATHS = ("pretrained", "model", "path")
_MODEL = {
    "tokenizer": "tokenizer_path",
    **{name: name for name in Model.__dataclass_fields__ if name not in ("path", "tokenizer")},
}
_TEXTS = ("path", "label", "tokenizer_path", "revision")
_OWN = ("max_gen_toks", "on_failure")
_DEFAULT_DEVICE = "cuda:0"
"""The value that lm-eval's command passes where nobody named a device."""


@dataclass(frozen=True, slots=True)
class ModelArguments:
    """An engine and model to build, and settings of the bridge.

    `max_gen_toks` is for tasks that name no limit; `on_failure` as in `EvalutionLM`.
    """

    engine: BaseEngine
    model: Model
    max_gen_toks: int = DEFAULT_MAX_GEN_TOKS
    on_failure: OnFailure = "raise"


def read_arguments(given: Mapping[str, Any], device: str | None = None) -> ModelArguments:
    """Arguments as lm-eval parsed them; each name is the engine's, the model's or the bridge's.

    Args:
        given: by name; `pretrained`, `model` and `path` are one and the same.
        device: lm-eval's `--device`, the engine's option of that name.

    Raises:
        ConfigurationError: no engine is named, a name is unknown (with the nearest one), or a value
            is of a wrong type.
        UnknownEngineError: no installed engine has the name.
        EngineUnavailableError: the engine's package can't be imported.
    """
    rest = dict(given)
    kind = _load_engine_class(rest.pop("engine", None))
    options = {option.name for option in option_fields(kind)}
    _check_names(kind, rest, options)
    settings = {name: rest.pop(name) for name in list(rest) if name in options}
    if device is not None and device != _DEFAULT_DEVICE:
        if "device" not in options:
            raise ConfigurationError(
                f"engine {kind.__name__} has no option 'device', so --device {device} can't be met"
            )
        settings["device"] = device
    own = {name: rest.pop(name) for name in _OWN if name in rest}
    _check_own(own)
    return ModelArguments(kind.from_options(settings), _make_model(rest), **own)


def _load_engine_class(name: object) -> type[BaseEngine]:
    if not isinstance(name, str):
        raise ConfigurationError(
            "model_args name no engine; for instance "
            "--model_args engine=Transformers,pretrained=builtin:tiny"
        )
    return load_engine(name)


def _check_names(kind: type[BaseEngine], given: Mapping[str, Any], options: set[str]) -> None:
    known = [*sorted(options), *_PATHS, *_MODEL, *_OWN]
    for name in given:
        if name not in known:
            raise ConfigurationError(
                f"model_args has {name!r}, which is unknown{did_you_mean(name, known)} (engine "
                f"{kind.__name__}: {', '.join(sorted(options)) or 'no options'}; the model: "
                f"{', '.join([*_PATHS, *_MODEL])}; of the bridge: engine, {', '.join(_OWN)})"
            )


def _make_model(given: Mapping[str, Any]) -> Model:
    named = [name for name in _PATHS if given.get(name) is not None]
    if len(named) > 1:
        raise ConfigurationError(
            f"model_args name the model more than once: {', '.join(named)} mean the same"
        )
    if given.get("tokenizer") is not None and given.get("tokenizer_path") is not None:
        raise ConfigurationError(
            "model_args name the tokenizer more than once: tokenizer, tokenizer_path mean the same"
        )
    fields: dict[str, Any] = {
        _MODEL[name]: value for name, value in given.items() if name in _MODEL
    }
    if named:
        fields["path"] = given[named[0]]
    # lm-eval makes a number of a revision or a label that looks like one.
    for name in _TEXTS:
        if fields.get(name) is not None:
            fields[name] = str(fields[name])
    return Model(**fields)


def _check_own(own: Mapping[str, Any]) -> None:
    limit = own.get("max_gen_toks", 1)
    if type(limit) is not int or limit < 1:
        raise ConfigurationError(f"max_gen_toks must be an int of at least 1, got {limit!r}")
    words = get_args(OnFailure)
    if (word := own.get("on_failure", words[0])) not in words:
        raise ConfigurationError(
            f"on_failure must be {' or '.join(words)}, got {word!r}{did_you_mean(str(word), words)}"
        )
