"""The calls of llama-cpp-python's low-level binding that the engine makes."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from functools import cache
from typing import Any, Protocol, cast

from evalution_enginekit import import_runtime

LLAMA_CPP_PYTHON = ">=0.3.36,<0.4"
INSTALL = "pip install evalution-llama-cpp"

_LINES_KEPT = 40
_LINES_TOLD = 4
_ERROR, _CONTINUED = 4, 5
"""Levels of ggml's log: an error, and the rest of the line before."""

Handle = Any
"""A pointer of the library's."""
Structure = Any
"""A ctypes structure of the library's."""


class Library(Protocol):
    """`llama_cpp`, as version 0.3.36 has it; names and meanings are those of llama.h."""

    __version__: str
    llama_batch: Any
    llama_model_params: Any
    llama_context_params: Any
    llama_log_callback: Any

    def llama_backend_init(self) -> None: ...
    def llama_log_set(self, log_callback: Any, user_data: Any, /) -> None: ...
    def llama_supports_gpu_offload(self) -> bool: ...
    def llama_max_devices(self) -> int: ...
    def llama_max_parallel_sequences(self) -> int: ...

    def llama_model_default_params(self) -> Structure: ...
    def llama_model_load_from_file(self, path_model: bytes, params: Structure, /) -> Handle: ...
    def llama_model_free(self, model: Handle, /) -> None: ...
    def llama_model_get_vocab(self, model: Handle, /) -> Handle: ...
    def llama_model_n_ctx_train(self, model: Handle, /) -> int: ...
    def llama_model_n_swa(self, model: Handle, /) -> int: ...
    def llama_model_has_encoder(self, model: Handle, /) -> bool: ...
    def llama_model_is_recurrent(self, model: Handle, /) -> bool: ...
    def llama_model_is_hybrid(self, model: Handle, /) -> bool: ...
    def llama_model_is_diffusion(self, model: Handle, /) -> bool: ...

    def llama_context_default_params(self) -> Structure: ...
    def llama_init_from_model(self, model: Handle, params: Structure, /) -> Handle: ...
    def llama_free(self, ctx: Handle, /) -> None: ...
    def llama_get_memory(self, ctx: Handle, /) -> Handle: ...
    def llama_decode(self, ctx: Handle, batch: Structure, /) -> int: ...
    def llama_get_logits(self, ctx: Handle, /) -> Any: ...

    def llama_memory_seq_rm(self, mem: Handle, seq_id: int, p0: int, p1: int, /) -> bool: ...
    def llama_memory_seq_cp(
        self, mem: Handle, seq_id_src: int, seq_id_dst: int, p0: int, p1: int, /
    ) -> None: ...
    def llama_memory_seq_pos_min(self, mem: Handle, seq_id: int, /) -> int: ...
    def llama_memory_seq_pos_max(self, mem: Handle, seq_id: int, /) -> int: ...

    def llama_vocab_n_tokens(self, vocab: Handle, /) -> int: ...
    def llama_vocab_bos(self, vocab: Handle, /) -> int: ...
    def llama_vocab_eos(self, vocab: Handle, /) -> int: ...
    def llama_vocab_get_add_bos(self, vocab: Handle, /) -> bool: ...
    def llama_vocab_is_eog(self, vocab: Handle, token: int, /) -> bool: ...
    def llama_vocab_get_attr(self, vocab: Handle, token: int, /) -> int: ...
    def llama_tokenize(
        self,
        vocab: Handle,
        text: bytes,
        text_len: int,
        tokens: Any,
        n_tokens_max: int,
        add_special: bool,
        parse_special: bool,
        /,
    ) -> int: ...
    def llama_token_to_piece(
        self,
        vocab: Handle,
        token: int,
        buf: Any,
        length: int,
        lstrip: int,
        special: bool,
        /,
    ) -> int: ...


class RuntimeLog:
    """llama.cpp's log: the last lines are kept for errors; `echo` also writes all to stderr.

    The library has one callback for the whole process. Without one it writes to stderr.
    """

    def __init__(self) -> None:
        self.echo = False
        self._lines: deque[tuple[int, str]] = deque(maxlen=_LINES_KEPT)

    def add(self, level: int, text: bytes, _: Any = None) -> None:
        line = text.decode("utf-8", errors="replace")
        if self.echo:
            sys.stderr.write(line)
        if level == _CONTINUED and self._lines:
            level, before = self._lines.pop()
            line = before + line
        self._lines.append((level, line))

    def forget(self) -> None:
        self._lines.clear()

    def tail(self) -> str:
        """What was said last, errors before all else, for the end of a message."""
        lines = [line.strip() for level, line in self._lines if level == _ERROR]
        lines = lines or [line.strip() for _, line in self._lines]
        told = [line for line in lines if line][-_LINES_TOLD:]
        return f": {' | '.join(told)}" if told else ""


LOG = RuntimeLog()


@cache
def library() -> Library:
    """The binding, its backends started and its log caught.

    Raises:
        EngineUnavailableError: llama-cpp-python is missing, of another version, or fails to load.
    """
    found = cast(
        Library,
        import_runtime(
            "llama_cpp", LLAMA_CPP_PYTHON, distributions=("llama-cpp-python",), install=INSTALL
        ),
    )
    _kept_callbacks.append(found.llama_log_callback(LOG.add))
    found.llama_log_set(_kept_callbacks[-1], ctypes.c_void_p(0))
    found.llama_backend_init()
    return found


_kept_callbacks: list[Any] = []
"""The library holds a bare pointer to them."""
