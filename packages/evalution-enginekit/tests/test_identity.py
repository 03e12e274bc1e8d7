"""Hashes of a model's files, read again only when a file has changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from evalution_enginekit import files_identity, identity


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "evalution" / "file-hashes.json"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read, in order."""
    names: list[str] = []
    sha256 = identity._sha256

    def count(file: Path) -> str:
        names.append(file.name)
        return sha256(file)

    monkeypatch.setattr(identity, "_sha256", count)
    return names


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    return file


@pytest.mark.usefixtures("cache")
def test_each_file_by_name(weights: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_bytes(b"{}")
    assert files_identity([weights, config]) == {
        "config.json": hashlib.sha256(b"{}").hexdigest(),
        "model.safetensors": hashlib.sha256(b"weights").hexdigest(),
    }


def test_an_unchanged_file_is_not_read_again(cache: Path, weights: Path, hashed: list[str]) -> None:
    first = files_identity([weights])
    assert cache.is_file()
    assert files_identity([weights]) == first
    assert hashed == ["model.safetensors"]


@pytest.mark.usefixtures("cache")
def test_a_file_of_another_mtime_or_size_is_read_again(weights: Path, hashed: list[str]) -> None:
    files_identity([weights])
    os.utime(weights, ns=(1, 1))
    files_identity([weights])
    weights.write_bytes(b"weights!")
    os.utime(weights, ns=(1, 1))
    told = files_identity([weights])
    assert told == {"model.safetensors": hashlib.sha256(b"weights!").hexdigest()}
    assert len(hashed) == 3


@pytest.mark.parametrize("content", ["{broken", "[]", '{"a": 1}', ""])
def test_a_broken_cache_is_written_anew(
    cache: Path, weights: Path, hashed: list[str], content: str
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(content)
    for _ in range(2):
        files_identity([weights])
    assert hashed == ["model.safetensors"]


def test_a_cache_that_can_not_be_written_costs_only_time(
    cache: Path, weights: Path, hashed: list[str]
) -> None:
    cache.parent.parent.write_text("a file where the folder should be")
    for _ in range(2):
        assert files_identity([weights])["model.safetensors"]
    assert len(hashed) == 2


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files_identity([tmp_path / "gone"])
