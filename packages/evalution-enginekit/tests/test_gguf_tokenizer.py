"""The tokenizer in a GGUF file is the one beside the same model's other files."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import ConfigurationError, Model
from evalution_core.builtins import builtin_path
from evalution_enginekit import ByteTokenizer, TokenizerFile
from evalution_enginekit.gguf.file import GGUFFile, read_gguf
from evalution_enginekit.gguf.tokenizer import (
    PRE_TOKENIZERS,
    GGUFTokenizer,
    add_end_ids,
    find_named_ends,
    load_gguf_tokenizer,
)

pytest.importorskip("tokenizers", reason="the tokenizers library is not installed")

TEMPLATE = "tokenizer.chat_template"
TINY = read_gguf(builtin_path("builtin:tiny", "gguf"))
FOLDER = builtin_path("builtin:tiny", "safetensors")
OURS = GGUFTokenizer(TINY)
THEIRS = TokenizerFile(FOLDER / "tokenizer.json")
pieces = st.lists(
    st.sampled_from(
        ["The", " cat", "  ", "\n", "'s", "<|user|>", "<|eos|>", "日本", "12", "[PAD3]"]
    )
    | st.text(max_size=4)
)


def with_metadata(**changes: Any) -> GGUFFile:
    changed = {f"tokenizer.ggml.{key}": given for key, given in changes.items()}
    return replace(TINY, metadata={**TINY.metadata, **changed})


def test_special_tokens_are_those_of_the_model() -> None:
    names = ("leading_ids", "bos_id", "eos_id", "eos_ids", "special_ids")
    assert [getattr(OURS, n) for n in names] == [getattr(THEIRS, n) for n in names]
    assert OURS.vocabulary_size == 576


@settings(deadline=None, max_examples=100)
@given(parts=pieces)
def test_ids_and_text_are_those_of_tokenizer_json(parts: list[str]) -> None:
    text = "".join(parts)
    token_ids = OURS.encode(text)
    assert token_ids == THEIRS.encode(text)
    for skip in (True, False):
        assert OURS.decode(token_ids, skip_special_tokens=skip) == THEIRS.decode(
            token_ids, skip_special_tokens=skip
        )


def test_chat_is_rendered_alike() -> None:
    assert OURS.chat_template is not None
    assert THEIRS.chat_template is not None
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    assert OURS.chat_template.render(messages) == THEIRS.chat_template.render(messages)


def test_gguf_tokenizer_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(OURS))
    assert again.encode("The cat") == OURS.encode("The cat")


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_all_text(name: str) -> None:
    tokenizer = GGUFTokenizer(with_metadata(pre=name))
    text = "I'll pay 12345 €, naïve 日本 🙂\r\n\n  def f(x):\treturn x"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentence_pieces_join_by_their_scores(tmp_path: Path) -> None:
    letters = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"]
    tokens = ["<unk>", "<s>", "</s>", *letters, *words]
    file = with_metadata(
        model="llama",
        tokens=tokens,
        token_type=[2, 3, 3, *[6] * 256, *[1] * len(words)],
        scores=[0.0] * 259 + [-9.0, -9.0, -9.0, -2.0, -1.0, -3.0],
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
        add_bos_token=True,
    )
    tokenizer = GGUFTokenizer(file)
    first = 259
    assert tokenizer.leading_ids == (1,)
    assert tokenizer.encode("ab") == [first + 5]
    assert tokenizer.encode("a b") == [first + 3, first, first + 2]
    # A space leads what follows a special token too, as in llama.cpp.
    assert tokenizer.encode("</s>ab") == [2, first + 5]
    assert tokenizer.encode("é") == [first, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode(tokenizer.encode("ab é")) == "ab é"
    # A file that leaves them out means the usual ones.
    ids = ("bos_token_id", "eos_token_id", "unknown_token_id")
    silent = {k: v for k, v in file.metadata.items() if not k.endswith(ids)}
    usual = GGUFTokenizer(replace(file, metadata=silent))
    assert (usual.leading_ids, usual.eos_id, usual.eos_ids) == ((1,), 2, {2})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, r"of the kind 'bert'; .* set tokenizer_path"),
        ({"pre": "klingon"}, r"rules 'klingon', which aren't known here .* set tokenizer_path"),
        ({"tokens": []}, "holds no tokenizer; set tokenizer_path"),
        ({"merges": ["no such"]}, "can't be built"),
        ({"model": "llama", "scores": [1.0]}, "576 tokens and 1 scores"),
        (
            {"token_type": 1},
            r"tiny.* has no list as the kinds of its tokens \(tokenizer.ggml.token_type\): the "
            "file is damaged; download it again, or convert the model again",
        ),
        (
            {"model": "llama", "tokens": ["a" * 1025], "scores": [0.0], "token_type": [1]},
            "tiny.* has a token of 1,025 characters, and no more than 1,024 are read: the file is "
            "damaged; download it again, or set tokenizer_path",
        ),
    ],
)
def test_unreadable_tokenizer_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        GGUFTokenizer(with_metadata(**changes))


@pytest.mark.parametrize("outside", [-3, -1, 576])
def test_ids_outside_the_vocabulary_name_no_token(outside: int) -> None:
    names = ("bos_token_id", "eos_token_id", "eot_token_id", "unknown_token_id")
    tokenizer = GGUFTokenizer(with_metadata(**dict.fromkeys(names, outside), add_bos_token=True))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.leading_ids) == (None, None, ())
    assert all(0 <= token_id < 576 for token_id in tokenizer.eos_ids)


def test_a_named_tokenizer_goes_first() -> None:
    named = load_gguf_tokenizer(Model("builtin:tiny", tokenizer_path=str(FOLDER)), TINY)
    assert named.encode("The cat") == OURS.encode("The cat")
    assert named.vocabulary_size == THEIRS.vocabulary_size
    given = load_gguf_tokenizer(Model("builtin:tiny", tokenizer=ByteTokenizer()), TINY)
    assert given.encode("a") == [97]
    assert given.eos_ids == {257, 563}


@pytest.mark.parametrize("tokenizer_path", [None, str(FOLDER)])
def test_tokens_that_end_a_turn_by_name_can_be_left_out(tokenizer_path: str | None) -> None:
    tokens, kinds = ["<|end|>", "<|end|>", "<|im_end|>"], [3, 1, 3]
    names = [*TINY.metadata["tokenizer.ggml.tokens"][:-3], *tokens]
    types = [*TINY.metadata["tokenizer.ggml.token_type"][:-3], *kinds]
    file = with_metadata(tokens=names, token_type=types, eot_token_id=575)
    assert find_named_ends(file) == {"<|end|>": 573}, "what is declared isn't added"
    model = Model("builtin:tiny", tokenizer_path=tokenizer_path)
    assert load_gguf_tokenizer(model, file).eos_ids == {563, 573, 575}
    bare = load_gguf_tokenizer(model, file, ends_by_name=False)
    assert bare.eos_ids == {563, 575}
    if tokenizer_path is None:
        assert pickle.loads(pickle.dumps(bare)).eos_ids == bare.eos_ids


def test_another_models_tokenizer_is_refused() -> None:
    small = with_metadata(tokens=["a", "b"], token_type=[1, 1])
    with pytest.raises(ConfigurationError, match=r"has 260 tokens and the model in .* 2: it is"):
        add_end_ids(ByteTokenizer(), small)


def test_the_files_template_is_rendered_with_the_models_variables() -> None:
    silent = {key: value for key, value in TINY.metadata.items() if key != TEMPLATE}
    file = replace(TINY, metadata={**silent, TEMPLATE: "{{ tone }}"})
    model = Model(str(TINY.path), chat_template_kwargs={"tone": "calm"})
    tokenizer = load_gguf_tokenizer(model, file)
    for each in (tokenizer, pickle.loads(pickle.dumps(tokenizer))):
        assert each.chat_template is not None
        assert each.chat_template.render([]) == "calm"
    with pytest.raises(ConfigurationError, match="sets tone, and this model has no chat template"):
        load_gguf_tokenizer(model, replace(TINY, metadata=silent))
