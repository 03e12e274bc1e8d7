"""GGUF files that tests make out of the tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalution_core.builtins import builtin_path

TINY = builtin_path("builtin:tiny", "gguf")


@pytest.fixture
def rewrite_tiny(tmp_path: Path) -> Callable[..., Path]:
    """Write the tiny model's GGUF again, with other metadata and further tensors.

    What is None is left out.
    """

    def write(
        name: str = "made.gguf",
        *,
        architecture: str = "llama",
        metadata: dict[str, Any] | None = None,
        tensors: dict[str, Any] | None = None,
    ) -> Path:
        gguf = pytest.importorskip("gguf", reason="gguf is not installed")
        reader = gguf.GGUFReader(TINY)
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, architecture)
        kept: dict[str, Any] = {}
        for field in reader.fields.values():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                key = field.name.replace("llama.", f"{architecture}.", 1)
                kept[key] = (field.contents(), field.types)
        for key, value in (metadata or {}).items():
            kept[key] = (value, _types_of(gguf, value))
        for key, (value, types) in kept.items():
            if value is None:
                continue
            writer.add_key_value(key, value, types[0], types[-1] if len(types) > 1 else None)
        weights = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
        for key, tensor in {**weights, **(tensors or {})}.items():
            if tensor is not None:
                writer.add_tensor(key, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _types_of(gguf: Any, value: Any) -> list[Any]:
    kinds = gguf.GGUFValueType
    return [kinds.STRING if isinstance(value, str) else kinds.UINT32]
