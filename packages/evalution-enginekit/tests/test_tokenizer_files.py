"""A tokenizer from the files of a model folder, and what is said when they are not right."""

from __future__ import annotations

import importlib.util
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    InvalidRequestError,
    Model,
)
from evalution_enginekit import ByteTokenizer, ChatTemplate, TokenizerFile, load_tokenizer
from evalution_enginekit.tokenizer import (
    HFTokenizer,
    bind_tokenizer,
    encode_text,
    parse_eos_ids,
    read_declared_eos,
)

pytest.importorskip("tokenizers", reason="needs evalution-enginekit[tokenizers]")


def write(file: Path, **content: Any) -> None:
    file.write_text(json.dumps(content))


def read(folder: Path) -> TokenizerFile:
    return TokenizerFile(folder / "tokenizer.json")


def test_tokenizer_file_reads_its_configuration(folder: Path) -> None:
    tokenizer = read(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.leading_ids) == (0, 1, (0,))
    assert tokenizer.eos_ids == {1}
    assert tokenizer.special_ids == {0, 1}
    assert tokenizer.chat_template is None
    token_ids = tokenizer.encode("<s>the cat")
    assert token_ids[0] == 0
    assert tokenizer.decode(token_ids) == "the cat"
    assert tokenizer.decode(tuple(token_ids), skip_special_tokens=False) == "<s>the cat"
    assert max(token_ids) < tokenizer.vocabulary_size <= 420


def test_other_threads_run_while_a_long_text_is_encoded(folder: Path) -> None:
    """Beside a thread that holds the interpreter's lock another one takes a step or two."""
    tokenizer, text = read(folder), "the cat sat " * 20_000
    steps, is_over = 0, threading.Event()

    def count() -> None:
        nonlocal steps
        while not is_over.wait(0.001):
            steps += 1

    def count_beside() -> int:
        before = steps
        assert tokenizer.decode(tokenizer.encode(text)) == text
        return steps - before

    with ThreadPoolExecutor(1) as aside:
        counting = aside.submit(count)
        found = any(count_beside() > 20 for _ in range(5))
        is_over.set()
        counting.result()
    assert found


def test_a_tokenizer_without_leading_token_and_bos(golden_folders: dict[str, Path]) -> None:
    tokenizer = read(golden_folders["crossing"])
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.leading_ids) == (None, 0, ())
    assert read(golden_folders["unigram"]).leading_ids == ()


def test_without_a_configuration_there_are_no_named_tokens(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    tokenizer = read(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (None, None, frozenset())
    assert tokenizer.leading_ids == (0,)


@pytest.mark.parametrize(
    ("files", "eos_ids"),
    [
        ({"generation_config.json": [5, 6]}, {1, 5, 6}),
        ({"generation_config.json": 5}, {1, 5}),
        ({"config.json": 5}, {1, 5}),
        ({"config.json": [5], "generation_config.json": 6}, {1, 6}),
        ({"generation_config.json": None}, {1}),
    ],
)
def test_ids_that_the_model_declares_end_a_generation_too(
    folder: Path, files: dict[str, Any], eos_ids: set[int]
) -> None:
    for name, declared in files.items():
        write(folder / name, eos_token_id=declared)
    assert read(folder).eos_ids == eos_ids
    assert read_declared_eos(folder) | {1} == eos_ids


@pytest.mark.parametrize("declared", ["</s>", [1, "</s>"], True, [[1]], {"id": 1}])
def test_an_end_that_is_no_id_is_refused(folder: Path, declared: Any) -> None:
    write(folder / "generation_config.json", eos_token_id=declared)
    with pytest.raises(
        ConfigurationError, match=r"generation_config\.json has eos_token_id .*; it"
    ):
        read(folder)


def test_given_ids_replace_those_declared_beside_the_file(folder: Path) -> None:
    write(folder / "config.json", eos_token_id=5)
    assert TokenizerFile(folder / "tokenizer.json", declared_eos=[7]).eos_ids == {1, 7}
    assert TokenizerFile(folder / "tokenizer.json", declared_eos=()).eos_ids == {1}


def test_a_special_token_may_be_written_out(folder: Path) -> None:
    write(folder / "tokenizer_config.json", eos_token={"content": "</s>", "special": True})
    assert read(folder).eos_id == 1


def test_named_token_outside_the_vocabulary_gets_the_next_id(folder: Path) -> None:
    size = read(folder).vocabulary_size
    write(folder / "tokenizer_config.json", bos_token=None, eos_token="<new>")
    tokenizer = read(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, size)
    assert tokenizer.encode("<new>") == [size]


def test_chat_template_of_the_configuration_is_read(folder: Path) -> None:
    config = {"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    write(folder / "tokenizer_config.json", **config)
    template = read(folder).chat_template
    assert template is not None
    assert template.render([{"role": "user", "content": "hi"}]) == "<s>hi"
    named = [
        {"name": "tool_use", "template": "{{ tools and 'no' }}"},
        {"name": "default", "template": "yes"},
    ]
    write(folder / "tokenizer_config.json", chat_template=named)
    template = read(folder).chat_template
    assert template is not None
    assert template.source == "yes"
    for each in (template, pickle.loads(pickle.dumps(template))):
        assert each.render([{"role": "user", "content": "hi"}]) == "yes"
        assert each.render([{"role": "user", "content": "hi"}], tools=[{"name": "f"}]) == "no"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (5, "5 under the name 'default'"),
        (["text"], "'text' under the name None"),
        ([{"name": "default"}], "None under the name 'default'"),
        ([{"name": ["default"], "template": "text"}], r"'text' under the name \['default'\]"),
        ({"default": "text", "tool_use": 5}, "5 under the name 'tool_use'"),
    ],
)
def test_chat_template_that_is_no_text_is_refused(
    folder: Path, template: object, shown: str
) -> None:
    write(folder / "tokenizer_config.json", chat_template=template)
    with pytest.raises(ConfigurationError, match=f"chat_template has {shown}, and both must be"):
        read(folder)


def test_template_file_in_another_encoding_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"chat_template\.jinja is not UTF-8: "):
        read(folder)


