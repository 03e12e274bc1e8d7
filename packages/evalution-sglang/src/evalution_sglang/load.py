"""A checkpoint in SGLang: its weights on disk, its window, and the start of its engine."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from evalution_core import ConfigurationError, Model
from evalution_enginekit.model_source import check_complete, choose_window, read_commit_hash
from evalution_enginekit.runtime import process_environment
from evalution_enginekit.serving_session import (
    LoadingHints,
    ServedModel,
    StartedModel,
    choose_serving_dtype,
    load_serving,
    loading_errors,
)
from evalution_enginekit.tokenizer_classes import read_json
from evalution_sglang.arguments import choose_attention, make_arguments, select_model_arguments
from evalution_sglang.engine_thread import EngineThread
from evalution_sglang.options import SGLangOptions
from evalution_sglang.runtime import CPU, QUIET, SCORES, Library, import_sglang
from evalution_sglang.upstream import Engine, ModelConfig

_HINTS = LoadingHints(
    "SGLang", "max_model_len, mem_fraction_static, max_total_tokens, tp_size or quantization"
)
_START_HINTS = replace(_HINTS, process_errors=(RuntimeError, EOFError))
_RESERVED = 7
"""Tokens by which SGLang's window has to be longer than what a request feeds: the one that is
generated, the last of the window, and five that its scheduler keeps free."""
_INDEX = "model.safetensors.index.json"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Runtime:
    """SGLang's engine on a model, and what it read of the model before."""

    thread: EngineThread
    config: ModelConfig


def load(options: SGLangOptions, model: Model, resources: ExitStack) -> ServedModel[Runtime]:
    """Start SGLang on the model's checkpoint; `resources` ends it.

    Raises:
        ConfigurationError: nothing loadable is there, or options contradict the model or device.
        EngineUnavailableError: SGLang is missing, or its processes didn't start.
    """

    def prepare(path: str, folder: Path | None) -> Callable[[], StartedModel[Runtime]]:
        sglang = import_sglang()
        arguments = make_arguments(options, model, path, sglang)
        if folder is not None:
            check_weights(folder)
        return lambda: _start(options, model, sglang, arguments, folder, resources)

    return load_serving(model, engine="SGLang", hints=_HINTS, prepare=prepare)


def _start(
    options: SGLangOptions,
    model: Model,
    sglang: Library,
    arguments: dict[str, Any],
    folder: Path | None,
    resources: ExitStack,
) -> StartedModel[Runtime]:
    switches = SCORES | (CPU if arguments["device"] == "cpu" else {})
    with process_environment(switches, defaults=_defaults(arguments)), _start_method():
        config = _read_config(sglang, arguments)
        # `check_weights` sees whole layers only, but before SGLang is configured.
        check_complete(config.hf_config, folder)
        declared = config.hf_config.to_dict()
        if (dtype := choose_serving_dtype(options.dtype, declared, folder)) != options.dtype:
            arguments["dtype"] = dtype
            config = _read_config(sglang, arguments)
        arguments |= choose_attention(arguments)
        option, asked = _window_option(options)
        window = choose_window(asked, config.context_len, option=option)
        arguments["context_length"] = window + _RESERVED
        with loading_errors(str(model.path), _START_HINTS):
            thread = EngineThread(sglang.engine, arguments)
        resources.callback(thread.end)
    return StartedModel(
        Runtime(thread, config),
        fit_window(options, window, thread.engine),
        # SGLang stops at these by itself.
        frozenset(config.hf_eos_token_id or ()),
        read_commit_hash(config.hf_config),
    )


def _read_config(sglang: Library, arguments: dict[str, Any]) -> ModelConfig:
    return sglang.model_config(arguments["model_path"], **select_model_arguments(arguments))


def fit_window(options: SGLangOptions, window: int, engine: Engine) -> int:
    """Return `window`, or the part of it that the cache of a started engine has room for.

    Raises:
        ConfigurationError: an option asks for more than that.
    """
    option, asked = _window_option(options)
    room = engine.tokenizer_manager.max_req_input_len - 1
    if asked is not None and room < window:
        raise ConfigurationError(
            f"{option}={window} doesn't fit: SGLang's cache has room for requests of {room} "
            f"tokens; raise max_total_tokens or mem_fraction_static, or lower {option}"
        )
    return min(window, room)


def _window_option(options: SGLangOptions) -> tuple[str, int | None]:
    """Return the option that bounds the window, under the name that was used, and its value."""
    if options.context_length is not None:
        return "context_length", options.context_length
    return "max_model_len", options.max_model_len


def _defaults(arguments: Mapping[str, Any]) -> dict[str, str]:
    if arguments["device"] != "cpu":
        return QUIET
    # Functions that are compiled at their first call take a compiler and many seconds.
    return {**QUIET, "TORCHDYNAMO_DISABLE": "1"}


@contextmanager
def _start_method() -> Generator[None]:
    """Restore the start method of processes, which upstream sets for this whole process."""
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


def check_weights(folder: Path) -> None:
    """Refuse a folder of safetensors files that lacks one of them, or all weights of a layer.

    SGLang 0.5 leaves a weight that no file has as memory happens to be, and reports nothing. The
    files are those that the folder's index names, the layers those of its `config.json`. Weights in
    other formats are left to SGLang.

    Raises:
        ConfigurationError: a file or a layer is missing, or a file can't be read.
    """
    layers = _count_layers(folder)
    found = {int(match[1]) for name in _weight_names(folder) if (match := _LAYER.search(name))}
    if not found or not (missing := sorted(set(range(layers)) - found)):
        return
    raise ConfigurationError(
        f"the checkpoint {str(folder)!r} lacks the weights of {len(missing)} of its {layers} "
        f"layers ({_list_few(map(str, missing))}); its answers would be those of random ones"
    )


def _weight_names(folder: Path) -> Iterable[str]:
    if not (folder / _INDEX).is_file():
        return [
            name
            for file in sorted(folder.glob("*.safetensors"))
            for name in _read_weight_names(file)
        ]
    weight_map: Any = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ConfigurationError(f"{_INDEX} in {str(folder)!r} has no weight_map; copy it again")
    by_name = cast("dict[str, str]", weight_map)
    absent = sorted({file for file in by_name.values() if not (folder / file).is_file()})
    if absent:
        raise ConfigurationError(
            f"the checkpoint {str(folder)!r} lacks {len(absent)} of the files that its index names "
            f"({_list_few(absent)}); copy or download it again"
        )
    return by_name


def _read_weight_names(file: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - comes with SGLang

    try:
        reader: Any = safe_open(file, framework="np")
        with reader as opened:
            return list(opened.keys())
    except SafetensorError as error:
        raise ConfigurationError(f"{file} can't be read: {error}; copy it again") from error


def _count_layers(folder: Path) -> int:
    config = read_json(folder / "config.json")
    text: Any = config.get("text_config")
    for part in (config, cast("dict[str, Any]", text) if isinstance(text, dict) else {}):
        if isinstance(count := part.get("num_hidden_layers"), int):
            return count
    return 0


def _list_few(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_SHOWN]) + (", …" if len(listed) > _SHOWN else "")
