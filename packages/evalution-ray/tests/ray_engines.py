"""Engines that get into trouble, for tests on a cluster; the nodes import them by name."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray

from evalution_core import BaseEngine, ConfigurationError, Model
from evalution_enginekit.mock import MOCK_CAPABILITIES, MockSession


def hang() -> None:
    threading.Event().wait()


TROUBLES: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": hang,
}


@dataclass(slots=True)
class Troubled(BaseEngine):
    """The mock, but a text with `poison` in it ends or hangs the actor.

    `folder`: each actor that builds has a file there, named by its process and its node, with a
    line for each text that it was asked. With `gate` in it a text waits for a file `open` there.
    `refuses`: it builds nothing.
    """

    folder: str = ""
    trouble: Literal["kill", "hang"] = "kill"
    refuses: bool = False

    capabilities = MOCK_CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Return the version of a runtime that is where EVALUTION_TESTED has it."""
        return {"version": os.environ.get("EVALUTION_TESTED", "none")}

    def build(self, model: Model) -> TroubledSession:
        if self.refuses:
            raise ConfigurationError("planted: no such model")
        is_main = threading.current_thread() is threading.main_thread()
        assert is_main, "runtimes install signal handlers"
        return TroubledSession(Path(self.folder or os.devnull), TROUBLES[self.trouble])


class TroubledSession(MockSession):
    def __init__(self, folder: Path, trouble: Callable[[], None]):
        super().__init__("mock", 512, 8)
        self._trouble = trouble
        self._folder = folder
        self._asked: set[str] = set()
        name = f"{os.getpid()}-{ray.get_runtime_context().get_node_id()}"
        self._log = (folder / name if folder.is_dir() else folder).open("a", buffering=1)

    def _step(self, sequences: list[Any]) -> list[Any]:
        for sequence in sequences:
            self._look_at(sequence._prompt.token_ids)
        return super()._step(sequences)

    def _score(self, token_ids: Sequence[int], start: int) -> Any:
        self._look_at(token_ids)
        return super()._score(token_ids, start)

    def _look_at(self, token_ids: Sequence[int]) -> None:
        text = bytes(i for i in token_ids if i < 256).decode()
        if text not in self._asked:
            self._asked.add(text)
            self._log.write(f"{text}\n")
        if "poison" in text:
            self._trouble()
        while "gate" in text and not (self._folder / "open").exists():
            time.sleep(0.02)
