"""A Transformers tokenizer behind the kit's protocol: the same ids as from the file alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError, EngineUnavailableError, InvalidRequestError, Model
from evalution_core.builtins import builtin_path
from evalution_enginekit import TokenizerFile, load_tokenizer
from evalution_enginekit.tokenizer import HFTokenizer

pytest.importorskip("transformers", reason="needs the environment torch of tools/envs")
pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("default")]

TEXTS = [
    "the cat sees",
    "<s>the cat\n\n",
    " 日本語 </s>a",
    "",
    "  ",
    "a <turn>b<plain> c",
    "<|user|>the cat<|eos|>",
]


def loaded(folder: Path, **options: Any) -> Any:
    """Through Transformers, as any model with tokenizer options is."""
    options.setdefault("tokenizer_kwargs", {"use_fast": True})
    return load_tokenizer(Model("m", **options), folder)


def declare_unnamed_special_tokens(folder: Path) -> None:
    """Added tokens that no `…_token` of the configuration names, with gaps before their ids."""
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    vocabulary = content["model"]["vocab"]
    for text, special in (("<turn>", True), ("<plain>", False)):
        vocabulary[text] = token_id = max(vocabulary.values()) + 10
        added = {"id": token_id, "content": text, "special": special, **flags}
        content["added_tokens"].append(added)
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")


@pytest.fixture(params=["named", "unnamed", "tiny"])
def any_folder(folder: Path, request: pytest.FixtureRequest) -> Path:
    """With named special tokens only, with unnamed ones too, and the tiny trained model."""
    if request.param == "tiny":
        return builtin_path("builtin:tiny", "safetensors")
    if request.param == "unnamed":
        declare_unnamed_special_tokens(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    return folder


def test_transformers_tokenizer_agrees_with_tokenizer_file(any_folder: Path) -> None:
    ours, theirs = TokenizerFile(any_folder / "tokenizer.json"), loaded(any_folder)
    assert isinstance(theirs, HFTokenizer)
    for text in TEXTS:
        token_ids = ours.encode(text)
        assert theirs.encode(text) == token_ids
        for skip in (True, False):
            decoded = ours.decode(token_ids, skip_special_tokens=skip)
            assert theirs.decode(token_ids, skip_special_tokens=skip) == decoded
    for name in ("leading_ids", "bos_id", "eos_id", "eos_ids", "special_ids", "vocabulary_size"):
        assert getattr(theirs, name) == getattr(ours, name), name
    assert getattr(theirs.chat_template, "source", None) == getattr(
        ours.chat_template, "source", None
    )


def test_text_outside_an_incomplete_vocabulary_is_refused(incomplete_folder: Path) -> None:
    tokenizer = loaded(incomplete_folder)
    with pytest.raises(InvalidRequestError, match="can't encode this text: Unk token `<none>`"):
        tokenizer.encode("e")
    assert tokenizer.encode("a")


def test_unnamed_special_tokens_are_special_and_not_text(folder: Path) -> None:
    declare_unnamed_special_tokens(folder)
    tokenizer = loaded(folder)
    turn, plain = tokenizer.encode("<turn><plain>")
    assert tokenizer.special_ids == {0, 1, turn}
    assert tokenizer.vocabulary_size == plain + 1
    assert tokenizer.decode([turn, plain]) == "<plain>"


def test_the_models_folder_says_what_ends_a_generation(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weights = tmp_path_factory.mktemp("weights")
    (weights / "config.json").write_text('{"eos_token_id": [6, 7]}')
    (folder / "config.json").write_text('{"model_type": "llama", "eos_token_id": 5}')
    options = {"tokenizer_path": str(folder), "tokenizer_kwargs": {"use_fast": True}}
    assert load_tokenizer(Model("m", **options), weights).eos_ids == {1, 6, 7}
    (weights / "config.json").unlink()
    assert load_tokenizer(Model("m", **options), weights).eos_ids == {1, 5}


def test_its_template_knows_its_special_tokens(folder: Path) -> None:
    config = {"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert loaded(folder).chat_template.render([{"role": "user", "content": "hi"}]) == "<s>hi"


def test_request_with_tools_is_rendered_by_the_template_for_them(folder: Path) -> None:
    import transformers

    named = [{"name": "tool_use", "template": "{{ tools }}"}, {"name": "default", "template": "a"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    live: Any = transformers.AutoTokenizer.from_pretrained(folder)
    messages: Any = [{"role": "user", "content": "hi"}]
    for tools in (None, [{"name": "f"}]):
        text = live.apply_chat_template(messages, tools=tools, tokenize=False)
        for each in (load_tokenizer(Model("m"), folder), TokenizerFile(folder / "tokenizer.json")):
            assert each.chat_template is not None
            assert each.chat_template.render(messages, tools=tools) == text


def test_a_live_tokenizer_is_wrapped(folder: Path) -> None:
    import transformers

    live = transformers.AutoTokenizer.from_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 5}')
    wrapped = load_tokenizer(Model("m", tokenizer=live), folder)
    assert isinstance(wrapped, HFTokenizer)
    assert wrapped.eos_ids == {1, 5}
    assert wrapped.encode("<s>the") == TokenizerFile(folder / "tokenizer.json").encode("<s>the")


def test_a_live_tokenizer_without_a_folder_takes_nothing_from_the_working_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    live = transformers.AutoTokenizer.from_pretrained(folder)
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    monkeypatch.chdir(tmp_path)
    assert 7 in load_tokenizer(Model("m", tokenizer=live), tmp_path).eos_ids
    assert 7 not in load_tokenizer(Model("owner/m", tokenizer=live), None).eos_ids


def test_folder_without_a_tokenizer_is_refused_by_transformers(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="no tokenizer could be loaded from "):
        loaded(folder)


def test_its_template_is_rendered_with_the_models_variables(folder: Path) -> None:
    import transformers

    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ tone }}"}))
    variables = {"tone": "calm"}
    live = transformers.AutoTokenizer.from_pretrained(folder)
    given = load_tokenizer(Model("m", tokenizer=live, chat_template_kwargs=variables), folder)
    for each in (loaded(folder, chat_template_kwargs=variables), given):
        assert each.chat_template is not None
        assert each.chat_template.render([]) == "calm"
    assert live.chat_template == "{{ tone }}"


def test_library_that_transformers_lacks_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def refuse(*_: object, **__: object) -> None:
        raise ImportError("requires the protobuf library")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    tokenizer = load_tokenizer(Model("m"), folder)
    assert tokenizer.source == "tokenizer.json"
    assert tokenizer.notice == (
        f"{folder / 'tokenizer.json'} was read without Transformers, which refuses it: the "
        f"tokenizer of '{folder}' needs more: requires the protobuf library"
    )
    (folder / "tokenizer.json").unlink()
    with pytest.raises(EngineUnavailableError, match="needs more: requires the protobuf library"):
        load_tokenizer(Model("m"), folder)
