"""A checkpoint in SGLang, and its end."""

from __future__ import annotations

import multiprocessing
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import ConfigurationError, EngineUnavailableError, EvalutionError, Model
from evalution_enginekit import Tokenizer
from evalution_enginekit.model_source import checkpoint_identity, model_folder
from evalution_enginekit.runtime import brief, process_environment
from evalution_enginekit.tokenizer_files import HFTokenizer, checkpoint_tokenizer
from evalution_sglang.arguments import arguments, model_arguments
from evalution_sglang.environment import CPU, QUIET, SCORES
from evalution_sglang.host import EngineHost
from evalution_sglang.installation import Runtime, runtime
from evalution_sglang.upstream import Engine, ModelConfig
from evalution_sglang.weights import check_weights

if TYPE_CHECKING:
    from evalution_sglang.engine import SGLang

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.gguf")
RESERVED = 7
"""Tokens by which SGLang's window has to be longer than what a request feeds: the one that is
generated, the last of the window, and five that its scheduler keeps free."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that SGLang runs; `max_model_len` is how many tokens it may be fed."""

    host: EngineHost
    config: ModelConfig
    tokenizer: Tokenizer
    max_model_len: int
    identified: Mapping[str, Any] | None


def load(engine: SGLang, model: Model) -> Loaded:
    """Start SGLang on the model's checkpoint.

    Raises:
        ConfigurationError: nothing loadable is there, or options contradict the model or device.
        EngineUnavailableError: SGLang is missing, or its processes didn't come up.
    """
    if model.path is None:
        raise ConfigurationError(
            "engine SGLang needs model.path: a folder, a Hub id, or builtin:tiny"
        )
    folder = model_folder(model.path)
    sglang = runtime()
    given = arguments(engine, model, str(folder or model.path), sglang)
    if folder is not None:
        check_weights(folder)
    # The tokenizer first: if it is missing, no gigabytes are read in vain.
    tokenizer = checkpoint_tokenizer(model, folder)
    switches = SCORES | (CPU if given["device"] == "cpu" else {})
    with process_environment(switches, defaults=_defaults(given)), _start_method():
        config = _config(sglang, given, model.path)
        window = _window(engine, config.context_len)
        given["context_length"] = window + RESERVED
        host = _started(sglang, given, model.path)
    try:
        window = _fitting(engine, window, host.engine)
    except BaseException:
        host.end()
        raise
    if isinstance(tokenizer, HFTokenizer):
        # SGLang stops at these by itself.
        tokenizer.eos_ids |= frozenset(config.hf_eos_token_id or ())
    identified = checkpoint_identity(model, folder, _WEIGHTS, _revision(config))
    return Loaded(host, config, tokenizer, window, identified)


def _defaults(given: Mapping[str, Any]) -> dict[str, str]:
    if given["device"] != "cpu":
        return QUIET
    # Functions that are compiled at their first call take a compiler and many seconds.
    return {**QUIET, "TORCHDYNAMO_DISABLE": "1"}


def _config(sglang: Runtime, given: dict[str, Any], path: str) -> ModelConfig:
    try:
        return sglang.model_config(given["model_path"], **model_arguments(given))
    except Exception as error:
        raise ConfigurationError(
            f"SGLang can't read the model {path!r}: {type(error).__name__}: {brief(error)}"
        ) from error


def _started(sglang: Runtime, given: Mapping[str, Any], path: str) -> EngineHost:
    try:
        return EngineHost(sglang.engine, given)
    except EvalutionError:
        raise
    except (RuntimeError, EOFError) as error:
        raise EngineUnavailableError(
            f"SGLang's processes didn't come up for {path!r}: {brief(error)} What they said is on "
            f"standard error; if memory ran out, set max_model_len, mem_fraction_static, "
            f"max_total_tokens, tp_size or quantization"
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"SGLang couldn't load {path!r}: {type(error).__name__}: {brief(error)}"
        ) from error


def _asked(engine: SGLang) -> tuple[str, int | None]:
    """The option that bounds the window, by the name that was used."""
    if engine.context_length is not None:
        return "context_length", engine.context_length
    return "max_model_len", engine.max_model_len


def _window(engine: SGLang, own: int) -> int:
    name, asked = _asked(engine)
    if asked is None:
        return own
    if not 1 < asked <= own:
        raise ConfigurationError(f"{name}={asked} must be between 2 and the model's own {own}")
    return asked


def _fitting(engine: SGLang, window: int, started: Engine) -> int:
    """The window, or what of it SGLang's cache has room for where nobody asked for so much."""
    name, asked = _asked(engine)
    room = started.tokenizer_manager.max_req_input_len - 1
    if asked is not None and room < window:
        raise ConfigurationError(
            f"{name}={window} doesn't fit: SGLang's cache has room for requests of {room} tokens; "
            f"raise max_total_tokens or mem_fraction_static, or lower {name}"
        )
    return min(window, room)


@contextmanager
def _start_method() -> Generator[None]:
    """Upstream sets the way in which the whole process starts others."""
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


def _revision(config: ModelConfig) -> str | None:
    found: Any = getattr(config.hf_config, "_commit_hash", None)
    return None if found is None else str(found)
