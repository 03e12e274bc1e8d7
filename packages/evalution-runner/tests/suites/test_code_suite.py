"""Suites of programs: permission, pass@k, and execution that repeats without generating."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution.scoring import sandbox
from evalution.suites import load_suite
from evalution.suites.code_suite import estimate_pass, find_code_block
from evalution_core import Capability, ConfigurationError, GenerationOutput
from evalution_enginekit.mock import Mock, MockSession

ROW = {
    "prompt": "def add(a, b):\n",
    "test": "def check(candidate):\n    assert candidate(2, 3) == 5",
    "entry_point": "add",
    "canonical_solution": "    return a + b",
}

pytestmark = pytest.mark.skipif(
    bool(sandbox.find_missing_locks()), reason="needs Linux 6.2 or newer with Landlock and seccomp"
)


def humaneval(**options: Any) -> Any:
    kind: Any = load_suite("humaneval")
    return kind(**{"data": [ROW], "execute": "sandbox", **options})


def test_a_run_without_permission_ends_before_the_model_is_loaded() -> None:
    with pytest.raises(
        ConfigurationError,
        match="suite 'humaneval': the answers are programs, and scoring runs them on this machine; "
        "write execute: sandbox to allow that in a locked process",
    ):
        evalution.run(engine=Mock(), model="m", tests=[humaneval(execute=None)])


def test_pass_at_k_counts_the_right_ones_of_several_sampled_answers() -> None:
    other = {**ROW, "prompt": "# Another one.\n" + ROW["prompt"]}
    suite = humaneval(num_samples=3, k=[1, 2], data=[ROW, other])
    sample, second = suite.samples()
    assert {(one.do_sample, one.temperature) for one in sample.requests} == {(True, 0.2)}
    asked = [one.seed for one in [*sample.requests, *second.requests]]
    assert len(set(asked)) == 6
    assert asked == [one.seed for each in suite.samples() for one in each.requests]
    assert Capability.SAMPLING in suite.needs
    texts = ["    return a + b", "    return a - b", "    return a * b"]
    score = suite.score(sample, [GenerationOutput("", text) for text in texts])
    assert {name: measure.value for name, measure in score.measures.items()} == {
        "pass@1": pytest.approx(1 / 3),
        "pass@2": pytest.approx(2 / 3),
    }
    assert score.extracted["tests"] == ["passed", "AssertionError: ", "AssertionError: "]


def test_the_chance_of_a_right_answer_among_k() -> None:
    assert [estimate_pass(5, right, 2) for right in (0, 1, 4, 5)] == [0.0, pytest.approx(0.4), 1, 1]
    with pytest.raises(ConfigurationError, match=r"must not exceed num_samples \(1\), got \[5\]"):
        humaneval(k=[5])


def test_blanks_before_a_program_are_kept_where_the_prompt_has_closed_the_thought() -> None:
    suite = humaneval(think_end_token="</think>")
    written = GenerationOutput("<think>\n\n</think>\n\n", "    return a + b\n")
    score = suite.score(next(suite.samples()), [written])
    assert (score.extracted["reasoning"], score.measures["pass@1"].value) == ("closed", 1)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "x = 1"),
        ("So:\n```python\nx = 1\n```\nas asked", "x = 1\n"),
        ("```\nx = 1", "x = 1"),
        ("1. Here:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y\n"),
        ("```bash\npip install x\n```\n```py\nx = 1\n```", "x = 1\n"),
        ("```\n$ pip install x\n```\n```py\nx = 1\n```", "x = 1\n"),
        ("```text\n5\n```\n```\nx = 1\n```", "x = 1\n"),
        ("~~~python\nx = 1\n~~~", "x = 1\n"),
        ("Sure! ```python\nx = 1\n```", "x = 1\n"),
        ("```text\nx = 1\n```", "x = 1\n"),
        ('```python\nx = "`a`"```', 'x = "`a`"'),
        ("In a ```python``` block:\n\n```python\nx = 1\n```", "x = 1\n"),
        ("Use ```inline``` code.\n```python\nx = 1\n```", "x = 1\n"),
        ("x = '```y```'", "x = '```y```'"),
        ("I can't.\n```\n```", ""),
        ("```\n```\nSo:\n```\nx = 1\n```", "x = 1\n"),
        ("```python\n```\nSo:\n```python\nx = 1\n```", "x = 1\n"),
    ],
)
def test_first_block_of_python_is_the_program(text: str, code: str) -> None:
    assert find_code_block(text) == code


def test_solved_rows_of_ones_own_show_their_programs() -> None:
    row = {"text": "Add.", "code": "def f(): pass", "test_list": ["assert f()"]}
    for name, closing in (("mbpp", "[DONE]"), ("mbpp_instruct", "```")):
        kind: Any = load_suite(name)
        other = row | {"text": "Double."}
        suite = kind(data=[row], fewshot_data=[other], num_fewshot=1, execute="sandbox")
        sample = next(suite.samples())
        assert f"def f(): pass\n{closing}\n\nYou are" in sample.prompt
        assert sample.expected == "assert f()"


def test_only_what_follows_a_thought_is_run() -> None:
    suite = humaneval(think_end_token="</think>")
    written = GenerationOutput("", "def f(:</think>\n\n    return a + b", finish_reason="stop")
    score = suite.score(next(suite.samples()), [written])
    assert score.measures["pass@1"].value == 1


@pytest.mark.parametrize(
    "answer",
    [
        "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds.",
        "```\ndef add(a, b):\n    return a + b",
        "    return a + b",
    ],
)
def test_first_block_of_a_chat_s_answer_is_the_program(answer: str) -> None:
    kind: Any = load_suite("humaneval_instruct")
    row = {**ROW, "prompt": 'def add(a, b):\n    """Their sum."""\n'}
    suite = kind(data=[row], execute="sandbox", apply_chat_template=True)
    sample = next(suite.samples())
    assert sample.requests[0].stop == ()
    assert sample.requests[0].messages[0]["content"].endswith('sum."""\n\n```\n')
    score = suite.score(sample, [GenerationOutput("", answer)])
    assert score.extracted["tests"] == "passed"


def test_programs_run_again_on_answers_of_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**options: Any) -> Any:
        suite = humaneval(max_new_tokens=8, **options)
        return evalution.run(engine=Mock(), model="m", tests=[suite], cache=tmp_path / "cache")

    first = run()["humaneval"]
    monkeypatch.setattr(MockSession, "_generate_tokens", lambda *_: pytest.fail("generated"))
    second = run(time_limit_s=9.0)["humaneval"]
    assert (first.n, first.failed) == (second.n, second.failed) == (1, 0)


def test_what_stays_unlocked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "find_missing_locks", lambda: ("memory",))
    suite = humaneval(execute="partial")
    score = suite.score(next(suite.samples()), [GenerationOutput("", "    return a + b")])
    assert score.remarks == ["ran without a lock on memory"]
