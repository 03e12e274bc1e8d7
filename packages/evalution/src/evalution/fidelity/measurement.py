"""A measurement of fidelity: reference against candidate and control, suite by suite, resumable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from evalution.error_boundary import wrap_errors
from evalution.fidelity.comparisons import ComparisonJournal
from evalution.fidelity.lockstep import Side, WindowComparison, compare_windows, make_side
from evalution.fidelity.requests import FREE_STEPS, PreparedSuite, list_prompts, prepare_suite
from evalution.fidelity.result import FidelityResult
from evalution.fidelity.result import Side as SideRecord
from evalution.fidelity.summary import ArmRecord, list_worst, summarize
from evalution.parity.check import open_side, read_info
from evalution.progress import Progress
from evalution.runs.preflight import (
    EngineAndModel,
    check_engine,
    check_limit,
    check_model,
    parse_tests,
)
from evalution.runs.run_identity import declare_run, declare_suites, find_free_name
from evalution.runs.session import SessionHolder
from evalution.suites.language_modelling import Perplexity
from evalution.suites.suite import AnySuite, SuiteDeclaration
from evalution.user_input import parse_path, path_errors
from evalution_core import (
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    EngineUnavailableError,
    GenerationOutput,
    GenerationRequest,
    TextCodec,
    UnsupportedRequestError,
)
from evalution_core.builtins import PREFIX
from evalution_core.kinds import RequestKind
from evalution_core.options import numeric_options

LONGEST_WINDOW = 2048
"""Tokens of a window unless somebody asks for another number."""
TOP = 20
"""Most likely tokens of a position that are compared where a side has no whole rows."""
_PROBE = "The naïve fox paid 1,024 €\n\tin «été»: 日本語 🙂 <s></s>  x=y_z;"
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")


@dataclass(frozen=True, slots=True)
class FidelityOptions:
    """Options of a measurement; `window` and `top` as in its result.

    Without `output` nothing is kept, and a measurement that was ended begins again. `control` is
    looked for by itself unless one is given, or `seeks_control` is False.
    """

    window: int | None = None
    top: int = TOP
    limit: int | None = None
    output: Path | None = None
    control: EngineAndModel | None = None
    seeks_control: bool = True
    isolate: bool = False


def measure_fidelity(
    reference: EngineAndModel,
    candidate: EngineAndModel,
    tests: Sequence[SuiteDeclaration],
    options: FidelityOptions | None = None,
    *,
    progress: Progress | None = None,
) -> FidelityResult:
    """Hold a candidate's distributions against a reference's, on the requests of all suites.

    Both models are loaded at once and read in lockstep, a block of rows at a time. Then the
    control, which is the reference's model on the candidate's engine, takes the candidate's place.

    Raises:
        ConfigurationError: an option, a row or a model is wrong, the sides' tokenizers or
            vocabularies differ, or `output` holds a measurement of something else.
        UnsupportedRequestError: a side has neither rows nor most likely tokens, or takes no ids.
        EvalutionError: an engine failed.
    """
    options = options or FidelityOptions()
    suites = _check_suites(tests, options.limit)
    for lane in (reference, candidate, *([options.control] if options.control else [])):
        check_model(lane.model, check_engine(lane.engine))
    started, before = datetime.now(UTC).isoformat(timespec="seconds"), perf_counter()
    with ExitStack() as stack:
        journal = stack.enter_context(ComparisonJournal(options.output))
        measurement = _Measurement(reference, suites, options, progress or Progress(), journal)
        measurement.run(candidate)
    timings = {"started": started, "total_s": round(perf_counter() - before, 3)}
    return measurement.make_result(timings)


@dataclass(slots=True)
class _Arm:
    """A side with its declaration, and what was found of each suite."""

    lane: EngineAndModel
    engine: dict[str, Any] = field(default_factory=dict[str, Any])
    suites: dict[str, ArmRecord] = field(default_factory=dict[str, ArmRecord])

    @property
    def vocabulary(self) -> int:
        """The number of tokens of a row; 0 if no rows were compared."""
        widths = [
            comparison.vocabulary
            for record in self.suites.values()
            for comparison in record.windows
            if comparison.vocabulary is not None
        ]
        return next(iter(widths), 0)

    def to_record(self) -> SideRecord:
        return SideRecord(self.lane.model.to_dict(), self.engine, _count_bytes(self.lane))


class _Measurement:
    def __init__(
        self,
        reference: EngineAndModel,
        suites: Mapping[str, AnySuite],
        options: FidelityOptions,
        progress: Progress,
        journal: ComparisonJournal,
    ):
        self._reference = _Arm(reference)
        self._arms: dict[str, _Arm] = {}
        self._suites = suites
        self._options = options
        self._progress = progress
        self._journal = journal
        self._notes: list[str] = [] if journal.notice is None else [journal.notice]
        self._window = 0
        self._codec: TextCodec | None = None
        self._prepared: list[PreparedSuite] = []

    def run(self, candidate: EngineAndModel) -> None:
        """Measure the candidate, and then the control, while the reference stays loaded."""
        with self._open(self._reference) as reference:
            self._run_arm("candidate", _Arm(candidate), reference)
            control, reason = self._find_control(candidate)
            if control is None:
                self._notes += [reason] if reason else []
                return
            try:
                self._run_arm("control", _Arm(control), reference)
            except (ConfigurationError, EngineUnavailableError, UnsupportedRequestError) as error:
                if self._options.control is not None:
                    raise
                self._notes.append(f"no control: {error}")

    def make_result(self, timings: dict[str, Any]) -> FidelityResult:
        control = self._arms.get("control")
        candidate = self._arms["candidate"]
        found, overall = summarize(
            self._prepared,
            candidate.suites,
            None if control is None else control.suites,
        )
        return FidelityResult(
            reference=self._reference.to_record(),
            candidate=candidate.to_record(),
            control=None if control is None else control.to_record(),
            vocabulary=candidate.vocabulary,
            window=self._window,
            top=self._options.top if overall.candidate.divergence.is_lower_bound else None,
            limit=self._options.limit,
            notes=self._notes,
            suites=found,
            overall=overall,
            timings=timings,
        )

    # one arm

    def _open(self, arm: _Arm) -> Any:
        return open_side(arm.lane, self._progress, arm.engine, isolate=self._options.isolate)

    def _run_arm(self, name: str, arm: _Arm, reference: SessionHolder) -> None:
        with self._open(arm) as holder:
            self._check_sides(reference.session, holder.session)
            self._declare(name, arm)
            if not self._prepared:
                self._prepare(reference)
            sides = [make_side(each.session, self._options.top) for each in (reference, holder)]
            for prepared in self._prepared:
                suite = self._suites[prepared.name]
                for each in (reference, holder):
                    each.prepare(suite)
                windows = self._compare(name, prepared, *sides)
                arm.suites[prepared.name] = ArmRecord(
                    windows,
                    self._complete_freely("reference", prepared, reference.session),
                    self._complete_freely(name, prepared, holder.session),
                    list_worst(prepared, windows, self._codec),
                )
        self._arms[name] = arm

    def _check_sides(self, reference: BaseInferenceSession, side: BaseInferenceSession) -> None:
        """Check that both take the same ids of the same texts, and choose the window."""
        _check_tokenizers(reference, side)
        lengths = [read_info(session).max_model_len for session in (reference, side)]
        longest = min((length for length in lengths if length is not None), default=None)
        if not self._window:
            asked = self._options.window or min(LONGEST_WINDOW, longest or LONGEST_WINDOW)
            self._window = asked
        if longest is not None and self._window > longest:
            raise ConfigurationError(
                f"a window of {self._window} tokens is longer than max_model_len={longest} of one "
                "side; ask for a shorter --window, or set max_model_len in its spec"
            )

    def _declare(self, name: str, arm: _Arm) -> None:
        """Refuse a folder with another measurement; the journal keeps what this one is."""
        for section, each in (("reference", self._reference), (name, arm)):
            declared = declare_run(
                each.lane.engine, each.lane.model, self._options.limit, each.engine
            )
            identity = {"identity": each.engine["identity"], "window": self._window}
            self._journal.declare(section, {**declared, **identity, "top": self._options.top})
        self._journal.declare("suites", declare_suites([*self._suites.values()]))

    def _prepare(self, reference: SessionHolder) -> None:
        codec = reference.session.tokenizer
        if codec is None:
            raise UnsupportedRequestError(
                f"the reference's engine {type(self._reference.lane.engine).__name__} gives no "
                "tokenizer, so the ids of the texts aren't known; take an engine that encodes here"
            )
        for name, suite in self._suites.items():
            reference.prepare(suite)

            def complete(
                requests: Sequence[GenerationRequest], name: str = name
            ) -> Iterator[list[int]]:
                return iter(self._complete("reference", name, requests, reference.session))

            limit = self._options.limit
            self._prepared.append(prepare_suite(suite, name, codec, self._window, limit, complete))
        self._codec = codec

    def _compare(
        self, arm: str, suite: PreparedSuite, reference: Side, side: Side
    ) -> list[WindowComparison]:
        """Compare all windows of a suite but those that the journal knows."""
        windows = suite.windows
        found = [self._journal.find_window(arm, suite.name, window) for window in windows]
        missing = [at for at, known in enumerate(found) if known is None]
        done, failed = len(windows) - len(missing), list[str]()
        self._progress.suite_started(f"{arm}: {suite.name}", len(windows))
        self._progress.samples_cached(done)
        compared = compare_windows(reference, side, [windows[at] for at in missing])
        for at, comparison in zip(missing, compared, strict=True):
            self._journal.record_window(arm, suite.name, windows[at], comparison)
            found[at] = comparison
            failed += [comparison.failure] if comparison.failure else []
            done += 1
            self._progress.sample_finished(done, len(failed), None)
        self._progress.suite_finished()
        if failed:
            self._notes.append(
                f"{arm}: {suite.name}: windows that failed and are left out: {len(failed)} of "
                f"{len(windows)}; the first: {failed[0]}"
            )
        return [comparison for comparison in found if comparison is not None]

    def _complete_freely(
        self, label: str, suite: PreparedSuite, session: BaseInferenceSession
    ) -> list[list[int]] | None:
        """Return greedy completions of the first prompts; None where a session can't give them."""
        if not {Capability.GENERATE, Capability.TOKEN_IDS} <= read_info(session).capabilities:
            return None
        requests = [
            GenerationRequest(input_ids=prompt, max_new_tokens=FREE_STEPS)
            for prompt in list_prompts(suite, self._window)
        ]
        return self._complete(f"{label}, free", suite.name, requests, session)

    def _complete(
        self,
        label: str,
        suite: str,
        requests: Sequence[GenerationRequest],
        session: BaseInferenceSession,
    ) -> list[list[int]]:
        """Return the ids of completions in the order of their requests; of one that failed none."""
        prompts = [list(request.input_ids or ()) for request in requests]
        found = [self._journal.find_completion(label, suite, prompt) for prompt in prompts]
        missing = [(at, requests[at]) for at, known in enumerate(found) if known is None]
        with wrap_errors("completions"):
            for at, answer in RequestKind.GENERATION.open_stream(session, missing):
                if isinstance(answer, GenerationOutput):
                    found[at] = token_ids = list(answer.token_ids or ())
                    self._journal.record_completion(label, suite, prompts[at], token_ids)
        return [token_ids or [] for token_ids in found]

    def _find_control(self, candidate: EngineAndModel) -> tuple[EngineAndModel | None, str | None]:
        """Return the control, or the reason that there is none."""
        if self._options.control is not None or not self._options.seeks_control:
            return self._options.control, None
        reference = self._reference.lane
        if _has_same_model(reference, candidate) or _has_same_engine(reference, candidate):
            return None, None
        return EngineAndModel(candidate.engine, reference.model), None


