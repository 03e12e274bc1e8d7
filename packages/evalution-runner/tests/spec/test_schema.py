"""The schema of a spec agrees with what the runner takes and refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from evalution.suites import available_suites
from evalution.suites.discovery import find_suites
from evalution.yaml_spec.option_schema import (
    NamedDeclaration,
    make_declaration_schema,
    make_step_definitions,
)
from evalution.yaml_spec.run_spec import SECTIONS, load_spec
from evalution.yaml_spec.schema import PATIENCE, make_spec_schema
from evalution_core import ConfigurationError
from evalution_core.builtins import builtin_path
from evalution_core.plugins import normalize

ROOT = Path(__file__).parents[4]
EXAMPLES = [
    *sorted((ROOT / "docs" / "examples").rglob("*.yaml")),
    builtin_path("builtin:tiny", "quickstart"),
]
TEST: Mapping[str, Any] = {"type": "generation", "data": "rows.jsonl", "prompt": "q", "target": "a"}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found = make_spec_schema()
    assert not found.complaints
    return json.loads(json.dumps(found.schema))


@pytest.fixture(scope="module")
def validator(schema: Any) -> Draft202012Validator:
    return Draft202012Validator(schema)


def spec(**sections: Any) -> dict[str, Any]:
    return {"engine": "Reference", "model": "builtin:tiny", "tests": [dict(TEST)], **sections}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_valid(validator: Draft202012Validator, example: Path) -> None:
    validator.validate(yaml.safe_load(example.read_text(encoding="utf-8")))


def test_it_is_a_schema_itself(schema: Any) -> None:
    Draft202012Validator.check_schema(schema)


def test_every_section_that_a_spec_may_have_is_in_it(schema: Any) -> None:
    assert set(schema["properties"]) == set(SECTIONS)


def test_every_suite_is_in_it(schema: Any) -> None:
    names = {key.removeprefix("test.") for key in schema["$defs"] if key.startswith("test.")}
    assert {name.replace("/", ".") for name in available_suites()} <= names


RIGHT: list[dict[str, Any]] = [
    {"engine": {"type": "reference", "dtype": "float64"}},
    {"engine": {"kind": "REFERENCE", "params": {"max_model_len": None}}},
    {"engine": {"kind": "Reference"}},
    {"engine": {"type": "Reference", "params": None}},
    {"engine": {"type": "evalution-reference/Reference", "dtype": "float32"}},
    {"engine": "evalution_enginekit.mock:Mock"},
    {"engine": {"type": "evalution_enginekit.mock:Mock", "batch_size": 3}},
    {"model": None},
    {"model": {"path": "m", "model_kwargs": {"depth": 3}}},
    {
        "tests": [
            {
                "type": "multiple-choice",
                "data": "r",
                "prompt": "q",
                "target": 1 and "a",
                "choices": ["x", "{y}"],
            }
        ]
    },
    {"tests": [{**TEST, "filters": "strip"}]},
    {"tests": [{**TEST, "metrics": "number"}]},
    {"tests": [{**TEST, "metrics": ["f1", {"number": 0.5}, {"regex": {"pattern": "x"}}]}]},
    {"tests": [{**TEST, "filters": [{"regex": "x"}, "lower", {"replace": {"pattern": "x"}}]}]},
    {"tests": [{**TEST, "filters": {"loose": "strip", "strict": [{"regex": {"pattern": "x"}}]}}]},
    {"tests": [{**TEST, "stop": ["a", "b"], "num_fewshot": 3}]},
    {"tests": [{**TEST, "data": [{"q": "1", "a": "2"}]}]},
    {"isolate": True, "on_error": "raise", "max_failures": 3},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"engine": "Referense"}, "$.engine"),
    ({"engine": {"type": "Referense"}}, "$.engine.type"),
    ({"engine": {"type": "reference", "dtyp": "float32"}}, "$.engine"),
    ({"engine": {"type": "reference", "dtype": "float16"}}, "$.engine.dtype"),
    ({"engine": {"type": "reference", "batch_size": True}}, "$.engine.batch_size"),
    ({"engine": {"kind": "reference", "dtype": "float32"}}, "$.engine"),
    ({"engine": {"kind": "reference", "params": {"dtyp": 3}}}, "$.engine.params"),
    ({"engine": {"dtype": "float32"}}, "$.engine"),
    ({"engine": {"type": "reference", "python": 3}}, "$.engine.python"),
    ({"engine": {"dtype": "float32", "python": "p"}}, "$.engine"),
    ({"model": {"paht": "m"}}, "$.model"),
    ({"tests": []}, "$.tests"),
    ({"tests": ["generation"]}, "$.tests[0]"),
    ({"tests": [{**TEST, "promt": "q"}]}, "$.tests[0]"),
    ({"tests": [{**TEST, "num_fewshot": "3"}]}, "$.tests[0].num_fewshot"),
    ({"tests": [{**TEST, "target_filters": "stripp"}]}, "$.tests[0].target_filters"),
    ({"tests": [{**TEST, "metrics": ["bleu"]}]}, "$.tests[0].metrics"),
    ({"tests": [{**TEST, "metrics": [{"number": "x"}]}]}, "$.tests[0].metrics"),
    ({"tests": [{**TEST, "target_filters": [{"regex": {"patern": "x"}}]}]}, "$.tests[0].target"),
    ({"tests": [{"type": "generation", "data": "r", "prompt": "q"}]}, "$.tests[0]"),
    ({"modle": "m"}, "$"),
    ({"model": {"name": "m"}}, "$.model"),
    ({"backend": 3}, "$.backend"),
    ({"backend": {"params": {}}}, "$.backend"),
    ({"backend": "mock", "model": None}, "$.model"),
    ({"on_error": "rise"}, "$.on_error"),
    ({"max_failures": -1}, "$.max_failures"),
    ({"isolate": "yes"}, "$.isolate"),
]


@pytest.mark.parametrize("sections", RIGHT, ids=str)
def test_accepted_specs_are_valid(
    validator: Draft202012Validator, tmp_path: Path, sections: dict[str, Any]
) -> None:
    written = spec(**sections)
    load_spec(_file(tmp_path, written))
    validator.validate(written)


@pytest.mark.parametrize(("sections", "place"), WRONG, ids=str)
def test_refused_specs_are_invalid_at_the_same_place(
    validator: Draft202012Validator, tmp_path: Path, sections: dict[str, Any], place: str
) -> None:
    written = spec(**sections)
    with pytest.raises(ConfigurationError):
        load_spec(_file(tmp_path, written))
    error = best_match(validator.iter_errors(written))
    assert error is not None
    assert error.json_path.startswith(place)


def test_engine_of_another_environment_is_judged_there(validator: Draft202012Validator) -> None:
    engine = {"type": "of-another", "anything": 1}
    assert not validator.is_valid(spec(engine=engine))
    assert validator.is_valid(spec(engine={**engine, "python": ".venv/bin/python"}))


def _file(folder: Path, written: Mapping[str, Any]) -> str:
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(written), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "spelling"),
    [
        ("VLLM", "v-LLM"),
        ("LlamaCpp", "llama_cpp"),
        ("other-package/X", "otherpackage/x"),
        ("X.Y", "x.y"),
    ],
)
def test_name_is_matched_as_the_runner_matches_it(name: str, spelling: str) -> None:
    assert normalize(name) == normalize(spelling)
    declared = [
        NamedDeclaration(name, "acme", "engine", None, {"type": "object", "properties": {}})
    ]
    names = {**make_declaration_schema("engine", declared), "$defs": declared[0].definitions}
    validator = Draft202012Validator(names)
    assert validator.is_valid(spelling)
    assert not validator.is_valid(f"{spelling}x")


def find_undescribed(shape: Any, place: str = "") -> Iterator[str]:
    """Yield the place of each property without a description; conditions describe nothing."""
    if isinstance(shape, list):
        for number, member in enumerate(cast("list[Any]", shape)):
            yield from find_undescribed(member, f"{place}/{number}")
    if not isinstance(shape, dict):
        return
    members = cast("dict[str, Any]", shape)
    for name, option in members.get("properties", {}).items():
        if option is not True and not option.get("description"):
            yield f"{place}/{name}"
    for key, member in members.items():
        if key not in ("if", "default"):
            yield from find_undescribed(member, f"{place}/{key}")


def test_every_property_has_a_description(schema: Any) -> None:
    # Engines of other packages hold to this in their own tests.
    described = {"engine.Reference"}
    shown = {
        **schema,
        "$defs": {
            name: shape
            for name, shape in schema["$defs"].items()
            if not name.startswith("engine.") or ".".join(name.split(".")[:2]) in described
        },
    }
    assert list(find_undescribed(shown)) == []


def test_definitions_of_two_engines_do_not_meet() -> None:
    inner = {"type": "object", "properties": {"x": {"type": "integer"}}}
    options = {"properties": {"inner": {"$ref": "#/$defs/Inner"}}, "$defs": {"Inner": inner}}
    definitions: dict[str, Any] = {}
    for name in ("A", "B"):
        definitions |= NamedDeclaration(name, "acme", "engine", None, options).definitions
    for name in ("A", "B"):
        reference = definitions[f"engine.{name}.options"]["properties"]["inner"]["$ref"]
        assert definitions[reference.removeprefix("#/$defs/")] == inner
        assert f"engine.{name}." in reference


def test_every_filter_is_known() -> None:
    validator = Draft202012Validator({"$ref": "#/$defs/filters", "$defs": make_step_definitions()})
    for right in (
        "strip",
        ["strip"],
        {"regex": "x"},
        {"regex": {"pattern": "x", "group": 1}},
        {"strip": {}},
    ):
        assert validator.is_valid(right), right
    for wrong in (
        "regex",
        {"regex": {}},
        {"regex": 3},
        {"strip": "x"},
        {},
        3,
        {"regex": "x", "strip": {}},
    ):
        assert not validator.is_valid(wrong), wrong


KEYED = """
from dataclasses import dataclass
from evalution_core import secret
from evalution_enginekit.mock import Mock

