"""`show`, `compare` and `parity` as a person meets them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from evalution.runs.progress_file import PROGRESS
from evalution.yaml_spec import run_spec

MOCK = "evalution_enginekit.mock:Mock"
TESTS = (
    '[{type: generation, data: rows.jsonl, prompt: "Q: {question}", target: answer, name: sums}, '
    "{type: multiple_choice, data: rows.jsonl, prompt: question, choices: choices, target: right, "
    "name: questions}, {type: perplexity, data: rows.jsonl, text: question, name: prose}]"
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run without options lies once a test has made it."""
    return tmp_path_factory.mktemp("plain") / "run"


@pytest.fixture
def ran(spec: Any, command_line: Any, folder: Path, plain: Path) -> Callable[..., Any]:
    """Runs the three kinds of tests on some rows into a folder, and checks how it ended."""
    rows = [
        {"question": f"{n} + 1?", "answer": "2", "choices": ["no", f"{n}"], "right": n % 2}
        for n in range(6)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")

    def run(name: str, *arguments: str, code: int = 0, **options: Any) -> None:
        written = spec(folder, **{"tests": TESTS, **options})
        is_plain = not arguments and not options and code == 0
        if is_plain and plain.is_dir():
            shutil.copytree(plain, folder / name)
            return
        done = command_line("run", written, "--output", name, *arguments)
        assert done.returncode == code, done.stderr
        if is_plain:
            shutil.copytree(folder / name, plain)

    return run


# show


def test_a_run_is_shown_with_its_conditions(ran: Any, command_line: Any) -> None:
    ran("one")
    done = command_line("show", "one")
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert {"exact_match", "acc_norm", "word_perplexity", "↓"} <= set(words)
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert lines["status"].split() == ["status", "done"]
    assert "label=my model" in lines["model"]
    assert "max_model_len=512" in lines["engine"]
    assert "backend=Mock" in lines["in"]
    assert "passed" in lines["check"]
    assert "total" in lines["when"]


def test_a_run_as_json_is_its_file(ran: Any, command_line: Any, folder: Path) -> None:
    ran("one")
    done = command_line("show", "one", "--json")
    shown = json.loads(done.stdout)
    written = json.loads((folder / "one" / "results.json").read_text(encoding="utf-8"))
    for result in (shown, written):
        for suite in result["suites"]:
            del suite["timings"]["requests_per_second"]
    assert shown == written


def test_damaged_results_are_written_again_by_the_command_that_the_message_names(
    ran: Any, command_line: Any, folder: Path
) -> None:
    ran("one", "--limit", "6")
    file = folder / "one" / "results.json"
    whole = json.loads(file.read_text(encoding="utf-8"))
    for text in ("{", json.dumps({**whole, "versions": None})):
        file.write_text(text, encoding="utf-8")
        assert "--output one --retry-failed` with the run's" in command_line("show", "one").stderr
        ran("one", "--limit", "6", "--retry-failed")
        assert "word_perplexity" in command_line("show", "one").stdout


def test_a_failed_run_is_shown_with_its_error_and_what_is_finished(
    ran: Any, command_line: Any, folder: Path
) -> None:
    ran("one")
    file = folder / "one" / "results.json"
    result = json.loads(file.read_text(encoding="utf-8"))
    del result["suites"][1:]
    result["planned"] = {}
    error = {"suite": "questions", "type": "EngineRuntimeError", "message": "the GPU is gone"}
    for status, wanted in (
        ("failed", "failed in suite questions: EngineRuntimeError: the GPU is gone"),
        ("running", "cut off by a kill or a full disk; the command that began it goes on with it"),
    ):
        result["status"], result["error"] = status, error if status == "failed" else None
        file.write_text(json.dumps(result), encoding="utf-8")
        shown = command_line("show", "one").stdout
        assert wanted in shown
        assert "exact_match" in shown
        assert "word_perplexity" not in shown
    file.write_text("{", encoding="utf-8")
    damaged = command_line("show", "one").stderr
    assert "one/results.json is not JSON" in damaged
    assert "hint: `evalution run SPEC --output one --retry-failed` with the run's spec" in damaged
    result["suites"] = []
    file.write_text(json.dumps(result), encoding="utf-8")
    assert "no suite is finished" in command_line("show", "one").stdout
    result["status"] = "interrupted"
    result["error"] = {"suite": "sums", "type": "KeyboardInterrupt", "message": ""}
    file.write_text(json.dumps(result), encoding="utf-8")
    assert "status   interrupted in suite sums\n" in command_line("show", "one").stdout


def test_samples_of_a_suite_that_was_cut_off_are_shown(
    ran: Any, command_line: Any, assert_says: Any, folder: Path
) -> None:
    ran("one")
    file, samples = folder / "one" / "results.json", folder / "one" / "samples.jsonl"
    result = json.loads(file.read_text(encoding="utf-8"))
    result["status"], result["suites"] = "running", result["suites"][:1]
    result["planned"] = {"sums": 6, "questions": 6, "prose": 4}
    file.write_text(json.dumps(result), encoding="utf-8")
    lines = samples.read_text(encoding="utf-8").splitlines(keepends=True)
    # Rows as they came, one of them again, and the part of a line that a killed process left.
    lines = [*lines[:6], lines[9], lines[7], lines[9], lines[6][:-40]]
    samples.write_text("".join(lines), encoding="utf-8")
    shown = command_line("show", "one").stdout
    assert "\nquestions: not finished, 2 of 6 samples so far; --samples questions" in shown
    assert "\nprose: not begun, 4 samples\n" in shown
    progress = folder / "one" / PROGRESS
    progress.write_text('{"suite": "questions", "done": 6, "total": 9, "left_s": 61}')
    running = command_line("show", "one").stdout
    assert "status   running, 6 of 9 samples, 1:01 left\n" in running
    written = progress.stat().st_mtime - 20
    os.utime(progress, (written, written))
    silent = command_line("show", "one").stdout
    assert "status   running, or killed within the last minute\n" in silent
    done = command_line("show", "one", "--samples", "questions", "--json")
    rows = json.loads(done.stdout)
    assert [(row["suite"], row["index"]) for row in rows] == [("questions", 1), ("questions", 3)]
    wrong = command_line("show", "one", "--samples", "questions", "--wrong", "--json")
    assert json.loads(wrong.stdout) == [row for row in rows if row["metrics"]["acc"] == 0.0]
    assert_says(
        command_line("show", "one", "--samples", "question"),
        2,
        "no samples of a suite 'question'; did you mean 'questions'? (suites: sums, questions)",
    )
    samples.write_bytes(samples.read_bytes() + b"\xff\n")
    assert "questions: not finished" in command_line("show", "one").stdout
    assert_says(
        command_line("show", "one", "--samples", "questions"), 2, "samples.jsonl is damaged"
    )


def test_failed_samples_are_found(ran: Any, command_line: Any) -> None:
    ran("one", code=3, tests=TESTS.replace("name: sums", "name: sums, max_new_tokens: 600"))
    shown = command_line("show", "one")
    assert "sums: 6 of 6 samples failed; row 0: ContextLengthError" in shown.stdout
    done = command_line("show", "one", "--samples", "sums", "--failed", "--limit", "2")
    lines = done.stdout.splitlines()
    assert lines[0] == "sums, row 0: exact_match 0"
    assert lines[1].startswith("  error   ContextLengthError: max_new_tokens=600")
    assert lines[-1] == "2 of 6 samples; --limit shows more"
    done = command_line("show", "one", "--samples", "questions", "--failed")
    assert done.stdout == "none of 6 samples\n"
    done = command_line("show", "one", "--samples", "questions", "--limit", "6")
    assert done.stdout.splitlines()[-1] == "6 of 6 samples"


def test_samples_that_were_not_kept_are_reported(ran: Any, command_line: Any, folder: Path) -> None:
    ran("one")
    (folder / "one" / "samples.jsonl").unlink()
    assert command_line("show", "one", "--samples", "sums").stdout == "no samples were kept\n"


def test_an_answer_can_not_rule_the_terminal(ran: Any, command_line: Any, folder: Path) -> None:
    ran("one")
    file = folder / "one" / "samples.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    lines[0] |= {"prediction": "\x1b[2J\x9b1m\r\x07 [red]a\tb\nc[/]", "suite": "sums", "index": 0}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    shown = command_line("show", "one", "--samples", "sums", "--limit", "1").stdout
    assert r"\x1b[2J\x9b1m\r\x07 [red]a" in shown
    assert not set("\x1b\x9b\r\x07") & set(shown)
    assert "\n          c[/]\n" in shown


def test_samples_are_shown_one_below_the_other(ran: Any, command_line: Any) -> None:
    ran("one")
    done = command_line("show", "one", "--samples", "questions", "--limit", "1")
    text = done.stdout
    assert text.startswith("questions, row 0: acc ")
    for part in ("  prompt  0 + 1?", "  target  no", "  answer  ", "  taken   acc=", "scored="):
        assert part in text
    arguments = ["show", "one", "--samples", "questions", "--json", "--limit", "9"]
    wrong = json.loads(command_line(*arguments, "--wrong").stdout)
    every = json.loads(command_line(*arguments).stdout)
    assert len(every) == 6
    assert wrong == [sample for sample in every if sample["metrics"]["acc"] == 0.0]
    assert 0 < len(wrong) < 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--samples", "question"],
            "has no samples of a suite 'question'; did you mean 'questions'?",
        ),
        (["--samples", "prose", "--wrong"], "suite 'prose' calls no sample right or wrong"),
        (["--samples", "sums", "--wrong", "--failed"], "--failed and --wrong are two choices"),
        (["--wrong"], "--failed, --wrong and --limit choose samples; name --samples SUITE"),
    ],
)
def test_a_wrong_choice_of_samples_is_reported(
    ran: Any, command_line: Any, assert_says: Any, arguments: list[str], message: str
) -> None:
    ran("one")
    assert_says(command_line("show", "one", *arguments), 2, message)


