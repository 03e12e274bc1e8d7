"""The program that `evalution emit-python` writes does what the spec does."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.spec.program import spec_program
from evalution.spec.python_source import LINE, Call, Name, source_of
from evalution.spec.run_spec import load_spec
from evalution_core import ConfigurationError

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=25,
)


@given(plain, st.integers(0, 4), st.integers(0, 40))
def test_a_value_is_its_source_read_again(value: Any, indent: int, prefix: int) -> None:
    assert ast.literal_eval(source_of(value, indent=indent, prefix=prefix)) == value


@given(st.text(alphabet="'\"\\\n{é\u2028\ud800"))
def test_any_text_is_its_source_read_again(text: str) -> None:
    assert ast.literal_eval(source_of(text)) == text


@given(st.lists(st.integers(0, 9999), min_size=40))
def test_what_is_too_long_for_a_line_is_broken(value: list[int]) -> None:
    lines = source_of(value, indent=1, prefix=4).splitlines()
    assert (lines[0], lines[-1]) == ("[", "    ]")
    assert all(line.startswith("        ") and line.endswith(",") for line in lines[1:-1])
    assert max(map(len, lines)) <= LINE


def test_a_call_is_written_with_its_arguments() -> None:
    call = Call("f", {"a": Name("os.sep"), "b": [Call("g", {}, first=1.5)]}, first="x")
    assert source_of(call) == 'f("x", a=os.sep, b=[g(1.5)])'
    assert math.isnan(eval(source_of(float("nan"))))


def test_an_object_has_no_source() -> None:
    with pytest.raises(ValueError, match="no source can be written for object"):
        source_of([object()])


def results(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    found["suites"] = [
        {k: v for k, v in suite.items() if k not in ("seconds", "requests_per_second", "timings")}
        for suite in found["suites"]
    ]
    return {k: found[k] for k in ("status", "engine", "model", "limit", "suites")}


def run_program(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "program.py", "by-program"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


SPECS = {
    "short": "engine: {mock}\nmodel: m\ntests: [{test}]\n",
    "full": """
engine: {{type: "{mock}", max_model_len: 300}}
model: {{path: ./rows.jsonl, label: 'it''s "mine"', model_kwargs: {{a: [1, 2.5, null, true]}}}}
on_error: raise
max_failures: 3
tests:
  - type: generation
    data: rows.jsonl
    prompt: "Q: {{question}}\\nA:"
    target: answer
    stop: ["\\n", '"']
    max_new_tokens: 7
    filters: {{strict: [{{regex: {{pattern: '([0-9]+)"', group: 1}}}}, strip], loose: lower}}
  - {{type: multiple_choice, data: rows.jsonl, prompt: question, choices: choices, target: right}}
  - {{type: perplexity, data: rows.jsonl, text: question, name: prose, max_rows: 3}}
""",
}


@pytest.mark.parametrize("name", SPECS)
def test_the_program_gives_the_results_of_the_spec(
    command_line: Any, folder: Path, name: str
) -> None:
    test = "{type: generation, data: rows.jsonl, prompt: question, target: answer}"
    text = SPECS[name].format(mock="evalution_enginekit.mock:Mock", test=test)
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    assert command_line("run", "spec.yaml", "--output", "by-spec").returncode == 0
    done = command_line("emit-python", "spec.yaml", "--output", "program.py")
    assert done.stdout == "written: program.py\n"
    program = run_program(folder)
    assert program.returncode == 0, program.stderr
    assert results(folder / "by-program") == results(folder / "by-spec")
    assert "exact_match" in program.stdout


def test_the_quickstart_s_program_says_only_what_differs_from_the_defaults(
    command_line: Any,
) -> None:
    source = command_line("emit-python", "builtin:tiny/quickstart").stdout
    assert 'engine=evalution.engines.Reference(dtype="float64"),' in source
    assert "max_model_len" not in source
    assert 'filters=[Regex("#### (-?[0-9]+)")],' in source
    compile(source, "program.py", "exec")


def test_a_formatter_changes_nothing(command_line: Any, tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="needs ruff, of the dev group")
    command_line("emit-python", "builtin:tiny/quickstart", "--output", "program.py")
    ruff = [sys.executable, "-m", "ruff"]
    for arguments in (["format", "--diff"], ["check", "--select", "E,F,I,UP,B"]):
        command = [*ruff, *arguments, "--isolated", "--line-length", "100", "program.py"]
        if arguments[0] == "format":
            command[command.index("100")] = str(LINE)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


KEYED = """
from collections.abc import Mapping
from dataclasses import dataclass, field
from evalution_core import secret
from evalution_enginekit.mock import Mock

@dataclass(slots=True)
class Keyed(Mock):
    api_key: str | None = secret()
    base_url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def build(self, model):
        assert (self.api_key, self.headers) == ("sk-planted-1", {"X-Api-Key": "sk-planted-2"})
        assert self.base_url == "https://me:sk-planted-3@example.org"
        return Mock.build(self, model)
"""


def test_secrets_come_from_the_environment(command_line: Any, folder: Path) -> None:
    (folder / "emitted_keyed.py").write_text(KEYED, encoding="utf-8")
    (folder / "spec.yaml").write_text(
        """
engine:
  type: emitted_keyed:Keyed
  api_key: sk-planted-1
  headers: {X-Api-Key: sk-planted-2}
  base_url: "https://me:sk-planted-3@example.org"
tests: [{type: perplexity, data: rows.jsonl, text: question}]
model: m
""",
        encoding="utf-8",
    )
    command_line("emit-python", "spec.yaml", "--output", "program.py")
    source = (folder / "program.py").read_text(encoding="utf-8")
    assert "planted" not in source
    assert "    EVALUTION_ENGINE_API_KEY: engine.api_key\n" in source
    without = run_program(folder)
    assert without.returncode == 1
    assert "KeyError: 'EVALUTION_ENGINE_API_KEY'" in without.stderr
    program = run_program(
        folder,
        EVALUTION_ENGINE_API_KEY="sk-planted-1",
        EVALUTION_ENGINE_HEADERS_X_API_KEY="sk-planted-2",
        EVALUTION_ENGINE_BASE_URL="https://me:sk-planted-3@example.org",
    )
    assert program.returncode == 0, program.stderr


def test_a_spec_of_a_parity_check_has_no_program(
    command_line: Any, assert_told: Any, spec: Any, folder: Path
) -> None:
    name = spec(folder, rest="against: {engine: Reference}\n")
    assert_told(command_line("emit-python", name), 2, "has the section 'against', which is for")


def test_an_option_that_is_an_object_is_told(spec: Any, folder: Path) -> None:
    loaded = load_spec(str(folder / spec(folder)))
    object.__setattr__(loaded.model, "tokenizer", object())
    with pytest.raises(ConfigurationError, match=r"model\.tokenizer is a object"):
        spec_program(loaded, "spec.yaml")
