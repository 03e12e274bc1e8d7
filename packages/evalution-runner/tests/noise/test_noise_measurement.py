from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import evalution
import mutants as _mutants  # noqa: F401 - registers the faults
from evalution.noise import NoiseResult, measure_noise, read_noise, write_noise
from evalution.noise.result import Condition
from evalution.noise.statistics import find_verdicts
from evalution.noise.table import list_headings, list_remarks, list_verdicts, make_noise_table
from evalution.progress import Progress
from evalution.runs.preflight import EngineAndModel
from evalution.suites.suite import SuiteDeclaration
from evalution_core import (
    BaseInferenceSession,
    Capability,
    CheckResult,
    ConfigurationError,
    EngineRuntimeError,
    Model,
)
from evalution_enginekit import TokenPrompt, TokenScore, TokenSpan
from mutants.toy import Toy, ToySession

ROWS = [{"text": f"{n} gardens", "choices": [" an", f" {n}"], "right": 0} for n in range(6)]
SHIFT = 0.25


class Shifted(ToySession):
    """Scores moved by what `find_shift` says of a span and those beside it."""

    def find_shift(self, span: TokenSpan, beside: int) -> float:
        raise NotImplementedError

    def check(self) -> CheckResult:
        return CheckResult("not checkable", "its scores are moved on purpose")

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        for scores in super()._score_tokens(spans):
            yield [
                self._move(score, self.find_shift(span, len(spans)))
                for span, score in zip(spans, scores, strict=True)
            ]

    def _move(self, score: TokenScore, shift: float) -> TokenScore:
        return replace(score, logprobs=[value - shift for value in score.logprobs])


class BatchDependent(Shifted):
    def find_shift(self, span: TokenSpan, beside: int) -> float:
        return SHIFT * (beside > 1)


class OrderDependent(Shifted):
    before = 0

    def find_shift(self, span: TokenSpan, beside: int) -> float:
        shift, self.before = SHIFT * self.before, sum(span.token_ids) % 7
        return shift


class StaleCache(Shifted):
    kept: frozenset[tuple[int, ...]] = frozenset()

    def find_shift(self, span: TokenSpan, beside: int) -> float:
        key = tuple(span.token_ids)
        shift = SHIFT * (key in self.kept)
        self.kept |= {key}
        return shift

    def _release_caches(self) -> None:
        self.kept = frozenset()


class Random(Shifted):
    chance = random.Random(3)

    def find_shift(self, span: TokenSpan, beside: int) -> float:
        return self.chance.gauss(0, SHIFT)


class RandomInBatch(Random):
    def find_shift(self, span: TokenSpan, beside: int) -> float:
        return super().find_shift(span, beside) if beside > 1 else 0.0


class NewEachTime(Shifted):
    sessions = count()

    def __init__(self, engine: Toy, model: Model):
        super().__init__(engine, model)
        self.number = next(self.sessions)

    def find_shift(self, span: TokenSpan, beside: int) -> float:
        return SHIFT * self.number


class SeedIgnoring(ToySession):
    """Draws by seeds of its own: the system's would give equal texts once in a hundred runs."""

    def __init__(self, engine: Toy, model: Model):
        super().__init__(engine, model)
        self.seeds = count()

    def _start(self, prompt: TokenPrompt) -> Any:
        return super()._start(replace(prompt, seed=next(self.seeds)))


class SeedFixed(ToySession):
    def _start(self, prompt: TokenPrompt) -> Any:
        return super()._start(replace(prompt, seed=7))


class Cloning(ToySession):
    def _start(self, prompt: TokenPrompt) -> Any:
        return super()._start(replace(prompt, seed=7 if prompt.seed is None else prompt.seed))


class Drawless(ToySession):
    def _start(self, prompt: TokenPrompt) -> Any:
        if prompt.do_sample:
            raise EngineRuntimeError("no draws")
        return super()._start(prompt)


@dataclass(slots=True)
class Planted(Toy):
    """The toy with a session of this file."""

    session: Callable[[Toy, Model], BaseInferenceSession] = ToySession

    def build(self, model: Model) -> BaseInferenceSession:
        return self.session(self, model)


@dataclass(slots=True)
class Mute(Toy):
    """The toy without log-probabilities of what it generates."""

    capabilities = Toy.capabilities - {Capability.LOGPROBS}


PROSE = evalution.Perplexity(data=ROWS, name="prose", text="text")
QUESTIONS = evalution.MultipleChoice(
    data=ROWS, name="questions", prompt="text", choices="choices", target="right"
)


def measure(
    session: Callable[[Toy, Model], BaseInferenceSession], suite: SuiteDeclaration = PROSE
) -> NoiseResult:
    subject = EngineAndModel(Planted(session=session), Model("toy"))
    return measure_noise(subject, [suite])


