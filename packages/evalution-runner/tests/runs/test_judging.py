from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution import Generation, Run
from evalution.comparison import compare, table
from evalution.progress import PlainProgress
from evalution.runs.options import RunOptions
from evalution.suites.judge import Judge
from evalution_core import (
    Capability,
    ConfigurationError,
    EngineRuntimeError,
    GenerationOutput,
    Model,
    RequestFailure,
    UnsupportedRequestError,
    secret,
)
from evalution_enginekit.mock import Mock

ROWS = [
    {"q": f"row {i}", "a": "4", "b": "5", "person": "CORRECT" if i < 4 else "INCORRECT"}
    for i in range(6)
]
RUBRIC = "{prompt}|{prediction}"


class Panel:
    """A scripted judge: answers by the rubric it is sent, and keeps what it was asked."""

    def __init__(self, session: Any, answer: Any) -> None:
        self.asked: list[str] = []
        self.session = session()
        self.session.generate = self.generate
        self._answer = answer

    def generate(self, requests: Sequence[Any], *, batch_size: int | None = None) -> list[Any]:
        self.asked += [request.prompt for request in requests]
        return [GenerationOutput(r.prompt, self._answer(r.prompt), r.metadata) for r in requests]


@pytest.fixture
def panel(scripted_session: Any) -> Any:
    return lambda answer: Panel(scripted_session, answer)


@pytest.fixture
def run(scripted: Any) -> Any:
    def call(
        model: Panel,
        graded_by: Panel,
        output: Path | None = None,
        group: str | None = None,
        **options: Any,
    ) -> Any:
        made = Judge(
            engine=scripted(graded_by.session),
            model=Model("judge"),
            apply_chat_template=False,
            **{"rubric": RUBRIC, **options},
        )
        suite = Generation(data=ROWS, prompt="q", target="a", judge=made, group=group)
        return evalution.run(
            engine=scripted(model.session), model="m", tests=[suite], output=output
        )

    return call


def answer_right(prompt: str) -> str:
    return "4"


def approve(prompt: str) -> str:
    return "VERDICT: CORRECT"


def reject_last(prompt: str) -> str:
    return "VERDICT: INCORRECT" if "row 5" in prompt else "VERDICT: CORRECT"


def test_grades_are_a_suite_of_their_own(run: Any, panel: Any, tmp_path: Path) -> None:
    judge = panel(reject_last)
    result = run(panel(answer_right), judge, tmp_path / "r", label="person")
    assert [suite.name for suite in result.suites] == ["rows", "rows-judged"]
    grades = result["rows-judged"]
    assert judge.asked == [f"row {i}|4" for i in range(6)]
    assert grades.metrics["judge"].value == pytest.approx(5 / 6)
    assert grades.metrics["agreement"].value == pytest.approx(5 / 6)
    assert grades.metrics["agreement"].interval == pytest.approx((0.4365, 0.9699), abs=1e-4)
    assert grades.metrics["kappa"].value == pytest.approx(4 / 7)
    sample = grades.samples[5]
    assert (sample.prompt, sample.prediction, sample.metrics["judge"]) == ("row 5", "4", 0.0)
    assert sample.extracted == {"verdict": "INCORRECT", "reason": "VERDICT: INCORRECT"}


def test_grades_have_the_groups_of_their_rows(run: Any, panel: Any) -> None:
    grades = run(panel(answer_right), panel(reject_last), label="person", group="person")
    found = grades["rows-judged"]
    assert {metric.groups for metric in found.metrics.values()} == {2}
    assert [sample.group for sample in found.samples] == [row["person"] for row in ROWS]


@pytest.mark.parametrize(
    "change",
    [{"rubric": "{prediction}"}, {"pattern": "(CORRECT)"}, {"scale": {"CORRECT": 2, "x": 0}}],
)
def test_another_judge_regenerates_no_answer(
    run: Any, panel: Any, tmp_path: Path, change: dict[str, Any]
) -> None:
    run(panel(answer_right), panel(approve), tmp_path / "r")
    again, judge = panel(answer_right), panel(approve)
    result = run(again, judge, tmp_path / "r", **change)
    assert again.asked == []
    assert len(judge.asked) == (6 if "rubric" in change else 0)
    assert result["rows"].metrics["exact_match"].value == 1.0
    assert result["rows-judged"].metrics["judge"].n == 6


