"""Read the header of a GGUF file: its metadata and the places of its tensors.

The layout is that of the GGUF specification (ggml, docs/gguf.md), versions 2 and 3. The `gguf`
package reads the same, but makes an array view of every string: for a vocabulary of 128,000 tokens
it takes a minute where this takes half a second.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, cast

from evalution_core import ConfigurationError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_MOST_ELEMENTS = 1 << 24
"""Elements of an array: many times any vocabulary, and a bound on the memory for a hostile file."""

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Value types by their `struct` code."""
_STRING, _ARRAY = 8, 9

_TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
"""Name, values of a block and bytes of a block, by ggml's number of the type."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor's type, shape and place.

    `shape` is in ggml's order, with the fastest dimension first. `type` is ggml's name (`F32`,
    `Q8_0`), or its number if the table above lacks it; then `size`, in bytes, is None. `offset`
    counts from the beginning of the tensors' data.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    size: int | None


@dataclass(frozen=True)
class GGUFFile:
    """The header of one GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    """Strings, numbers, booleans, and lists of those, by the file's own keys."""
    tensors: tuple[GGUFTensor, ...]

    @property
    def architecture(self) -> str:
        """`general.architecture`, such as `llama`."""
        return str(self.metadata["general.architecture"])

    @property
    def context_length(self) -> int | None:
        """Length of the texts that the model was trained on, in tokens; None if unknown."""
        found = self.hyperparameter("context_length")
        return found if isinstance(found, int) else None

    @property
    def chat_template(self) -> str | None:
        found = self.metadata.get("tokenizer.chat_template")
        return found if isinstance(found, str) and found else None

    @cached_property
    def weight_type(self) -> str:
        """The type of most values of the weights, such as `F32` or `Q4_K`."""
        values: Counter[str] = Counter()
        for tensor in self.tensors:
            values[tensor.type] += prod(tensor.shape)
        return values.most_common(1)[0][0] if values else "none"

    @property
    def parts(self) -> int:
        """Number of files that the model is split into; 1 if it is whole."""
        count = self.metadata.get("split.count")
        return count if isinstance(count, int) and count > 1 else 1

    def hyperparameter(self, key: str) -> Any:
        """Return the value of `<architecture>.<key>`; None if there is none."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_gguf(path: Path, *, is_first: bool = True) -> GGUFFile:
    """Read the header of the file at `path` and check that its tensors are all there.

    Args:
        path: a whole model or a part of one.
        is_first: False for the further parts of a split model, which don't describe the model.

    Raises:
        ConfigurationError: it is missing, no GGUF, of a version that isn't read, or cut short.
    """
    if not path.is_file():
        raise ConfigurationError(f"there is no GGUF file at {path}")
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(24)
        _check_start(path, start)
        if len(start) < 24:
            raise _truncation_error(path, size, None)
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                file, begin = _read_header(path, data)
            except (struct.error, EOFError) as error:
                raise _truncation_error(path, size, None) from error
            except ValueError as error:
                raise ConfigurationError(f"{path} is a damaged GGUF file: {error}") from error
    if is_first and "general.architecture" not in file.metadata:
        raise ConfigurationError(
            f"{path} says nothing of its architecture (general.architecture): it is no model"
        )
    needed = max((begin + _end(tensor) for tensor in file.tensors), default=0)
    if size < needed:
        raise _truncation_error(path, size, needed)
    return file


def _check_start(path: Path, start: bytes) -> None:
    if start[:4] != _MAGIC:
        hint = ""
        if start[:4] in (b"ggml", b"lmgg", b"fmgg", b"tjgg"):
            hint = ", but a file of ggml's older formats; convert it to GGUF"
        elif start.startswith((b"version https://git-lfs", b"<!DOC", b"<html")):
            hint = ", but text: a download of the pointer or page in place of the file"
        raise ConfigurationError(f"{path} is not a GGUF file (it begins with {start[:4]!r}){hint}")
    if len(start) < 8:
        raise _truncation_error(path, len(start), None)
    (version,) = struct.unpack_from("<I", start, 4)
    if version in _VERSIONS:
        return
    if struct.unpack_from(">I", start, 4)[0] in _VERSIONS:
        raise ConfigurationError(f"{path} is a big-endian GGUF file; convert it to little-endian")
    raise ConfigurationError(
        f"{path} is GGUF version {version}; versions "
        f"{' and '.join(map(str, _VERSIONS))} are read: convert it again"
    )


def _truncation_error(path: Path, size: int, needed: int | None) -> ConfigurationError:
    wanted = "its header goes on" if needed is None else f"its tensors need {needed:,} bytes"
    return ConfigurationError(
        f"{path} is truncated: it ends after {size:,} bytes and {wanted}; download it again"
    )


def _end(tensor: GGUFTensor) -> int:
    return tensor.offset + (tensor.size or 0)


def _read_header(path: Path, data: mmap.mmap) -> tuple[GGUFFile, int]:
    """Return the header and the offset of the tensors' data."""
    reader = _Reader(data)
    tensor_count, entry_count = reader.read_numbers("<QQ")
    metadata: dict[str, Any] = {}
    for _ in range(entry_count):
        key = reader.read_string()
        if key in metadata:
            raise ValueError(f"the key {key!r} is there twice")
        metadata[key] = reader.read_value(*reader.read_numbers("<I"))
    tensors = tuple(_read_tensors(reader, tensor_count))
    names = Counter(tensor.name for tensor in tensors)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"the tensor {twice[0]!r} is there twice")
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {alignment!r}")
    begin = -(-reader.at // alignment) * alignment
    return GGUFFile(path, metadata, tensors), begin


def _read_tensors(reader: _Reader, count: int) -> Iterator[GGUFTensor]:
    for _ in range(count):
        name = reader.read_string()
        (dimensions,) = reader.read_numbers("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
        shape = cast("tuple[int, ...]", reader.read_numbers(f"<{dimensions}Q"))
        number, offset = reader.read_numbers("<IQ")
        known = _TENSOR_TYPES.get(number)
        if known is None:
            yield GGUFTensor(name, shape, str(number), offset, None)
            continue
        type_name, block, block_size = known
        yield GGUFTensor(name, shape, type_name, offset, prod(shape) // block * block_size)


class _Reader:
    """A position in the header. `struct.error` and `EOFError` mean that the file ends too early."""

    def __init__(self, data: mmap.mmap):
        self._data = data
        self.at = 8

    def read_numbers(self, code: str) -> tuple[Any, ...]:
        found = struct.unpack_from(code, self._data, self.at)
        self.at += struct.calcsize(code)
        return found

    def read_string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._data, self.at)
        begin, self.at = self.at + 8, self.at + 8 + length
        if self.at > len(self._data):
            raise EOFError
        # Some vocabularies hold bytes that are no text, which a runtime may still use.
        return self._data[begin : self.at].decode("utf-8", errors="surrogateescape")

    def read_value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.read_string()
        if kind == _ARRAY:
            return self._read_array(*self.read_numbers("<IQ"))
        if kind not in _SCALARS:
            raise ValueError(f"a value has the unknown type {kind}")
        return self.read_numbers(f"<{_SCALARS[kind]}")[0]

    def _read_array(self, kind: int, length: int) -> list[Any]:
        if kind == _ARRAY:
            raise ValueError("it has an array of arrays, which llama.cpp doesn't read either")
        if kind != _STRING and kind not in _SCALARS:
            raise ValueError(f"an array has elements of the unknown type {kind}")
        # Before anything is unpacked: a damaged length must not ask for the whole memory.
        least = 8 if kind == _STRING else struct.calcsize(f"<{_SCALARS[kind]}")
        if length * least > len(self._data) - self.at:
            raise EOFError
        if length > _MOST_ELEMENTS:
            raise ValueError(f"an array has {length:,} elements, more than {_MOST_ELEMENTS:,}")
        if kind == _STRING:
            return [self.read_string() for _ in range(length)]
        return list(self.read_numbers(f"<{length}{_SCALARS[kind]}"))
