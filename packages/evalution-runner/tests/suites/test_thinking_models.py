"""Suites that ask a model which thinks before it answers: `think_end_token`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution import Generation
from evalution.redaction import mask_value
from evalution.scoring.filters import Regex, text_before_stop
from evalution.suites import load_suite
from evalution_core import ConfigurationError, EngineRuntimeError, GenerationOutput
from evalution_enginekit.mock import Mock

END = "</think>"
WRITTEN = {
    "1 + 1?": ("Sums.\n\nQuestion: what is 1 + 1?\n</think>\n\n2\n\nQuestion: 3?", "stop"),
    "1 + 2?": ("Let me\n\nsee", "length"),
    "2 + 2?": ("4\n\nQuestion: 5?", "stop"),
}
ROWS = [{"q": q, "a": a} for q, a in zip(WRITTEN, "234", strict=True)]
UNFINISHED = (
    "sums: 1 of 3 samples reached the length limit before '</think>', so the answer is empty; "
    "raise max_new_tokens (now 256), or leave think_end_token out if the model does not think"
)
ABSENT = (
    "sums: 1 of 3 samples ended without '</think>', so the whole text is the answer; if the model "
    "did think, check think_end_token: a special token does not show in a text"
)

SPEC = (
    "[{{type: generation, data: rows.jsonl, prompt: question, target: answer, {}"
    "think_end_token: </think>}}]"
)


def sums(**options: Any) -> Generation:
    return Generation(
        **{"data": ROWS, "prompt": "q", "target": "a", "name": "sums", "stop": ["\n\n"], **options}
    )


@pytest.fixture
def thinker(scripted_session: Any) -> Any:
    """Sessions that write `WRITTEN`, ended early by a stop as any engine would."""

    class Thinker(scripted_session):
        def generate(self, requests: Any, *, batch_size: int | None = None) -> list[Any]:
            return [self._output(request) for request in requests]

        def _output(self, request: Any) -> GenerationOutput:
            text, finish = WRITTEN[request.prompt]
            kept = text_before_stop(text, request.stop)
            finish = finish if kept == text else "stop"
            return GenerationOutput(request.prompt, kept, finish_reason=finish)  # pyright: ignore[reportArgumentType]

    return Thinker


def run(session: Any, **options: Any) -> evalution.RunResult:
    return evalution.run(session=session, tests=[sums(**options)])


def test_an_engine_is_sent_no_stop_that_could_end_a_thought() -> None:
    def request(**options: Any) -> Any:
        return next(sums(**options).samples()).requests[0]

    asked, told = request(), request(think_end_token=END)
    assert (list(asked.stop), list(told.stop)) == (["\n\n"], [])
    told.stop = asked.stop
    assert told == asked
    assert list(request(think_end_token=END, apply_chat_template=True).stop) == []


def test_an_answer_is_taken_from_behind_the_thought(thinker: Any) -> None:
    assert run(thinker())["sums"].metrics["exact_match"].value == pytest.approx(1 / 3)
    found = run(thinker(), think_end_token=END)
    assert found["sums"].metrics["exact_match"].value == pytest.approx(2 / 3)
    assert [sample.prediction for sample in found["sums"].samples] == [
        text for text, _ in WRITTEN.values()
    ]
    assert [sample.extracted for sample in found["sums"].samples] == [
        {"answer": "2", "reasoning": "ended", "exact_match": "2"},
        {"answer": "", "reasoning": "unfinished", "exact_match": ""},
        {"answer": "4", "reasoning": "absent", "exact_match": "4"},
    ]
    assert found.notices == [ABSENT, UNFINISHED]


def test_without_the_option_a_notice_counts_the_wrong_answers_with_a_thought(thinker: Any) -> None:
    found = run(thinker(), stop=[])
    assert found.notices == [
        "sums: 1 of 3 samples aren't right and reached max_new_tokens (256), so the answer may be "
        "cut off; raise it then",
        f"sums: 1 of 3 samples contain {END}, so the thought is graded too; set think_end_token",
        r'sums: 0 of 3 are right; 1 would be up to the first blank line (stop: ["\n\n"])',
    ]
    assert found["sums"].samples[0].extracted == {"exact_match": WRITTEN["1 + 1?"][0]}


def test_filters_run_on_the_answer_alone() -> None:
    suite = sums(think_end_token=END, filters={"first": [Regex("[0-9]")]})
    text = f"1 and 1</think> 2, not 3{END}"
    score = suite.score(next(suite.samples()), [GenerationOutput("", text)])
    assert score.extracted == {
        "answer": f"2, not 3{END}",
        "reasoning": "ended",
        "exact_match,first": "2",
    }
    assert (score.prediction, list(score.remarks)) == (text, [])


def test_a_text_whose_end_is_unknown_is_an_answer() -> None:
    suite = sums(think_end_token=END)
    score = suite.score(next(suite.samples()), [GenerationOutput("", "2\n\n3")])
    assert score.extracted["exact_match"] == "2"


@pytest.mark.parametrize(
    ("prompt", "written", "extracted", "remark"),
    [
        ("<think>\n\n</think>\n\n", "2\n\n3", {"answer": "2", "reasoning": "closed"}, None),
        ("<think>\n", "2\n\n3", {"answer": "", "reasoning": "unfinished"}, "before '</think>'"),
        ("", "hm</think>\n", {"answer": "", "reasoning": "ended"}, "right behind '</think>'"),
    ],
)
def test_an_answer_that_reached_the_length_limit(
    prompt: str, written: str, extracted: dict[str, str], remark: str | None
) -> None:
    suite = sums(think_end_token=END)
    output = GenerationOutput(prompt, written, finish_reason="length")
    score = suite.score(next(suite.samples()), [output])
    assert score.extracted == {**extracted, "exact_match": extracted["answer"]}
    notes = [note for note in score.remarks if note.startswith("reached")]
    told = notes[0].partition(", so the answer is empty")[0] if notes else None
    assert told == (remark and f"reached the length limit {remark}")


def test_a_blank_token_closes_no_prompt() -> None:
    suite = sums(think_end_token="\n\n", stop=[])
    output = GenerationOutput("Question: 1\n\n", "hm", finish_reason="length")
    score = suite.score(next(suite.samples()), [output])
    assert score.extracted["reasoning"] == "unfinished"


def test_suites_known_by_name_have_the_option() -> None:
    kind: Any = load_suite("gsm8k")
    row = {"question": "1 + 1?", "answer": "#### 2"}
    suite = kind(data=[row], num_fewshot=0, think_end_token=END)
    sample = next(suite.samples())
    assert list(sample.requests[0].stop) == []
    text = "Question: #### 3</think>\n\nTwo.\n#### 2\n\nQuestion: #### 4"
    score = suite.score(sample, [GenerationOutput("", text)])
    assert {measure.value for measure in score.measures.values()} == {1.0}
    assert score.extracted["answer"] == "Two.\n#### 2\n\n"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "",
            "option 'think_end_token' of suite Generation must be the text that ends a thought, "
            "such as '</think>', got ''",
        ),
        (5, "option 'think_end_token' of suite Generation must be a string, got 5"),
        (True, "got True; in YAML, put yes, no, on and off in quotes where text is meant"),
    ],
)
def test_what_ends_a_thought_is_a_text(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sums(think_end_token=value)
    assert message in str(caught.value)


def test_a_run_goes_on_with_the_same_token_alone(
    scripted: Any, thinker: Any, tmp_path: Path
) -> None:
    def dying(events: Any) -> Iterator[Any]:
        yield from (next(events), next(events))
        raise RuntimeError("device lost")

    def go_on(session: Any, **options: Any) -> evalution.RunResult:
        tests = [sums(**options)]
        return evalution.run(engine=scripted(session), model="m", tests=tests, output=tmp_path)

    with pytest.raises(EngineRuntimeError, match="device lost"):
        go_on(thinker(dying), think_end_token=END)
    other = "sums.think_end_token was '</think>', now 'see'; name another --output"
    with pytest.raises(ConfigurationError, match=other):
        go_on(thinker(), think_end_token="see")
    with pytest.raises(ConfigurationError, match="think_end_token was '</think>', now None"):
        go_on(thinker())
    found = go_on(thinker(), think_end_token=END)
    assert (found["sums"].cached, found.notices) == (2, [ABSENT, UNFINISHED])
    stored = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert stored["notices"] == found.notices


def test_answers_of_a_cache_are_scored_again_with_another_token(tmp_path: Path) -> None:
    def cached(token: str) -> evalution.SuiteResult:
        tests = [sums(think_end_token=token, max_new_tokens=40)]
        return evalution.run(engine=Mock(), model="m", tests=tests, cache=tmp_path)["sums"]

    assert cached("e").cached == 0
    found = cached(" ")
    assert found.cached == 3
    assert {sample.extracted["reasoning"] for sample in found.samples} == {"ended"}
    for sample in found.samples:
        answer = str(sample.prediction).partition(" ")[2].lstrip()
        assert sample.extracted["answer"] == answer.partition("\n\n")[0]


def test_unfinished_thoughts_are_reported_on_the_command_line(
    command_line: Any, folder: Path, spec: Any
) -> None:
    name = spec(folder, tests=SPEC.format("max_new_tokens: 1, "))
    done = command_line("run", name, "--output", "run")
    assert done.returncode == 0, done.stderr
    notice = (
        "rows: 30 of 30 samples reached the length limit before '</think>', so the answer is "
        "empty; raise max_new_tokens (now 1), or leave think_end_token out if the model does not "
        "think"
    )
    assert notice in done.stderr
    assert notice in command_line("show", "run").stdout
    assert "reasoning=unfinished" in command_line("show", "run", "--samples", "rows").stdout


def test_think_end_token_is_not_redacted(thinker: Any) -> None:
    runs = [run(thinker(), think_end_token=token) for token in (END, "see")]
    shown = [mask_value(found.suites[0].options)["think_end_token"] for found in runs]
    assert shown == [END, "see"]