def test_a_folder_without_a_run_is_reported(
    command_line: Any, assert_says: Any, folder: Path
) -> None:
    assert_says(command_line("show", "."), 2, "holds no results.json")
    assert_says(command_line("compare", ".", "gone"), 2, "holds no results.json")


# compare


def test_two_runs_are_compared(ran: Any, command_line: Any, folder: Path) -> None:
    ran("one")
    (folder / "spec.yaml").unlink()
    spec = f"engine: {MOCK}\nmodel: p\ntests: {TESTS}\n"
    (folder / "spec.yaml").write_text(spec, encoding="utf-8")
    assert command_line("run", "spec.yaml", "--output", "two", "--limit", "5").returncode == 0
    done = command_line("compare", "one", "two", "--flipped", "1")
    assert done.returncode == 0, done.stderr
    assert "left:  my model on" in done.stdout
    assert "model.path: 'm' → 'p'" in done.stdout
    assert "mcnemar" in done.stdout
    assert "sums: 1 row only in the left run" in done.stdout
    shown = json.loads(command_line("compare", "one", "two", "--json").stdout)
    questions = shown["suites"][1]
    assert questions["rows"]["paired"] == 5
    flips = questions["flips"]
    assert [flip["winner"] for flip in flips] == ["right"]
    told = "questions: acc flipped in 1 row; right is better in 1, worse in 0"
    assert told in done.stdout
    assert shown["suites"][2]["metrics"]["word_perplexity"]["test"]["name"] == "sign"
    assert "flipped in" not in command_line("compare", "one", "two", "--flipped", "0").stdout


