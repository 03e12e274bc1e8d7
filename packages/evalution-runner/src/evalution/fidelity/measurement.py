"""A measurement of fidelity: reference against candidate and control, suite by suite, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from evalution.error_boundary import wrap_errors
from evalution.fidelity.comparisons import ComparisonJournal
from evalution.fidelity.lockstep import RowSource, WindowComparison, compare_windows
from evalution.fidelity.requests import (
    PreparedSuite,
    Window,
    count_free_steps,
    list_prompts,
    prepare_suite,
)
from evalution.fidelity.result import FidelityResult, Side
from evalution.fidelity.sides import (
    LiveSession,
    LiveSide,
    OpenSide,
    Subject,
    open_live,
    open_recorded,
)
from evalution.fidelity.summary import ArmRecord, list_worst, require_figures, summarize
from evalution.journal.database import JournalError
from evalution.parity.check import check_suites, read_info
from evalution.progress import Progress
from evalution.runs.preflight import EngineAndModel, check_engine, check_model
from evalution.runs.run_identity import declare_suites
from evalution.suites.language_modelling import Perplexity
from evalution.suites.suite import AnySuite, SuiteDeclaration
from evalution.user_input import check_count, parse_path, path_errors
from evalution_core import (
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    EvalutionError,
    GenerationRequest,
    RequestFailure,
    TextCodec,
    UnsupportedRequestError,
)
from evalution_core.kinds import RequestKind

LONGEST_WINDOW = 2048
"""Tokens of a window unless somebody asks for another number."""
TOP = 20
"""Most likely tokens of a position that are compared where a side has no whole rows."""
_ROUNDED = 1e-6
"""Nats of KL up to which the rounding of recorded rows counts."""


@dataclass(frozen=True, slots=True)
class FidelityOptions:
    """Options of a measurement; `window` and `top` as in its result.

    Without `output` nothing is kept, and a measurement that was ended begins again. `control` is
    looked for by itself unless one is given, or `seeks_control` is False. `observe` gets each
    window of the candidate with its comparison.
    """

    window: int | None = None
    top: int = TOP
    limit: int | None = None
    output: Path | None = None
    control: EngineAndModel | None = None
    seeks_control: bool = True
    isolate: bool = False
    observe: Callable[[Window, WindowComparison], None] | None = None

    def __post_init__(self) -> None:
        check_count("top", self.top, least=1)
        if self.window is not None:
            check_count("window", self.window, least=2)


def measure_fidelity(
    reference: Subject | Path,
    candidate: Subject,
    tests: Sequence[SuiteDeclaration],
    options: FidelityOptions | None = None,
    *,
    progress: Progress | None = None,
) -> FidelityResult:
    """Hold a candidate's distributions against a reference's, on the requests of all suites.

    Both models are loaded at once and read in lockstep, a block of rows at a time. Then the
    control, which is the reference's model on the candidate's engine, takes the candidate's place.
    A reference that is a path is a file of `record_reference`. A `LiveSession` is left open.

    Raises:
        ConfigurationError: an option, a row or a model is wrong, the sides' tokenizers or
            vocabularies differ, or `output` holds a measurement of something else.
        UnsupportedRequestError: a side has neither rows nor most likely tokens, or takes no ids.
        EvalutionError: an engine failed.
    """
    options, progress = options or FidelityOptions(), progress or Progress()
    suites = {name: suite for name, suite, _ in check_suites(tests, options.limit)}
    subjects = [reference, candidate, *([options.control] if options.control else [])]
    for subject in subjects:
        if isinstance(subject, EngineAndModel):
            check_model(subject.model, check_engine(subject.engine))
        elif isinstance(subject, LiveSession):
            options = _check_live(options)
    started, before = datetime.now(UTC).isoformat(timespec="seconds"), perf_counter()
    opening = (
        open_recorded(reference)
        if isinstance(reference, Path)
        else open_live(reference, progress, isolate=options.isolate)
    )
    with closing(ComparisonJournal(options.output)) as journal, opening as side:
        measurement = _Measurement(side, suites, options, progress, journal)
        measurement.run(candidate)
        timings = {"started": started, "total_s": round(perf_counter() - before, 3)}
        return measurement.make_result(timings)


def _check_live(options: FidelityOptions) -> FidelityOptions:
    """Return the options of a measurement of a live session, whose weights can't be loaded again.

    Raises:
        ConfigurationError: its figures are to be kept.
    """
    if options.output is not None:
        raise ConfigurationError(
            "a live session's weights may change, so what was compared can't be taken up again: "
            "leave out output, and write the result"
        )
    return replace(options, seeks_control=False)


@dataclass(slots=True)
class _Arm:
    """A side's description, and what was found of each suite."""

    side: Side
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


