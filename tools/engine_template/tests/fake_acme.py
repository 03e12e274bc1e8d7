"""The few calls of Acme that the session makes, on a table in place of a model."""

from __future__ import annotations

from collections.abc import Sequence

from evalution_enginekit.mock import table


class FakeModel:
    def __init__(self, path: str):
        self._table = table(path)
        self.is_freed = False

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        assert not self.is_freed, "a call after free()"
        return self._table.row(token_ids)

    def free(self) -> None:
        self.is_freed = True


def load(path: str, *, device: str) -> FakeModel:
    if device != "cpu":
        raise OSError(f"no device {device}")
    return FakeModel(path)
