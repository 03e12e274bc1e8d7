from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import evalution
from evalution.fidelity import measurement
from evalution.fidelity.comparisons import JOURNAL, ComparisonJournal
from evalution.fidelity.lockstep import SessionTops, WindowComparison, compare_windows
from evalution.fidelity.measurement import FidelityOptions, measure_fidelity
from evalution.fidelity.requests import Window
from evalution.fidelity.result import ChoiceFlips, FidelityResult, GreedyDivergence
from evalution.fidelity.sides import LiveSession
from evalution.fidelity.summary import ArmRecord, compare_completions
from evalution.fidelity.table import make_fidelity_table
from evalution.fidelity.wording import describe_result
from evalution.journal.database import JournalError
from evalution.journal.store import Journal
from evalution.progress import Progress
from evalution.rows.local import rows_path
from evalution.runs.preflight import EngineAndModel
from evalution.suites.tasks.truthfulqa import TruthfulQAMC2
from evalution_core import (
    BaseEngine,
    Capability,
    CheckResult,
    ConfigurationError,
    EngineRuntimeError,
    EvalutionError,
    LoglikelihoodOutput,
    Model,
    RequestFailure,
    UnsupportedRequestError,
    register_engine,
)
from evalution_core.builtins import builtin_path
from evalution_enginekit import TokenScore, TokenSpan, load_tokenizer
from evalution_enginekit.distributions import Rows, log_softmax_rows, score_by_rows
from evalution_enginekit.mock import Mock
from evalution_reference import Reference
from evalution_reference.engine import CAPABILITIES
from evalution_reference.llama import Llama
from evalution_reference.load import find_folder, load_checkpoint
from evalution_reference.options import ReferenceOptions
from evalution_reference.session import ReferenceSession


