from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution import Generation
from evalution.scoring import patterns
from evalution.scoring.filters import Lower, Regex, Strip
from evalution.scoring.text_metrics import Number, TokenF1
from evalution_core import Capability, ConfigurationError, GenerationOutput
from evalution_enginekit.mock import Mock

ROWS = [
    {"question": "1 + 1?", "answer": "1 + 1 = 2\n#### 2"},
    {"question": "1 + 2?", "answer": "1 + 2 = 3\n#### 3"},
    {"question": "2 + 2?", "answer": "2 + 2 = 4\n#### 4"},
]
OPTIONS: dict[str, Any] = {"data": ROWS, "prompt": "Q: {question}\nA:", "target": "answer"}
NUMBER = Regex("#### (-?[0-9]+)")


def score(suite: Generation, text: str) -> Mapping[str, float]:
    sample = next(suite.samples())
    found = suite.score(sample, [GenerationOutput("", text)])
    return {name: measure.value for name, measure in found.measures.items() if measure}


def test_a_request_carries_the_prompt_and_the_limits() -> None:
    request: Any = next(Generation(**OPTIONS, max_new_tokens=7, stop=["\n\n"]).samples()).requests[
        0
    ]
    assert (request.prompt, request.max_new_tokens) == ("Q: 1 + 1?\nA:", 7)
    assert list(request.stop) == ["\n\n"]
    assert not request.do_sample


def test_answer_and_target_are_stripped_unless_other_filters_are_given() -> None:
    suite = Generation(**OPTIONS)
    assert score(suite, " 1 + 1 = 2\n#### 2\n") == {"exact_match": 1.0}
    shown = suite.to_dict()
    assert (shown["filters"], shown["target_filters"]) == (["strip"], ["strip"])
    verbatim = Generation(**OPTIONS, filters=[], target_filters=[])
    assert score(verbatim, "1 + 1 = 2\n#### 2") == {"exact_match": 1.0}
    assert score(verbatim, " 1 + 1 = 2\n#### 2") == {"exact_match": 0.0}


def test_steps_may_be_declared_in_python_as_in_a_spec() -> None:
    options: Any = {
        "filters": [{"regex": "#### (.*)"}, "strip"],
        "metrics": ["f1", {"number": 0.5}],
    }
    suite = Generation(**OPTIONS, **options)
    assert suite.filters == [Regex("#### (.*)"), Strip()]
    assert suite.metrics == [TokenF1(), Number(0.5)]


def test_each_metric_judges_the_answer_of_each_pipeline() -> None:
    metrics: Any = ["contains", "number"]
    suite = Generation(
        **OPTIONS,
        metrics=metrics,
        filters={"strict": [NUMBER], "loose": [Strip()]},
        target_filters=[NUMBER],
    )
    assert score(suite, "so 1 + 1 is 2.0") == {
        "contains,strict": 0.0,
        "contains,loose": 0.0,
        "number,strict": 0.0,
        "number,loose": 1.0,
    }
    graded = suite.score(next(suite.samples()), [GenerationOutput("", "so 1 + 1 is 2.0")])
    assert graded.extracted["number,loose"] == "2.0"


def test_filters_work_on_the_answer_and_target_filters_on_the_target() -> None:
    suite = Generation(**OPTIONS, filters=[NUMBER], target_filters=[NUMBER])
    assert score(suite, "that makes\n#### 2 eggs") == {"exact_match": 1.0}
    assert score(suite, "2") == {"exact_match": 0.0}


@pytest.mark.parametrize(
    ("steps", "emptied"),
    [
        ([{"regex": "#### (-?[0-9]+)"}], "Regex"),
        (["strip", {"replace": "[^0-9]"}], "Replace"),
        ([{"regex": {"pattern": "####", "fallback": "none"}}], None),
    ],
)
def test_a_target_that_a_filter_empties_is_refused(steps: Any, emptied: str | None) -> None:
    rows = [{"q": "x", "a": "#### 7"}, {"q": "x", "a": "no mark"}]
    suite = Generation(data=rows, prompt="q", target="a", target_filters=steps)
    if emptied is None:
        assert [sample.expected for sample in suite.samples()] == ["####", "none"]
        return
    with pytest.raises(ConfigurationError) as caught:
        suite.check_samples()
    assert str(caught.value) == (
        f"suite 'rows': row 1 of data: filter {emptied} of target_filters leaves nothing of the "
        "target 'no mark', so an answer that it empties would be right; mend the target or the "
        "filter"
    )