@dataclass(slots=True)
class Keyed(Mock):
    api_key: str = secret(default="planted")
"""


VAGUE = """
from evalution_enginekit.mock import Mock

class Vague(Mock):
    @classmethod
    def options_schema(cls):
        return {"properties": {"size": {"default": object()}}}
"""
HANGING = "import threading; open('reached', 'w'); threading.Event().wait()\n"
SHADOW = KEYED.replace("api_key", "other_key")


@pytest.fixture
def few_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves one of the runner's own suites: the schema of all of them takes half a second."""
    registry = find_suites()
    own = [entry for entry in registry.entries() if entry.name == "Generation"]
    monkeypatch.setattr(registry, "_built_in", own)


@pytest.mark.usefixtures("few_suites")
def test_engine_with_the_name_of_another_leaves_its_options_alone(
    command_line: Any, plugin: Any
) -> None:
    plugin("shadow", "[evalution.engines]\nReference = schema_shadow:Keyed\n", schema_shadow=SHADOW)
    validator = Draft202012Validator(json.loads(command_line("schema").stdout))
    for name, option, is_right in (
        ("reference", "dtype", True),
        ("Evalution_Reference/reference", "dtype", True),
        ("shadow-plugin/Reference", "dtype", False),
        ("shadow-plugin/Reference", "other_key", True),
        ("reference", "other_key", False),
    ):
        written = {"type": name, option: "float64"}
        spec = {"engine": written, "model": "m", "tests": [TEST]}
        assert validator.is_valid(spec) is is_right, written


