"""Runs that are killed at a chosen event: a script of `test_resume_after_kill`, a job a line.

A job is a JSON object: `folder` of the run, `log` of what it does, `kill` (a phase and a number: at
its nth event the process kills itself; null: never), `is_eager` (everything is committed at once,
rather than a tenth of a second later), `file_bytes` (no file may grow beyond; null: any size).
Each job is a fork of this process, whose imports it has; its exit status is the answer.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evalution
import evalution.journal.store
import evalution.runs.store
import evalution.runs.suite_run
import evalution.samples_file
from evalution import Generation, MultipleChoice, Perplexity
from evalution_core import EvalutionError, Model
from evalution_enginekit.mock import Mock, MockSession

ROWS = 24


class Phases:
    """Writes down what happens, and kills this process when it is to die."""

    def __init__(self, log: str, kill: tuple[str, int] | None):
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._kill = kill
        self._counts: Counter[str] = Counter()

    def reach(self, phase: str, detail: object = None) -> None:
        self._counts[phase] += 1
        os.write(self._log, (json.dumps([phase, detail]) + "\n").encode())
        if (phase, self._counts[phase]) == self._kill:
            os.kill(os.getpid(), signal.SIGKILL)


phases = Phases(os.devnull, None)


@dataclass(slots=True)
class Watched(Mock):
    def build(self, model: Model) -> MockSession:
        phases.reach("before the model is loaded")
        session = WatchedSession("m", self.max_model_len, self.batch_size)
        phases.reach("the model is loaded")
        return session


class WatchedSession(MockSession):
    """Reports each answer as it is given: suite, row and position stand in the request's text."""

    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        asked: dict[Any, str] = {}
        answers = super().generate_continuous(_noted(requests, asked), batch_size=batch_size)
        for key, answer in answers:
            phases.reach("an answer of sums", [*asked[key].split()[:2], 0])
            yield key, answer

    def loglikelihood_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        asked: dict[Any, str] = {}
        answers = super().loglikelihood_continuous(_noted(requests, asked), batch_size=batch_size)
        for key, answer in answers:
            phases.reach("an answer of choice", asked[key].split())
            yield key, answer

    def loglikelihood_rolling_continuous(
        self, requests: Any, *, batch_size: int | None = None
    ) -> Any:
        asked: dict[Any, str] = {}
        noted = _noted(requests, asked)
        answers = super().loglikelihood_rolling_continuous(noted, batch_size=batch_size)
        for key, answer in answers:
            phases.reach("an answer of texts", [*asked[key].split()[:2], 0])
            yield key, answer

    def gc(self) -> None:
        phases.reach("between suites")
        super().gc()

    def close(self) -> None:
        phases.reach("the session is closed")
        super().close()


def _noted(requests: Any, asked: dict[Any, str]) -> Iterator[Any]:
    for key, request in requests:
        text = getattr(request, "prompt", None) or getattr(request, "text", None)
        asked[key] = text or request.context + request.continuation
        yield key, request


def suites() -> list[Any]:
    rows = [
        # Answers of very different lengths come in another order than that of the rows.
        {"sum": f"sums {row} {'x' * (row % 5)}", "choice": f"choice {row}", "right": row % 2}
        | {"text": f"texts {row} and more", "answer": "4", "choices": ["0", "1"]}
        for row in range(ROWS)
    ]
    return [
        Generation(data=rows, prompt="sum", target="answer", name="sums", max_new_tokens=40),
        MultipleChoice(
            data=rows, prompt="choice", choices="choices", target="right", name="choice"
        ),
        Perplexity(data=rows, text="text", name="texts", batch_size=4),
    ]


def watch_files() -> None:
    """Report each step of writing a run."""
    store, folder, samples = (
        evalution.journal.store,
        evalution.runs.store,
        evalution.samples_file,
    )
    vars(store)["open_alone"] = _report(store.open_alone, "the journal is opened")
    store.Journal.declare = _report(store.Journal.declare, "something is declared")
    samples.SamplesFile._order = _report(samples.SamplesFile._order, "samples are ordered")
    transaction, replace, sync = store.transaction, os.replace, os.fsync

    @contextmanager
    def committing(connection: Any) -> Iterator[None]:
        with transaction(connection):
            yield
            phases.reach("before a commit")
        phases.reach("after a commit")

    def syncing(number: int) -> None:
        phases.reach("before a file is synced")
        sync(number)

    def replacing(source: Any, target: Any) -> None:
        # The file of the progress is replaced too, as often as time allows.
        is_results = Path(target).name == "results.json"
        if is_results:
            phases.reach("before the results are replaced")
        replace(source, target)
        if is_results:
            phases.reach("after the results are replaced")

    vars(store)["transaction"] = committing
    folder.os.fsync = syncing
    folder.os.replace = replacing


def _report(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    def reporting(*arguments: Any, **options: Any) -> Any:
        phases.reach(f"before {phase}")
        found = function(*arguments, **options)
        phases.reach(f"after {phase}")
        return found

    return reporting


def work(job: dict[str, Any]) -> None:
    """Run the suites; an error goes into the log."""
    global phases
    phases = Phases(job["log"], None if job["kill"] is None else tuple(job["kill"]))
    if job["is_eager"]:
        evalution.runs.suite_run._REPORT_S = 0.0
        evalution.journal.store._COMMIT_S = 3600.0
    if job["file_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_bytes"], job["file_bytes"]))
    watch_files()
    phases.reach("the start")
    try:
        evalution.run(engine=Watched(), model="m", tests=suites(), output=job["folder"])
    except EvalutionError as error:
        phases.reach("error", [type(error).__name__, str(error)])
        sys.exit(1)


def warm_up() -> None:
    """Do once what every run does, so that the forks find it done."""
    evalution.run(engine=Watched(), model="m", tests=suites())


def main() -> None:
    warm_up()
    for line in sys.stdin:
        job = json.loads(line)
        if not (process := os.fork()):
            work(job)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
