"""Finds the request that ends its worker, by halving those that were in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, Self, TypeVar

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