def test_a_run_is_the_same_as_itself(ran: Any, command_line: Any) -> None:
    ran("one")
    done = command_line("compare", "one", "one")
    assert "+0.0000" in done.stdout
    assert "flipped in" not in done.stdout


def test_runs_without_a_common_suite_are_reported(
    ran: Any, command_line: Any, assert_says: Any
) -> None:
    ran("one")
    ran("two", tests="[{type: perplexity, data: rows.jsonl, text: answer, name: other}]")
    for words in ((), ("--json",)):
        assert_says(
            command_line("compare", "one", "two", *words),
            2,
            "no suite is in both runs, so there is nothing to compare: one has sums, questions, "
            "prose, two has other",
        )


# parity


def parity_spec(folder: Path, against: str, tests: str = TESTS) -> str:
    rows = {"question": "1 + 1?", "answer": "2", "choices": ["1", "2"], "right": 1}
    (folder / "rows.jsonl").write_text(json.dumps(rows) + "\n", encoding="utf-8")
    text = f"engine: {MOCK}\nmodel: m\nagainst: {against}\ntests: {tests}\n"
    (folder / "parity.yaml").write_text(text, encoding="utf-8")
    return "parity.yaml"


def test_engines_that_agree_end_in_0(command_line: Any, folder: Path) -> None:
    spec = parity_spec(folder, f"{{engine: {MOCK}}}")
    done = command_line("parity", spec, "--output", "out")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"left:  m on {MOCK}")
    assert "within the tolerance of 0.0001 per token" in lines
    assert lines[-1] == f"results: {Path('out') / 'parity.json'}"
    assert json.loads((folder / "out" / "parity.json").read_text(encoding="utf-8"))["is_within"]
    assert "left: sums: 1/1" in done.stderr
    assert "right: prose: 1/1" in done.stderr


