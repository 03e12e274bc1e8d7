"""The errors that the end of a worker leads to."""

from __future__ import annotations

from evalution.workers.jobs import Job, ListPart
from evalution.workers.request_stream import StreamItem
from evalution.workers.stack import innermost
from evalution.workers.worker import Ending
from evalution_core import EngineRuntimeError, EvalutionError, RemoteCause, scrub


def build_error(ending: Ending) -> EvalutionError:
    """For a worker that ended before its session was built."""
    return _told(f"the worker process {ending.reason} while it loaded the model", ending)


def poison_error(job: Job, ending: Ending) -> EvalutionError:
    """For what ended its workers when nothing else ran there."""
    return _told(f"a worker that ran this request alone {ending.reason}, twice", ending, job)


def failure_error(item: StreamItem, error: EvalutionError) -> EvalutionError:
    """For a request with which alone the session failed on two workers."""
    told = EngineRuntimeError(f"{error}, twice, with this request alone", in_flight=[item.key])
    told.__cause__ = error.__cause__ or error
    return told


def hopeless_error(times: int, ending: Ending, build: EvalutionError | None) -> EvalutionError:
    """For a session whose workers end one after the other; `build` is why the last wasn't built."""
    reason = ending.reason if build is None else f"could not load the model: {build}"
    return _told(
        f"workers ended {times} times in a row without answering anything; the last one {reason}",
        ending,
    )


def _told(text: str, ending: Ending, job: Job | None = None) -> EvalutionError:
    lost: list[object] = []
    if isinstance(job, StreamItem):
        lost = [job.key]
    elif isinstance(job, ListPart):
        lost = [job.start]
    where = innermost(ending.stack) if ending.stack else None
    error = EngineRuntimeError(f"{text}; it stood in {where}" if where else text, in_flight=lost)
    if ending.stack:
        error.__cause__ = RemoteCause(scrub(ending.stack))
    return error
