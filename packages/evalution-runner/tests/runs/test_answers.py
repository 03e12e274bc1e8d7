"""Values an engine may give that can't be scored: each fails its row, and is reported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evalution
from evalution import Generation, MultipleChoice, Perplexity
from evalution.error_boundary import find_answer_problem
from evalution_core import (
    EngineRuntimeError,
    GenerationOutput,
    LoglikelihoodOutput,
    RollingLoglikelihoodOutput,
)

ROWS = [{"q": f"{i} + 0?", "a": "4", "choices": ["x", "yy"], "right": 0} for i in range(3)]


@pytest.mark.parametrize("logprob", [-1, -0.5, 1e-9, -math.inf, np.float32(-1), np.float64(-2)])
def test_any_real_number_that_is_a_log_probability_is_taken(logprob: Any) -> None:
    assert find_answer_problem(LoglikelihoodOutput(logprob, None, 1)) is None


@pytest.mark.parametrize(
    ("logprob", "message"),
    [
        (None, "the engine gave None as a log-probability"),
        ("-1", "the engine gave '-1' as a log-probability"),
        (True, "the engine gave True as a log-probability"),
        (math.nan, "the engine gave NaN as a log-probability"),
        (5.0, "the engine gave 5.0 as a log-probability, which is above 0"),
        (math.inf, "the engine gave inf as a log-probability, which is above 0"),
        (np.float32("nan"), "the engine gave NaN"),
    ],
)
def test_what_is_no_log_probability_is_reported(logprob: Any, message: str) -> None:
    assert message in str(find_answer_problem(LoglikelihoodOutput(logprob, None, 1)))
    assert message in str(find_answer_problem(RollingLoglikelihoodOutput(logprob, 1)))


@pytest.mark.parametrize("text", [None, 4, "a\ud800b"])
def test_what_is_no_text_is_reported(text: Any) -> None:
    assert "the engine gave" in str(find_answer_problem(GenerationOutput("p", text)))


@pytest.mark.parametrize("count", [None, -1, 1.5, "3"])
def test_what_is_no_count_is_reported(count: Any) -> None:
    problem = find_answer_problem(LoglikelihoodOutput(-1.0, None, count))
    assert problem == f"the engine gave {count!r} as token_count"


def test_counts_that_an_engine_does_not_know_are_none() -> None:
    assert find_answer_problem(GenerationOutput("p", "t", prompt_tokens=None)) is None
    problem = find_answer_problem(GenerationOutput("p", "t", completion_tokens="many"))  # pyright: ignore[reportArgumentType]
    assert problem == "the engine gave 'many' as completion_tokens"


def generation() -> Generation:
    return Generation(data=ROWS, prompt="q", target="a")


def test_numbers_of_numpy_are_written_as_numbers(scripted_session: Any, tmp_path: Path) -> None:
    class Numpy(scripted_session):
        def loglikelihood(self, requests: Any, *, batch_size: Any = None) -> list[Any]:
            return [
                LoglikelihoodOutput(np.float32(-1.5), None, np.int64(2), prompt_tokens=np.int64(3))  # pyright: ignore[reportArgumentType]
                for _ in requests
            ]

    suite = MultipleChoice(data=ROWS, prompt="q", choices="choices", target="right")
    result = evalution.run(session=Numpy(), tests=[suite], output=tmp_path / "run")
    line = json.loads((tmp_path / "run" / "samples.jsonl").read_text().splitlines()[0])
    assert line["extracted"]["logprobs"] == [-1.5, -1.5]
    assert line["tokens"] == {"prompt": 6, "scored": 4}
    assert (result.failed, result.suites[0].metrics["acc"].value) == (0, 1.0)


def test_near_ties_of_narrow_numbers_are_decided_as_they_are_when_they_are_read_back(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    scores = {"dd": np.float32(-2.0) / np.float32(3), "ccc": np.float32(-1.0)}
    halves, thirds = scores["dd"] / np.float32(2), scores["ccc"] / np.float32(3)
    assert halves == thirds, "equal per character in their own precision"
    assert float(scores["dd"]) / 2 < float(scores["ccc"]) / 3

    def run(folder: str, dies_after: int) -> list[Any]:
        class Narrow(scripted_session):
            answered = 0

            def loglikelihood(self, requests: Any, *, batch_size: Any = None) -> list[Any]:
                self.answered += 1
                if self.answered > dies_after:
                    raise RuntimeError("device lost")
                return [
                    LoglikelihoodOutput(scores[r.continuation.strip()], None, 1)  # pyright: ignore[reportArgumentType]
                    for r in requests
                ]

        rows = [{"q": "?", "choices": list(scores), "right": 1}] * 3
        suite = MultipleChoice(data=rows, prompt="q", choices="choices", target="right")
        result = evalution.run(
            engine=scripted(Narrow()), model="m", tests=[suite], output=tmp_path / folder
        )
        return [sample.to_dict() for sample in result.suites[0].samples]

    with pytest.raises(EngineRuntimeError, match="device lost"):
        run("in two", 4)
    assert run("in two", 9) == run("at once", 9)


def test_engines_own_kind_of_output_is_kept_as_the_contracts(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    class OwnOutput(GenerationOutput):
        pass

    class Own(scripted_session):
        def generate(self, requests: Any, *, batch_size: Any = None) -> list[Any]:
            return [OwnOutput(r.prompt, "4") for r in requests]

    result = evalution.run(
        engine=scripted(Own()), model="m", tests=[generation()], output=tmp_path / "run"
    )
    assert (result.failed, result.suites[0].metrics["exact_match"].value) == (0, 1.0)


@pytest.mark.parametrize("text", [None, "4\ud800"])
def test_bad_text_is_a_failed_row_in_the_folder_too(
    scripted_session: Any, tmp_path: Path, text: Any
) -> None:
    class Bad(scripted_session):
        def generate(self, requests: Any, *, batch_size: Any = None) -> list[Any]:
            return [GenerationOutput(r.prompt, text if "1" in r.prompt else "4") for r in requests]

    result = evalution.run(session=Bad(), tests=[generation()], output=tmp_path / "run")
    suite = result.suites[0]
    assert (suite.n, suite.failed) == (3, 1)
    assert "row 1: EngineRuntimeError: the engine gave" in str(suite.first_failure)
    assert [sample.index for sample in suite.samples] == [0, 1, 2]


def test_impossible_log_probability_is_no_perplexity(scripted_session: Any) -> None:
    class Absurd(scripted_session):
        def loglikelihood_rolling(self, requests: Any, *, batch_size: Any = None) -> list[Any]:
            return [RollingLoglikelihoodOutput(5.0, 1) for _ in requests]

    suite = evalution.run(session=Absurd(), tests=[Perplexity(data=ROWS, text="q")]).suites[0]
    assert (suite.failed, suite.metrics["word_perplexity"].value) == (3, None)
