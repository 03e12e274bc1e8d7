"""The command line as a person meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

MOCK = "evalution_enginekit.mock:Mock"
TEST = '{type: generation, data: rows.jsonl, prompt: "Q: {question}", target: answer}'


def test_a_run_ends_in_a_table_and_names_its_folder(
    spec: Any, command_line: Any, folder: Path
) -> None:
    tests = f"[{TEST}, {{type: perplexity, data: rows.jsonl, text: question, name: prose}}]"
    done = command_line("run", spec(folder, tests=tests), "--output", "out", "--limit", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "results: out"
    table = done.stdout.split()
    assert {"suite", "metric", "exact_match", "↑", "word_perplexity", "↓", "rows"} <= set(table)
    found = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))
    assert [suite["n"] for suite in found["suites"]] == [5, 5]
    assert "rows (suite 1 of 2): 5/5" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_a_run_has_a_folder_of_its_own_by_default(
    spec: Any, command_line: Any, folder: Path
) -> None:
    for _ in range(2):
        assert command_line("run", spec(folder), "--limit", "1").returncode == 0
    names = [path.name for path in (folder / "runs").iterdir()]
    assert len(names) == 2
    assert all("my-model" in name for name in names)


def test_failed_requests_end_in_3_and_are_reported(command_line: Any, folder: Path) -> None:
    tests = (
        "[{type: multiple_choice, data: rows.jsonl, prompt: question, target: right, "
        'choices: ["{question}", "a much longer choice"]}]'
    )
    (folder / "spec.yaml").write_text(
        f'engine: {{type: "{MOCK}", max_model_len: 10}}\nmodel: m\ntests: {tests}\n'
    )
    done = command_line("run", "spec.yaml", "--output", "out")
    assert done.returncode == 3
    assert "rows: 30 of 30 samples failed; row 0: ContextLengthError" in done.stderr
    assert "acc ↑" in done.stdout


def test_brackets_in_a_name_are_no_markup(spec: Any, command_line: Any, folder: Path) -> None:
    test = TEST.replace("target:", 'name: "a[/b]", target:')
    done = command_line("run", spec(folder, tests=f"[{test}]"), "--output", "[/out]")
    assert done.returncode == 0, done.stderr
    assert "a[/b]" in done.stdout
    assert done.stdout.splitlines()[-1] == "results: [/out]"


def test_an_empty_output_is_refused(
    assert_says: Any, spec: Any, command_line: Any, folder: Path
) -> None:
    assert_says(command_line("run", spec(folder), "--output", ""), 2, "output is empty")
    assert not (folder / "samples.jsonl").exists()


def test_a_limit_that_no_machine_can_count_is_refused(
    assert_says: Any, spec: Any, command_line: Any, folder: Path
) -> None:
    done = command_line("run", spec(folder), "--limit", str(10**30))
    assert_says(done, 2, "limit must be at most 2147483647")


CASES: list[tuple[dict[str, Any], int, str]] = [
    ({"engine": "VLM"}, 2, "is installed; did you mean 'VLLM'? pip install evalution-vllm"),
    ({"engine": "Referense"}, 2, "did you mean 'Reference'"),
    ({"engine": "os:system"}, 2, "os:system is code, which could do whatever you can"),
    ({"tests": "[]"}, 2, "tests must be a list with at least one suite"),
    ({"rest": "engine: x"}, 2, "spec.yaml, line 4, column 1: not valid YAML: the key 'engine'"),
    ({"rest": "limit: 3"}, 2, "there is no section 'limit'"),
    ({"tests": "[{type: genration}]"}, 2, "did you mean 'Generation'?"),
    ({"tests": "[" + TEST.replace("rows.", "row.") + "]"}, 2, "did you mean 'rows.jsonl'?"),
    ({"tests": "[" + TEST.replace("{question}", "{quest}") + "]"}, 2, "did you mean 'question'?"),
    ({"tests": "[" + TEST.replace("prompt", "promt") + "]"}, 2, "did you mean 'prompt'?"),
    ({"tests": "[{type: perplexity, data: rows.jsonl, text: 3}]"}, 2, "must be a string, got 3"),
]


@pytest.mark.parametrize("verb", ["run", "validate"])
@pytest.mark.parametrize(("sections", "code", "message"), CASES)
def test_a_wrong_spec_is_one_line(
    assert_says: Any,
    spec: Any,
    command_line: Any,
    folder: Path,
    verb: str,
    sections: dict[str, Any],
    code: int,
    message: str,
) -> None:
    done = command_line(verb, spec(folder, **sections))
    assert_says(done, code, message)
    assert not (folder / "runs").exists()


REFERENCE_CASES = [
    ("dtyp: float64", "engine Reference has no option 'dtyp'; did you mean 'dtype'?"),
    ("dtype: 3", "option 'dtype' of engine Reference"),
]


@pytest.mark.parametrize(("option", "message"), REFERENCE_CASES)
def test_a_wrong_engine_option_is_one_line(
    assert_says: Any, command_line: Any, folder: Path, option: str, message: str
) -> None:
    text = f"engine: {{type: Reference, {option}}}\nmodel: builtin:tiny\ntests: [{TEST}]\n"
    (folder / "spec.yaml").write_text(text)
    assert_says(command_line("run", "spec.yaml"), 2, message)


@pytest.mark.parametrize("path", ["./nothing", "org/nothing"])
def test_a_missing_model_is_one_line_and_leaves_no_folder(
    assert_says: Any, command_line: Any, folder: Path, path: str
) -> None:
    (folder / "spec.yaml").write_text(f"engine: Reference\nmodel: {path}\ntests: [{TEST}]\n")
    done = command_line("run", "spec.yaml")
    assert_says(done, 2, "nothing")
    assert list((folder / "runs").iterdir() if (folder / "runs").exists() else []) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "none.yaml"], "there is no spec file none.yaml"),
        (["run", "."], "is a folder; name the spec file in it"),
        (["run", "builtin:tiny/quick"], "did you mean 'quickstart'?"),
        (["engines", "Referense"], "did you mean 'Reference'"),
    ],
)
def test_what_is_not_there_is_one_line(
    assert_says: Any, command_line: Any, folder: Path, arguments: list[str], message: str
) -> None:
    assert_says(command_line(*arguments), 2, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validate"], "Missing argument 'SPEC'"),
        (["run", "spec.yaml", "--limit", "0"], "Invalid value for '--limit'"),
        (["run", "spec.yaml", "--outptu", "x"], "No such option: --outptu"),
        (["rum"], "no command and no suite is named 'rum'; did you mean 'run'?"),
    ],
)
def test_wrong_use_is_reported(
    command_line: Any, folder: Path, arguments: list[str], message: str
) -> None:
    done = command_line(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(command_line: Any, folder: Path) -> None:
    done = command_line("run", "none.yaml", "--debug")
    assert "Traceback" in done.stderr
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: there is no spec file none.yaml"


def test_validate_loads_nothing_and_counts_the_rows(
    spec: Any, command_line: Any, folder: Path
) -> None:
    done = command_line("validate", spec(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "engine Mock, model my model",
        "test rows: Generation, 30 rows",
        "spec.yaml is valid",
    ]


def test_validate_names_two_suites_of_one_file_as_the_run_does(
    spec: Any, command_line: Any, folder: Path
) -> None:
    path = spec(folder, tests=f"[{TEST}, {TEST}]")
    names = [line.split(":")[0] for line in command_line("validate", path).stdout.splitlines()]
    assert names[1:3] == ["test rows", "test rows-2"]
    assert command_line("run", path, "--output", "out").returncode == 0
    suites = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))["suites"]
    assert [suite["name"] for suite in suites] == ["rows", "rows-2"]


def test_validate_reads_every_row(
    assert_says: Any, spec: Any, command_line: Any, folder: Path
) -> None:
    with (folder / "rows.jsonl").open("a", encoding="utf-8") as rows:
        rows.write('{"question": "who?"}\n')
    message = "suite 'rows': rows.jsonl, line 31: there is no column 'answer' (columns: question)"
    assert_says(command_line("validate", spec(folder)), 2, message)


def test_validate_says_where_a_line_break_is_spelt_out(
    spec: Any, command_line: Any, folder: Path
) -> None:
    test = TEST.replace('"Q: {question}"', r"'Q: {question}\nA:'")
    done = command_line("validate", spec(folder, tests=f"[{test}]"))
    assert (done.returncode, done.stderr) == (
        0,
        "rows: prompt has a backslash and an n, not a line break; one takes double quotes: "
        r"""prompt: "…\n…" in YAML, --set 'rows.prompt="…\n…"' in a command"""
        "\n",
    )


def test_validate_compares_what_a_suite_needs_with_what_the_engine_can(
    assert_says: Any, spec: Any, command_line: Any, folder: Path
) -> None:
    (folder / "deaf.py").write_text(
        "from dataclasses import dataclass\n"
        "from evalution_core import BaseEngine, Capability\n"
        "@dataclass(slots=True)\n"
        "class Deaf(BaseEngine):\n"
        "    capabilities = frozenset({Capability.LOGLIKELIHOOD})\n"
        "    def build(self, model):\n"
        "        raise AssertionError('built')\n"
    )
    done = command_line("validate", spec(folder, engine="deaf:Deaf"), "--allow-code")
    assert_says(done, 2, "suite 'rows' needs generate; the capabilities of engine Deaf are logl")


def test_engines_are_listed_and_shown(command_line: Any, folder: Path) -> None:
    listed = command_line("engines")
    assert "evalution_reference.engine:Reference" in listed.stdout
    shown = command_line("engines", "reference")
    assert "'auto' | 'float32' |" in shown.stdout
    assert "loglikelihood" in shown.stdout
    assert "evalution-vllm" in command_line("engines", "--available").stdout
    entries = json.loads(command_line("engines", "--json").stdout)
    assert "Reference" in {entry["name"] for entry in entries}
    schema = json.loads(command_line("engines", "Reference", "--json").stdout)
    assert schema["options_schema"]["properties"]["dtype"]["default"] == "auto"


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "evalution", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"evalution {version('evalution-runner')}\n"