class _Measurement:
    def __init__(
        self,
        reference: OpenSide,
        suites: Mapping[str, AnySuite],
        options: FidelityOptions,
        progress: Progress,
        journal: ComparisonJournal,
    ):
        self._reference = reference
        self._arms: dict[str, _Arm] = {}
        self._suites = suites
        self._options = options
        self._progress = progress
        self._journal = journal
        self._notes: list[str] = [] if journal.notice is None else [journal.notice]
        self._window = 0
        self._prepared: list[PreparedSuite] = []

    def run(self, candidate: Subject) -> None:
        """Measure the candidate, and then the control, while the reference stays loaded.

        A control that nobody named, and that fails, is left out with a note.
        """
        self._run_arm("candidate", candidate)
        given = self._options.control
        control = given or self._find_control(candidate)
        if control is None:
            return
        try:
            self._run_arm("control", control)
        except EvalutionError as error:
            if given is not None or isinstance(error, JournalError):
                raise
            self._arms.pop("control", None)
            self._notes.append(f"no control: {error}")

    def make_result(self, timings: dict[str, Any]) -> FidelityResult:
        control = self._arms.get("control")
        candidate = self._arms["candidate"]
        found, overall = summarize(
            self._prepared,
            candidate.suites,
            None if control is None else control.suites,
        )
        nearness = overall.candidate.divergence.kl.value
        if self._reference.session is None and self._reference.top is None and nearness < _ROUNDED:
            self._notes.append(
                "the reference was recorded in float16, whose rounding alone makes a KL of about "
                "1e-7 nats; for differences as small as that, measure against its spec"
            )
        top = self._reference.top or self._options.top
        return FidelityResult(
            reference=self._reference.describe(),
            candidate=candidate.side,
            control=None if control is None else control.side,
            vocabulary=candidate.vocabulary,
            window=self._window,
            top=top if overall.candidate.divergence.is_lower_bound else None,
            limit=self._options.limit,
            notes=self._notes,
            suites=found,
            overall=overall,
            timings=timings,
        )

    def _find_control(self, candidate: Subject) -> EngineAndModel | None:
        """Return the reference's model on the candidate's engine, where that is neither of both."""
        if not self._options.seeks_control or isinstance(candidate, LiveSession):
            return None
        if self._reference.has_engine(candidate):
            return None
        model = replace(self._reference.model, label=None)
        if model == replace(candidate.model, label=None):
            return None
        return EngineAndModel(candidate.engine, model)

    # one arm

    def _run_arm(self, name: str, subject: Subject) -> None:
        with open_live(subject, self._progress, isolate=self._options.isolate) as side:
            self._check_sides(side)
            for section, each in (("reference", self._reference), (name, side)):
                shared = {name: getattr(self._options, name) for name in ("limit", "top")}
                shared["window"] = self._window
                self._journal.declare(section, {**each.declare(), **shared})
            self._journal.declare("suites", declare_suites([*self._suites.values()]))
            codec = self._reference.codec or side.codec
            if not self._prepared:
                self._prepare(codec)
            suites = {suite.name: self._run_suite(name, suite, side) for suite in self._prepared}
            for suite in self._prepared:
                worst = list_worst(suite, suites[suite.name].windows, codec)
                suites[suite.name] = replace(suites[suite.name], worst=worst)
            self._arms[name] = _Arm(side.describe(), suites)

    def _run_suite(self, name: str, suite: PreparedSuite, side: LiveSide) -> ArmRecord:
        sources: list[RowSource] = []
        for each in (self._reference, side):
            each.prepare(self._suites[suite.name])
            sources.append(each.open_rows(self._options.top))
        windows = self._compare(name, suite, *sources)
        require_figures(suite.name, name, windows)
        return ArmRecord(
            windows,
            self._complete_freely("reference", suite, self._reference.session),
            self._complete_freely(name, suite, side.session),
        )

    def _check_sides(self, side: LiveSide) -> None:
        """Check that both take the same ids of the same texts, and choose the window."""
        found = {each.tokenizer for each in (self._reference, side)} - {None}
        if len(found) > 1:
            raise ConfigurationError(
                "the two sides have different tokenizers, so they can't be compared position by "
                "position: fidelity holds two ways of serving one model against each other; check "
                "the two models, or set tokenizer_path"
            )
        self._window = choose_window(self._window or self._options.window, [self._reference, side])

    def _prepare(self, codec: TextCodec | None) -> None:
        if codec is None:
            raise UnsupportedRequestError(
                "neither side lets callers have its tokenizer, so the ids of the texts aren't "
                "known; take an engine that encodes here for one of them"
            )
        for name, suite in self._suites.items():
            self._reference.prepare(suite)
            complete = partial(self._complete_reference, name)
            limit = self._options.limit
            prepared = prepare_suite(suite, name, codec, self._window, limit, complete)
            self._reference.check_windows(prepared.windows)
            self._prepared.append(prepared)

    def _complete_reference(
        self, suite: str, requests: Sequence[GenerationRequest]
    ) -> Iterator[Sequence[int] | None]:
        session = self._reference.session
        if session is not None:
            return iter(self._complete("reference", suite, requests, session))
        if requests:
            raise UnsupportedRequestError(
                f"suite {suite!r} generates, and a recorded reference can't write the completions "
                "that are compared; measure against the reference's spec"
            )
        return iter(())

    def _compare(
        self, arm: str, suite: PreparedSuite, reference: RowSource, side: RowSource
    ) -> list[WindowComparison]:
        """Compare all windows of a suite but those that the journal knows."""
        windows = suite.windows
        found = [self._journal.find_window(arm, suite.name, window) for window in windows]
        missing = [at for at, known in enumerate(found) if known is None]
        done, failed = len(windows) - len(missing), list[str]()
        self._progress.suite_started(f"{arm}: {suite.name}", len(windows))
        try:
            self._progress.samples_cached(done)
            compared = compare_windows(reference, side, [windows[at] for at in missing])
            for at, comparison in zip(missing, compared, strict=True):
                self._journal.record_window(arm, suite.name, windows[at], comparison)
                found[at] = comparison
                if self._options.observe is not None and arm == "candidate":
                    self._options.observe(windows[at], comparison)
                failed += [comparison.failure] if comparison.failure else []
                done += 1
                self._progress.sample_finished(done, len(failed), None)
        finally:
            self._progress.suite_finished()
        if failed:
            self._notes.append(
                f"{arm}: {suite.name}: windows that failed and are left out: {len(failed)} of "
                f"{len(windows)}; the first: {failed[0]}"
            )
        return [comparison for comparison in found if comparison is not None]

    def _complete_freely(
        self, label: str, suite: PreparedSuite, session: BaseInferenceSession | None
    ) -> Sequence[Sequence[int] | None] | None:
        """Return greedy completions of the first prompts; None where a session can't give them."""
        needed = {Capability.GENERATE, Capability.TOKEN_IDS}
        if session is None or not needed <= read_info(session).capabilities:
            return None
        steps = count_free_steps(self._window)
        requests = [
            GenerationRequest(input_ids=prompt, max_new_tokens=steps)
            for prompt in list_prompts(suite, self._window)
        ]
        return self._complete(f"{label}, free", suite.name, requests, session)

    def _complete(
        self,
        label: str,
        suite: str,
        requests: Sequence[GenerationRequest],
        session: BaseInferenceSession,
    ) -> Sequence[Sequence[int] | None]:
        """Return the ids of completions in the order of their requests; None of a failed one."""
        prompts = [list(request.input_ids or ()) for request in requests]
        found = [self._journal.find_completion(label, suite, prompt) for prompt in prompts]
        missing = [(at, requests[at]) for at, known in enumerate(found) if known is None]
        failed: list[str] = []
        with wrap_errors("completions"):
            for at, answer in RequestKind.GENERATION.open_stream(session, missing):
                if isinstance(answer, RequestFailure):
                    failed.append(str(answer.error))
                elif answer.token_ids is None:
                    failed.append("the session gave no token ids")
                else:
                    found[at] = token_ids = list(answer.token_ids)
                    self._journal.record_completion(label, suite, prompts[at], token_ids)
        if failed:
            self._notes.append(
                f"{label}: {suite}: completions that failed and are left out: {len(failed)} of "
                f"{len(requests)}; the first: {failed[0]}"
            )
        return found


