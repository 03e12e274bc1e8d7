"""`evalution suites`, `evalution engines NAME`, and what the shell completes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalution.cli.listings import complete_engines, complete_known_engines, complete_suites
from evalution.suites import available_suites
from evalution_core.discovery import available


def package(site: Path, name: str, entry_points: str) -> None:
    info = site / f"{name}_plugin-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_every_suite_is_listed_with_what_it_measures(command_line: Any) -> None:
    done = command_line("suites")
    assert done.returncode == 0, done.stderr
    for name in available_suites():
        assert f" {name} " in done.stdout
    listed = {suite["name"]: suite for suite in json.loads(command_line("suites", "--json").stdout)}
    assert listed["Generation"]["requests"] == "generation"
    assert "completes the prompt" in listed["Generation"]["measures"]
    assert all(suite["measures"] for suite in listed.values())


def test_a_broken_suite_of_another_package_costs_the_list_nothing(
    command_line: Any, tmp_path: Path
) -> None:
    package(tmp_path, "broken", "[evalution.suites]\nBroken = no_such_module:X\n")
    done = command_line("suites")
    assert done.returncode == 0, done.stderr
    assert "no_such_module:X" in done.stdout


def test_one_suite_is_shown_with_its_options(command_line: Any) -> None:
    done = command_line("suites", "generation")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "(needed)" in lines["prompt"]
    assert lines["max_new_tokens"].split()[1:6] == ["integer", "≥", "1", "256", "Tokens"]
    assert "filter or list of filters" in lines["target_filters"]
    assert "Steps that run on the target" in lines["target_filters"]
    assert lines["contains"].split()[1:5] == ["The", "target", "stands", "in"]
    assert "choose with the option metrics" in done.stdout
    shown = json.loads(command_line("suites", "generation", "--json").stdout)
    assert list(shown["metrics"])[:3] == ["exact_match", "contains", "number"]
    properties = shown["options_schema"]["properties"]
    assert properties["num_fewshot"]["default"] == properties["num_fewshot"]["minimum"] == 0
    assert (
        properties["target_filters"]["$ref"].rsplit("/", 1)[-1] in shown["options_schema"]["$defs"]
    )
    assert properties["target_filters"]["default"] == ["strip"]


def test_suite_without_a_choice_lists_the_metrics_that_it_reports(command_line: Any) -> None:
    shown = command_line("suites", "piqa").stdout
    assert "metrics of PIQA: all are reported" in shown
    assert "acc_norm" in shown


def test_a_misspelt_suite_is_reported(command_line: Any, assert_says: Any) -> None:
    assert_says(command_line("suites", "genration"), 2, "did you mean 'Generation'?")


@pytest.mark.parametrize(
    ("typed", "offered"), [("Ref", ["Reference"]), ("ref", ["reference"]), ("xyz", [])]
)
def test_the_shell_completes_engines(typed: str, offered: list[str]) -> None:
    assert complete_engines(typed) == offered


def test_nothing_typed_offers_all() -> None:
    assert complete_engines("") == sorted(entry.name for entry in available())
    assert complete_suites("") == sorted(available_suites())
    assert {"VLLM", "Reference"} <= set(complete_known_engines(""))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("evalution eng", "engines"),
        ("evalution engines refe", "reference"),
        ("evalution suites Gene", "Generation"),
        ("evalution doctor VL", "VLLM"),
    ],
)
def test_completion_answers_a_shell(words: str, expected: str, shell: Any) -> None:
    assert shell(words).split() == [expected]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asks as the script does that `--install-completion` puts into bash."""
    from typer.testing import CliRunner

    from evalution.cli import app

    def ask(words: str) -> str:
        environment = {
            "_EVALUTION_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        return CliRunner().invoke(app, [], env=environment, prog_name="evalution").stdout

    return ask