@pytest.mark.parametrize("length", [1, 2000])
def test_text_outside_an_incomplete_vocabulary_is_refused(
    incomplete_folder: Path, length: int
) -> None:
    tokenizer = read(incomplete_folder)
    with pytest.raises(InvalidRequestError, match="can't encode this text: Unk token `<none>`"):
        tokenizer.encode("e" * length)
    assert tokenizer.encode("a")


class PanickingTokenizer:
    """Ends as the library's panics do, or as a person ends a program."""

    def __init__(self, error: BaseException):
        self.error = error

    def encode(self, *_: Any, **__: Any) -> Any:
        raise self.error

    encode_batch = encode


@pytest.mark.parametrize("length", [1, 2000])
@pytest.mark.parametrize("kind", ["file", "transformers"])
def test_text_on_which_the_library_panics_is_refused(kind: str, length: int) -> None:
    def encode(error: BaseException) -> Any:
        library = cast("Any", PanickingTokenizer(error))
        if kind == "file":
            return encode_text(library, "a" * length)
        tokenizer = object.__new__(HFTokenizer)
        tokenizer._tokenizer = library
        return tokenizer.encode("a" * length)

    with pytest.raises(InvalidRequestError, match="can't encode this text: too long; copy the"):
        encode(BaseException("too long"))
    with pytest.raises(KeyboardInterrupt):
        encode(KeyboardInterrupt())


def test_the_template_file_goes_before_the_configuration(folder: Path) -> None:
    write(folder / "tokenizer_config.json", chat_template="config", eos_token="</s>")
    (folder / "chat_template.jinja").write_text("file {{ eos_token }}")
    template = read(folder).chat_template
    assert template is not None
    assert template.render([{"role": "user", "content": "hi"}]) == "file </s>"


@pytest.mark.parametrize("declared", [None, (), (7, 8)])
def test_tokenizer_file_survives_pickling(folder: Path, declared: tuple[int, ...] | None) -> None:
    write(folder / "config.json", eos_token_id=5)
    tokenizer = TokenizerFile(folder / "tokenizer.json", declared)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("the") == tokenizer.encode("the")
    assert copy.eos_ids == tokenizer.eos_ids


def test_padding_and_truncation_of_the_file_are_off(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    assert len(read(folder).encode("the cat sees the house")) > 2


def test_missing_tokenizer_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^no tokenizer at .*tokenizer\.json$"):
        read(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"type": "none"}}', ""])
def test_file_that_is_not_a_tokenizer_is_refused(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json is not a tokenizer file, or "):
        read(folder)


def test_tokenizer_on_which_the_library_panics_is_refused(folder: Path) -> None:
    template = [{"SpecialToken": {"id": "<none>", "type_id": 0}}, {"Sequence": {"id": "A"}}]
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    processor = {"type": "TemplateProcessing", "single": template, "pair": [], "special_tokens": {}}
    write(file, **content | {"post_processor": processor})
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json is not a tokenizer file, or "):
        read(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"added_tokens_decoder": {"one": {"content": "a"}}},
        {"added_tokens_decoder": [1]},
        {"extra_special_tokens": 3},
    ],
)
def test_settings_that_are_none_are_refused(folder: Path, settings: dict[str, Any]) -> None:
    write(folder / "tokenizer_config.json", **settings)
    with pytest.raises(ConfigurationError, match="or one beside it is damaged: "):
        read(folder)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "config.json"])
@pytest.mark.parametrize("content", ["{", "[1]"])
def test_broken_configuration_file_is_refused(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ConfigurationError, match=rf"{name} is not "):
        read(folder)


def test_missing_tokenizers_library_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str, *_: Any) -> Any:
        return None if name == "tokenizers" else importlib.util.find_spec(name)

    monkeypatch.setattr("evalution_enginekit.tokenizer_classes.find_spec", find)
    with pytest.raises(
        EngineUnavailableError, match=r'pip install "evalution-enginekit\[tokenizers\]"'
    ):
        read(folder)


