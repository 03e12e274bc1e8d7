"""Headers of GGUF files, and the refusal of other and of truncated files."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import ConfigurationError, Model
from evalution_core.builtins import builtin_path
from evalution_enginekit.gguf import file as file_module
from evalution_enginekit.gguf.file import find_gguf, list_parts, read_gguf, read_model_file

TINY = builtin_path("builtin:tiny", "gguf")
_CODES: dict[type, tuple[int, str]] = {int: (4, "<I"), float: (6, "<f"), bool: (7, "<?")}


def string(text: str) -> bytes:
    spelled = text.encode()
    return struct.pack("<Q", len(spelled)) + spelled


def value(given: Any) -> bytes:
    if isinstance(given, str):
        return struct.pack("<I", 8) + string(given)
    if isinstance(given, list):
        parts = b"".join(map(string, given))
        return struct.pack("<IIQ", 9, 8, len(given)) + parts
    kind, code = _CODES[type(given)]
    return struct.pack("<I", kind) + struct.pack(code, given)


def gguf(metadata: dict[str, Any], *, tensors: int = 0, version: int = 3) -> bytes:
    """A file with `tensors` tensors of 4 x 2 float32 each."""
    found = b"GGUF" + struct.pack("<IQQ", version, tensors, len(metadata))
    found += b"".join(string(key) + value(given) for key, given in metadata.items())
    for at in range(tensors):
        found += string(f"t{at}") + struct.pack("<IQQIQ", 2, 4, 2, 0, 32 * at)
    if tensors:
        found += b"\0" * (-len(found) % 32 + 32 * tensors)
    return found


def twice(key: str, given: bytes) -> bytes:
    """A file with a key that is there two times."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (string(key) + given)


def array(kind: int, length: int) -> bytes:
    """A file that ends behind the beginning of an array."""
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("a")
    return start + struct.pack("<IIQ", 9, kind, length)