def test_grades_are_planned_with_the_answers(scripted: Any, panel: Any) -> None:
    class Places(PlainProgress):
        def suite_finished(self) -> None:
            super().suite_finished()
            found.append((self.name, self.place))

    def judged(name: str, model: str) -> Generation:
        judge = Judge(
            engine=grading,
            model=Model(model),
            rubric=RUBRIC,
            apply_chat_template=False,
        )
        return Generation(data=ROWS, prompt="q", target="a", name=name, judge=judge)

    found: list[tuple[str, tuple[int, int] | None]] = []
    grading = scripted(panel(approve).session)
    answered = [judged("a", "one"), judged("b", "two"), judged("a", "one")]
    plain = Generation(data=ROWS[:4], prompt="q", target="a", name="a-judged")
    handle = Run(
        scripted(panel(answer_right).session), "m", RunOptions(progress=Places(io.StringIO()))
    )
    with handle:
        handle.prepare([*answered, plain])
        for suite in (*answered, plain):
            handle.run(suite)
    names = ["a", "b", "a-2", "a-judged", "a-judged-2", "a-2-judged", "b-judged"]
    assert found == [(name, (place, 7)) for place, name in enumerate(names, 1)]
    assert handle.result.planned == {name: 4 if name == "a-judged" else 6 for name in names}
    assert [suite.name for suite in handle.result.suites] == names


def test_judging_goes_on_where_it_stopped(run: Any, panel: Any, tmp_path: Path) -> None:
    broken = panel(approve)

    def die(events: Iterator[Any]) -> Iterator[Any]:
        yield from (next(events) for _ in range(4))
        raise EngineRuntimeError("the judge died")

    broken.session.script = die
    with pytest.raises(EngineRuntimeError, match="the judge died"):
        run(panel(answer_right), broken, tmp_path / "r")
    kept = json.loads((tmp_path / "r" / "results.json").read_text(encoding="utf-8"))
    assert (kept["status"], kept["error"]["suite"]) == ("failed", "rows-judged")
    assert [suite["name"] for suite in kept["suites"]] == ["rows"]
    model, judge = panel(answer_right), panel(approve)
    result = run(model, judge, tmp_path / "r")
    assert (model.asked, judge.asked) == ([], ["row 4|4", "row 5|4"])
    assert result["rows-judged"].cached == 4


def test_an_unreadable_verdict_is_a_failed_grade_and_no_zero(run: Any, panel: Any) -> None:
    result = run(panel(answer_right), panel(lambda p: "Hm." if "row 0" in p else approve(p)))
    grades = result["rows-judged"]
    assert (grades.failed, grades.metrics["judge"].value, grades.metrics["judge"].n) == (1, 1.0, 5)
    assert "finds no verdict; the judge's answer ends with 'Hm.'" in str(grades.first_failure)


def test_a_row_without_an_answer_is_not_graded(run: Any, panel: Any, scripted_session: Any) -> None:
    def fail_first(events: Iterator[Any]) -> Iterator[Any]:
        key, _ = next(events)
        yield key, RequestFailure(EngineRuntimeError("no"))
        yield from events

    model, judge = panel(answer_right), panel(approve)
    model.session.script = fail_first
    grades = run(model, judge)["rows-judged"]
    assert (grades.n, grades.failed, grades.errors) == (5, 0, [])
    assert "row 0|4" not in judge.asked


def test_nothing_is_graded_where_every_answer_failed(run: Any, panel: Any) -> None:
    def fail(events: Iterator[Any]) -> Iterator[Any]:
        return ((key, RequestFailure(EngineRuntimeError("no"))) for key, _ in events)

    model = panel(answer_right)
    model.session.script = fail
    result = run(model, panel(approve))
    assert (result["rows"].failed, result["rows-judged"].n, result.status) == (6, 0, "done")