def test_pipelines_give_a_metric_each() -> None:
    suite = Generation(
        **OPTIONS,
        filters={"strict": [NUMBER], "loose": [Regex("[0-9]+", match="last")]},
        target_filters=[NUMBER],
    )
    assert score(suite, "so 1 + 1 is 2") == {"exact_match,strict": 0.0, "exact_match,loose": 1.0}


def test_a_target_may_be_a_text_of_columns() -> None:
    suite = Generation(data=[{"q": "x", "a": "Paris"}], prompt="q", target="in {a}")
    assert score(suite, "in Paris") == {"exact_match": 1.0}


def test_solved_rows_show_the_whole_answer() -> None:
    suite = Generation(**OPTIONS, num_fewshot=1, fixed_shots=True, target_filters=[NUMBER])
    samples = list(suite.samples())
    assert [sample.index for sample in samples] == [1, 2]
    assert samples[0].prompt == "Q: 1 + 1?\nA: 1 + 1 = 2\n#### 2\n\nQ: 1 + 2?\nA:"


def test_solved_rows_may_come_from_another_file() -> None:
    suite = Generation(**OPTIONS, num_fewshot=1, fewshot_data=[{"question": "0?", "answer": "0"}])
    samples = list(suite.samples())
    assert len(samples) == 3
    assert samples[2].prompt == "Q: 0?\nA: 0\n\nQ: 2 + 2?\nA:"


