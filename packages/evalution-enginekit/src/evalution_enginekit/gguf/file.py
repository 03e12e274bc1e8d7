"""GGUF models: find the file, here or on the Hugging Face Hub, and read its header.

The header has the metadata and the places of the tensors. Its layout is that of the GGUF
specification (ggml, docs/gguf.md), versions 2 and 3. The `gguf` package reads the same, but makes
an array view of every string: for a vocabulary of 128,000 tokens it takes a minute where this takes
half a second.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, cast

from evalution_core import ConfigurationError, Model
from evalution_core.builtins import PREFIX, builtin_path
from evalution_core.redaction import redact_text
from evalution_enginekit.runtime import import_runtime

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_MOST_VALUES = 1 << 22
"""Values of a header, with its arrays': some times those of the largest vocabulary with merges.

A bound on the memory for a hostile file.
"""
_ENTRY_VALUES = 32
"""Values that a key or a tensor counts as."""

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
    reader.count_values(_ENTRY_VALUES * (tensor_count + entry_count))
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
        self._left = _MOST_VALUES
        self.at = 8

    def count_values(self, count: int) -> None:
        """Raise `ValueError` if the header has more values than are read."""
        self._left -= count
        if self._left < 0:
            raise ValueError(
                f"its header has more than {_MOST_VALUES:,} values, where a key or tensor counts "
                f"as {_ENTRY_VALUES}"
            )

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
        self.count_values(length)
        if kind == _STRING:
            return [self.read_string() for _ in range(length)]
        return list(self.read_numbers(f"<{length}{_SCALARS[kind]}"))


HUB = ">=0.34,<3"

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_HUB_NAME = re.compile(r"^[\w.-]+/[\w.-]+$")
_SHOWN = 8


def read_model_file(model: Model, engine: str) -> GGUFFile:
    """Read the header of the model's file; of a split model, that of its first part.

    Its tensors are those of all parts; an `offset` counts within its own part.

    Raises:
        ConfigurationError: there is none, more than one could be meant, or it is damaged.
        EngineUnavailableError: it is on the Hub and huggingface_hub is not installed.
    """
    path = find_gguf(model, engine)
    first, *further = list_parts(path)
    file, others = read_gguf(first), [read_gguf(part, is_first=False) for part in further]
    if file.parts != 1 + len(others):
        raise ConfigurationError(
            f"{path} is one of {file.parts} parts of a model and was renamed: the others are found "
            f"by name, as in model-00001-of-{file.parts:05d}.gguf"
        )
    return replace(file, tensors=tuple(chain.from_iterable(f.tensors for f in (file, *others))))


def find_gguf(model: Model, engine: str) -> Path:
    """Return the local path of the model's file, or of its first part, downloaded if need be.

    `model.path` is `builtin:<name>`, a file, a folder with one model in it, `owner/repository:file`
    or `owner/repository` if that holds one model. Local files are preferred to the Hub.

    Raises:
        ConfigurationError: there is no such file, or more than one could be meant.
        EngineUnavailableError: it is on the Hub and huggingface_hub is not installed.
    """
    name = model.path
    if name is None:
        raise ConfigurationError(
            f"engine {engine} needs model.path: a .gguf file, a folder with one, builtin:tiny, or "
            "owner/repository:file.gguf on the Hugging Face Hub"
        )
    if name.startswith(PREFIX):
        return builtin_path(name, "gguf")
    path = Path(name).expanduser()
    if path.is_dir():
        return path / _choose_file(str(path), [file.name for file in sorted(path.glob("*.gguf"))])
    if path.is_file():
        return _find_first_part(path)
    repository, _, file = name.partition(":")
    if not _HUB_NAME.match(repository) or (file and not file.endswith(".gguf")) or _is_local(name):
        raise ConfigurationError(
            f"there is no file or folder {name!r}; engine {engine} loads a local .gguf file, a "
            "folder with one, builtin:tiny, or owner/repository:file.gguf from the Hugging Face Hub"
        )
    return _find_first_part(_download(repository, file, model.revision))


def list_parts(path: Path) -> list[Path]:
    """Return all files of the model whose first part is `path`; the file alone if it is whole."""
    return [path.with_name(name) for name in _list_part_names(path.name)]


def _is_local(name: str) -> bool:
    return name.startswith((".", "~", "/")) or (name.endswith(".gguf") and ":" not in name)


def _find_first_part(path: Path) -> Path:
    names = _list_part_names(path.name)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise ConfigurationError(
            f"{path} is a part of a model in {len(names)} files, and beside it "
            f"{_join_names(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        )
    return path.with_name(names[0])


def _list_part_names(name: str) -> list[str]:
    match = _PART.search(name)
    if match is None:
        return [name]
    stem, count = name[: match.start()], int(match[2])
    return [f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def _choose_file(place: str, names: Sequence[str]) -> str:
    """Return the only model among the names of a place; of a split one, the first part."""
    # A projector of images is beside the model that it serves and is no model itself.
    models = [name for name in names if not Path(name).name.startswith("mmproj")]
    firsts = sorted({_list_part_names(name)[0] for name in models})
    if not firsts:
        raise ConfigurationError(f"there is no .gguf file in {place}")
    if len(firsts) > 1:
        raise ConfigurationError(
            f"{place} holds {len(firsts)} GGUF models ({_join_names(firsts)}); name one of them"
        )
    return firsts[0]


def _join_names(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _download(repository: str, file: str, revision: str | None) -> Path:
    """Download a file of the Hub with all its parts, unless cached; return the first one's path."""
    hub: Any = import_runtime(
        "huggingface_hub", HUB, install='pip install "evalution-enginekit[hub]"'
    )
    try:
        if not file:
            file = _choose_file(
                f"{repository} on the Hub", _list_hub_files(hub, repository, revision)
            )
        parts = [
            Path(hub.hf_hub_download(repository, name, revision=revision))
            for name in _list_part_names(file)
        ]
    except ConfigurationError:
        raise
    except Exception as error:  # the border: its HTTP library's errors come as they are
        raise ConfigurationError(
            f"{repository}{':' + file if file else ''} could not be downloaded from the Hugging "
            "Face Hub and is not in its local cache: "
            f"{type(error).__name__}: {_first_line(error)}; check "
            "the name, the access and the network, or give a local .gguf file"
        ) from error
    return parts[0]


def _list_hub_files(hub: Any, repository: str, revision: str | None) -> list[str]:
    """Return the .gguf files of a repository; without a network, those of its cached snapshot."""
    try:
        found = hub.HfApi().list_repo_files(repository, revision=revision)
    except hub.errors.HfHubHTTPError:
        raise
    except Exception:  # noqa: BLE001 - the border: no network, by the HTTP library's own errors
        cached = hub.snapshot_download(
            repository, revision=revision, allow_patterns="*.gguf", local_files_only=True
        )
        root = Path(cached)
        found = [path.relative_to(root).as_posix() for path in root.rglob("*.gguf")]
    return sorted(name for name in found if name.endswith(".gguf"))


def _first_line(error: Exception) -> str:
    return redact_text(str(error)).strip().split("\n", 1)[0]
