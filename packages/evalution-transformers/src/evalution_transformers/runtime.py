"""The libraries torch and Transformers: versions, devices, and the errors of their loaders."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from evalution_core import ConfigurationError, EngineUnavailableError, EvalutionError
from evalution_core.redaction import redact_text
from evalution_enginekit import import_runtime
from evalution_enginekit.runtime import is_in_range, shorten_error

if TYPE_CHECKING:
    import torch

TORCH = ">=2.6"
TRANSFORMERS = ">=4.57,<6"
_INSTALL = "pip install evalution-transformers"
_HOOKED = ">=5.4"
"""Versions whose bars can be left out without touching those of the Hub's downloads."""


def import_transformers() -> None:
    """Import torch and Transformers.

    Raises:
        EngineUnavailableError: one is missing, of another version, or can't be imported.
    """
    import_runtime("torch", TORCH, install=_INSTALL)
    import_runtime("transformers", TRANSFORMERS, install=_INSTALL)


def describe_runtime(device: str | None) -> dict[str, Any]:
    """Return the versions of both libraries and the device that `device` names here.

    Raises:
        ConfigurationError: torch knows no such device.
        EngineUnavailableError: a library or the device is missing.
    """
    import_transformers()
    import torch  # noqa: PLC0415 - nothing is imported before an engine needs it
    import transformers  # noqa: PLC0415

    return {
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "device": str(resolve_device(device)),
    }


def resolve_device(name: str | None) -> torch.device:
    """Return the named device; for None and `auto` an accelerator, or the CPU if there is none.

    Raises:
        ConfigurationError: torch knows no such device.
        EngineUnavailableError: this machine or this build of torch lacks it.
    """
    import torch  # noqa: PLC0415 - nothing is imported before an engine needs it

    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name in (None, "auto"):
        return torch.device("cpu") if present is None else torch.device(present.type, 0)
    try:
        device = torch.device(name or "auto")
    except RuntimeError as error:
        raise ConfigurationError(
            f"device={name!r} isn't a device of torch; say cpu, cuda, cuda:1, mps or auto"
        ) from error
    count = torch.accelerator.device_count() if present is not None else 0
    if device.type == "cpu" or (
        present is not None and device.type == present.type and (device.index or 0) < count
    ):
        return device
    there = "cpu" if present is None else f"cpu and {count} x {present.type}"
    raise EngineUnavailableError(
        f"device={name!r} isn't there: torch {torch.__version__} sees {there}"
    )


class CudnnAttention:
    """The setting of the process by which torch's attention may take cuDNN's kernels.

    cuDNN makes a plan for each shape, which takes tenths of a second, and hardly a pass of ours has
    the shape of another: on an H200 the card was busy for a sixth of a run
    (meta-pytorch/torchtune#1652; pytorch/pytorch#155958 is to keep one plan for many shapes).
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._open = 0
        self._before = True

    @contextmanager
    def avoid(self) -> Generator[None]:
        """Turn it off while this context or another is open, on all threads."""
        import torch  # noqa: PLC0415 - nothing is imported before an engine needs it

        backends = torch.backends.cuda
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._before = backends.cudnn_sdp_enabled()
                backends.enable_cudnn_sdp(False)
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if not self._open:
                    backends.enable_cudnn_sdp(self._before)


CUDNN_ATTENTION = CudnnAttention()


@contextmanager
def loading_errors(kind: str, path: str, *, missing: str | None = None) -> Generator[None]:
    """Turn the errors of a loader of Transformers into Evalution's, and hide its progress bar.

    Args:
        kind: what is loaded, for messages: `tokenizer`.
        path: where from.
        missing: the message where a library is missing, if there is a better one.

    Raises:
        EngineUnavailableError: a library is missing, or memory ran out.
        ConfigurationError: anything else that a loader refuses.
    """
    import torch  # noqa: PLC0415 - nothing is imported before an engine needs it
    from safetensors import SafetensorError  # noqa: PLC0415

    try:
        with _without_bars():
            yield
    except EvalutionError:
        raise
    except ImportError as error:
        raise EngineUnavailableError(
            f"{missing or f'loading {path!r} needs more'}: {redact_text(str(error))}"
        ) from error
    except torch.OutOfMemoryError as error:
        raise EngineUnavailableError(
            f"{path!r} doesn't fit; set model_kwargs device_map, or a smaller dtype: "
            f"{redact_text(str(error))}"
        ) from error
    except (
        AssertionError,
        AttributeError,
        KeyError,
        OSError,
        RuntimeError,
        SafetensorError,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigurationError(
            f"no {kind} could be loaded from {path!r}: {shorten_error(error)}"
        ) from error


@contextmanager
def _without_bars() -> Generator[None]:
    """Show no bar over the loading of weights, unless TRANSFORMERS_VERBOSITY asks for information.

    A hook that somebody else has set on these bars is kept.
    """
    import transformers  # noqa: PLC0415 - nothing is imported before an engine needs it

    upstream: Any = transformers.utils.logging
    wanted = upstream.get_verbosity() <= upstream.INFO
    if wanted or not is_in_range(transformers.__version__, _HOOKED):
        yield
        return
    before = upstream.set_tqdm_hook(_hide_bar)
    if before is not None:
        upstream.set_tqdm_hook(before)
    try:
        yield
    finally:
        upstream.set_tqdm_hook(before)


def _hide_bar(bar: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    return bar(*args, **{**options, "disable": True})
