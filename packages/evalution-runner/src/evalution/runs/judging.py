"""Judges of a run: their checks, and their sessions, each loaded once for all that it grades."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from evalution.comparison.comparison import ask_alike, find_option_differences
from evalution.environment import make_engine_record
from evalution.journal.records import AnswerBase
from evalution.results import SuiteResult
from evalution.runs.options import RunOptions
from evalution.runs.preflight import check_capabilities, check_engine, check_model
from evalution.runs.reader import read_run
from evalution.runs.run_identity import find_free_name, name_suites
from evalution.runs.session import SessionHolder
from evalution.runs.store import make_run_answer_base
from evalution.suites.generation_suite import GenerationSuite
from evalution.suites.grading_suite import JUDGED, GradingSuite
from evalution.suites.judge import Judge
from evalution.suites.suite import AnySuite
from evalution_core import BaseInferenceSession, ConfigurationError
from evalution_core.plugins import did_you_mean

T = TypeVar("T")


def check_judges(suites: Iterable[AnySuite]) -> None:
    """Check engine and model of each judge, as those of the run.

    Raises:
        ConfigurationError: an option of the engine, or the model's path.
        UnsupportedRequestError: the engine can't do what the rubric needs.
    """
    for name, suite in name_suites(suites):
        if isinstance(suite, GenerationSuite) and (judge := suite.judge) is not None:
            engine = check_engine(judge.engine)
            read_baseline(judge, name)
            grading = GradingSuite(judge=judge, suite=suite)
            whose = f"of the judge's engine {type(engine).__name__}"
            check_capabilities([grading], engine.capabilities, whose)
            try:
                check_model(judge.model, engine)
            except ConfigurationError as error:
                error.args = (f"suite {grading.title!r}: {error}",)
                raise


def read_baseline(judge: Judge, name: str) -> SuiteResult | None:
    """Return the suite in the judge's `baseline_run`, with its samples; None without one.

    Raises:
        ConfigurationError: the folder holds no run, or none of the suite; or no samples of it.
    """
    if judge.baseline_run is None:
        return None
    run = read_run(judge.baseline_run)
    found = next((one for one in run.suites if one.name == name), None)
    if found is None or not found.stored_samples:
        names = [one.name for one in run.suites]
        raise ConfigurationError(
            f"the judge's baseline_run {judge.baseline_run} has no samples of a suite "
            f"{name!r}{did_you_mean(name, names)} "
            f"(finished suites: {', '.join(names) or 'none'})"
        )
    return found


def plan_grades(
    suites: Iterable[tuple[str, AnySuite]], counts: Mapping[str, int]
) -> dict[str, int]:
    """Return the most samples of each suite of grades, in the order in which they are graded.

    Args:
        suites: the suites of a run, by their names in it.
        counts: the samples of each.
    """
    answered = [(one, name) for name, one in suites if isinstance(one, GenerationSuite)]
    found: dict[str, int] = {}
    for _, mine in group_by_judge(pair for pair in answered if pair[0].judge is not None):
        for _, name in mine:
            found[find_free_name(f"{name}-{JUDGED}", {*counts, *found})] = counts[name]
    return found


def group_by_judge(
    finished: Iterable[tuple[GenerationSuite, T]],
) -> Iterator[tuple[Judge, list[tuple[GenerationSuite, T]]]]:
    """Yield each judge's model once, with the suites that it grades."""
    waiting = list(finished)
    while waiting:
        judge = waiting[0][0].judge
        assert judge is not None
        mine = [one for one in waiting if _is_same_model(judge, one[0].judge)]
        waiting = [one for one in waiting if not _is_same_model(judge, one[0].judge)]
        yield judge, mine


def _is_same_model(one: Judge, other: Judge | None) -> bool:
    return other is not None and (one.engine, one.model) == (other.engine, other.model)


class JudgeSession:
    """The session of a judge, loaded when the first suite is prepared.

    Args:
        options: those of the run whose answers are graded.
        folder: that of the run; None without one.
    """

    def __init__(self, judge: Judge, options: RunOptions, folder: Path | None):
        self._judge = judge
        self._options = options
        self._folder = folder
        self._record: dict[str, Any] = make_engine_record(judge.engine, None)
        self._holder = SessionHolder(
            judge.engine, judge.model, None, self._record, isolate=options.isolate
        )

    @property
    def session(self) -> BaseInferenceSession:
        """The open session."""
        return self._holder.session

    @property
    def answer_base(self) -> AnswerBase:
        """The common part of the keys of the judge's answers."""
        software = self._holder.read_environment().software
        judge = self._judge
        return make_run_answer_base(judge.engine, judge.model, self._record, software)

    def prepare(self, suite: GenerationSuite, answers: SuiteResult) -> GradingSuite:
        """Return the suite that grades these answers, ready to run on the session.

        Raises:
            EvalutionError: the judge can't be loaded, or can't do what is asked of it.
        """
        assert suite.judge is not None
        if not self._holder.is_open:
            self._holder.open(self._options.progress, self._folder)
        known = ("name", "distribution", "version", "identity")
        other = read_baseline(suite.judge, answers.name)
        changed = {} if other is None else find_option_differences(other.options, answers.options)
        grading = GradingSuite(
            judge=suite.judge,
            suite=suite,
            answers=answers.stored_samples,
            baseline=None if other is None else other.stored_samples,
            same_prompts=ask_alike(changed),
            record={name: self._record[name] for name in known},
        )
        self._holder.prepare(grading)
        return grading

    def close(self) -> None:
        """Close the session. Idempotent."""
        self._holder.close()