def test_a_verdict_that_changes_with_the_order_is_a_tie(run: Any, panel: Any) -> None:
    def prefer(prompt: str) -> str:
        if "row 0" in prompt:
            return "VERDICT: A"  # whatever stands first
        return "VERDICT: A" if prompt.startswith("4") else "VERDICT: B"

    options = {"baseline": "b", "rubric": "{first}|{second}|{prompt}"}
    grades = run(panel(answer_right), panel(prefer), **options)["rows-judged"]
    assert grades.metrics["win_rate"].value == pytest.approx(5.5 / 6)
    assert grades.metrics["position_changed"].value == pytest.approx(1 / 6)
    assert grades.samples[0].metrics == {"win_rate": 0.5, "position_changed": 1.0}


def test_compare_names_another_judge(run: Any, panel: Any, tmp_path: Path) -> None:
    for name, answer, scale in (
        ("a", approve, None),
        ("b", reject_last, {"CORRECT": 1, "INCORRECT": -1}),
    ):
        run(panel(answer_right), panel(answer), tmp_path / name, scale=scale)
    found = compare(tmp_path / "a", tmp_path / "b")
    remarks = list(table.list_remarks(found))
    assert any("option judge.scale.INCORRECT: 0.0 → -1" in remark for remark in remarks)
    assert found["rows"].options == {}
    assert found["rows-judged"].rows.paired == 6


class Plain(Mock):
    capabilities = frozenset({Capability.GENERATE})


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (Judge(engine=Plain(), model=Model("m")), r"needs chat; .* of the judge's engine Plain"),
        (Judge(engine=Mock(), model=Model("./none")), "'rows-judged': there is no model folder"),
        (
            Judge(engine=Mock(), model=Model("m"), rubric="{prediction}{hint}"),
            "there is no column 'hint'",
        ),
    ],
)
def test_a_judge_that_cannot_do_it_is_refused_before_the_run(
    panel: Any, scripted: Any, judge: Judge, message: str
) -> None:
    model = panel(answer_right)
    suite = Generation(data=ROWS, prompt="q", target="a", judge=judge)
    with pytest.raises((ConfigurationError, UnsupportedRequestError), match=message):
        evalution.run(engine=scripted(model.session), model="m", tests=[suite])
    assert model.asked == []


def test_a_judge_sees_the_answer_of_a_thinking_model_without_its_thought(
    scripted: Any, panel: Any
) -> None:
    judge = panel(approve)
    made = Judge(
        engine=scripted(judge.session),
        model=Model("judge"),
        rubric=RUBRIC,
        apply_chat_template=False,
    )
    suite = Generation(
        data=ROWS[:1], prompt="q", target="a", judge=made, think_end_token="</think>"
    )
    model = panel(lambda prompt: "Hm.</think> 4")
    evalution.run(engine=scripted(model.session), model="m", tests=[suite])
    assert judge.asked == ["row 0|4"]


@dataclass(slots=True)
class Locked(Mock):
    key: str | None = secret()


def test_results_hold_no_secret_of_a_judges_engine(
    panel: Any, scripted: Any, tmp_path: Path
) -> None:
    suite = Generation(
        data=ROWS,
        prompt="q",
        target="a",
        judge=Judge(engine=Locked(key="sesame-open"), model=Model("m")),
    )
    model = panel(answer_right)
    result = evalution.run(
        engine=scripted(model.session), model="m", tests=[suite], output=tmp_path / "r"
    )
    assert result["rows-judged"].options["judge"]["engine"]["type"] == "Locked"
    assert all(b"sesame-open" not in file.read_bytes() for file in (tmp_path / "r").iterdir())


def test_answers_are_compared_with_those_of_another_run(
    run: Any, panel: Any, tmp_path: Path
) -> None:
    run(panel(lambda prompt: "five"), panel(approve), tmp_path / "other")
    judge = panel(lambda asked: "VERDICT: A" if asked.startswith("4") else "VERDICT: B")
    pairs = {"rubric": "{first}|{second}", "baseline_run": str(tmp_path / "other")}
    found = run(panel(answer_right), judge, tmp_path / "r", **pairs)["rows-judged"]
    assert sorted(set(judge.asked)) == ["4|five", "five|4"]
    assert (found.n, found.metrics["win_rate"].value) == (6, 1.0)
    assert found.metrics["position_changed"].value == 0.0