@pytest.mark.parametrize(
    ("session", "verdicts"),
    [
        (ToySession, ["deterministic"]),
        (BatchDependent, ["batch-variant"]),
        (RandomInBatch, ["batch-variant"]),
        (OrderDependent, ["order-variant"]),
        (StaleCache, ["cache-variant"]),
        (NewEachTime, ["restart-variant"]),
        (Random, ["run-to-run noise"]),
        (SeedIgnoring, ["deterministic", "seed ignored"]),
        (SeedFixed, ["deterministic", "seed ignored", "samples cloned"]),
        (Cloning, ["deterministic", "samples cloned"]),
    ],
)
def test_each_cause_of_noise_is_found_and_no_other(session: Any, verdicts: list[str]) -> None:
    assert measure(session).verdicts == verdicts


def test_result_is_shown_and_read_back(tmp_path: Path) -> None:
    found = measure(RandomInBatch, QUESTIONS)
    batch = next(each for each in found.conditions if each.name == "batch")
    assert batch.differences.flips > 0
    assert batch.differences.changed == 1.0
    assert batch.share == 1.0
    assert found.repeat_share == 0.0
    assert (found.rows, found.requests, found.questions) == (6, 12, 6)
    write_noise(found, tmp_path)
    assert read_noise(tmp_path) == found
    terminal = Console(width=120)
    with terminal.capture() as capture:
        terminal.print(make_noise_table(found, width=120))
    assert f"{batch.differences.flips}/6" in capture.get()
    assert list(list_headings(found))[1] == "asked:  12 requests of 6 rows in each pass"
    first, samples = list_verdicts(found)
    assert first.startswith("batch-variant: what is computed at the same time moves the numbers by")
    assert samples == "samples: 6 of 6 came again with the same seed, 0 with another; 0 of 6 " + (
        "prompts gave 4 equal samples"
    )


def test_texts_alone_are_not_called_numbers() -> None:
    """An engine without log-probabilities may move them unseen."""
    suite = evalution.Generation(data=ROWS, prompt="text", target="text", max_new_tokens=4)
    found = measure_noise(EngineAndModel(Mute(), Model("toy")), [suite])
    assert (found.verdicts, found.repeats.tokens) == (["deterministic"], 0)
    assert next(list_verdicts(found)) == (
        "deterministic: no condition changes a text; the engine gave no log-probabilities to "
        "compare."
    )
    table = make_noise_table(found, width=120)
    assert ["–"] * len(table.rows) == [*table.columns[2].cells] == [*table.columns[3].cells]
    assert measure(ToySession).repeats.tokens


def test_the_model_is_never_loaded_within_another_step_of_the_progress() -> None:
    steps: list[str] = []

    class Steps(Progress):
        def model_loading(self, model: str, engine: str) -> None:
            steps.append("loading")

        def model_ready(self, seconds: float) -> None:
            steps.append("ready")

        def suite_started(self, name: str, total: int) -> None:
            steps.append(f"{total} {name}")

        def sample_finished(self, done: int, failed: int, running: Any) -> None:
            steps.append("pass")

        def suite_finished(self) -> None:
            steps.append("finished")

    measure_noise(EngineAndModel(Planted(), Model("toy")), [PROSE], progress=Steps())
    assert steps == ["loading", "ready", "24 passes", *["pass"] * 24, "finished"]


def test_batches_can_not_be_judged_where_the_order_counts() -> None:
    found = measure(OrderDependent)
    parted = replace(found.conditions[0].differences, changed=1.0)
    conditions = [Condition(name, parted, 0.0) for name in ("order", "batch")]
    verdicts = find_verdicts(found.repeats, conditions, None)
    assert verdicts == ["order-variant"]
    (remark,) = list_remarks(replace(found, conditions=conditions, verdicts=verdicts))
    assert remark.startswith("batch: it changes the order of requests too")


def test_change_of_too_few_rows_is_left_undecided() -> None:
    found = measure(ToySession)
    one = replace(found.conditions[2].differences, changed=0.1, rows=1)
    conditions = [Condition("batch", one, 0.06)]
    verdicts = find_verdicts(found.repeats, conditions, None)
    assert verdicts == ["undecided"]
    shown = replace(found, conditions=conditions, verdicts=verdicts)
    assert list(list_remarks(shown)) == [
        "batch: 1 of 6 rows changed, too few to distinguish from chance; ask more rows (--limit)"
    ]
    assert next(list_verdicts(shown)).startswith("undecided: repeats are the same, and too few")


def test_passes_are_kept_where_samples_fail() -> None:
    found = measure(Drawless)
    assert (found.verdicts, found.sampling) == (["deterministic"], None)
    assert found.notes == ["samples weren't measured: no draws (4 in flight)"]


def test_rows_that_fail_are_left_out() -> None:
    long = {"text": "long", "choices": [" an", " an" * 100], "right": 0}
    some, every = (
        evalution.MultipleChoice(data=rows, prompt="text", choices="choices", target="right")
        for rows in ([*ROWS[:1], long], [long])
    )
    found = measure(ToySession, some)
    assert (found.rows, found.requests, found.verdicts) == (1, 2, ["deterministic"])
    assert found.notes[0].startswith("rows left out, as a request of them failed: 1; ")
    with pytest.raises(ConfigurationError, match=r"every row failed, so .* run the spec by"):
        measure(ToySession, every)