def test_the_models_folder_is_read(folder: Path) -> None:
    found = load_tokenizer(Model("m"), folder)
    assert found.encode("<s>the cat") == read(folder).encode("<s>the cat")
    assert found.notice is None


@pytest.mark.parametrize("by", ["tokenizer", "tokenizer_path"])
@pytest.mark.parametrize("file", ["", "tokenizer.json"])
def test_another_tokenizer_may_be_named(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, by: str, file: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("weights")
    named: dict[str, Any] = {by: str(folder / file)}
    model = Model("m", **named)
    assert load_tokenizer(model, elsewhere).encode("<s>") == [0]


@pytest.mark.parametrize("file", ["", "tokenizer.json"])
def test_the_models_folder_says_what_ends_a_generation_and_else_the_tokenizers(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, file: str
) -> None:
    weights = tmp_path_factory.mktemp("weights")
    model = Model("m", tokenizer_path=str(folder / file))
    write(folder / "config.json", eos_token_id=5)
    assert load_tokenizer(model, weights).eos_ids == {1, 5}
    write(weights / "config.json", eos_token_id=[6, 7])
    assert load_tokenizer(model, weights).eos_ids == {1, 6, 7}
    write(weights / "generation_config.json", eos_token_id=8)
    assert load_tokenizer(model, weights).eos_ids == {1, 8}


def test_a_tokenizer_object_is_taken_as_it_is(tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    assert load_tokenizer(Model("m", tokenizer=tokenizer), tmp_path) is tokenizer


def test_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no tokenizer in .*: expected tokenizer\.json; set tokenizer_pa"
    ):
        load_tokenizer(Model("m"), tmp_path)


def test_a_checkpoint_has_the_tokenizer_of_its_folder_or_the_callers(folder: Path) -> None:
    found = load_tokenizer(Model(str(folder)), folder, {7})
    assert found.eos_ids == {1}, "a folder declares its own"
    own = ByteTokenizer()
    assert load_tokenizer(Model("owner/name", tokenizer=own), None) is own


def test_without_a_folder_the_tokenizer_comes_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalution_enginekit import tokenizer as module

    asked: list[tuple[str, set[int]]] = []

    def load(model: Model, path: str, declared: Any) -> ByteTokenizer:
        asked.append((path, set(declared)))
        return ByteTokenizer()

    monkeypatch.setattr(module, "_load_hf_tokenizer", load)
    monkeypatch.setattr(module, "find_cached_file", lambda *_: None)
    for model in (Model("owner/name"), Model("owner/name", tokenizer_path="owner/other")):
        load_tokenizer(model, None, {7})
    assert asked == [("owner/name", {7}), ("owner/other", {7})]


def test_the_template_is_rendered_with_the_models_variables(folder: Path) -> None:
    write(folder / "tokenizer_config.json", chat_template="{{ bos_token }}{{ tone }}")
    model = Model("m", chat_template_kwargs={"tone": "calm"})
    tokenizer = load_tokenizer(model, folder)
    again = pickle.loads(pickle.dumps(tokenizer))
    for each in (tokenizer, again):
        assert each.chat_template is not None
        assert each.chat_template.render([]) == "calm"
    assert again.encode("<s>the") == tokenizer.encode("<s>the")
    plain = load_tokenizer(Model("m"), folder).chat_template
    assert plain is not None
    assert plain.render([]) == ""


def test_a_tokenizer_of_the_callers_keeps_its_own_template(tmp_path: Path) -> None:
    own = ByteTokenizer()
    own.chat_template = template = ChatTemplate("{{ tone }}")
    model = Model("m", tokenizer=own, chat_template_kwargs={"tone": "calm"})
    bound = bind_tokenizer(model, own)
    for found in (load_tokenizer(model, tmp_path), load_tokenizer(model, None), bound):
        for each in (found, pickle.loads(pickle.dumps(found))):
            assert each.chat_template is not None
            assert each.chat_template.render([]) == "calm"
            assert each.encode("<bos>a") == own.encode("<bos>a")
            assert each.decode([97, 257]) == "a"
            for name in ("leading_ids", "bos_id", "eos_id", "eos_ids", "special_ids"):
                assert getattr(each, name) == getattr(own, name)
            assert each.vocabulary_size == own.vocabulary_size
    assert own.chat_template is template
    assert template.render([]) == ""


def test_variables_without_a_template_are_refused(folder: Path, tmp_path: Path) -> None:
    own = ByteTokenizer(has_template=False)
    for tokenizer in (None, own):
        model = Model("m", tokenizer=tokenizer, chat_template_kwargs={"tone": "calm"})
        with pytest.raises(ConfigurationError, match="sets tone, and this model has no chat temp"):
            load_tokenizer(model, folder)


def test_declared_ends_of_generation_are_one_id_several_or_none() -> None:
    assert parse_eos_ids(None) == frozenset()
    assert parse_eos_ids(2) == {2}
    assert parse_eos_ids([2, 32007]) == {2, 32007}
    with pytest.raises(ConfigurationError, match="acme/model has eos_token_id '</s>'"):
        parse_eos_ids("</s>", "acme/model")