def test_each_of_two_suites_is_compared_with_its_own_of_the_other_run(
    scripted: Any, panel: Any, tmp_path: Path
) -> None:
    def run(words: str, output: str, judge: Judge | None = None) -> None:
        first, second = words.split()
        model = panel(lambda prompt: first if prompt.startswith("1st") else second)
        prompts = ("1st {q}", "2nd {q}")
        suites = [Generation(data=ROWS, prompt=p, target="a", judge=judge) for p in prompts]
        evalution.run(
            engine=scripted(model.session), model="m", tests=suites, output=tmp_path / output
        )

    run("one two", "other")
    judge = panel(lambda asked: "VERDICT: TIE")
    made = Judge(
        engine=scripted(judge.session),
        model=Model("judge"),
        rubric="{first}|{second}",
        baseline_run=str(tmp_path / "other"),
        apply_chat_template=False,
    )
    run("eins zwei", "r", made)
    assert set(judge.asked) == {"eins|one", "one|eins", "zwei|two", "two|zwei"}


def test_answers_that_could_not_be_graded_are_asked_again_where_that_is_wanted(
    scripted: Any, panel: Any, tmp_path: Path
) -> None:
    verdicts = iter(["no word", *["VERDICT: CORRECT"] * 2, "VERDICT: INCORRECT"])
    judge = panel(lambda asked: next(verdicts))
    made = Judge(
        engine=scripted(judge.session),
        model=Model("judge"),
        rubric=RUBRIC,
        apply_chat_template=False,
    )
    suite = Generation(data=ROWS[:3], prompt="q", target="a", judge=made)

    def run(**options: Any) -> Any:
        engine = scripted(panel(answer_right).session)
        return evalution.run(
            engine=engine, model="m", tests=[suite], output=tmp_path / "r", **options
        )["rows-judged"]

    assert (run().failed, run().failed, len(judge.asked)) == (1, 1, 3)
    found = run(retry_failed=True)
    assert (found.failed, found.metrics["judge"].value, len(judge.asked)) == (0, 2 / 3, 4)
    assert (found.requests, found.cached) == (3, 2)


def test_rows_that_another_run_has_no_answer_to_are_not_graded(
    run: Any, panel: Any, tmp_path: Path
) -> None:
    run(panel(answer_right), panel(approve), tmp_path / "other")
    lines = (tmp_path / "other" / "samples.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"index":5' not in line]
    (tmp_path / "other" / "samples.jsonl").write_text("".join(kept))
    pairs = {"rubric": "{first}|{second}", "baseline_run": str(tmp_path / "other")}
    result = run(panel(answer_right), panel(lambda asked: "VERDICT: TIE"), tmp_path / "r", **pairs)
    assert (result["rows-judged"].n, result["rows-judged"].errors) == (5, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "rows", "new": "row"}, "no samples of a suite 'rows'; did you mean 'row'"),
        ({"name": '"target":"4"', "new": '"target":"9"'}, "row 0 of .* is '9', here '4'; name a"),
        ({"name": '"prompt":"row 0', "new": '"prompt":"day 0'}, "row 0 of .* prompt is another on"),
    ],
)
def test_another_run_of_other_rows_is_refused(
    run: Any, panel: Any, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    run(panel(answer_right), panel(approve), tmp_path / "other")
    for file in ("results.json", "samples.jsonl"):
        path = tmp_path / "other" / file
        path.write_text(path.read_text().replace(change["name"], change["new"]))
    pairs = {"rubric": "{first}|{second}", "baseline_run": str(tmp_path / "other")}
    with pytest.raises(ConfigurationError, match=message):
        run(panel(answer_right), panel(approve), **pairs)


def test_another_run_may_have_asked_in_other_words(run: Any, panel: Any, tmp_path: Path) -> None:
    run(panel(answer_right), panel(approve), tmp_path / "other")
    for file, old, new in (
        ("results.json", '"num_fewshot": 0', '"num_fewshot": 2'),
        ("samples.jsonl", '"prompt":"row', '"prompt":"solved, row'),
    ):
        path = tmp_path / "other" / file
        path.write_text(path.read_text().replace(old, new))
    pairs = {"rubric": "{first}|{second}", "baseline_run": str(tmp_path / "other")}
    result = run(panel(answer_right), panel(lambda asked: "VERDICT: TIE"), **pairs)
    assert result["rows-judged"].n == 6
