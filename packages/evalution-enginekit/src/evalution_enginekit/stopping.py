"""Stop strings over text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string to be complete, however the text is cut into pieces.

    If several are complete with the same character, the one that began first counts. Positions are
    characters from the beginning of the text.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._reach = max((len(stop) for stop in self._stops), default=1) - 1
        self._tail = ""
        self._length = 0
        self.cut: int | None = None
        """Where the stop string begins, once one is complete."""

    @property
    def certain(self) -> int:
        """How much of the text is final: none of it can be the beginning of a stop string."""
        return self._length - self._held() if self.cut is None else self.cut

    def push(self, piece: str) -> bool:
        """Take the next piece; whether a stop string is complete now."""
        if self.cut is not None:
            return True
        begin = self._length - len(self._tail)
        text = self._tail + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        self._length += len(piece)
        if found:
            _, at = min(found)
            self.cut = begin + at
            return True
        self._tail = text[-self._reach :] if self._reach else ""
        return False

    def _held(self) -> int:
        for size in range(len(self._tail), 0, -1):
            end = self._tail[-size:]
            if any(len(stop) > size and stop.startswith(end) for stop in self._stops):
                return size
        return 0
