"""The sessions of judges: each is loaded once for all suites whose answers it grades."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from evalution.environment import make_engine_record
from evalution.journal.records import AnswerBase
from evalution.results import SuiteResult
from evalution.runs.options import RunOptions
from evalution.runs.session import SessionHolder
from evalution.runs.store import make_run_answer_base
from evalution.suites.generation_suite import GenerationSuite
from evalution.suites.grading_suite import GradingSuite
from evalution.suites.judge import Judge
from evalution_core import BaseInferenceSession

Graded = tuple[GenerationSuite, SuiteResult]
"""A finished suite and its result."""


def group_by_judge(finished: Iterable[Graded]) -> Iterator[tuple[Judge, list[Graded]]]:
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
        grading = GradingSuite(
            judge=suite.judge,
            suite=suite,
            answers=answers.stored_samples,
            record={name: self._record[name] for name in known},
        )
        self._holder.prepare(grading)
        return grading

    def close(self) -> None:
        """Close the session. Idempotent."""
        self._holder.close()
