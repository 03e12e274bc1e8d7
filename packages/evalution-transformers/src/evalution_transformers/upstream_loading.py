"""Around each call of a loader of upstream's: its exceptions in our words, and no bar on stderr."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from evalution_core import ConfigurationError, EngineUnavailableError, EvalutionError
from evalution_core.redaction import scrub
from evalution_enginekit.runtime import brief, in_range

_HOOKED = ">=5.4"
"""Versions whose bars can be left out without touching those of the Hub's downloads."""


@contextmanager
def loading(what: str, path: str, *, missing: str) -> Generator[None]:
    """A context in which `what` is loaded from `path`; `missing` is said where a library is.

    Raises:
        EngineUnavailableError: a library is missing, or memory ran out.
        ConfigurationError: anything else that a loader refuses.
    """
    try:
        with _without_bars():
            yield
    except EvalutionError:
        raise
    except ImportError as error:
        raise EngineUnavailableError(f"{missing}: {scrub(str(error))}") from error
    except torch.OutOfMemoryError as error:
        raise EngineUnavailableError(
            f"{path!r} doesn't fit; set model_kwargs device_map, or a smaller dtype: "
            f"{scrub(str(error))}"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ConfigurationError(
            f"no {what} could be loaded from {path!r}: {brief(error)}"
        ) from error


@contextmanager
def _without_bars() -> Generator[None]:
    """No bar over the loading of weights, unless TRANSFORMERS_VERBOSITY asks for information.

    Whoever has set a hook on upstream's bars sees to them, and keeps it.
    """
    upstream: Any = transformers.utils.logging
    wanted = upstream.get_verbosity() <= upstream.INFO
    if wanted or not in_range(transformers.__version__, _HOOKED):
        yield
        return
    before = upstream.set_tqdm_hook(_hidden)
    if before is not None:
        upstream.set_tqdm_hook(before)
    try:
        yield
    finally:
        upstream.set_tqdm_hook(before)


def _hidden(bar: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    return bar(*args, **{**options, "disable": True})
