"""The suites that are known by name: what each one asks, and how they are found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import getdoc, getsource
from pathlib import Path
from typing import Any

import pytest

import evalution.suites
from evalution.runs.preflight import parse_tests
from evalution.scoring.metrics import Measure
from evalution.suites import RequestKind, available_suites, load_suite
from evalution.suites.discovery import find_built_in
from evalution.yaml_spec.run_spec import parse_test
from evalution_core import ConfigurationError, LoglikelihoodOutput

BUILT_IN = list(find_built_in())
HELLASWAG = {
    "activity_label": "Roof shingle removal",
    "ctx_a": "A man  sits [header] on a roof.",
    "ctx_b": "he",
    "endings": [" is [substeps] there. [title] Now go.", "pulls up  roofing.", "c", "d"],
    "label": "1",
}
PIQA = {"goal": "Open a jar", "sol1": "Twist it.", "sol2": "Eat it.", "label": 0}
ARC = {
    "question": "What is wet?",
    "choices": {"text": ["rock", "water", "sand"], "label": ["1", "2", "3"]},
    "answerKey": "2",
}
WINOGRANDE = {
    "sentence": "Ann hired Eve because _ needed help.",
    "option1": "Ann",
    "option2": "Eve",
    "answer": "1",
}
BOOLQ = {"passage": "Ice is frozen water.", "question": "is ice water", "label": 1}

Pairs = list[tuple[str, str]]


def named(name: str, **options: Any) -> Any:
    kind: Any = load_suite(name)
    return kind(**options)


def pairs(name: str, *rows: dict[str, Any], **options: Any) -> list[Pairs]:
    suite = named(name, data=list(rows), **options)
    return [[(r.context, r.continuation) for r in sample.requests] for sample in suite.samples()]


@pytest.mark.parametrize(
    ("name", "row", "expected", "target"),
    [
        (
            "hellaswag",
            HELLASWAG,
            [
                ("Roof shingle removal: A man sits on a roof. He", f" {ending}")
                for ending in ("is there.. Now go.", "pulls up roofing.", "c", "d")
            ],
            "pulls up roofing.",
        ),
        (
            "piqa",
            PIQA,
            [
                ("Question: Open a jar\nAnswer:", " Twist it."),
                ("Question: Open a jar\nAnswer:", " Eat it."),
            ],
            "Twist it.",
        ),
        (
            "arc_easy",
            ARC,
            [("Question: What is wet?\nAnswer:", f" {text}") for text in ARC["choices"]["text"]],  # pyright: ignore[reportArgumentType, reportCallIssue]
            "water",
        ),
        (
            "winogrande",
            WINOGRANDE,
            [
                ("Ann hired Eve because Ann", " needed help."),
                ("Ann hired Eve because Eve", " needed help."),
            ],
            "Ann hired Eve because Ann",
        ),
        (
            "boolq",
            BOOLQ,
            [
                ("Ice is frozen water.\nQuestion: is ice water?\nAnswer:", " no"),
                ("Ice is frozen water.\nQuestion: is ice water?\nAnswer:", " yes"),
            ],
            "yes",
        ),
    ],
)
def test_what_is_asked(name: str, row: dict[str, Any], expected: Pairs, target: str) -> None:
    # tests/lm_eval compares many more rows with lm-evaluation-harness itself.
    assert pairs(name, row) == [expected]
    suite = named(name, data=[row])
    assert next(suite.samples()).target == target


def test_a_solved_row_of_winogrande_is_its_right_sentence() -> None:
    solved = {**WINOGRANDE, "sentence": "Ann paid Eve because _ had won.", "answer": "2"}
    ((first, second),) = pairs(
        "winogrande", WINOGRANDE, fewshot_data=[solved], num_fewshot=1, fixed_shots=True
    )
    head = "Ann paid Eve because Eve had won.\n\nAnn hired Eve because "
    assert (first, second) == ((f"{head}Ann", " needed help."), (f"{head}Eve", " needed help."))


def test_a_chat_of_winogrande_asks_each_context() -> None:
    suite = named("winogrande", data=[WINOGRANDE], apply_chat_template=True)
    first, second = next(suite.samples()).requests
    assert [request.messages[0]["content"][-3:] for request in (first, second)] == ["Ann", "Eve"]
    assert {request.continuation for request in (first, second)} == {"needed help."}


def test_arc_challenge_is_arc_easy_with_other_rows() -> None:
    assert pairs("arc_challenge", ARC) == pairs("arc_easy", ARC)
    names = [load_suite(f"arc_{level}").dataset.name for level in ("easy", "challenge")]  # pyright: ignore[reportAttributeAccessIssue]
    assert names == ["ARC-Easy", "ARC-Challenge"]


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("hellaswag", ["acc", "acc_norm"]),
        ("piqa", ["acc", "acc_norm"]),
        ("arc_challenge", ["acc", "acc_norm"]),
        ("winogrande", ["acc"]),
        ("boolq", ["acc"]),
    ],
)
def test_each_reports_its_own_metrics(name: str, metrics: Sequence[str]) -> None:
    rows = {"hellaswag": HELLASWAG, "piqa": PIQA, "winogrande": WINOGRANDE, "boolq": BOOLQ}
    suite = named(name, data=[rows.get(name, ARC)])
    sample = next(suite.samples())
    answers = [LoglikelihoodOutput(-1.0 - n, False, 2) for n in range(len(sample.requests))]
    assert list(suite.make_metrics()) == metrics
    assert list(suite.score(sample, answers).measures) == metrics
    assert suite.failure(sample) == dict.fromkeys(metrics, Measure(0.0))


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("hellaswag", {**HELLASWAG, "label": ""}, "column 'label' holds '', which is no index"),
        ("hellaswag", {**HELLASWAG, "label": "4"}, "'4', which is no index from 0 to 3"),
        ("hellaswag", {**HELLASWAG, "endings": "abc"}, "'endings' must hold a list of texts"),
        ("hellaswag", {**HELLASWAG, "endings": ["a", "[b]"]}, "a choice must be a text that isn't"),
        ("piqa", {**PIQA, "label": -1}, "column 'label' holds -1, which is no index from 0 to 1"),
        ("piqa", {**PIQA, "goal": None}, "column 'goal' holds null, not text"),
        ("piqa", {**PIQA, "goal": b"Open"}, "column 'goal' holds bytes, not text"),
        ("piqa", {**PIQA, "goal": float("nan")}, "column 'goal' holds NaN, not text"),
        ("piqa", {**PIQA, "goal": ["a"]}, "column 'goal' holds a list, not text"),
        ("arc_easy", {**ARC, "answerKey": "D"}, "answerKey 'D' is none of the labels 1, 2, 3"),
        ("arc_easy", {**ARC, "choices": ["a"]}, "'choices' must hold lists 'text' and 'label'"),
        ("winogrande", {**WINOGRANDE, "answer": ""}, "the answer must be 1 or 2, got ''"),
        ("winogrande", {**WINOGRANDE, "sentence": "No."}, "the sentence has no blank (_)"),
        ("boolq", {"passage": "p", "label": 1}, "there is no column 'question'"),
    ],
)
def test_a_row_that_does_not_fit_is_named(name: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        named(name, data=[row]).check_samples()
    assert str(caught.value).startswith(f"suite {name!r}: row 0 of data")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_suite_is_found_by_its_name_and_its_class(name: str) -> None:
    kind = load_suite(name)
    assert load_suite(name.upper().replace("_", "-")) is kind
    assert getattr(evalution.suites, kind.__name__) is kind
    assert available_suites()[name] == f"{kind.__module__}:{kind.__name__}"
    assert getattr(kind, "task", name) == name
    assert getdoc(kind) != getdoc(kind.__mro__[1])


def test_the_guide_lists_every_data_set_with_its_rows_and_licence() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "suites.md").read_text(encoding="utf-8")
    lines = [line for line in guide.splitlines() if line.startswith("| `")]
    for name in [name for name in BUILT_IN if name.islower()]:
        dataset: Any = load_suite(name).dataset  # pyright: ignore[reportAttributeAccessIssue]
        if dataset.rows is None and dataset.licence is None:
            continue
        (line,) = [line for line in lines if dataset.path in line]
        assert dataset.rows is None or f"{dataset.rows:,}" in line
        assert line.endswith(f" {dataset.licence} |" if dataset.licence else "| |")


@pytest.mark.parametrize("module", ["hellaswag", "piqa", "boolq", "winogrande", "arc"])
def test_a_suite_of_a_known_kind_is_a_short_file(module: str) -> None:
    source = getsource(import_module(f"evalution.suites.tasks.{module}"))
    assert len(source.splitlines()) <= 60


def test_importing_evalution_imports_no_task() -> None:
    code = "import sys, evalution, evalution.suites; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "evalution.suites.row_suite" in done.stdout.split()
    assert "evalution.suites.tasks" not in done.stdout


def test_a_spec_names_a_suite_and_its_options(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(PIQA) + "\n", encoding="utf-8")
    declared = {"type": "piqa", "data": "rows.jsonl", "order": "Shuffle | 3", "row_indices": [0]}
    (suite,) = parse_tests([parse_test(declared, tmp_path)])
    assert (suite.title, suite.check_samples()) == ("piqa", 1)
    assert suite.to_dict()["order"] == "shuffle|3"
    with pytest.raises(ConfigurationError, match="suite PIQA has no option 'dat'; did you mean"):
        parse_test({"type": "piqa", "dat": "rows.jsonl"}, tmp_path)


@pytest.mark.hub
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name == name.lower()])
def test_the_hub_has_the_rows_that_the_suite_expects(name: str) -> None:
    kind: Any = load_suite(name)
    shots = {} if kind.request_kind is RequestKind.ROLLING else {"num_fewshot": 2}
    suite = named(name, max_rows=3, **shots)
    assert suite.check_samples() == 3


def test_a_misspelt_suite_names_the_nearest() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"no suite 'helaswag' is installed; did you mean 'hellaswag'\? "
        r"\(installed: \d+; `evalution suites` lists them\)",
    ):
        load_suite("helaswag")
    with pytest.raises(AttributeError, match="has no attribute 'HelaSwag'"):
        _ = evalution.suites.HelaSwag


@pytest.mark.parametrize("name", ["lm_eval", "LM-Eval"])
def test_a_suite_of_a_package_that_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("evalution_core.plugins.list_entry_points", lambda group: [])
    told = f"no suite {name!r} is installed; pip install evalution-lm-eval (installed: "
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        load_suite(name)


def test_a_hook_that_breaks_is_reported_with_the_row() -> None:
    suite = named("hellaswag", data=[HELLASWAG, HELLASWAG])
    suite.question_text = lambda row: {}[row.index]
    with pytest.raises(ConfigurationError, match="suite 'hellaswag': row 0 of data: KeyError: 0"):
        suite.check_samples()
