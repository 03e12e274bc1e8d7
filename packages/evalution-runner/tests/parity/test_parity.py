from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any

import pytest
from rich.console import Console

import evalution
import mutants as _mutants  # noqa: F401 - registers the faults
from evalution.parity import ParityResult, Tolerance, check_parity
from evalution.parity.result import summarize_differences
from evalution.parity.table import list_verdict, make_parity_table
from evalution.runs.preflight import EngineAndModel
from evalution_core import (
    BaseInferenceSession,
    Capability,
    EngineRuntimeError,
    Model,
    UnsupportedRequestError,
)
from evalution_enginekit.mock import Mock
from mutants.toy import Toy

ROWS = [
    {"question": f"the garden {n} is", "choices": [" an answer", " the", f" {n}"], "right": n % 3}
    for n in range(12)
]
REAL = [
    evalution.Generation(
        data="builtin:tiny/sums",
        prompt="Question: {question}\nAnswer:",
        target="answer",
        max_new_tokens=24,
        max_rows=8,
    ),
    evalution.MultipleChoice(
        data="builtin:tiny/choices",
        prompt="Question: {question}\nAnswer:",
        choices="choices",
        target="answer",
        max_rows=12,
    ),
    evalution.Perplexity(data="builtin:tiny/prose", text="text", max_rows=4),
]


def generation(**options: Any) -> evalution.Generation:
    known = {"name": "completions", "prompt": "question", "target": "question"}
    return evalution.Generation(data=ROWS, max_new_tokens=8, **{**known, **options})


def choices(**options: Any) -> evalution.MultipleChoice:
    known = {"name": "questions", "prompt": "question", "choices": "choices", "target": "right"}
    return evalution.MultipleChoice(data=ROWS, **{**known, **options})


def prose(**options: Any) -> evalution.Perplexity:
    return evalution.Perplexity(data=ROWS, name="prose", **{"text": "question", **options})


@dataclass(slots=True)
class Windowed(Toy):
    """The toy, or a mutant of it, whose streams of scores are windows of its list calls."""

    def build(self, model: Model) -> BaseInferenceSession:
        session: Any = Toy.build(self, model)
        plain = BaseInferenceSession.loglikelihood_continuous
        session.loglikelihood_continuous = MethodType(plain, session)
        return session


def make_subjects(fault: str = "", **options: Any) -> tuple[EngineAndModel, EngineAndModel]:
    model = Model("toy")
    return EngineAndModel(Windowed(), model), EngineAndModel(
        Windowed(fault=fault, **options), model
    )


@pytest.fixture(scope="module")
def result() -> ParityResult:
    """The reference engine in both of its precisions."""
    model = Model("builtin:tiny")
    left = EngineAndModel(evalution.engines.Reference(dtype="float64"), model)
    right = EngineAndModel(evalution.engines.Reference(dtype="float32"), model)
    return check_parity(left, right, REAL)


def test_two_precisions_of_a_real_model_agree(result: ParityResult) -> None:
    assert result.complaints == []
    assert result.is_within
    assert result.notes == [
        "left was computed in float64, right in float32: that alone moves scores"
    ]
    sums, questions, texts = result.suites
    assert (sums.texts, sums.divergences) == (8, 0)
    assert (questions.choices, questions.flips, questions.greedy) == (12, 0, 48)
    assert (texts.requests, texts.by_ids) == (4, 4)
    for suite in result.suites:
        assert suite.compared == suite.requests == suite.by_ids
        assert suite.tokens is not None
        assert 0.0 < suite.tokens.p50 < suite.tokens.max < 1e-4
        worst = suite.worst_tokens[0]
        assert worst.left is not None
        assert worst.right is not None
        assert abs(worst.left - worst.right) == suite.tokens.max


@pytest.mark.parametrize(("width", "is_wide"), [(50, False), (89, False), (90, True)])
def test_narrow_terminal_still_shows_which_suite_it_is(
    result: ParityResult, width: int, is_wide: bool
) -> None:
    terminal = Console(width=width)
    with terminal.capture() as capture:
        terminal.print(make_parity_table(result, width=width))
    shown = capture.get()
    assert "…" not in shown
    for text in ("sums", "choices", "prose", "max |Δ|", "flips", "texts", "0/8"):
        assert text in shown
    assert ("p99" in shown) == is_wide


def test_infinite_differences_are_shown_where_they_lie(result: ParityResult) -> None:
    tokens = summarize_differences([1e-6] * 15 + [math.inf] * 5)
    apart = replace(result, suites=[replace(result.suites[0], tokens=tokens)])
    columns = make_parity_table(apart, width=200).columns
    cells = {str(column.header): next(iter(column.cells)) for column in columns}
    assert [cells[name] for name in ("max |Δ|", "p99", "p50")] == ["∞", "∞", "1.0e-06"]