def test_rows_are_shared_however_their_file_is_named(
    write_rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(*ROWS)
    (tmp_path / "link.jsonl").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    for other in (path, "rows.jsonl", "./rows.jsonl", "link.jsonl"):
        suite = Generation(**{**OPTIONS, "data": path}, fewshot_data=other, num_fewshot=2)
        for row, sample in zip(ROWS, suite.samples(), strict=True):
            assert str(sample.prompt).count(str(row["question"])) == 1
        fixed = Generation(
            **{**OPTIONS, "data": path}, fewshot_data=other, num_fewshot=1, fixed_shots=True
        )
        assert [sample.index for sample in fixed.samples()] == [1, 2]


def test_equal_rows_in_memory_are_shared() -> None:
    suite = Generation(**OPTIONS, fewshot_data=copy.deepcopy(ROWS), num_fewshot=2)
    for row, sample in zip(ROWS, suite.samples(), strict=True):
        assert str(sample.prompt).count(str(row["question"])) == 1


def test_a_suite_that_was_changed_is_checked_and_read_again() -> None:
    suite = Generation(**OPTIONS, max_new_tokens=4)
    next(suite.samples())
    suite.prompt, suite.filters = "again {question}", {"strict": [NUMBER]}
    result = evalution.run(engine=Mock(), model="m", tests=[suite]).suites[0]
    assert result.options["prompt"] == "again {question}"
    assert result.samples[0].prompt == "again 1 + 1?"
    assert list(result.metrics) == ["exact_match,strict"]
    suite.max_new_tokens = 0
    with pytest.raises(ConfigurationError, match="'max_new_tokens' of suite Generation must be at"):
        evalution.run(engine=Mock(), model="m", tests=[suite])


def test_a_file_may_be_named_by_a_path(write_rows: Any) -> None:
    suite = Generation(**{**OPTIONS, "data": Path(write_rows(*ROWS))})
    assert (suite.check_samples(), suite.title) == (3, "rows")
    assert suite.to_dict()["data"].endswith("rows.jsonl")


def test_drawn_rows_are_the_same_each_time_and_never_the_question() -> None:
    suite = Generation(**OPTIONS, num_fewshot=2)
    prompts = [sample.prompt for sample in suite.samples()]
    assert prompts == [sample.prompt for sample in suite.samples()]
    for row, prompt in zip(ROWS, prompts, strict=True):
        assert str(prompt).count(str(row["question"])) == 1


def test_a_chat_has_messages_and_needs_the_capability() -> None:
    suite = Generation(**OPTIONS, apply_chat_template=True)
    request: Any = next(suite.samples()).requests[0]
    assert request.messages == [{"role": "user", "content": "Q: 1 + 1?\nA:"}]
    assert suite.needs == {Capability.GENERATE, Capability.CHAT}


def test_rows_are_bounded_by_either_limit() -> None:
    assert len(list(Generation(**OPTIONS, max_rows=2).samples())) == 2
    assert len(list(Generation(**OPTIONS, max_rows=2).samples(1))) == 1
    assert len(list(Generation(**OPTIONS).samples(9))) == 3


def test_options_are_shown_as_a_spec_has_them() -> None:
    suite = Generation(**OPTIONS, filters=[NUMBER, Strip()], target_filters=[Lower()])
    shown = suite.to_dict()
    assert shown["data"] == "<3 rows in memory>"
    assert shown["filters"][1:] == ["strip"]
    assert shown["filters"][0]["regex"]["pattern"] == "#### (-?[0-9]+)"
    again = Generation.from_options({**shown, "data": "rows.jsonl"})
    assert (again.filters, again.target_filters) == ([NUMBER, Strip()], [Lower()])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"promt": "x"}, "suite Generation has no option 'promt'; did you mean 'prompt'?"),
        ({"until": ["x"]}, "suite Generation has no option 'until'; did you mean 'stop'?"),
        ({"limit": 3}, "suite Generation has no option 'limit'; did you mean 'max_rows'?"),
        ({"max_new_tokens": "many"}, "must be an integer, got 'many'"),
        ({"max_new_tokens": True}, "must be an integer, got True"),
        (
            {"max_new_tokens": 0},
            "'max_new_tokens' of suite Generation must be at least 1",
        ),
        (
            {"max_rows": 0},
            "'max_rows' of suite Generation must be at least 1",
        ),
        ({"name": "a\nb"}, "'name' of suite Generation must be one line of text that can be shown"),
        ({"name": "\ud800"}, r"that can be shown, got '\ud800'"),
        (
            {"batch_size": 0},
            "'batch_size' of suite Generation must be at least 1",
        ),
        (
            {"num_fewshot": -1},
            "option 'num_fewshot' of suite Generation must be at least 0",
        ),
        (
            {"max_rows": 10**10},
            "must be at most 2147483647, got 10000000000",
        ),
        (
            {"max_rows": 10**5000},
            "got a value of type int that is too large to show",
        ),
        (
            {"num_fewshot": 10**10},
            "'num_fewshot' of suite Generation must be at most 2147483647",
        ),
        ({"fewshot_seed": 10**5000}, "'fewshot_seed' of suite Generation must fit into 64 bits"),
        (
            {"batch_size": 10**10},
            "'batch_size' of suite Generation must be at most 2147483647",
        ),
        (
            {"max_new_tokens": 10**10},
            "'max_new_tokens' of suite Generation must be at most",
        ),
        ({"stop": "\n"}, "option 'stop' of suite Generation"),
        ({"stop": [""]}, "must hold no empty text"),
        ({"prompt": {"question": None}}, "in YAML, put a text that begins with { in quotes"),
        ({"target": False}, "in YAML, put yes, no, on and off in quotes"),
        ({"prompt": "{question"}, "prompt '{question'"),
        ({"target": ""}, "target is empty"),
        ({"filters": {}}, "must name at least one pipeline"),
        ({"filters": ["stripp"]}, "there is no filter 'stripp'; did you mean 'strip'?"),
        (
            {"metrics": ["accuracy"]},
            "there is no metric 'accuracy' (metrics: exact_match, contains,",
        ),
        ({"metrics": []}, "must name at least one metric, and each once"),
        ({"metrics": ["number", {"number": 1.0}]}, "at least one metric, and each once"),
        ({"metric": "f1"}, "no option 'metric'; choose with metrics: [...] among exact_match, con"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Generation(**{**OPTIONS, **options})
    assert message in str(caught.value)


def test_a_needed_option_that_lacks_is_named() -> None:
    with pytest.raises(ConfigurationError, match="suite Generation needs the option 'target'"):
        Generation.from_options({"data": "rows.jsonl", "prompt": "q"})


def test_a_suite_can_be_pickled_and_copied() -> None:
    suite = Generation(**OPTIONS, filters=[NUMBER])
    next(suite.samples())
    assert pickle.loads(pickle.dumps(suite)) == copy.deepcopy(suite) == suite


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "{quesion}"}, "no column 'quesion'; did you mean 'question'?"),
        ({"target": "anwser"}, "no column 'anwser'; did you mean 'answer'?"),
        ({"data": []}, "suite 'rows': data holds no rows"),
        ({"num_fewshot": 3, "fixed_shots": True}, "holds no rows after the 3 few-shot rows"),
        ({"num_fewshot": 3}, "3 of 4 few-shot rows found"),
        ({"metrics": ["choice_letter"]}, "row 0 of data: the target must be one letter, such as B"),
        (
            {
                "metrics": ["number"],
                "target": "x{question}y",
                "prompt": "question",
                "data": [{"question": "a"}],
            },
            "row 0 of data: the target 'xay' holds no number",
        ),
    ],
)
def test_rows_that_do_not_fit_are_found_before_a_run(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Generation(**{**OPTIONS, **options}).check_samples()
    assert message in str(caught.value)


def test_an_empty_file_holds_no_rows(write_rows: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"suite 'empty': .*empty\.jsonl holds no rows"):
        Generation(**{**OPTIONS, "data": write_rows(name="empty.jsonl")}).check_samples()


@pytest.fixture
def run_answers(scripted_session: Any) -> Callable[..., evalution.RunResult]:
    """Runs rows with these targets on a session that writes these answers."""

    def run(pairs: list[tuple[str, str]], **options: Any) -> evalution.RunResult:
        class Writer(scripted_session):
            def generate(self, requests: Any, *, batch_size: int | None = None) -> list[Any]:
                return [GenerationOutput(one.prompt, answers[one.prompt]) for one in requests]

        answers = {f"row {row}": answer for row, (answer, _) in enumerate(pairs)}
        rows = [
            {"q": prompt, "a": target} for prompt, (_, target) in zip(answers, pairs, strict=True)
        ]
        suite = Generation(data=rows, name="sums", prompt="q", target="a", **options)
        return evalution.run(session=Writer(), tests=[suite])

    return run


def test_low_exact_match_says_what_would_raise_it(run_answers: Any) -> None:
    verbatim: Any = {"filters": [], "target_filters": []}
    found = run_answers([(f" {row}", str(row)) for row in range(60)], **verbatim)
    assert found["sums"].metrics["exact_match"].value == 0.0
    assert found.notices == [
        "sums: 0 of 60 are right; 60 would be after strip (add it to filters and target_filters)"
    ]
    found = run_answers([("3 + 4 = 7\n#### 7", "7"), ("8", "8")])
    assert found.notices == [
        "sums: 1 of 2 are right; 2 would be by their last number (metrics: [number])"
    ]
    goes_on = [(f" {row}\n\nQ: What is 8 + 1?\nA: 9", str(row)) for row in range(20)]
    assert run_answers(goes_on).notices == [
        r'sums: 0 of 20 are right; 20 would be up to the first blank line (stop: ["\n\n"])'
    ]
    by_line = [(f" {row}\nQ: 8 + 1?\nA: 9", str(row)) for row in range(20)]
    assert run_answers(by_line).notices == [
        r'sums: 0 of 20 are right; 20 would be up to the first line break (stop: ["\n"])'
    ]
    assert run_answers([("\n\n7\n\nQ: 8 + 1?", "7")]).notices == []
    assert run_answers([("no", "yes"), ("yes", "yes")]).notices == []
    assert run_answers([("3 + 4 = 7", "7")], metrics=["number"]).notices == []


CUT = "aren't right and reached max_new_tokens (2), so the answer may be cut off; raise it then"


def test_what_goes_on_behind_a_letter_or_a_number_is_named(run_answers: Any) -> None:
    goes_on = [(" B\n\nQ: Which?\nAnswer: C", "B")] * 20
    assert run_answers(goes_on, metrics=["choice_letter"]).notices == [
        r'sums: 0 of 20 are right; 20 would be up to the first blank line (stop: ["\n\n"])'
    ]
    goes_on = [(" 7\n\nQ: 8 + 1?\nA: 9", "7"), ("no digits", "7"), ("7", "7")]
    assert run_answers(goes_on, metrics=["number"]).notices == [
        "sums: 1 of 3 samples hold nothing that number finds",
        r'sums: 1 of 3 are right; 2 would be up to the first blank line (stop: ["\n\n"])',
    ]


def test_answers_that_are_empty_or_cut_off_are_counted(run_answers: Any) -> None:
    pairs = [("", "7"), (" ", "7"), ("7", "7"), ("", "")]
    assert "sums: 2 of 4 samples are empty answers" in run_answers(pairs).notices
    suite = Generation(data=[{"q": "1", "a": "7"}], prompt="q", target="a", max_new_tokens=2)
    sample = next(suite.samples())
    for text, remarks in (("7", ["are right"]), ("70", [CUT])):
        found = suite.score(sample, [GenerationOutput("1", text, finish_reason="length")])
        assert list(found.remarks) == remarks
        assert ("finish_reason" in found.extracted) == (text == "70")


def test_number_is_no_advice_where_it_would_refuse_a_target(run_answers: Any) -> None:
    pairs = [("It was Apollo 11", "11"), ("Paris", "Paris"), ("Rome", "Berlin")]
    assert run_answers(pairs).notices == []


def test_targets_that_are_empty_are_counted_where_an_empty_answer_is_right(
    run_answers: Any,
) -> None:
    pairs = [("", ""), ("a", " "), ("7", "7")]
    empty = "sums: 2 of 3 samples have an empty target, for which an empty answer is right"
    for metrics in (["exact_match"], ["f1"]):
        (notice,) = run_answers(pairs, metrics=metrics).notices
        assert notice.startswith(empty)
    assert run_answers(pairs, metrics=[{"regex": "^[a-z]?$"}]).notices == []
    with pytest.raises(ConfigurationError, match="leaves nothing of the target ''"):
        run_answers(pairs, target_filters=[{"regex": "[0-9]"}])


def test_pattern_that_runs_on_fails_its_row_and_is_named(
    run_answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "TIME_LIMIT_S", 0.02)
    pairs = [("aaa", "a"), ("a" * 40 + "!", "a")]
    for options in ({"filters": [{"regex": "(a|a)*$"}]}, {"metrics": [{"regex": "^(a|a)*$"}]}):
        suite = run_answers(pairs, **options)["sums"]
        assert (suite.n, suite.failed) == (2, 1)
        assert "row 1: " in suite.first_failure
        assert "(a|a)*$' takes more than 0.02 s on a text of 41 characters" in suite.first_failure


def test_a_line_break_that_is_spelt_out_is_said(run_answers: Any) -> None:
    found = run_answers([("7", "7")], stop=["\n", r"\n\n"], target_delimiter=r"\t")
    assert found.notices == [
        "sums: stop has a backslash and an n, not a line break; one takes double quotes: "
        r"""stop: ["…\n…"] in YAML, --set 'sums.stop=["…\n…"]' in a command""",
        "sums: target_delimiter has a backslash and a t, not a tab; one takes double quotes: "
        r"""target_delimiter: "…\t…" in YAML, --set 'sums.target_delimiter="…\t…"' in a command""",
    ]


@pytest.mark.parametrize(
    ("prompt", "is_mistaken"),
    [
        (r"Q: {question}\nA:", True),
        (r"{question}\n", True),
        (r"{question}\n{answer}", True),
        ("Q: {question}\nWhere is the \\n in it?", False),
        (r"$\nabla \neq \text{{x}} \times \theta$ {question}", False),
        (r"{question} \\N", False),
    ],
)
def test_a_prompt_with_a_spelt_out_line_break_is_known(prompt: str, is_mistaken: bool) -> None:
    notices = list(Generation(**{**OPTIONS, "prompt": prompt}).list_notices({}, 0))
    assert [notice.partition(";")[0] for notice in notices] == (
        ["prompt has a backslash and an n, not a line break"] if is_mistaken else []
    )