class ShownSuites(Progress):
    """The suites that were begun, and how many were closed."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.closed = 0

    def suite_started(self, name: str, total: int) -> None:
        self.names.append(name)

    def suite_finished(self) -> None:
        self.closed += 1


@register_engine("Drifting")
@dataclass(slots=True)
class Drifting(ReferenceOptions, BaseEngine):
    """Rows with `noise` in them, twice as much for a model in a folder named `quantised`.

    A window shorter than `shortest` fails, and one after `ends_after` others is interrupted as by
    Ctrl-C. `trims` tokens are left out of rows, and a `mute` one generates nothing; a folder named
    `unloadable` is refused, one named `large` doesn't fit, and of one named `failing` all windows
    fail.
    """

    capabilities = CAPABILITIES

    noise: float = 0.0
    shortest: int = 0
    ends_after: int | None = None
    trims: int = 0
    has_rows: bool = True
    mute: bool = False

    def describe_runtime(self) -> dict[str, Any]:
        return {}

    def build(self, model: Model) -> ReferenceSession:
        if str(model.path).endswith("unloadable"):
            raise ConfigurationError("Drifting can't load what is unloadable")
        if str(model.path).endswith("large"):
            raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB")
        folder = find_folder(model)
        config, weights = load_checkpoint(folder)
        llama = Llama(config, weights, "float64")
        lacking = set() if self.has_rows else {Capability.DISTRIBUTIONS}
        tokenizer = load_tokenizer(model, folder)
        return _Session(self, CAPABILITIES - lacking, model, folder, llama, tokenizer)


class _Session(ReferenceSession):
    def __init__(self, engine: Drifting, capabilities: frozenset[Capability], *rest: Any):
        super().__init__(engine, capabilities, *rest)
        self._drift = engine
        self._read = 0

    def _self_check(self) -> CheckResult:
        return CheckResult("not checkable", "its scores drift on purpose")

    def generate_continuous(self, requests: Any, **options: Any) -> Any:
        if self._drift.mute:
            failure = RequestFailure(EngineRuntimeError("it is mute"), {})
            return ((key, failure) for key, _ in requests)
        return super().generate_continuous(requests, **options)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        return score_by_rows(self._compute_rows, spans)

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        engine = self._drift
        noise = engine.noise * (2 if str(self._model.path).endswith("quantised") else 1)
        for span in spans:
            if self._read == engine.ends_after:
                raise KeyboardInterrupt
            self._read += 1
            if len(span.token_ids) < engine.shortest or str(self._model.path).endswith("failing"):
                raise ValueError("this window fails")
            generator = np.random.default_rng(list(span.token_ids))
            for block in super()._compute_rows([span]):
                rows = block + noise * generator.normal(size=block.shape)
                yield log_softmax_rows(rows[:, : rows.shape[1] - engine.trims])


TINY = Model("builtin:tiny")
EXACT = EngineAndModel(Reference(dtype="float64"), TINY)
SUMS = evalution.Generation(
    data="builtin:tiny/sums", prompt="{question}", target="answer", max_new_tokens=8, max_rows=6
)
CHOICES = evalution.MultipleChoice(
    data="builtin:tiny/choices",
    prompt="Question: {question}\nAnswer:",
    choices="choices",
    target="answer",
    max_rows=12,
)
PROSE = evalution.Perplexity(data="builtin:tiny/prose", text="text", max_rows=6)


def drift(model: Model = TINY, **options: Any) -> EngineAndModel:
    return EngineAndModel(Drifting(**options), model)


def measure(candidate: EngineAndModel, *tests: Any, **options: Any) -> FidelityResult:
    chosen = tests or (PROSE,)
    return measure_fidelity(EXACT, candidate, chosen, FidelityOptions(window=64, **options))


@pytest.fixture
def other(tmp_path: Path) -> Callable[[str], Model]:
    """The same model under another path."""

    def link(name: str) -> Model:
        path = tmp_path / "models" / name
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(builtin_path("builtin:tiny", "safetensors"))
        return Model(str(path))

    return link


def test_same_engine_twice_is_exactly_zero_and_remarked() -> None:
    found = measure(EXACT, SUMS, CHOICES, PROSE)
    for suite in [*found.suites, found.overall]:
        divergence = suite.candidate.divergence
        assert divergence.kl.value == divergence.maximum == divergence.rms_dp == 0
        assert divergence.same_top.value == divergence.top5_overlap == 1
        assert suite.candidate.worst == []
    assert [suite.kind for suite in found.suites] == ["generation", "loglikelihood", "rolling"]
    assert found.vocabulary == 576
    assert any("exactly zero" in line for line in describe_result(found))


def test_float32_is_nearly_the_float64_reference() -> None:
    found = measure(EngineAndModel(Reference(dtype="float32"), TINY), SUMS, CHOICES, PROSE)
    assert 0 < found.overall.candidate.divergence.kl.value < 1e-9
    choices = found.suites[1].candidate
    assert choices.flips is not None
    assert (choices.flips.questions, choices.flips.changed) == (12, 0)
    assert choices.greedy is not None
    assert (choices.greedy.prompts, choices.greedy.same) == (12, 12)


def test_drift_shows_in_every_figure() -> None:
    found = measure(drift(noise=3.0), CHOICES, PROSE)
    for suite in found.suites:
        arm = suite.candidate
        assert arm.divergence.kl.low is not None
        assert 0.1 < arm.divergence.kl.low < arm.divergence.kl.value < arm.divergence.maximum
        assert arm.divergence.log_ppl_ratio.value > 0
        assert arm.divergence.same_top.value < 1
        assert sum(each.positions for each in arm.histogram) == arm.divergence.positions
        assert [worst.kl for worst in arm.worst] == sorted((w.kl for w in arm.worst), reverse=True)
        assert arm.worst[0].kl == pytest.approx(arm.divergence.maximum)
        assert len(arm.worst[0].top) == len(arm.worst[0].reference_top) == 5
    flips = found.suites[0].candidate.flips
    assert flips is not None
    assert flips.changed >= flips.right_to_wrong > 0
    assert found.overall.candidate.flips == flips
    completions = [suite.candidate.greedy for suite in found.suites]
    assert found.overall.candidate.greedy is not None
    prompts = found.overall.candidate.greedy.prompts
    assert prompts == sum(greedy.prompts for greedy in completions if greedy) > 12


def test_rows_of_a_group_are_one_document(tmp_path: Path) -> None:
    lines = rows_path("builtin:tiny/prose").read_text().splitlines()[:6]
    rows = [json.loads(row) | {"story": at % 3, "line": at} for at, row in enumerate(lines)]
    path = tmp_path / "prose.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    grouped, single = (
        evalution.Perplexity(data=str(path), text="text", group=group, name=group)
        for group in ("story", "line")
    )
    found = measure(drift(noise=1e-2), grouped, single, PROSE)
    story, line, ungrouped = (suite.candidate.divergence.kl for suite in found.suites)
    assert [suite.documents for suite in found.suites] == [3, 6, 6]
    assert found.overall.documents == 15
    assert line == ungrouped
    assert story.value == ungrouped.value
    assert story.low != ungrouped.low


def test_control_is_found_and_takes_the_engines_share_off(other: Callable[[str], Model]) -> None:
    found = measure(drift(other("quantised"), noise=0.2))
    assert found.control is not None
    assert found.control.model["path"] == TINY.path
    whole = found.overall
    assert whole.control is not None
    assert whole.contrast is not None
    floor, cost = whole.control.divergence.kl.value, whole.contrast.value
    assert cost == pytest.approx(whole.candidate.divergence.kl.value - floor)
    assert whole.contrast.low is not None
    assert 0 < whole.contrast.low < cost
    assert cost / floor == pytest.approx(3, rel=0.2)  # twice the noise, four times the divergence


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unloadable", "Drifting can't load what is unloadable"),
        ("large", "engine Drifting could not load .*large: RuntimeError: CUDA out of memory.*"),
        ("failing", "control: nothing of suite 'prose' could be compared: .*this window fails"),
    ],
)
def test_control_that_fails_is_a_note(
    other: Callable[[str], Model], name: str, reason: str
) -> None:
    reference = EngineAndModel(Reference(), other(name))
    options = FidelityOptions(window=64)
    found = measure_fidelity(reference, drift(noise=0.1), [PROSE], options)
    assert found.control is None
    assert re.fullmatch(f"no control: {reason}", found.notes[-1])
    assert "can't be separated" in describe_result(found)[0]
    with pytest.raises(EvalutionError, match=reason):
        measure(drift(noise=0.1), control=drift(reference.model))


@pytest.mark.parametrize("error", [KeyboardInterrupt, JournalError("the disk is full")])
def test_interruption_and_a_full_disk_end_the_measurement_of_a_control(
    other: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    record = ComparisonJournal.record_window

    def fail(journal: ComparisonJournal, arm: str, *rest: Any) -> None:
        if arm == "control":
            raise error
        record(journal, arm, *rest)

    monkeypatch.setattr(ComparisonJournal, "record_window", fail)
    with pytest.raises(error if isinstance(error, type) else JournalError):
        measure(drift(other("quantised"), noise=0.1))


def test_progress_of_a_control_that_fails_is_closed(
    other: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ShownSuites()

    def fail(*sides: Any) -> Iterator[WindowComparison]:
        if (shown.names or [""])[-1].startswith("control"):
            raise EngineRuntimeError("the rows of window 1 are incomplete")
        return compare_windows(*sides)

    monkeypatch.setattr(measurement, "compare_windows", fail)
    candidate, options = drift(other("quantised")), FidelityOptions(window=64, limit=2)
    found = measure_fidelity(EXACT, candidate, [PROSE], options, progress=shown)
    assert found.notes[-1] == "no control: the rows of window 1 are incomplete"
    assert (shown.names, shown.closed) == (["candidate: prose", "control: prose"], 2)


def test_live_sessions_give_the_same_and_stay_open(other: Callable[[str], Model]) -> None:
    seen: list[int] = []
    candidate = drift(other("quantised"), noise=0.01)
    expected = measure(candidate, seeks_control=False)
    with (
        EXACT.engine.build(TINY) as reference,
        candidate.engine.build(candidate.model) as session,
    ):
        found = measure_fidelity(
            LiveSession(reference),
            LiveSession(session, candidate.model, candidate.engine),
            [PROSE],
            FidelityOptions(
                window=64, observe=lambda window, _: seen.append(len(window.scored_ids))
            ),
        )
        assert reference.tokenizer is not None, "it is still open"
    assert found.overall == expected.overall
    assert found.candidate.engine["name"] == "Drifting"
    assert found.reference.engine["session"].endswith(":ReferenceSession")
    assert sum(seen) == found.overall.candidate.divergence.positions


@pytest.mark.parametrize("is_reference", [True, False])
def test_live_session_has_no_control_and_keeps_nothing(is_reference: bool, tmp_path: Path) -> None:
    subject = drift(noise=0.01)
    with subject.engine.build(TINY) as session:
        live = LiveSession(session, Model(str(tmp_path)))
        reference, candidate = (live, EXACT) if is_reference else (EXACT, live)
        found = measure_fidelity(reference, candidate, [PROSE], FidelityOptions(window=64, limit=2))
        assert (found.control, found.notes) == (None, [])
        with pytest.raises(ConfigurationError, match="live session's weights may change, so what"):
            measure_fidelity(reference, candidate, [PROSE], FidelityOptions(output=tmp_path))


def test_side_without_rows_gives_a_lower_bound() -> None:
    exact = measure(drift(noise=0.5), CHOICES, PROSE)
    bound = measure(drift(noise=0.5, has_rows=False), CHOICES, PROSE, top=10)
    assert bound.top == 10
    table = make_fidelity_table(bound, width=150)
    for name in ("KL in nats", "median", "p99"):
        [column] = [column for column in table.columns if column.header == name]
        assert all(str(cell).startswith("≥ ") for cell in column.cells)
    for whole, part in zip(exact.suites, bound.suites, strict=True):
        known, least = whole.candidate.divergence, part.candidate.divergence
        assert least.is_lower_bound
        assert 0.5 < least.covered < 1
        assert 0 < least.kl.value < known.kl.value
        assert least.log_ppl_ratio.value == pytest.approx(known.log_ppl_ratio.value, abs=1e-5)


def test_killed_measurement_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = measure(drift(noise=0.3), CHOICES, PROSE)
    read: list[int] = []
    for _ in range(20):
        candidate = drift(noise=0.3, ends_after=15)
        try:
            found = measure(candidate, CHOICES, PROSE, output=tmp_path)
            break
        except KeyboardInterrupt:
            read.append(1)
    else:
        pytest.fail("it never came to its end")
    assert len(read) >= 2
    # The self check of a session that batches has other last digits each time.
    sides = {"reference": whole.reference, "candidate": whole.candidate}
    assert replace(found, timings={}, **sides) == replace(whole, timings={})


def test_folder_of_another_measurement_is_refused(tmp_path: Path) -> None:
    measure(drift(noise=0.3), output=tmp_path)
    with pytest.raises(ConfigurationError, match=r"candidate\.engine\.noise was 0\.3, now 0\.4"):
        measure(drift(noise=0.4), output=tmp_path)


@pytest.mark.parametrize(("option", "message"), [("top", "top was 2, now 50")])
def test_folder_of_other_options_is_refused(tmp_path: Path, option: str, message: str) -> None:
    rowless = drift(noise=0.3, has_rows=False)
    measure(rowless, output=tmp_path, **{option: 2})
    with pytest.raises(ConfigurationError, match=message):
        measure(rowless, output=tmp_path, **{option: 50})


def test_folder_of_another_arithmetic_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(drift(noise=0.3), output=tmp_path)
    found = {"device": "cpu", "dtype": "bfloat16"}  # as of an option that is left to the engine
    monkeypatch.setattr(_Session, "describe_execution", lambda _: found)
    with pytest.raises(ConfigurationError, match=r"candidate\.dtype was 'float64', now 'bfloat16'"):
        measure(drift(noise=0.3), output=tmp_path)


@pytest.mark.parametrize("lacks", [("device", "dtype", "step"), ("device", "dtype"), ("step",)])
def test_folder_of_an_older_version_goes_on(
    tmp_path: Path, lacks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Window] = []

    def compare(reference: Any, side: Any, windows: Sequence[Window]) -> Any:
        asked.extend(windows)
        return compare_windows(reference, side, windows)

    found = measure(drift(noise=0.3), output=tmp_path)
    with closing(Journal.open(tmp_path / JOURNAL)) as journal:
        for section in ("reference", "candidate"):
            declared = journal.read_declared(section)[section]
            assert set(lacks) < set(declared)
            older = {name: value for name, value in declared.items() if name not in lacks}
            journal.declare({section: older})
    monkeypatch.setattr(measurement, "compare_windows", compare)
    assert measure(drift(noise=0.3), output=tmp_path).overall == found.overall
    assert asked == []


def test_any_of_several_right_choices_is_right() -> None:
    """With nothing but right choices, another answer is no flip; with one, some are."""
    flips: list[ChoiceFlips | None] = []
    for labels in ([1, 1, 1], [1, 0, 0]):
        targets = {"choices": ["aa", "bb", "cc"], "labels": labels}
        rows = [{"question": f"What is {at}?", "mc2_targets": targets} for at in range(40)]
        left, right = (EngineAndModel(Mock(max_model_len=4000), Model(name)) for name in "ab")
        found = measure_fidelity(left, right, [TruthfulQAMC2(data=rows)])
        flips.append(found.suites[0].candidate.flips)
    several, single = flips
    assert several is not None
    assert single is not None
    assert several.changed == single.changed > 0
    assert (several.right_to_wrong, several.wrong_to_right) == (0, 0)
    assert single.right_to_wrong + single.wrong_to_right > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": -5}, "window must be at least 2, got -5"),
        ({"window": 1}, "window must be at least 2, got 1"),
        ({"window": 64.0}, "window must be an int, got 64.0"),
        ({"top": 0}, "top must be at least 1, got 0"),
        ({"top": None}, "top must be an int, got None"),
    ],
)
def test_counts_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        FidelityOptions(**options)
    assert str(error.value) == message


@pytest.mark.parametrize("length", [2, 16, 33])
def test_free_completions_fit_into_a_short_window(length: int) -> None:
    left, right = (EngineAndModel(Mock(max_model_len=length), Model(name)) for name in "ab")
    text = evalution.Perplexity(data=[{"text": "hello world " * 10}], text="text")
    found = measure_fidelity(left, right, [text])
    greedy = found.overall.candidate.greedy
    assert found.notes == []
    assert greedy is not None
    assert greedy.prompts > 0


def test_one_question_is_one_document_with_its_answer() -> None:
    found = measure(drift(noise=0.3), replace(CHOICES, max_rows=1))
    flips = found.overall.candidate.flips
    assert flips is not None
    assert (found.overall.documents, flips.questions) == (1, 1)


def test_completions_part_also_where_a_side_ends_at_once() -> None:
    record = ArmRecord([], [[1, 2], None, [], [3], []], [[1, 2], [9], [9, 9], None, []])
    assert compare_completions(record) == GreedyDivergence(prompts=3, same=2, first_steps=[1])


def test_completion_that_fails_is_left_out_and_counted() -> None:
    found = measure(drift(noise=0.3), replace(PROSE, max_rows=3))
    whole = found.overall.candidate.greedy
    failing = measure(drift(noise=0.3, mute=True), replace(PROSE, max_rows=3))
    assert whole is not None
    assert whole.prompts == 3
    assert failing.overall.candidate.greedy == GreedyDivergence(0, 0, [])
    (note,) = failing.notes
    assert "candidate, free: prose: completions that failed and are left out: 3" in note


def test_generation_that_the_reference_fails_counts_as_a_failed_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generate = ReferenceSession.generate_continuous

    def fail_first(self: Any, requests: Any, **options: Any) -> Any:
        for key, answer in generate(self, requests, **options):
            yield key, RequestFailure(EngineRuntimeError("out of memory")) if key == 0 else answer

    monkeypatch.setattr(ReferenceSession, "generate_continuous", fail_first)
    sums = evalution.Generation(
        data="builtin:tiny/sums", prompt="{question}", target="answer", max_rows=3, max_new_tokens=4
    )
    found = measure(drift(noise=0.3), sums)
    assert (found.overall.documents, found.overall.candidate.divergence.failed) == (2, 1)


def test_completion_without_ids_is_not_taken_for_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generate = ReferenceSession.generate_continuous

    def without_ids(self: Any, requests: Any, **options: Any) -> Any:
        for key, answer in generate(self, requests, **options):
            yield key, replace(answer, token_ids=None)

    monkeypatch.setattr(ReferenceSession, "generate_continuous", without_ids)
    found = measure(drift(), replace(PROSE, max_rows=3))
    assert found.overall.candidate.greedy == GreedyDivergence(0, 0, [])
    assert any("the first: the session gave no token ids" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "top"),
    [(math.nan, {1: -1.0}), (-1.0, {1: math.nan}), (-1.0, {1: -0.5, 2: -0.5})],
)
def test_likeliest_tokens_that_are_no_probabilities_fail_their_window(
    text: float, top: dict[int, float]
) -> None:
    answer = LoglikelihoodOutput(text, True, 1, token_logprobs=[text], top_logprobs=[top])
    session: Any = SimpleNamespace(
        loglikelihood_continuous=lambda requests, **_: ((key, answer) for key, _ in requests)
    )
    ((_, found),) = SessionTops(session, 5).read([Window([1, 2], 1)])
    assert isinstance(found, RequestFailure)
    assert "NaN, or those of a position belong to more than 1 together" in str(found.error)


def test_window_that_fails_is_left_out_with_its_reason() -> None:
    found = measure(drift(noise=0.3, shortest=40), PROSE)
    assert found.overall.candidate.divergence.positions > 0
    assert found.overall.candidate.divergence.failed > 0
    (note,) = found.notes
    assert "windows that failed and are left out" in note
    assert "this window fails" in note


def test_all_windows_failing_ends_the_measurement() -> None:
    with pytest.raises(EvalutionError, match="this window fails"):
        measure(drift(shortest=1000), PROSE)


@pytest.mark.parametrize(
    ("candidate", "options", "message"),
    [
        (drift(trims=3), {}, "vocabulary of 576 tokens and the other side one of 573"),
        (drift(max_model_len=32), {}, "longer than max_model_len=32"),
        (EngineAndModel(Mock(), Model("any")), {}, "different tokenizers"),
    ],
)
def test_sides_that_cannot_be_compared_are_refused(
    candidate: EngineAndModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        measure(candidate, **options)


def test_missing_numpy_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    for name in ("measure_fidelity", "record_reference", "FidelityOptions"):
        monkeypatch.delitem(vars(evalution.fidelity), name, raising=False)
        with pytest.raises(ConfigurationError) as error:
            getattr(evalution.fidelity, name)
        assert str(error.value) == (
            "measuring fidelity needs numpy, which isn't installed; "
            "pip install 'evalution-runner[fidelity]'"
        )
    assert evalution.fidelity.read_fidelity


def test_requests_in_messages_are_refused() -> None:
    chat = replace(CHOICES, apply_chat_template=True)
    with pytest.raises(UnsupportedRequestError, match="asks in messages"):
        measure(EXACT, chat)