def written(folder: Path, content: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_header_of_the_tiny_model_is_read() -> None:
    file = read_gguf(TINY)
    assert (file.architecture, file.context_length, file.weight_type) == ("llama", 512, "F32")
    assert file.chat_template is not None
    assert file.parts == 1
    assert len(file.tensors) == file.hyperparameter("block_count") * 9 + 3
    quantised = read_gguf(builtin_path("builtin:tiny", "gguf-q8_0"))
    assert quantised.weight_type == "Q8_0"


def test_metadata_of_every_type_is_read_as_written(tmp_path: Path) -> None:
    metadata = {"general.architecture": "llama", "a": 7, "b": 0.5, "c": True, "d": ["x", "é"]}
    file = read_gguf(written(tmp_path, gguf(metadata, tensors=2)))
    assert file.metadata == metadata
    assert [(t.name, t.shape, t.type, t.size) for t in file.tensors] == [
        ("t0", (4, 2), "F32", 32),
        ("t1", (4, 2), "F32", 32),
    ]


@settings(deadline=None)
@given(cut=st.integers(0, 2_000_000))
def test_a_file_that_is_cut_anywhere_is_refused(tmp_path_factory: Any, cut: int) -> None:
    content = TINY.read_bytes()
    path = written(tmp_path_factory.mktemp("cut"), content[: cut % len(content)])
    with pytest.raises(ConfigurationError, match=r"truncated|not a GGUF file"):
        read_gguf(path)


@settings(deadline=None)
@given(at=st.integers(8, 400), byte=st.integers(0, 255))
def test_a_damaged_header_is_an_error_of_ours_or_none(
    tmp_path_factory: Any, at: int, byte: int
) -> None:
    content = bytearray(gguf({"general.architecture": "llama", "a": ["x"] * 20}, tensors=2))
    content[at % len(content)] = byte
    path = written(tmp_path_factory.mktemp("damaged"), bytes(content))
    try:
        read_gguf(path)
    except ConfigurationError as error:
        assert str(path) in str(error)  # noqa: PT017 - most damage is none that can be seen


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04" + b"\0" * 40, r"not a GGUF file \(it begins with b'PK"),
        (b"version https://git-lfs.github.com/spec/v1\n", "the pointer or page"),
        (b"lmgg" + b"\0" * 40, "older formats"),
        (b"GGUF" + struct.pack(">I", 3) + b"\0" * 40, "big-endian"),
        (gguf({"general.architecture": "x"}, version=1), "version 1; versions 2 and 3 are read"),
        (gguf({"general.name": "x"}), "says nothing of its architecture"),
        (twice("a", value(1)), "damaged GGUF file: the key 'a' is there twice"),
        (
            gguf({"general.architecture": "x"}, tensors=2).replace(b"t1", b"t0"),
            "the tensor 't0' is there twice",
        ),
        (array(9, 1), "an array of arrays, which llama.cpp doesn't read either"),
        (array(99, 1), "elements of the unknown type 99"),
        (array(8, 1 << 60), "truncated"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0),
            "its header has more than 4,194,304 values, where a key or tensor counts as 32",
        ),
        (
            gguf({"general.architecture": "llama"}, tensors=1)[:-8],
            r"truncated: it ends after \d+ bytes and its tensors need \d+ bytes; download it again",
        ),
    ],
    ids=itertools.count(),
)
def test_refusal_names_the_damage(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_gguf(written(tmp_path, content))


def test_arrays_of_a_file_share_one_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arrays = {f"a{at}": ["x"] * 20 for at in range(3)}
    path = written(tmp_path, gguf({"general.architecture": "llama", **arrays}))
    monkeypatch.setattr(file_module, "_MOST_VALUES", 4 * 32 + 60)
    assert read_gguf(path).metadata["a2"] == ["x"] * 20
    monkeypatch.setattr(file_module, "_MOST_VALUES", 4 * 32 + 59)
    with pytest.raises(ConfigurationError, match="damaged GGUF file: its header has more than 187"):
        read_gguf(path)


def test_model_is_found_as_builtin_file_and_folder(tmp_path: Path) -> None:
    assert find_gguf(Model("builtin:tiny"), "E") == TINY
    path = written(tmp_path, gguf({"general.architecture": "llama"}))
    written(tmp_path, b"", "mmproj-model.gguf")
    assert find_gguf(Model(str(path)), "E") == path
    assert read_model_file(Model(str(tmp_path)), "E").path == path


def test_a_folder_with_two_models_asks_for_one(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        written(tmp_path, b"", name)
    with pytest.raises(ConfigurationError, match=r"holds 2 GGUF models \(a.gguf, b.gguf\); name"):
        find_gguf(Model(str(tmp_path)), "E")


def test_a_folder_without_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no \.gguf file in"):
        find_gguf(Model(str(tmp_path)), "E")


def test_split_model_needs_all_its_parts(tmp_path: Path) -> None:
    whole = gguf({"general.architecture": "llama", "split.count": 2})
    first = written(tmp_path, whole, "m-00001-of-00002.gguf")
    with pytest.raises(ConfigurationError, match=r"beside it m-00002-of-00002.gguf is missing"):
        find_gguf(Model(str(first)), "E")
    second = written(tmp_path, whole, "m-00002-of-00002.gguf")
    assert read_model_file(Model(str(second)), "E").path == first
    assert list_parts(first) == [first, second]
    miscounted = written(tmp_path, whole, "n-00001-of-00001.gguf")
    with pytest.raises(ConfigurationError, match="one of 2 parts of a model and was renamed"):
        read_model_file(Model(str(miscounted)), "E")
    renamed = written(tmp_path, whole, "renamed.gguf")
    with pytest.raises(ConfigurationError, match="one of 2 parts of a model and was renamed"):
        read_model_file(Model(str(renamed)), "E")


def test_the_weights_of_all_parts_count(tmp_path: Path) -> None:
    # Splitting tools may leave the first part without a weight.
    about = {"general.architecture": "llama", "split.count": 2}
    first = written(tmp_path, gguf(about), "m-00001-of-00002.gguf")
    # As llama.cpp's splitter writes it: later parts say nothing of the model.
    rest = {"split.no": 1, "split.count": 2, "split.tensors.count": 2}
    written(tmp_path, gguf(rest, tensors=2), "m-00002-of-00002.gguf")
    file = read_model_file(Model(str(first)), "E")
    assert [tensor.name for tensor in file.tensors] == ["t0", "t1"]
    assert file.weight_type == "F32"


@pytest.mark.parametrize("path", ["./gone.gguf", "/gone/gone.gguf", "gone.gguf", "a/b/c"])
def test_a_path_that_is_not_there_never_reaches_the_hub(path: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no file or folder"):
        find_gguf(Model(path), "E")


def test_missing_path_lists_the_possible_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"engine E needs model.path: a .gguf file"):
        find_gguf(Model(), "E")


@pytest.mark.parametrize("name", ["nobody/nothing:x.gguf", "nobody/nothing"])
def test_download_without_a_network_names_the_model(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    constants = pytest.importorskip(
        "huggingface_hub.constants", reason="huggingface_hub is not installed"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigurationError, match=rf"{name} could not be downloaded from .* local cache"
    ):
        find_gguf(Model(name), "E")
