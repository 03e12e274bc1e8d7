from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from evalution import Generation, MultipleChoice
from evalution.user_input import allow_code
from evalution.yaml_spec.run_spec import load_spec, parse_spec
from evalution_core import ConfigurationError, Model, UnknownEngineError
from evalution_enginekit.mock import Mock

MOCK = "evalution_enginekit.mock:Mock"
TEST = {"type": "generation", "data": "rows.jsonl", "prompt": "q", "target": "a"}
BASE = Path("/specs/spec.yaml")


def parse(**sections: Any) -> Any:
    return parse_spec({"engine": MOCK, "tests": [TEST], **sections}, BASE)


@pytest.mark.parametrize(
    "engine",
    [
        {"type": MOCK, "max_model_len": 64},
        {"kind": MOCK, "params": {"max_model_len": 64}},
        {"type": MOCK, "params": {"max_model_len": 64}},
    ],
)
def test_engine_is_declared_in_either_form(engine: dict[str, Any]) -> None:
    assert parse(engine=engine).engine == Mock(max_model_len=64)


@pytest.mark.parametrize("engine", [MOCK, {"kind": MOCK}, {"kind": MOCK, "params": None}])
def test_engine_without_options_takes_the_defaults(engine: object) -> None:
    assert parse(engine=engine).engine == Mock()


def test_test_is_declared_in_either_form_and_by_any_spelling() -> None:
    options = {name: value for name, value in TEST.items() if name != "type"}
    (first,) = parse().tests
    (second,) = parse(tests=[{"kind": "Generation", "params": options}]).tests
    assert isinstance(first, Generation)
    assert first == second
    choice = {**options, "type": "multiple-choice", "choices": "c"}
    assert isinstance(parse(tests=[choice]).tests[0], MultipleChoice)


def test_paths_start_from_the_spec_and_builtins_and_absolute_ones_do_not() -> None:
    (suite,) = parse().tests
    assert Path(suite.data) == Path("/specs/rows.jsonl")
    (suite,) = parse(
        tests=[{**TEST, "data": "builtin:tiny/sums", "fewshot_data": "/r.jsonl"}]
    ).tests
    assert (suite.data, Path(suite.fewshot_data)) == ("builtin:tiny/sums", Path("/r.jsonl"))


def test_model_beside_the_spec_is_found_and_a_hub_id_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    spec = {"engine": MOCK, "tests": [TEST]}
    path = tmp_path / "spec.yaml"
    near = parse_spec({**spec, "model": {"path": "models/mine"}}, path).model
    assert Path(near.path or "") == tmp_path / "models" / "mine"
    assert parse_spec({**spec, "model": {"path": "org/name"}}, path).model.path == "org/name"
    assert parse_spec({**spec, "model": "builtin:tiny"}, path).model.path == "builtin:tiny"
    assert parse_spec(spec, path).model.path is None


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"test": [TEST]}, "there is no section 'test'; did you mean 'tests'?"),
        ({"tests": None}, "the section 'tests' is missing"),
        ({"engine": None}, "the section 'engine' is missing; for instance"),
        ({"tests": []}, "tests must be a list with at least one suite, got []"),
        ({"tests": TEST}, "tests must be a list with at least one suite"),
        ({"engine": {"dtype": "float32"}}, "the engine names no type (it has: dtype)"),
        ({"engine": 3}, "the engine must be a mapping of names to values, but it is a number"),
        (
            {"engine": {"type": MOCK, "max_model_len": date(2026, 1, 2)}},
            "option 'max_model_len' of the engine is a date to YAML (2026-01-02); put it in quotes",
        ),
        (
            {"tests": [{**TEST, "name": date(2026, 1, 2)}]},
            "test 1: option 'name' of the test is a date to YAML",
        ),
        ({"model": "~nobody-here/x"}, "~nobody-here/x: there is no such home folder"),
        ({"engine": {"type": 3}}, "the engine's type must be a name, got 3"),
        ({"engine": [MOCK]}, "the engine must be a mapping of names to values, but it is a list"),
        ({"engine": {"kind": MOCK, "max_model_len": 3}}, "put options under params"),
        (
            {"engine": {"type": MOCK, "params": {}, "max_model_len": 3}},
            "options both under params and beside it: max_model_len",
        ),
        ({"engine": {"type": MOCK, "max_model_length": 3}}, "did you mean 'max_model_len'?"),
        ({"engine": {"type": MOCK, "max_model_len": "3"}}, "option 'max_model_len' of engine Mock"),
        ({"model": {"pth": "x"}}, "model has no field 'pth'; did you mean 'path'?"),
        ({"model": {"path": 3}}, "model.path must be a non-empty string, got 3"),
        ({"model": [1]}, "the section 'model' must be a mapping"),
        (
            {"tests": [TEST, {**TEST, "type": "genration"}]},
            "test 2: no suite 'genration' is installed; did",
        ),
        ({"tests": [{**TEST, "promt": "q"}]}, "test 1: suite Generation has no option 'promt'"),
        ({"tests": [{"type": "generation"}]}, "test 1: suite Generation needs the option 'data'"),
        ({"tests": [{1: 2}]}, "the test has the key 1, which is no text; quote it"),
        (
            {"tests": ["no_module:Suite"]},
            "suite 'no_module:Suite' (no_module:Suite) can't be loaded",
        ),
        (
            {"tests": [":"]},
            "suite ':' (:) can't be loaded: ValueError: it names no class; write it "
            "as package.module:Class",
        ),
        ({"tests": ["json:dumps"]}, "suite 'json:dumps' is no Suite"),
    ],
)
def test_wrong_spec_says_what_is_wrong(sections: dict[str, Any], message: str) -> None:
    with allow_code(), pytest.raises(ConfigurationError) as caught:
        parse(**sections)
    assert message in str(caught.value)


