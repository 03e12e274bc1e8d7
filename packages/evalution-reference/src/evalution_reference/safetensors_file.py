"""Tensors out of one safetensors file, bfloat16 among them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from evalution_core.errors import ConfigurationError

Floats = NDArray[np.floating[Any]]

_LIBRARY_DTYPES = frozenset({"F64", "F32", "F16"})


class SafetensorsFile:
    """An opened file whose header and length have been checked against each other.

    Raises:
        ConfigurationError: the file is missing, unreadable, truncated or not in this format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Any, because the library's stub leaves its methods untyped.
            self._file: Any = safe_open(path, framework="np")
        except FileNotFoundError as error:
            raise ConfigurationError(f"weights file {str(path)!r} does not exist") from error
        except (SafetensorError, OSError) as error:
            raise ConfigurationError(
                f"weights file {str(path)!r} is truncated or not a safetensors file ({error}); "
                "copy or download it again"
            ) from error
        self.names: frozenset[str] = frozenset(self._file.keys())

    def read(self, names: Iterable[str]) -> dict[str, Floats]:
        """Return the named tensors in the precision they are stored in, bfloat16 as float32.

        Raises:
            ConfigurationError: a tensor is missing, or stored as anything but a plain float.
        """
        return {name: self._tensor(name) for name in names}

    def _tensor(self, name: str) -> Floats:
        if name not in self.names:
            raise ConfigurationError(f"tensor {name!r} is not in {str(self.path)!r}")
        dtype: str = self._file.get_slice(name).get_dtype()
        if dtype == "BF16":
            return self._bfloat16(name)
        if dtype not in _LIBRARY_DTYPES:
            raise ConfigurationError(
                f"tensor {name!r} in {str(self.path)!r} is stored as {dtype}; "
                "only F64, F32, F16 and BF16 weights can be run, quantized ones can't"
            )
        tensor: Floats = self._file.get_tensor(name)
        return tensor

    def _bfloat16(self, name: str) -> NDArray[np.float32]:
        # safetensors' numpy side has no bfloat16. A bfloat16 is the upper half of a float32.
        with self.path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            entry: dict[str, Any] = json.loads(file.read(header_size))[name]
            shape: list[int] = entry["shape"]
            file.seek(8 + header_size + int(entry["data_offsets"][0]))
            halves = np.frombuffer(file.read(2 * math.prod(shape)), dtype="<u2")
        return (halves.astype(np.uint32) << 16).view(np.float32).reshape(shape)
