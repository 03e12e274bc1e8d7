"""The tinygrad engine, as configuration; nothing is loaded before `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    Model,
    speed_only,
    validate_options,
)
from evalution_enginekit import import_runtime
from evalution_enginekit.model_source import refuse_gguf_model_fields, window_of

if TYPE_CHECKING:
    from evalution_tinygrad.session import TinygradSession

TINYGRAD = ">=0.13,<0.14"
"""The wheel of 0.14.0 lacks a part of `tinygrad.llm`, which then can't be imported."""
_INSTALL = (
    'pip install "tinygrad>=0.13,<0.14" (the model code of 0.14.0 can\'t be imported: its wheel '
    "lacks tinygrad.llm.kernels)"
)

CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}

_BATCH_SIZE = 16
_LARGEST_JIT = 2


@dataclass(slots=True)
class Tinygrad(BaseEngine):
    """GGUF models through tinygrad's own model code, on any accelerator it drives and on CPUs.

    `model.path` is a `.gguf` file, a folder with one, `owner/repository:file.gguf` on the Hub, or
    `builtin:tiny`. Chat is rendered by the file's template, or by `model.tokenizer_path`.

    Options:
        device: as tinygrad's `DEV`: `cpu`, `cuda`, `amd`, `metal`, `cpu:clangjit`, …; None or
            `auto`: what `DEV` names in the environment, else an accelerator if there is one. On an
            x86 CPU, tinygrad's assembler is used unless a renderer is named: it needs no compiler.
        dtype: what weight matrices are held in; `auto`: float32 on a CPU, and for a file of float32
            or bfloat16; else float16. Arithmetic is float32 either way.
        max_model_len: tokens the model is fed at most; None: what the file says.
        max_context: tinygrad's name for `max_model_len`; only one of them may be given.
        jit: tinygrad's `JIT` (0: off, 1: with graphs, 2: without); None: 2 on CUDA.
        jitbeam: tinygrad's `JITBEAM`: how wide it searches for fast kernels; None: 0 on CUDA.
        realize: unpack quantised weights once, for speed; False keeps them packed, for memory.
        batch_size: prompts completed side by side; None or `auto`: 16.
        pass_tokens: tokens of the widest pass.
        cache_tokens: tokens of prompts and completions that run at once; None: 1024 a row, and at
            least `max_model_len`.
    """

    device: str | None = None
    dtype: Literal["auto", "float32", "float16"] = "auto"
    max_model_len: int | None = None
    max_context: int | None = None
    jit: int | None = speed_only(default=None)
    jitbeam: int | None = speed_only(default=None)
    realize: bool = speed_only(default=True)
    batch_size: int | Literal["auto"] | None = speed_only(default=None)
    pass_tokens: int = speed_only(default=256)
    cache_tokens: int | None = speed_only(default=None)

    capabilities = CAPABILITIES

    def __post_init__(self) -> None:
        validate_options(self)
        least = {"batch_size": 1, "pass_tokens": 1, "cache_tokens": 1, "jit": 0, "jitbeam": 0}
        for name, least_value in least.items():
            value = getattr(self, name)
            if isinstance(value, int) and value < least_value:
                raise ConfigurationError(
                    f"option {name!r} of engine Tinygrad must be at least {least_value}, "
                    f"got {value}"
                )
        if self.jit is not None and self.jit > _LARGEST_JIT:
            raise ConfigurationError(
                f"option 'jit' of engine Tinygrad must be 0 (off), 1 (with graphs) or 2 (without), "
                f"got {self.jit}"
            )
        if self.max_model_len is not None and self.max_context is not None:
            raise ConfigurationError(
                f"max_model_len={self.max_model_len} and max_context={self.max_context} of engine "
                "Tinygrad mean the same; give one of them"
            )

    def describe_runtime(self) -> dict[str, Any]:
        """The version of tinygrad, and the device and renderer that `device` names here.

        Raises:
            EngineUnavailableError: tinygrad, the device or a compiler for it is missing.
        """
        version = _runtime_version()
        from evalution_tinygrad.device import place  # noqa: PLC0415 - it imports tinygrad

        placement = place(self.device, self.jit, self.jitbeam)
        return {
            "version": f"tinygrad {version}",
            "device": placement.target,
            "jit": placement.jit,
            "jitbeam": placement.beam,
        }

    def build(self, model: Model) -> TinygradSession:
        """Read the file and put the weights on the device.

        Raises:
            ConfigurationError: there is no such GGUF file, it is damaged, or tinygrad doesn't run
                its kind of model.
            EngineUnavailableError: tinygrad, the device or a compiler for it is missing.
        """
        refuse_gguf_model_fields(self, model, "tinygrad has none; leave it out")
        version = _runtime_version()
        from evalution_enginekit.gguf.tokenizer import gguf_tokenizer_of  # noqa: PLC0415
        from evalution_tinygrad.device import place  # noqa: PLC0415 - it imports tinygrad
        from evalution_tinygrad.loading import (  # noqa: PLC0415
            check_weight_types,
            load,
            model_file,
            read_window,
        )
        from evalution_tinygrad.session import Sizes, TinygradSession  # noqa: PLC0415

        placement = place(self.device, self.jit, self.jitbeam)
        file = model_file(model, "Tinygrad")
        check_weight_types(file, placement.target)
        window = window_of(self.max_model_len or self.max_context, read_window(file))
        tokenizer = gguf_tokenizer_of(model, file)
        with placement.entered():
            loaded = load(file, self.dtype, placement.device, realize=self.realize)
        rows = self.batch_size if isinstance(self.batch_size, int) else _BATCH_SIZE
        return TinygradSession(
            capabilities=CAPABILITIES,
            model=model,
            file=file,
            tokenizer=tokenizer,
            loaded=loaded,
            placement=placement,
            sizes=Sizes(window, rows, self.pass_tokens, self.cache_tokens),
            described={"tinygrad": version},
        )


def _runtime_version() -> str:
    import_runtime("tinygrad", TINYGRAD, install=_INSTALL)
    from importlib.metadata import version  # noqa: PLC0415

    return version("tinygrad")
