"""Sides of a measurement: a model on an engine, or a file of recorded rows."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from evalution.environment import make_engine_record
from evalution.error_boundary import wrap_errors
from evalution.fidelity.lockstep import RowSource, open_rows
from evalution.fidelity.reference_file import ReferenceFile, list_arithmetic, list_decisive
from evalution.fidelity.requests import Window
from evalution.fidelity.result import Side
from evalution.parity.check import open_side, read_info
from evalution.progress import Progress
from evalution.runs.preflight import EngineAndModel, make_model
from evalution.runs.run_identity import declare_run
from evalution.runs.session import SessionHolder
from evalution.suites.suite import AnySuite
from evalution.user_input import parse_path, path_errors
from evalution_core import BaseEngine, BaseInferenceSession, Model, TextCodec
from evalution_core.builtins import PREFIX

_PROBE = "The naïve fox paid 1,024 €\n\tin «été»: 日本語 🙂 <s></s>  x=y_z;"
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
"""Endings of files of weights; a checkpoint in several formats is read in the first of them."""
_STATES = ("optimizer", "rng_state", "scheduler", "training_args")
"""Beginnings of files that a training run leaves beside the weights."""
_SHARD = re.compile(r"-\d{5}-of-")


@dataclass(frozen=True, slots=True)
class LiveSession:
    """A session that is open already, and stays open.

    `model` and `engine` are as the result names them. Its weights may be of this process alone, so
    no control is looked for beside it.
    """

    session: BaseInferenceSession
    model: Model = field(default_factory=Model)
    engine: BaseEngine | None = None


Subject: TypeAlias = EngineAndModel | LiveSession
"""A model that is loaded for the measurement, or a session that is open already."""


class LiveSide:
    """A model on an engine, loaded.

    `tokenizer` is a digest of what it does to a text of many kinds, None where callers can't have
    it; `longest` the tokens that it can be fed.
    """

    top = None

    def __init__(self, subject: Subject, holder: SessionHolder, engine: dict[str, Any]):
        self._subject = subject
        self._holder = holder
        self._engine = engine
        self.session = holder.session
        self.model = subject.model
        with wrap_errors("tokenizer"):
            self.codec = self.session.tokenizer
            self.tokenizer = None if self.codec is None else _digest_tokenizer(self.codec)
        self.longest = read_info(self.session).max_model_len

    def has_engine(self, subject: EngineAndModel) -> bool:
        """Return True if its engine is that of `subject`, with the same options."""
        if self._subject.engine is None:
            return False
        kind = type(self._subject.engine)
        return (
            kind is type(subject.engine)
            and self._subject.engine.to_dict() == subject.engine.to_dict()
        )

    def describe(self) -> Side:
        return Side(self.model.to_dict(), self._engine, count_weight_bytes(self.model))

    def declare(self) -> Mapping[str, Any]:
        """Return what decides its figures, as JSON."""
        return {
            **declare_run(self._subject.engine, self.model, None, self._engine),
            **list_arithmetic(self._engine),
            "identity": self._engine["identity"],
            "software": self.read_versions(),
        }

    def read_versions(self) -> dict[str, str]:
        """Return the versions of the engine that answers and of its runtime."""
        found = self._holder.read_environment().software
        return {name: found[name] for name in ("engine", "runtime") if name in found}

    def prepare(self, suite: AnySuite) -> None:
        self._holder.prepare(suite)

    def check_windows(self, windows: Sequence[Window]) -> None:
        """Do nothing: a session computes what it is asked."""

    def open_rows(self, top: int) -> RowSource:
        """Return its rows, or its `top` most likely tokens where it has no rows."""
        return open_rows(self.session, top)


class RecordedSide:
    """Rows in a file, which `evalution fidelity record` wrote.

    `top` is the number of most likely tokens that were recorded of each position; None: all.
    """

    session = None
    codec = None

    def __init__(self, file: ReferenceFile, path: Path):
        self._file = file
        self._path = path
        recording = file.recording
        self.tokenizer = recording.tokenizer
        self.longest = recording.window
        self.top = recording.top
        self.model = make_model({**recording.side.model, "label": None})

    def has_engine(self, subject: EngineAndModel) -> bool:
        engine = self._file.recording.side.engine
        has_name = engine.get("name") == type(subject.engine).__name__
        return has_name and engine.get("options") == subject.engine.to_dict()

    def describe(self) -> Side:
        return self._file.recording.side

    def declare(self) -> Mapping[str, Any]:
        return {"file": str(self._path), **list_decisive(self._file.recording)}

    def prepare(self, suite: AnySuite) -> None:
        """Do nothing: rows are read as they are."""

    def check_windows(self, windows: Sequence[Window]) -> None:
        """Raise `ConfigurationError` if rows of some weren't recorded."""
        self._file.find(windows)

    def open_rows(self, top: int) -> RowSource:
        return self._file


OpenSide: TypeAlias = LiveSide | RecordedSide
"""A side whose rows can be read."""


@contextmanager
def open_live(subject: Subject, progress: Progress, *, isolate: bool) -> Generator[LiveSide]:
    """Load the model, and free it at the end; a live session is taken as it is, and left open."""
    engine: dict[str, Any] = {}
    if isinstance(subject, LiveSession):
        engine = make_engine_record(subject.engine, subject.session)
        holder = SessionHolder(
            subject.engine, subject.model, subject.session, engine, isolate=False
        )
        holder.open(progress)
        yield LiveSide(subject, holder, engine)
        return
    with open_side(subject, progress, engine, isolate=isolate) as holder:
        yield LiveSide(subject, holder, engine)


@contextmanager
def open_recorded(path: Path) -> Generator[RecordedSide]:
    """Open a file of recorded rows; errors as `ReferenceFile`."""
    with ReferenceFile(path) as file:
        yield RecordedSide(file, path)


def _digest_tokenizer(codec: TextCodec) -> str:
    found = [list(codec.leading_ids), codec.bos_id, codec.eos_id, codec.encode(_PROBE)]
    return sha256(json.dumps(found).encode()).hexdigest()[:16]


def count_weight_bytes(model: Model) -> int | None:
    """Return the size of the model's weights on disk; None where they aren't known to be here."""
    if model.path is None or model.path.startswith(PREFIX):
        return None
    with path_errors(model.path):
        place = parse_path(model.path)
        if place.is_file():
            shards = _SHARD.sub("-*-of-", glob.escape(place.name))
            return sum(file.stat().st_size for file in place.parent.glob(shards))
        for suffix in _WEIGHTS:
            files = [file for file in place.glob(f"*{suffix}") if not file.name.startswith(_STATES)]
            if files:
                return sum(file.stat().st_size for file in files)
    return None
