"""Compared windows and completions in a journal, so that a measurement goes on after a kill."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from evalution.fidelity.divergence import FIGURES
from evalution.fidelity.lockstep import WindowComparison, WorstPosition
from evalution.fidelity.requests import Window
from evalution.journal.store import Journal
from evalution.runs.run_identity import STEP, find_differences, format_differences
from evalution_core import ConfigurationError

JOURNAL = "fidelity.sqlite"
_LATER = (STEP, "device", "dtype")
"""Parts of a side that the records of older versions lack."""


class ComparisonJournal:
    """Comparisons and completions so far, by arm, suite and token ids; without a folder in memory.

    Raises:
        ConfigurationError: another process is writing the folder, or it can't be written.
    """

    def __init__(self, folder: Path | None):
        self._memory: dict[bytes, str] = {}
        self._journal: Journal | None = None
        if folder is not None:
            path = folder / JOURNAL
            self._journal = Journal.open(path) if path.exists() else Journal.create(path)

    def declare(self, section: str, value: Mapping[str, Any]) -> None:
        """Keep what decides the figures; a later call with something else is refused.

        Raises:
            ConfigurationError: the folder holds a measurement of something else.
        """
        if self._journal is None:
            return
        before = self._journal.read_declared(section).get(section, dict(value))
        now = {key: each for key, each in value.items() if key not in _LATER or key in before}
        if found := find_differences(before, now, section):
            raise ConfigurationError(
                f"{self._journal.path.parent} holds a measurement of something else: "
                f"{format_differences(found)}; name another --output"
            )
        self._journal.declare({section: value})

    @property
    def notice(self) -> str | None:
        """A sentence on a damaged journal that was moved aside."""
        return None if self._journal is None else self._journal.notice

    def find_window(self, arm: str, suite: str, window: Window) -> WindowComparison | None:
        found = self._find(arm, suite, window.input_ids, window.start)
        if found is None:
            return None
        figures = np.frombuffer(base64.b64decode(found["figures"]), FIGURES)
        worst = [
            WorstPosition(
                each["position"],
                each["kl"],
                [(token_id, value) for token_id, value in each["reference_top"]],
                [(token_id, value) for token_id, value in each["top"]],
            )
            for each in found["worst"]
        ]
        return WindowComparison(figures, worst, found["vocabulary"])

    def record_window(
        self, arm: str, suite: str, window: Window, comparison: WindowComparison
    ) -> None:
        """Keep a comparison; one that failed isn't kept, so that it is tried again."""
        if comparison.figures is not None:
            content = {
                "figures": base64.b64encode(comparison.figures.tobytes()).decode(),
                "worst": [asdict(each) for each in comparison.worst],
                "vocabulary": comparison.vocabulary,
            }
            self._record(content, arm, suite, window.input_ids, window.start)

    def find_completion(self, arm: str, suite: str, prompt: Sequence[int]) -> list[int] | None:
        return self._find(arm, suite, prompt, None)

    def record_completion(
        self, arm: str, suite: str, prompt: Sequence[int], token_ids: Sequence[int]
    ) -> None:
        self._record(list(token_ids), arm, suite, prompt, None)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _find(self, arm: str, suite: str, token_ids: Sequence[int], start: int | None) -> Any:
        key = _make_key(arm, suite, token_ids, start)
        found = self._memory.get(key) if self._journal is None else self._journal.find(key)
        return None if found is None else json.loads(found)

    def _record(
        self, content: object, arm: str, suite: str, token_ids: Sequence[int], start: int | None
    ) -> None:
        key, encoded = _make_key(arm, suite, token_ids, start), json.dumps(content)
        if self._journal is None:
            self._memory[key] = encoded
        else:
            self._journal.record(key, encoded, suite=suite, row=0, position=0)


def _make_key(arm: str, suite: str, token_ids: Sequence[int], start: int | None) -> bytes:
    return blake2b(json.dumps([arm, suite, start, *token_ids]).encode(), digest_size=16).digest()