def test_scores_of_a_run_are_those_of_its_parity_check(result: ParityResult) -> None:
    """The ids are those that a run scores, and the points are its log-probabilities."""
    run = evalution.run(
        engine=evalution.engines.Reference(dtype="float64"), model="builtin:tiny", tests=REAL[2:]
    )
    total = sum(sample.extracted["logprob"] for sample in run.suites[0].samples)
    suite = result.suites[2]
    assert suite.tokens is not None
    assert len(suite.points) == suite.tokens.count
    assert sum(left for left, _ in suite.points) == pytest.approx(total, abs=1e-9)


def test_precisions_differ_under_a_narrow_tolerance() -> None:
    model = Model("builtin:tiny")
    left = EngineAndModel(evalution.engines.Reference(dtype="float64"), model)
    right = EngineAndModel(evalution.engines.Reference(dtype="float32"), model)
    found = check_parity(left, right, REAL[2:], tolerance=Tolerance(1e-9), limit=1)
    assert not found.is_within
    assert found.complaints[0].startswith("prose: a token's log-probability differs by ")
    same = check_parity(left, left, REAL[2:], tolerance=Tolerance(0.0), limit=1)
    assert same.is_within
    assert same.limit == 1


@pytest.mark.parametrize("suite", [generation(), choices(), prose()], ids=lambda s: s.title)
def test_engine_agrees_with_itself(suite: Any) -> None:
    found = check_parity(*make_subjects(), [suite], tolerance=Tolerance(0.0))
    assert found.complaints == []


@pytest.mark.parametrize(
    ("fault", "suite", "complaint"),
    [
        ("LoadsOtherWeights", choices(), "a token's log-probability differs by"),
        ("LoadsOtherWeights", prose(), "a token's log-probability differs by"),
        ("LoadsOtherWeights", generation(), "decisions that differ, near ties"),
        ("FirstTokenForFree", choices(), "a token's log-probability differs by"),
        ("SumsTheContextToo", choices(), "a sum differs by"),
        ("SwapsScores", choices(batch_size=2), "another number of tokens on each side"),
        ("PrependsBosToContextIds", choices(), "a token's log-probability differs by"),
        ("AlwaysGreedy", choices(), "decisions that differ, near ties"),
        (
            "CountsNoCutInScoring",
            choices(prompt="{question}" * 40),
            "requests cut at different places",
        ),
        ("RollsAfterEos", prose(), "a token's log-probability differs by"),
        ("ForgetsTheLastWindow", prose(text="{question}" * 20), "another number of tokens"),
        ("TakesTheFirstIdForBos", prose(), "another number of tokens on each side"),
        ("PrependsBosToIds", generation(), "decisions that differ, near ties"),
    ],
)
def test_planted_fault_is_found(fault: str, suite: Any, complaint: str) -> None:
    left, right = make_subjects(fault)
    found = check_parity(left, right, [suite])
    assert any(complaint in text for text in found.complaints), found.complaints


@dataclass(slots=True)
class Watched(Mock):
    """Notes when its model comes and goes; a dying one fails at its first text."""

    side: str = ""
    events: list[str] = field(default_factory=list[str])
    dies: bool = False

    def build(self, model: Model) -> Any:
        self.events.append(f"{self.side} built")
        session: Any = Mock.build(self, model)
        close = session.close

        def closed() -> None:
            self.events.append(f"{self.side} closed")
            close()

        def dying(*_: Any, **__: Any) -> Any:
            raise EngineRuntimeError("the runtime died")

        session.close = closed
        if self.dies:
            session.loglikelihood_rolling_continuous = dying
        return session


def test_left_model_is_gone_before_the_right_one_loads() -> None:
    events: list[str] = []
    sides = [
        EngineAndModel(Watched(side=side, events=events), Model("m")) for side in ("left", "right")
    ]
    check_parity(sides[0], sides[1], [prose(), choices()])
    assert events == ["left built", "left closed", "right built", "right closed"]


def test_runtime_that_dies_is_an_error_and_its_model_is_freed() -> None:
    events: list[str] = []
    dying = EngineAndModel(Watched(side="left", events=events, dies=True), Model("m"))
    with pytest.raises(EngineRuntimeError, match="the runtime died"):
        check_parity(dying, EngineAndModel(Mock(), Model("m")), [prose()])
    assert events == ["left built", "left closed"]


@dataclass(slots=True)
class Silent(Mock):
    """A session that keeps its tokenizer to itself."""

    def build(self, model: Model) -> Any:
        inner = Mock.build(self, model)

        class Hidden:
            def __getattr__(self, name: str) -> Any:
                return None if name == "tokenizer" else getattr(inner, name)

        return _registered(Hidden())


def _registered(hidden: Any) -> Any:
    BaseInferenceSession.register(type(hidden))
    return hidden


