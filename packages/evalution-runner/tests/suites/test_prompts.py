from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.rows.local import Row
from evalution.suites.prompted_suite import parse_template, parse_text
from evalution_core import ConfigurationError


def row(**columns: Any) -> Row:
    return Row(0, "rows.jsonl, line 1", columns)


def test_columns_are_put_in_and_the_rest_is_verbatim() -> None:
    template = parse_template(" Q: {question}\n{n} + {{x}}: ", "prompt")
    assert template.columns == ("question", "n")
    assert template.render(row(question="{who}?", n=3)) == " Q: {who}?\n3 + {x}: "


def test_a_text_without_braces_is_a_column() -> None:
    assert parse_text("question", "prompt").render(row(question=" as it is ")) == " as it is "


@given(literal=st.text(), value=st.text())
def test_any_text_survives_escaped(literal: str, value: str) -> None:
    escaped = literal.replace("{", "{{").replace("}", "}}")
    assert parse_template(escaped + "{a}", "prompt").render(row(a=value)) == literal + value


@pytest.mark.parametrize("column", ["question.__class__", "question[0]", "my column"])
def test_a_placeholder_is_a_column_name_and_nothing_of_python(column: str) -> None:
    assert parse_template(f"{{{column}}}", "prompt").render(row(**{column: "x"})) == "x"
    with pytest.raises(ConfigurationError, match="there is no column"):
        parse_template(f"{{{column}}}", "prompt").render(row(question="x"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{question", r"prompt '\{question': expected '\}' before end of string"),
        ("question}", "Single '}' encountered"),
        ("{question!r}", "must hold a column's name alone"),
        ("{n:>3}", "must hold a column's name alone"),
        ("{}", "must hold a column's name alone"),
        ("", "prompt is empty"),
        (
            "Question: {{question}}\nAnswer:",
            r"Answer:': \{\{question}} is the text \{question}; a column is \{question}, with one",
        ),
        (
            "Q{{ question }}",
            r"\{\{ question }} is the text \{ question }; a column is \{question},",
        ),
        ("{{question.strip()}} {{x}}", r"\{\{question.strip\(\)}} is the text \{question.strip"),
        ("{{q|trim}}", r"a column is \{q}, with one brace"),
    ],
)
def test_a_wrong_template_says_what_is_wrong(source: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_text(source, "prompt")


@pytest.mark.parametrize(
    "source", [r"\frac{{x}}{{n}}", "x_{{i}}^{{n}}", "{{1}}", "{{}}", '{{"a": 1}}', "{{{{x}}}}"]
)
def test_two_braces_that_are_no_column_stay_a_text(source: str) -> None:
    expected = source.replace("{{", "{").replace("}}", "}")
    assert parse_template(source, "choices").render(row()) == expected


@pytest.mark.parametrize(
    ("value", "found"), [(None, "null"), (["a"], "a list"), ({"a": 1}, "a dict")]
)
def test_what_is_no_text_is_refused(value: object, found: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_text("a", "prompt").render(row(a=value))
    assert str(caught.value) == f"rows.jsonl, line 1: column 'a' holds {found}, not text"
