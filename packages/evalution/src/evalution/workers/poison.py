"""Finds the request that ends its worker, by halving those that were in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, Self, TypeVar

from evalution.workers.jobs import Job, ListPart, StreamItem
from evalution.workers.process import innermost
from evalution.workers.wire import Ending
from evalution_core import EngineRuntimeError, EvalutionError, RemoteCause, scrub

_LONE_DEATHS = 2
"""One death alone may be somebody else's doing: a worker can be killed from outside."""


class Suspect(Protocol):
    """Something that was in flight when its worker ended."""

    lone_deaths: int
    """How many workers ended while they ran it and nothing else."""

    @property
    def is_dropped(self) -> bool:
        """Whether nobody wants its answer any more."""
        ...

    def halves(self) -> Sequence[Self]:
        """Parts that can be run apart; itself alone where it can't be divided."""
        ...


S = TypeVar("S", bound=Suspect)


class Suspects(Generic[S]):
    """Groups to be run again, each by itself on a worker that runs nothing else.

    A group whose worker ends is halved, and its halves wait behind the others: innocent groups are
    answered in between. What ends a worker twice, alone, is convicted.
    """

    def __init__(self) -> None:
        self._groups: deque[list[S]] = deque()

    def accuse(self, jobs: Sequence[S]) -> list[S]:
        """Note that a worker ended while it ran just these; returns those that are convicted."""
        wanted = [job for job in jobs if not job.is_dropped]
        if len(jobs) > 1 or not wanted:
            half = (len(wanted) + 1) // 2
            self._add(wanted[:half], wanted[half:])
            return []
        (job,) = wanted
        parts = job.halves()
        if len(parts) > 1:
            self._add(*([part] for part in parts))
            return []
        job.lone_deaths += 1
        if job.lone_deaths >= _LONE_DEATHS:
            return [job]
        self._add([job])
        return []

    def next_group(self) -> list[S] | None:
        """The group that has waited longest; None if there is none."""
        while self._groups:
            wanted = [job for job in self._groups.popleft() if not job.is_dropped]
            if wanted:
                return wanted
        return None

    def clear(self) -> list[S]:
        """Give up all groups; returns their members."""
        left = [job for group in self._groups for job in group]
        self._groups.clear()
        return left

    def _add(self, *groups: list[S]) -> None:
        self._groups.extend(group for group in groups if group)


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