def test_right_session_gives_the_ids_where_the_left_gives_none() -> None:
    left, right = EngineAndModel(Silent(), Model("m")), EngineAndModel(Mock(), Model("m"))
    found = check_parity(left, right, [choices(), generation(), prose()])
    assert found.is_within
    assert found.notes == []
    assert [suite.by_ids for suite in found.suites] == [36, 12, 12]
    assert found.left["engine"]["name"].endswith("Silent")


def test_sides_without_tokenizer_are_asked_by_text_with_a_note() -> None:
    subject = EngineAndModel(Silent(), Model("m"))
    found = check_parity(subject, subject, [prose()])
    assert found.is_within
    assert found.suites[0].by_ids == 0
    assert found.notes == [
        "requests asked by text, which each engine encodes itself: 12; where the ids differ, so do "
        "the numbers"
    ]
    by_text = check_parity(*make_subjects(), [prose()], by_text=True)
    assert by_text.notes == found.notes


def test_texts_alone_are_named_where_a_side_gave_no_numbers(result: ParityResult) -> None:
    assert len([*list_verdict(result)]) == 1
    texts = replace(result.suites[0], tokens=None, sums=None)
    found = replace(result, suites=[texts, result.suites[1]])
    assert [*list_verdict(found)] == [
        "within the tolerance of 0.0001 per token",
        "only texts were compared, as a side gave no log-probabilities: sums",
    ]


def test_chat_is_rendered_by_each_engine() -> None:
    found = check_parity(*make_subjects(), [generation(apply_chat_template=True)])
    assert found.is_within
    assert found.suites[0].by_ids == 0
    assert found.notes[0].startswith("requests asked by text, which each engine encodes itself: 12")


def test_engine_that_takes_no_ids_is_refused_before_anything_is_loaded() -> None:
    @dataclass(slots=True)
    class TextOnly(Mock):
        capabilities = Mock.capabilities - {Capability.TOKEN_IDS}

        def build(self, model: Model) -> Any:
            raise AssertionError("nothing may be loaded")

    left, right = make_subjects()
    for pair in (
        (left, replace(right, engine=TextOnly())),
        (replace(left, engine=TextOnly()), right),
    ):
        with pytest.raises(UnsupportedRequestError) as caught:
            check_parity(*pair, [prose()])
        assert "engine TextOnly takes no token ids" in str(caught.value)
        assert "--text compares by text" in str(caught.value)


def test_windows_that_differ_are_reported() -> None:
    left, right = make_subjects(max_model_len=32)
    found = check_parity(left, right, [prose(text="{question}" * 20)])
    assert found.notes == [
        "max_model_len is 96 on the left and 32 on the right: long texts are cut at different "
        "places; set the same on both"
    ]
    assert not found.is_within


def test_what_an_engine_can_not_do_is_refused() -> None:
    @dataclass(slots=True)
    class Writer(Mock):
        capabilities = frozenset({Capability.GENERATE, Capability.TOKEN_IDS})

    with pytest.raises(UnsupportedRequestError, match="suite 'prose' needs rolling"):
        check_parity(
            EngineAndModel(Mock(), Model("m")), EngineAndModel(Writer(), Model("m")), [prose()]
        )


@pytest.mark.parametrize(
    ("scramble", "message"),
    [
        (lambda answers: list(answers)[:-1], "left 1 of 12 requests unanswered"),
        (lambda answers: [(("x", 1), a) for _, a in answers], "answered \\('x', 1\\), which was"),
        (lambda answers: [next(answers)] * 2, "not asked or is answered already"),
    ],
)
def test_session_that_loses_answers_is_an_error(
    scripted: Any, scripted_session: Any, scramble: Any, message: str
) -> None:
    class Numbered(scripted_session):
        capabilities = frozenset(Capability)

    subject = EngineAndModel(
        scripted(Numbered(lambda answers: iter(scramble(answers)))), Model("m")
    )
    with pytest.raises(EngineRuntimeError, match=message):
        check_parity(subject, subject, [generation()], by_text=True)


def test_rows_are_read_once_for_both_sides(write_rows: Any) -> None:
    data = write_rows(*ROWS[:3])

    @dataclass(slots=True)
    class Changing(Mock):
        def build(self, model: Model) -> Any:
            write_rows(*ROWS[:4])
            return Mock.build(self, model)

    suite = evalution.Perplexity(data=data, name="prose", text="question")
    found = check_parity(
        EngineAndModel(Mock(), Model("m")), EngineAndModel(Changing(), Model("m")), [suite]
    )
    assert found.is_within
    assert found.suites[0].requests == 3


def test_two_suites_of_one_name_keep_apart() -> None:
    found = check_parity(*make_subjects(), [prose(), prose()], limit=2)
    assert [suite.name for suite in found.suites] == ["prose", "prose-2"]
    assert [suite.requests for suite in found.suites] == [2, 2]
