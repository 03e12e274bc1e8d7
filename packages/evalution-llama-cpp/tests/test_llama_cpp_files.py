"""Files that llama.cpp loads and this engine can't run, or that would end the process."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError, GenerationRequest, Model
from evalution_core.builtins import builtin_path
from evalution_llama_cpp import LlamaCpp

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

ENGINE = LlamaCpp(device="cpu", n_threads=1)
FOLDER = builtin_path("builtin:tiny", "safetensors")
Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("architecture", "settings", "kind"),
    [
        ("mamba", {}, "is a recurrent model, and engine LlamaCpp runs decoders with a KV cache"),
        ("gemma-embedding", {}, "is an encoder, without a cache"),
        ("llama", {"attention.causal": False}, "is a model whose tokens see those behind them"),
    ],
)
def test_a_model_of_another_kind_is_refused(
    random_gguf: Write, architecture: str, settings: dict[str, Any], kind: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"random.gguf {kind}"):
        ENGINE.build(Model(str(random_gguf(architecture, settings=settings))))


def test_quantised_keys_need_heads_of_whole_blocks(random_gguf: Write) -> None:
    path = str(random_gguf())
    with pytest.raises(
        ConfigurationError,
        match=r"'q8_0' stores 32 values together and the heads of random.gguf have 16; take one of",
    ):
        LlamaCpp(device="cpu", type_k="q8_0").build(Model(path))
    with pytest.raises(ConfigurationError, match="block size 32 does not divide n_embd_head_k=16"):
        LlamaCpp(device="cpu", type_k="q8_0", flash_attn=True).build(Model(path))


def test_a_file_without_a_vocabulary_needs_a_tokenizer(random_gguf: Write) -> None:
    path = random_gguf(vocabulary="none")
    with pytest.raises(ConfigurationError, match=r"holds no tokenizer; set tokenizer_path to"):
        ENGINE.build(Model(str(path)))
    with pytest.raises(
        ConfigurationError, match=r"tokenizer has 568 tokens and the model in random.gguf 320"
    ):
        ENGINE.build(Model(str(path), tokenizer_path=str(FOLDER)))


def test_a_vocabulary_that_lacks_bytes_takes_any_text(random_gguf: Write) -> None:
    whole, lacking = random_gguf(), random_gguf(name="lacking.gguf", vocabulary="without bytes")
    with ENGINE.build(Model(str(whole))) as session:
        ids = session.tokenizer.encode("cat a. cat")
        words = [session.tokenizer.decode([i]) for i in ids]
    with ENGINE.build(Model(str(lacking))) as session:
        tokenizer = session.tokenizer
        assert [tokenizer.decode([i]) for i in tokenizer.encode("cat a. cat")] == words
        assert tokenizer.encode("cat 🙂")[-1] == 0
        (output,) = session.generate([GenerationRequest("日本", max_new_tokens=2)])
    assert output.completion_tokens == 2


def test_a_model_in_parts_is_the_model(random_gguf: Write) -> None:
    request = GenerationRequest("cat", max_new_tokens=8, ignore_eos=True)
    found = []
    for path in (random_gguf(), random_gguf(name="parts.gguf", tensors_a_part=12)):
        with ENGINE.build(Model(str(path))) as session:
            found.append(session.generate([request])[0].token_ids)
    assert path.name == "parts-00001-of-00003.gguf"
    assert found[0] == found[1]


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text here")
def test_path_that_is_not_utf8_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"tiny-\xff.gguf")
    shutil.copyfile(builtin_path("builtin:tiny", "gguf"), path)
    with ENGINE.build(Model(str(path))) as session:
        assert session.generate([GenerationRequest("The cat", max_new_tokens=1)])[0].text
