from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.rows.columns import propose_columns
from evalution.user_input import answer_questions
from evalution.yaml_spec.run_spec import parse_spec
from evalution_core import ConfigurationError

# As Excel in a German locale writes it.
GERMAN = '\ufeffId;Question;Answer\r\n1;"Wie viel,\r\nist; 3 + 4?";7\r\n'
OPTIONS = ("prompt", "target", "choices", "text")


@given(
    st.lists(st.sampled_from(OPTIONS), unique=True),
    st.lists(st.sampled_from(["Question", "input", "ANSWER", "label", "options", "id"])),
)
def test_a_proposal_has_a_column_of_its_own_for_each_option(
    options: list[str], columns: list[str]
) -> None:
    found = propose_columns(options, columns)
    if found is not None:
        assert list(found) == options
        assert set(found.values()) <= set(columns)
        assert len(set(found.values())) == len(options)


def test_the_likeliest_column_is_proposed() -> None:
    columns = ["id", "Input", "Question", "label", "answer"]
    proposed = {"prompt": "Question", "target": "answer"}
    assert propose_columns(["prompt", "target"], columns) == proposed
    assert propose_columns(["prompt", "choices"], columns) is None


@pytest.fixture
def parse(tmp_path: Path) -> Any:
    def call(content: str = GERMAN, **options: Any) -> Any:
        (tmp_path / "rows.csv").write_text(content, encoding="utf-8", newline="")
        test = {"type": "generation", "data": "rows.csv", **options}
        document = {"engine": "evalution_enginekit.mock:Mock", "tests": [test]}
        return parse_spec(document, tmp_path / "spec.yaml").tests[0]

    return call


def test_missing_columns_are_refused_with_the_line_to_write(parse: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse()
    assert str(caught.value) == (
        "test 1: suite Generation needs the options 'prompt' and 'target'; the columns of "
        f"{tmp_path / 'rows.csv'} are Id, Question, Answer; write, if it fits: prompt: Question, "
        "target: Answer"
    )
    with pytest.raises(ConfigurationError, match=r"needs the option 'target'; the .* are q, b$"):
        parse("q,b\n1,2\n", prompt="q")


def test_a_person_who_says_yes_gets_the_columns(parse: Any) -> None:
    asked: list[str] = []

    def say_yes(question: str) -> bool:
        asked.append(question)
        return True

    with answer_questions(say_yes):
        suite = parse()
    (question,) = asked
    assert question.endswith("take prompt: Question, target: Answer?")
    sample = next(suite.samples())
    assert (sample.prompt, sample.target) == ("Wie viel,\r\nist; 3 + 4?", "7")


def test_a_person_who_says_no_gets_the_refusal(parse: Any) -> None:
    with (
        answer_questions(lambda question: False),
        pytest.raises(ConfigurationError, match="if it fits: target: Answer"),
    ):
        parse(prompt="Question")
