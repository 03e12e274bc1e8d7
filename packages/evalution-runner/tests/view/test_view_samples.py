"""Lists of samples by choice, order and search; a whole sample; samples as they arrive."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evalution.view.documents as forms
from evalution import SampleResult
from evalution.runs.token_record import split_tokens
from evalution.sample_columns import collect_columns
from evalution.samples import KeptSamples
from evalution.view.catalog import RunCatalog
from evalution.view.samples import (
    SampleQuery,
    SuiteView,
    find_flipped,
    list_latest,
    list_samples,
    make_sample,
)
from evalution_core import ConfigurationError

Answered = Callable[..., SampleResult]


def view_samples(samples: list[SampleResult], run: str = "a") -> SuiteView:
    metrics = {name: True for sample in samples for name in sample.metrics}
    ordered = sorted(samples, key=lambda sample: sample.index)
    return SuiteView(run, "sums", collect_columns(ordered), KeptSamples(ordered), metrics)


def list_rows(suite: SuiteView, against: SuiteView | None = None, **query: Any) -> list[int]:
    found = list_samples(suite, SampleQuery(**query), against)
    return [row["index"] for row in found["samples"]]


@pytest.fixture
def suite(answered: Answered) -> SuiteView:
    """Rows 0 to 4: right, wrong, failed, right, wrong."""
    failed = answered(2, right=False, error="EngineRuntimeError: out of memory", prediction=None)
    failed.extracted = {}
    return view_samples(
        [answered(0), answered(1, right=False), failed, answered(3), answered(4, right=False)]
    )


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"which": "right"}, [0, 3]),
        ({"which": "wrong"}, [1, 4]),
        ({"which": "failed"}, [2]),
        ({"sort": "-index"}, [4, 3, 2, 1, 0]),
        ({"sort": "-value", "which": "all"}, [0, 3, 1, 2, 4]),
        ({"sort": "value", "offset": 1, "limit": 2}, [2, 4]),
        ({"q": "NO IDEA"}, [1, 4]),
        ({"q": "out of Memory"}, [2]),
        ({"q": '"is 3 + 1"'}, [3]),
        ({"q": "idea 4"}, [4]),
        ({"q": "exact_match"}, []),
        ({"q": "no idea", "which": "right"}, []),
        ({"q": "what", "offset": 1, "limit": 2, "sort": "-index"}, [3, 2]),
    ],
)
def test_samples_are_chosen_sorted_and_searched(
    suite: SuiteView, query: dict[str, Any], rows: list[int]
) -> None:
    assert list_rows(suite, **query) == rows


def test_page_counts_what_was_chosen(suite: SuiteView) -> None:
    page = list_samples(suite, SampleQuery(which="wrong", limit=1))
    assert (page["every"], page["total"], page["has_more"]) == (5, 2, True)
    searched = list_samples(suite, SampleQuery(q="what", limit=2))
    assert (searched["total"], searched["has_more"]) == (None, True)
    last = list_samples(suite, SampleQuery(q="what", limit=2, offset=4))
    assert (last["total"], last["has_more"]) == (5, False)


def test_flipped_samples_are_right_in_one_run_alone(suite: SuiteView, answered: Answered) -> None:
    other = view_samples(
        [answered(0, right=False), answered(1, right=False), answered(3), answered(4)], "b"
    )
    page = list_samples(suite, SampleQuery(which="flipped"), other)
    assert [row["index"] for row in page["samples"]] == [0, 4]
    assert [row["other"] for row in page["samples"]] == [
        {"extracted": "no idea", "value": 0.0, "right": False},
        {"extracted": "5", "value": 1.0, "right": True},
    ]
    assert list_samples(suite, SampleQuery(limit=3), other)["samples"][2]["other"] is None
    with pytest.raises(ConfigurationError, match="need a run to compare with: against=RUN"):
        list_rows(suite, which="flipped")


def test_metrics_that_say_neither_right_nor_wrong_judge_no_sample() -> None:
    samples = [SampleResult("sums", row, "p", metrics={"judge": 1.0}) for row in range(4)]
    columns = collect_columns(samples)
    known = {"judge": True}
    found = SuiteView("a", "sums", columns, KeptSamples(samples), known, unjudged=["judge"])
    assert found.judged_by is None
    assert list_rows(found, which="right") == []


def test_two_runs_are_judged_by_the_first_metric_that_is_right_or_wrong_in_both() -> None:
    values = [[(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)], [(1.0, 0.0), (0.5, 0.0), (1.0, 0.0)]]
    sides = [
        view_samples([SampleResult("sums", row, "p", extracted={"em": name, "f1": "no"},
                                   metrics={"f1": f1, "em": em})
                      for row, (f1, em) in enumerate(rows)], name)
        for name, rows in zip("ab", values, strict=True)
    ]  # fmt: skip
    assert [side.judged_by for side in sides] == ["f1", "em"]
    for here, there in (sides, sides[::-1]):
        page = list_samples(here, SampleQuery(which="flipped"), there)
        assert page["judged_by"] == "em"
        [row] = page["samples"]
        other = {"extracted": there.run, "value": there.find_value(1), "right": there.run == "a"}
        assert (row["index"], row["right"], row["other"]) == (1, here.run == "a", other)
        assert row["extracted"] == here.run
        sample = make_sample(here, 0, SampleQuery(which="wrong"), there)
        assert (sample["right"], sample["next"]) == (False, 2 if here.run == "a" else 1)
    sides[1].metrics = {"f1": True}
    assert list_rows(sides[0], sides[1], which="flipped") == []


def test_row_with_another_prompt_flips_only_between_suites_that_ask_otherwise() -> None:
    sides = [
        view_samples([SampleResult("sums", 0, prompt=prompt, metrics={"acc": right})])
        for prompt, right in (("1 + 1?", 0.0), ("2 + 0?", 1.0))
    ]
    assert list(find_flipped(*sides)) == [0]
    for options, flipped in (({"num_fewshot": 1}, [0]), ({"max_rows": 9}, []), ({}, [])):
        sides[0].options, sides[1].options = {}, options
        assert list(find_flipped(*sides)) == flipped


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans())))
def test_flipped_rows_have_two_judgements(cells: list[tuple[bool, bool, bool, bool]]) -> None:
    sides: tuple[list[SampleResult], list[SampleResult]] = ([], [])
    for row, (here, there, *failed) in enumerate(cells):
        for side, right, has_failed in zip(sides, (here, there), failed, strict=True):
            error = "Error: no" if has_failed else None
            side.append(SampleResult("sums", row, metrics={"acc": float(right)}, error=error))
    found = find_flipped(*(view_samples(side) for side in sides))
    assert list(found) == [
        row for row, (here, there, *failed) in enumerate(cells) if here != there and not any(failed)
    ]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"which": "odd"}, "which must be one of all, wrong, right, failed, flipped, got 'odd'"),
        ({"sort": "size"}, "sort must be one of index, -index, value, -value, got 'size'"),
        ({"offset": -1}, "offset must be at least 0, got -1"),
        ({"limit": 1001}, "limit must be from 1 to 1000, got 1001"),
    ],
)
def test_query_that_makes_no_sense_is_refused(query: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("[", r"\[")):
        SampleQuery(**query)


def test_suite_without_right_and_wrong_has_values_alone() -> None:
    samples = [SampleResult("sums", row, "p", metrics={"loss": 0.5 + row}) for row in range(3)]
    samples.append(SampleResult("sums", 3, "p", metrics={"loss": math.inf}))
    suite = view_samples(samples)
    page = list_samples(suite, SampleQuery(sort="-value"))
    assert (page["judged_by"], page["metric"]) == (None, "loss")
    assert [(row["value"], row["right"]) for row in page["samples"]] == [
        *((value, None) for value in (2.5, 1.5, 0.5, None)),
    ]
    assert list_rows(suite, which="wrong") == list_rows(suite, which="right") == []


@pytest.mark.parametrize(
    ("higher_is_better", "sort", "rows"),
    [
        (False, "-value", [1, 2, 0, 3]),
        (False, "value", [0, 2, 1, 3]),
        (True, "value", [1, 0, 2, 3]),
        (True, "-value", [2, 0, 1, 3]),
    ],
)
def test_infinite_values_are_the_worst_and_rows_without_one_the_last(
    higher_is_better: bool, sort: str, rows: list[int]
) -> None:
    found = [{"ppl": 3.0}, {"ppl": math.inf}, {"ppl": 7.0}, {}]
    samples = [SampleResult("texts", row, "p", metrics=each) for row, each in enumerate(found)]
    suite = view_samples(samples)
    suite.metrics = {"ppl": higher_is_better}
    assert list_rows(suite, sort=sort) == rows


def test_long_prompt_is_shown_by_its_end(answered: Answered) -> None:
    long = answered(0, prompt=[{"role": "user", "content": "x" * 1000 + "the question"}])
    (row,) = list_samples(view_samples([long]), SampleQuery())["samples"]
    assert row["prompt"].startswith("…xx")
    assert row["prompt"].endswith("the question")


def test_sample_shows_its_choices_as_shares() -> None:
    extracted = {"acc": 1, "acc_norm": 0, "choices": ["red", "blue"], "logprobs": [-2.0, -1.0]}
    metrics = {"acc": 1.0, "acc_norm": 0.0}
    tokens = [[[7, "red", -2.0]], None]
    sample = SampleResult("sums", 4, "p", "blue", "blue", extracted, metrics)
    sample.token_logprobs = tokens
    found = make_sample(view_samples([sample]), 4)
    red, blue = found["choices"]
    assert (red["text"], red["logprob"], red["is_target"], red["chosen_by"]) == (
        *("red", -2.0, False),
        ["acc_norm"],
    )
    assert red["tokens"] == [{"id": 7, "text": "red", "logprob": -2.0}]
    assert (blue["is_target"], blue["chosen_by"], blue["tokens"]) == (True, ["acc"], None)
    assert blue["probability"] == pytest.approx(1 / (1 + math.exp(-1)))
    assert (found["extracted"], found["tokens"], found["right"]) == ({}, None, True)


def test_every_right_choice_of_several_is_a_target() -> None:
    extracted = {"acc": 0, "choices": ["a", "b", "c"], "logprobs": [-1.0] * 3, "right": [0, 2]}
    sample = SampleResult("sums", 0, "p", "a", "a", extracted, {"acc": 0.6})
    found = make_sample(view_samples([sample]), 0)
    assert [choice["is_target"] for choice in found["choices"]] == [True, False, True]
    assert found["extracted"] == {}


@pytest.mark.parametrize("extracted", [{"logprobs": 1}, {"logprobs": ["x"]}, {"choices": [[]]}])
def test_sample_of_another_form_has_no_choices(extracted: Any) -> None:
    suite = view_samples([SampleResult("s", 0, extracted=extracted)])
    assert make_sample(suite, 0)["choices"] == []
    assert list_rows(suite, q="x") == []


def test_choices_of_earlier_samples_have_no_texts() -> None:
    extracted = {"acc": 0, "logprobs": [-math.inf, -math.inf]}
    sample = SampleResult("sums", 0, "p", "a", "a", extracted, {"acc": 1.0})
    line = json.loads(json.dumps(sample.to_dict()).replace("-Infinity", "null"))
    (found,) = [make_sample(view_samples([SampleResult(**line)]), 0)]
    assert [(c["text"], c["logprob"], c["probability"]) for c in found["choices"]] == [
        (None, None, None)
    ] * 2


def test_sample_has_its_neighbours_in_the_list(suite: SuiteView) -> None:
    def neighbours(row: int, **query: Any) -> tuple[int | None, int | None]:
        found = make_sample(suite, row, SampleQuery(**query))
        return found["previous"], found["next"]

    assert neighbours(0) == (None, 1)
    assert neighbours(4, which="wrong") == (1, None)
    assert neighbours(3, sort="-index") == (4, 2)
    assert neighbours(1, q="no idea") == (None, 4)
    assert neighbours(0, which="wrong") == (None, None)
    with pytest.raises(ConfigurationError, match=r"suite 'sums' of run 'a' has no row 9 \(5 sam"):
        make_sample(suite, 9)


def test_messages_and_tokens_are_shown_as_they_were_fed(answered: Answered) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    sample = answered(0, prompt=messages, token_logprobs=[[[1, " 1", -0.5], [None, None, -1.0]]])
    found = make_sample(view_samples([sample]), 0)
    content = '[{"type": "text", "text": "hi"}]'
    assert (found["prompt"], found["messages"]) == (None, [{"role": "user", "content": content}])
    assert found["tokens"] == [
        {"id": 1, "text": " 1", "logprob": -0.5},
        {"id": None, "text": None, "logprob": -1.0},
    ]


def test_group_is_shown_and_found(answered: Answered) -> None:
    grouped = answered(1, group="the Owl's tale")
    suite = view_samples([answered(0), grouped])
    assert [make_sample(suite, row)["group"] for row in (0, 1)] == [None, "the Owl's tale"]
    assert list_rows(suite, q="owl's") == [1]


def test_latest_samples_are_those_that_are_not_right(
    tmp_path: Path, run_folder: Callable[..., Path], answered: Answered
) -> None:
    arrived = [answered(row, right=row % 3 == 0) for row in (5, 3, 1, 4)]
    run_folder(tmp_path / "run", {}, {"sums": arrived})
    (run,) = [RunCatalog([tmp_path]).find("run")]
    view = run.view("sums")
    assert list_rows(view) == [1, 3, 4, 5]
    latest = list_latest(view, run.latest["sums"], 2)
    assert [row["index"] for row in latest] == [4, 1]


@given(st.text(st.characters(codec="utf-8"), max_size=12))
def test_tokens_join_to_the_text(text: str) -> None:
    ids = list(text.encode())
    found = split_tokens(ids, lambda part: bytes(part).decode(errors="replace"))
    assert len(found) == len(ids)
    assert "".join(found) == text


def test_fixture_of_the_pages_has_the_documents_fields() -> None:
    file = Path(__file__).with_name("documents.json")
    held = json.loads(file.read_text(encoding="utf-8"))
    shapes = {
        "RunDocument": held["/api/runs"]["runs"],
        "ScoreDocument": held["/api/runs"]["runs"][0]["scores"],
        "SampleListDocument": [held["/api/samples"]],
        "SampleRowDocument": held["/api/samples"]["samples"],
        "SampleDocument": held["/api/sample"],
        "ComparisonDocument": [held["/api/compare"]],
        "DifferenceDocument": held["/api/compare"]["differences"],
        "LatestDocument": [held["/api/latest"]],
    }
    for name, documents in shapes.items():
        for document in documents:
            assert document.keys() == vars(forms)[name].__annotations__.keys(), name
