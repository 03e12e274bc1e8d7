"""A Transformers tokenizer behind the kit's protocol: the same ids as from the file alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError, Model
from evalution_enginekit import TokenizerFile, load_tokenizer
from evalution_enginekit.hf_tokenizer import HFTokenizer

pytest.importorskip("transformers", reason="needs the environment torch of tools/envs")
pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("default")]

TEXTS = ["the cat sees", "<s>the cat\n\n", " 日本語 </s>a", "", "  "]


@pytest.fixture
def folder(golden_folders: dict[str, Path], tmp_path: Path) -> Path:
    for file in golden_folders["bytelevel"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def loaded(folder: Path, **options: Any) -> Any:
    """Through Transformers, as any model with tokenizer options is."""
    options.setdefault("tokenizer_kwargs", {"use_fast": True})
    return load_tokenizer(Model("m", **options), folder)


def test_it_agrees_with_the_file_alone(folder: Path) -> None:
    ours, theirs = TokenizerFile(folder / "tokenizer.json"), loaded(folder)
    assert isinstance(theirs, HFTokenizer)
    for text in TEXTS:
        token_ids = ours.encode(text)
        assert theirs.encode(text) == token_ids
        for skip in (True, False):
            decoded = ours.decode(token_ids, skip_special_tokens=skip)
            assert theirs.decode(token_ids, skip_special_tokens=skip) == decoded
    for name in ("leading_ids", "bos_id", "eos_id", "eos_ids", "special_ids", "vocabulary_size"):
        assert getattr(theirs, name) == getattr(ours, name), name
    assert theirs.chat_template is None


def test_its_template_knows_its_special_tokens(folder: Path) -> None:
    config = {"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert loaded(folder).chat_template.render([{"role": "user", "content": "hi"}]) == "<s>hi"


def test_a_live_tokenizer_is_wrapped(folder: Path) -> None:
    import transformers

    live = transformers.AutoTokenizer.from_pretrained(folder)
    wrapped = load_tokenizer(Model("m", tokenizer=live), folder)
    assert isinstance(wrapped, HFTokenizer)
    assert wrapped.encode("<s>the") == TokenizerFile(folder / "tokenizer.json").encode("<s>the")


def test_a_folder_that_holds_none(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="no tokenizer could be loaded from "):
        loaded(folder)