def _has_same_model(left: EngineAndModel, right: EngineAndModel) -> bool:
    return replace(left.model, label=None) == replace(right.model, label=None)


def _has_same_engine(left: EngineAndModel, right: EngineAndModel) -> bool:
    kinds = {type(each.engine) for each in (left, right)}
    return len(kinds) == 1 and numeric_options(left.engine) == numeric_options(right.engine)


def _check_suites(tests: Sequence[SuiteDeclaration], limit: int | None) -> dict[str, AnySuite]:
    """Return suites by their names; raises what can be known before a model is loaded."""
    check_limit(limit)
    found: dict[str, AnySuite] = {}
    for suite in parse_tests(tests):
        suite.validate()
        suite.check_samples(limit)
        found[find_free_name(suite.title, found)] = suite
    return found


def _check_tokenizers(left: BaseInferenceSession, right: BaseInferenceSession) -> None:
    """Raise `ConfigurationError` where two sessions encode a text of many kinds differently."""
    found: list[tuple[list[int], tuple[int, ...]]] = []
    for session in (left, right):
        with wrap_errors("tokenizer"):
            codec = session.tokenizer
            if codec is not None:
                found.append((codec.encode(_PROBE), codec.leading_ids))
    if len(found) == 2 and found[0] != found[1]:
        raise ConfigurationError(
            "the two sides have different tokenizers, so they can't be compared position by "
            "position: fidelity holds two ways of serving one model against each other; check the "
            "two models, or set tokenizer_path"
        )


def _count_bytes(lane: EngineAndModel) -> int | None:
    """Return the size of the model's weights on disk; None where they aren't known to be here."""
    path = lane.model.path
    if path is None or path.startswith(PREFIX):
        return None
    with path_errors(path):
        place = parse_path(path)
        if place.is_file():
            return place.stat().st_size
        sizes = [file.stat().st_size for file in place.glob("*") if file.suffix in _WEIGHTS]
    return sum(sizes) or None


def read_text_suite(path: str) -> SuiteDeclaration:
    """Return a suite that scores the text of a file as a whole.

    Raises:
        ConfigurationError: the file isn't there, is empty, or no text in UTF-8.
    """
    file = parse_path(path)
    with path_errors(file):
        content = file.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is no text in UTF-8: {error}; convert it") from error
    if not text.strip():
        raise ConfigurationError(f"{file} is empty: there is nothing to compare")
    return Perplexity(name=file.stem, data=[{"text": text}], text="text")
