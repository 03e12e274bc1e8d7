"""Hashes of a model's files, read again only when a file has changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalution_core import Model
from evalution_enginekit import ByteTokenizer, files_identity
from evalution_enginekit import model_source as identity
from evalution_enginekit.model_source import checkpoint_identity, model_identity, read_commit_hash


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
def test_identity_has_each_file_by_name(weights: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_bytes(b"{}")
    assert files_identity([weights, config]) == {
        "config.json": hashlib.sha256(b"{}").hexdigest(),
        "model.safetensors": hashlib.sha256(b"weights").hexdigest(),
    }


@pytest.mark.usefixtures("cache")
def test_modelopts_settings_of_a_checkpoint_count(weights: Path) -> None:
    folder = weights.parent
    (folder / "hf_quant_config.json").write_bytes(b"{}")
    (folder / "README.md").write_bytes(b"-")
    found = model_identity(Model("m"), folder, ["*.safetensors"])
    assert found is not None
    assert found.keys() == {"model.safetensors", "hf_quant_config.json"}


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


@pytest.mark.usefixtures("cache")
def test_a_file_in_place_of_another_is_read_though_size_and_mtime_are_the_same(
    weights: Path,
) -> None:
    files_identity([weights])
    other = weights.with_name("other")
    other.write_bytes(b"WEIGHTS")
    os.utime(other, ns=(weights.stat().st_atime_ns, weights.stat().st_mtime_ns))
    other.replace(weights)
    assert files_identity([weights]) == {weights.name: hashlib.sha256(b"WEIGHTS").hexdigest()}


@pytest.mark.parametrize("content", ["{broken", "[]", '{"a": 1}', ""])
def test_broken_hash_cache_is_rewritten(
    cache: Path, weights: Path, hashed: list[str], content: str
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(content)
    for _ in range(2):
        files_identity([weights])
    assert hashed == ["model.safetensors"]


def test_unwritable_hash_cache_is_ignored(cache: Path, weights: Path, hashed: list[str]) -> None:
    cache.parent.parent.write_text("a file where the folder should be")
    for _ in range(2):
        assert files_identity([weights])["model.safetensors"]
    assert len(hashed) == 2


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files_identity([tmp_path / "gone"])


def test_files_of_two_folders_have_no_identity_by_name(tmp_path: Path, weights: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / weights.name
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(b"others")
    with pytest.raises(ValueError, match=r"files of one folder .*, got \[.*elsewhere"):
        files_identity([weights, elsewhere])


@pytest.mark.usefixtures("cache")
def test_a_file_that_is_named_twice_is_one(weights: Path, hashed: list[str]) -> None:
    assert len(files_identity([weights, weights])) == 1
    assert hashed == ["model.safetensors"]


def sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def fill(folder: Path, **contents: str) -> Path:
    """A folder with these files, named `.` for `__`."""
    folder.mkdir()
    for name, content in contents.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path, cache: Path) -> Path:
    folder = fill(
        tmp_path / "checkpoint",
        model__safetensors="weights",
        config__json="{}",
        tokenizer__json="own",
        README__md="prose",
    )
    (folder / "tokenizer_cache").mkdir()
    return folder


OWN = {
    "model.safetensors": sha256("weights"),
    "config.json": sha256("{}"),
    "tokenizer.json": sha256("own"),
}


def told(checkpoint: Path, **options: Any) -> dict[str, Any] | None:
    return model_identity(Model("m", **options), checkpoint, ["*.safetensors"])


def test_a_model_is_its_weights_configuration_and_tokenizer(checkpoint: Path) -> None:
    assert told(checkpoint) == OWN


@pytest.mark.parametrize(
    "name",
    [
        "adapter_config.json", "config.5.0.json", "params.json", "tekken.json", "v3-tekken.json",
        "emoji.json", "word_shape.json", "byte_maps.json", "target_vocab.json", "dict.txt",
        "qwen.tiktoken", "source.spm", "bpe.codes", "prophetnet.tokenizer", "spiece.model",
        "additional_chat_templates/default.jinja",
    ],
)  # fmt: skip
def test_every_file_that_a_loader_looks_for_counts(checkpoint: Path, name: str) -> None:
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_text("more")
    shown = f"tokenizer/{name}" if "/" in name else name
    assert told(checkpoint) == {**OWN, shown: sha256("more")}


def test_files_that_arguments_name_count(checkpoint: Path, tmp_path: Path) -> None:
    fill(checkpoint / "deep", model__safetensors="deep", tokenizer__json="deep", a__md="prose")
    found = told(checkpoint, model_kwargs={"subfolder": "deep"})
    deep = {f"deep/{name}": sha256("deep") for name in ("model.safetensors", "tokenizer.json")}
    assert found == {**OWN, **deep}
    inside = {"subfolder": "deep"}
    found = told(checkpoint, tokenizer_kwargs=inside)
    deep = {"tokenizer/deep/tokenizer.json": sha256("deep")}
    assert found == {**OWN, **deep, "tokenizer_kwargs": inside}
    other = fill(tmp_path / "other", a__gguf="words", b__gguf="others")
    gguf = {"gguf_file": "a.gguf"}
    found = told(checkpoint, tokenizer_path=str(other), tokenizer_kwargs=gguf)
    assert found == {**OWN, "tokenizer/a.gguf": sha256("words"), "tokenizer_kwargs": gguf}


@pytest.mark.parametrize("by", ["tokenizer", "tokenizer_path"])
def test_another_tokenizer_makes_it_another_model(
    checkpoint: Path, tmp_path: Path, by: str
) -> None:
    other = fill(
        tmp_path / "other",
        tokenizer__json="other",
        tokenizer_config__json="{}",
        model__safetensors="weights that nobody reads",
    )
    options: dict[str, Any] = {by: str(other)}
    expected = {
        **OWN,
        "tokenizer/tokenizer.json": sha256("other"),
        "tokenizer/tokenizer_config.json": sha256("{}"),
    }
    assert told(checkpoint, **options) == expected
    (other / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    assert told(checkpoint, **options) != expected


def test_a_tokenizer_file_counts_with_what_lies_beside_it(checkpoint: Path, tmp_path: Path) -> None:
    folder = fill(tmp_path / "other", bytes__json="bytes", words__json="words", a__jinja="template")
    files = {"tokenizer/a.jinja": sha256("template")}
    for name in ("bytes", "words"):
        expected = {**OWN, **files, f"tokenizer/{name}.json": sha256(name)}
        assert told(checkpoint, tokenizer_path=str(folder / f"{name}.json")) == expected


def test_tokenizer_options_count_but_no_secret_is_shown(checkpoint: Path) -> None:
    options = {"use_fast": False, "token": "hf_private"}
    assert told(checkpoint, tokenizer_kwargs=options) == {
        **OWN,
        "tokenizer_kwargs": {"use_fast": False, "token": "***"},
    }


def test_a_tokenizer_without_files_here_leaves_it_unknown(checkpoint: Path) -> None:
    assert told(checkpoint, tokenizer=ByteTokenizer()) is None
    assert told(checkpoint, tokenizer_path="vendor/on-the-hub") is None


def test_a_model_on_the_hub_is_its_repository_and_commit(checkpoint: Path) -> None:
    hub = {"repository": "owner/name", "revision": "abc"}
    options: dict[str, Any] = {
        "tokenizer_kwargs": {"use_fast": False},
        "model_kwargs": {"token": "hf_private"},
    }
    shown = {"tokenizer_kwargs": {"use_fast": False}, "model_kwargs": {"token": "***"}}
    assert checkpoint_identity(Model("owner/name"), None, (), "abc") == hub
    assert checkpoint_identity(Model("owner/name", **options), None, (), "abc") == {**hub, **shown}
    assert checkpoint_identity(Model("owner/name"), None, (), None) is None
    for elsewhere in (
        Model("owner/name", tokenizer_path="owner/other"),
        Model("owner/name", tokenizer=ByteTokenizer()),
    ):
        assert checkpoint_identity(elsewhere, None, (), "abc") is None
    here = checkpoint_identity(Model(str(checkpoint), **options), checkpoint, (), None)
    assert here is not None
    assert "repository" not in here
    assert shown.items() <= here.items()


def test_the_commit_is_that_of_the_files_in_the_cache(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    folder = tmp_path / "models--owner--name"
    for name in ("config.json", "a/config.json", "b.gguf"):
        file = folder / "snapshots" / "f00d" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("f00d")
    for named in ({}, {"subfolder": "a"}, {"gguf_file": "b.gguf"}):
        model = Model("owner/name", model_kwargs={"cache_dir": str(tmp_path), **named})
        found = checkpoint_identity(model, None, (), None)
        assert found is not None
        assert found["revision"] == "f00d"
    elsewhere = Model("owner/other", model_kwargs={"cache_dir": str(tmp_path)})
    assert checkpoint_identity(elsewhere, None, (), None) is None


def test_variables_of_the_chat_template_count(checkpoint: Path) -> None:
    variables = {"enable_thinking": False}
    shown = {"chat_template_kwargs": variables}
    assert told(checkpoint, chat_template_kwargs=variables) == {**OWN, **shown}
    hub = checkpoint_identity(Model("owner/name", chat_template_kwargs=variables), None, (), "abc")
    assert hub == {"repository": "owner/name", "revision": "abc", **shown}


def test_commit_hash_is_read_off_a_configuration_where_it_has_one() -> None:
    assert read_commit_hash(SimpleNamespace(_commit_hash="abc")) == "abc"
    assert read_commit_hash(SimpleNamespace(_commit_hash=None)) is None
    assert read_commit_hash(SimpleNamespace()) is None