def test_model_name_that_the_system_refuses_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be read: File name too long"):
        parse_spec({"engine": MOCK, "tests": [TEST], "model": "m" * 300}, tmp_path / "spec.yaml")


def test_unknown_engine_says_what_to_install() -> None:
    with pytest.raises(UnknownEngineError, match="pip install evalution-vllm"):
        parse(engine="vllm")


def test_module_that_is_not_there_is_no_engine() -> None:
    with allow_code(), pytest.raises(UnknownEngineError, match="No module named 'no_module'"):
        parse(engine="no_module:Engine")


def test_error_in_a_file_begins_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("engine: Reference\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_spec(str(path))
    assert str(caught.value).startswith(f"{path}: the section 'tests' is missing")


def test_list_is_no_spec(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("- engine\n", encoding="utf-8")
    with pytest.raises(
        ConfigurationError, match="a spec must be a mapping of names to values, but it is a list"
    ):
        load_spec(str(path))


def test_paths_start_from_where_a_linked_spec_lies(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "spec.yaml").write_text(
        f'engine: "{MOCK}"\ntests: [{{type: perplexity, data: rows.jsonl, text: q}}]\n'
    )
    (tmp_path / "link.yaml").symlink_to(tmp_path / "real" / "spec.yaml")
    suite: Any = load_spec(str(tmp_path / "link.yaml")).tests[0]
    assert suite.data == str((tmp_path / "real" / "rows.jsonl").resolve())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("s" * 300, "can't be read: File name too long"),
        ("none.yaml", "there is no spec file none.yaml"),
        (".", "is a folder; name the spec file in it"),
        ("builtin:tiny/quick", "did you mean 'quickstart'?"),
        ("builtin:big", "no builtin 'big' is installed (installed: tiny)"),
    ],
)
def test_spec_that_is_not_there_is_named(source: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_spec(source)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("quickstart.yml", "quickstart.yaml"), ("quikstart.yaml", "quickstart.yaml"), ("n.yaml", "")],
)
def test_misspelt_spec_file_names_the_nearest(tmp_path: Path, asked: str, meant: str) -> None:
    (tmp_path / "quickstart.yaml").touch()
    with pytest.raises(ConfigurationError) as caught:
        load_spec(str(tmp_path / asked))
    advice = f"; did you mean {tmp_path / meant}?" if meant else ""
    assert str(caught.value) == f"there is no spec file {tmp_path / asked}{advice}"


def test_quickstart_of_the_docs_is_the_installed_one() -> None:
    root = Path(__file__).parents[4]
    installed = load_spec("builtin:tiny/quickstart")
    in_docs = root / "docs" / "examples" / "quickstart.yaml"
    assert in_docs.read_bytes() == installed.path.read_bytes()


def test_judge_of_a_test_has_engine_and_model_as_a_spec_has_them(tmp_path: Path) -> None:
    (tmp_path / "judge-model").mkdir()
    judge = {"engine": {"type": MOCK, "max_model_len": 64}, "model": "judge-model", "scale": [1, 5]}
    document = {"engine": MOCK, "tests": [{**TEST, "judge": judge}]}
    found: Any = parse_spec(document, tmp_path / "spec.yaml").tests[0]
    assert found.judge.engine == Mock(max_model_len=64)
    assert found.judge.model == Model(str(tmp_path / "judge-model"))
    assert found.judge.range == (1, 5)


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ({"model": "m"}, "test 1: the judge names no engine; for instance `engine:"),
        ({"engine": MOCK, "rubrik": "x"}, "judge Judge has no option 'rubrik'; did you mean 'rubr"),
        ("gpt", "the judge must be a mapping of names to values, but it is a text"),
        ({"engine": MOCK, "scale": "1-5"}, "option 'scale' of judge Judge must be an? .*'1-5'"),
    ],
)
def test_judge_that_is_none_is_refused(judge: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(tests=[{**TEST, "judge": judge}])