def choose_window(asked: int | None, sides: Sequence[OpenSide]) -> int:
    """Return the tokens of a window: those of recorded rows, else `asked`, else what all can take.

    Raises:
        ConfigurationError: more are asked for than a side takes, or others than were recorded.
    """
    for side in sides:
        if side.session is None and asked not in (None, side.longest):
            raise ConfigurationError(
                f"a window of {asked} tokens was asked for, and the reference was recorded in "
                f"windows of {side.longest}; leave out --window, or record it again"
            )
    recorded = [side.longest for side in sides if side.session is None]
    longest = min((side.longest for side in sides if side.longest is not None), default=None)
    window = asked or next(iter(recorded), None) or min(LONGEST_WINDOW, longest or LONGEST_WINDOW)
    if longest is not None and window > longest:
        again = f"record the reference again with --window {longest}"
        raise ConfigurationError(
            f"a window of {window} tokens is longer than max_model_len={longest} of one side; "
            f"{again if recorded else 'ask for a shorter --window'}, or set max_model_len in its "
            "spec"
        )
    return window


def read_text_suite(path: str) -> SuiteDeclaration:
    """Return a suite that scores the text of a file as a whole.

    Raises:
        ConfigurationError: the file isn't there, is empty, or no text in UTF-8.
    """
    file = parse_path(path)
    with path_errors(file):
        content = file.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is no text in UTF-8: {error}; convert it") from error
    if not text.strip():
        raise ConfigurationError(f"{file} is empty: there is nothing to compare")
    return Perplexity(name=file.stem, data=[{"text": text}], text="text")