@pytest.mark.usefixtures("few_suites")
def test_secret_has_no_default_and_a_broken_plugin_no_place(command_line: Any, plugin: Any) -> None:
    plugin("keyed", "[evalution.engines]\nKeyed = schema_keyed:Keyed\n", schema_keyed=KEYED)
    plugin("broken", "[evalution.engines]\nBad = broken:X\n", broken="1 / 0")
    plugin("leaving", "[evalution.suites]\nLeaving = leaving:X\n", leaving="import os; os._exit(0)")
    plugin("vague", "[evalution.engines]\nVague = vague:Vague\n", vague=VAGUE)
    done = command_line("schema")
    assert done.returncode == 0
    assert "left out: leaving-plugin/Leaving: it ended the process during its import" in done.stderr
    assert "left out: engine 'Vague': the schema of its options: TypeError" in done.stderr
    assert "planted" not in done.stdout
    assert "left out: engine 'Bad' of broken-plugin" in done.stderr
    shown = json.loads(done.stdout)["$defs"]
    assert shown["engine.Keyed.options"]["properties"]["api_key"]["writeOnly"] is True
    assert "engine.Bad" not in shown


@pytest.mark.usefixtures("few_suites")
@pytest.mark.skipif(sys.platform == "win32", reason="needs a FIFO and POSIX signals")
def test_plugin_that_hangs_is_left_out_after_the_time_limit(
    command_line: Any, plugin: Any, tmp_path: Path, end_when_reached: Callable[[float], None]
) -> None:
    plugin("stuck", "[evalution.engines]\nStuck = stuck:Stuck\n", stuck=HANGING)
    end_when_reached(PATIENCE)
    done = command_line("schema")
    assert done.returncode == 0
    assert done.stderr == (
        f"left out: stuck-plugin/Stuck: it was not done after {PATIENCE} s, during its import "
        f"({tmp_path}/stuck.py, line 1)\n"
    )
    assert "engine.Reference" in json.loads(done.stdout)["$defs"]


@pytest.mark.usefixtures("few_suites")
def test_it_is_written_into_a_file(command_line: Any, assert_says: Any, tmp_path: Path) -> None:
    done = command_line("schema", "--output", "spec.schema.json")
    assert done.stdout == "written: spec.schema.json\n"
    shown = json.loads((tmp_path / "spec.schema.json").read_text(encoding="utf-8"))
    assert shown["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert_says(
        command_line("schema", "--output", "no/such/folder.json"),
        2,
        "no/such/folder.json can't be written: No such file or directory; name another --output",
    )
