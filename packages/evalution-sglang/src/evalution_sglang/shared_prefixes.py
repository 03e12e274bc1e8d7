"""Which groups of spans wait for another one to compute the prefix that they share.

SGLang puts a prefix into its cache when a request has computed it. Requests that come together
start together, and each computes it anew; its scheduler only prefers some of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from evalution_enginekit.serving import SpanGroup

_WORTH_WAITING = 32
"""Tokens that have to be saved for a wait of one step."""


class SharedPrefixes:
    """Groups in the order of their submission, where neighbours share what there is to share.

    Each length of the newest group's prefix has an owner: the first group that had it.
    """

    def __init__(self) -> None:
        self._newest: Sequence[int] = ()
        self._owners: list[tuple[int, str]] = []
        self._unfinished: set[str] = set()
        self._waiting: defaultdict[str, dict[str, SpanGroup]] = defaultdict(dict)

    def enter(self, name: str, group: SpanGroup) -> bool:
        """Whether the group may be started now; else `leave` tells when."""
        fed = group.fed
        owner, computed = self._path(_common(self._newest, fed))
        self._newest = fed
        self._owners.append((len(fed), name))
        self._unfinished.add(name)
        read = _common_length(owner, group)
        if owner is None or read - computed < _WORTH_WAITING:
            return True
        self._waiting[owner[1]][name] = group
        return False

    def leave(self, name: str) -> dict[str, SpanGroup]:
        """The groups that waited for this one, which is finished or dropped."""
        self._unfinished.discard(name)
        for others in self._waiting.values():
            others.pop(name, None)
        return self._waiting.pop(name, {})

    def _path(self, shared: int) -> tuple[tuple[int, str] | None, int]:
        """The unfinished owner of the first `shared` tokens, and how many are computed already."""
        longest: str | None = None
        while self._owners and self._owners[-1][0] > shared:
            longest = self._owners.pop()[1]
        if longest is not None and shared and (not self._owners or self._owners[-1][0] < shared):
            self._owners.append((shared, longest))
        computed = max(
            (length for length, owner in self._owners if owner not in self._unfinished), default=0
        )
        if not self._owners or self._owners[-1][1] not in self._unfinished:
            return None, computed
        return self._owners[-1], computed


def _common_length(owner: tuple[int, str] | None, group: SpanGroup) -> int:
    """What the group would read of the owner's prefix; where its scores begin, the cache ends."""
    return 0 if owner is None else min(owner[0], group.start - 1 if group.inner else len(group.fed))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with, found by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if list(one[low:middle]) == list(other[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
