"""Beginnings of earlier sequences that stay in the cache for those that begin alike."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from evalution_enginekit.planning import shared_prefix
from evalution_tinygrad.kv_cache import KVCache, Path

_KEPT = 4
_LEAST_SHARED = 8
"""Tokens from which looking a beginning up is worth a place among those kept."""


class Prefixes:
    """The last few sequences with their paths."""

    def __init__(self, cache: KVCache):
        self._cache = cache
        self._kept: deque[tuple[Sequence[int], Path]] = deque(maxlen=_KEPT)

    def path(self, token_ids: Sequence[int], limit: int) -> Path:
        """A path that holds as much of the beginning of `token_ids` as is kept, at most `limit`."""
        best, shared = None, 0
        for kept, path in self._kept:
            found = min(shared_prefix(kept, token_ids), limit)
            if found > shared:
                best, shared = path, found
        return self._cache.path() if best is None else best.fork(shared)

    def remember(self, token_ids: Sequence[int], path: Path) -> None:
        """Keep a sequence whose tokens are all in the cache, unless one that is kept covers it."""
        if len(token_ids) < _LEAST_SHARED:
            return
        known = any(shared_prefix(kept, token_ids) >= len(token_ids) - 1 for kept, _ in self._kept)
        if not known:
            self._kept.append((list(token_ids), path.fork(len(token_ids))))

    def clear(self) -> None:
        self._kept.clear()