def test_engines_that_differ_end_in_3_and_are_reported(command_line: Any, folder: Path) -> None:
    spec = parity_spec(folder, f"{{engine: {MOCK}, model: another}}")
    done = command_line("parity", spec)
    assert done.returncode == 3, done.stderr
    assert "outside the tolerance: prose: a token's log-probability differs by" in done.stdout
    assert "one of the largest differences: row 0, request 0, token" in done.stdout
    assert "texts part at token 0, character 0, gap " in done.stdout
    lenient = command_line("parity", spec, "--tolerance", "100", "--decisions", "9")
    assert lenient.returncode == 0
    shown = json.loads(command_line("parity", spec, "--json", "--limit", "1").stdout)
    assert shown["right"]["model"]["path"] == "another"
    assert shown["complaints"]


def test_mistakes_are_reported_before_anything_is_loaded(
    spec: Any, command_line: Any, assert_says: Any, folder: Path
) -> None:
    done = command_line("parity", spec(folder))
    assert_says(done, 2, "has no section 'against', so there is nothing to hold Mock against")
    name = parity_spec(folder, f"{{engine: {MOCK}}}")
    (folder / "parity.json").write_text("{}", encoding="utf-8")
    done = command_line("parity", name, "--output", ".")
    assert_says(done, 2, "already holds a parity.json")
    assert "loading" not in done.stderr


def test_measurement_of_a_spec_for_another_command_is_refused(
    command_line: Any, assert_says: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = parity_spec(folder, f"{{engine: {MOCK}}}")
    for words in (
        ["noise", name],
        ["fidelity", name, name],
        ["fidelity", "record", name, "-o", "r"],
    ):
        done = command_line(*words)
        assert_says(done, 2, f"{name} has the section 'against', which is for `evalution parity`")
    attaching: Any = replace(run_spec.load_spec(name), backend=cast(Any, object()))
    monkeypatch.setattr(run_spec, "load_spec", lambda source: attaching)
    done = command_line("parity", name)
    assert_says(
        done, 2, "has the section 'backend', which is for `evalution run`: a measurement wo"
    )


def test_asking_by_text_is_noted(command_line: Any, folder: Path) -> None:
    done = command_line("parity", parity_spec(folder, f"{{engine: {MOCK}}}"), "--text")
    assert done.returncode == 0
    assert "requests asked by text, which each engine encodes itself: 4" in done.stdout
