"""The options of a run: where it is kept, how much is run, and what ends it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, cast, get_args

from evalution.progress import Progress
from evalution.runs.backend import ModelBackend
from evalution.runs.preflight import check_limit, check_step
from evalution.user_input import check_count
from evalution_core import ConfigurationError, EvalutionError
from evalution_core.options import format_value
from evalution_core.plugins import did_you_mean

OnError = Literal["record", "raise"]


class TooManyFailuresError(EvalutionError, RuntimeError):
    """More samples failed than the run allows; what was finished is kept."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """`record` goes on after a failed sample, `raise` ends the run at the first.

    `max_failures` ends it once more samples than that have failed, counted over all suites.

    Raises:
        ConfigurationError: another word, or no count from 0.
    """

    on_error: OnError = "record"
    max_failures: int | None = None

    def __post_init__(self) -> None:
        words = get_args(OnError)
        if self.on_error not in words:
            raise ConfigurationError(
                f"on_error must be {' or '.join(words)}, got {format_value(self.on_error)}"
                f"{did_you_mean(str(self.on_error), words)}"
            )
        if self.max_failures is not None:
            check_count("max_failures", self.max_failures, least=0)

    def check(self, failed: int, latest: str) -> None:
        """Raise `TooManyFailuresError` if `failed` samples are too many; `latest` is the last."""
        if self.on_error == "raise":
            raise TooManyFailuresError(f"{latest} (on_error: raise)")
        if self.max_failures is not None and failed > self.max_failures:
            raise TooManyFailuresError(
                f"{failed} samples failed, and max_failures is {self.max_failures}; the last: "
                f"{latest}"
            )


@dataclass(frozen=True, slots=True)
class DefaultFolder:
    """`runs/<date-time>-<label>` under the working folder, to be made when a run begins."""

    label: str
    now: datetime

    @property
    def path(self) -> Path:
        """The folder, if no other run has taken the name."""
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", self.label).strip("-.") or "model"
        return Path("runs") / f"{self.now:%Y%m%d-%H%M%S}-{safe[-60:]}"


def parse_output(output: object) -> Path | DefaultFolder | None:
    """Return the folder that a caller named as output; None: the run is kept in memory.

    Raises:
        ConfigurationError: it is empty, or no path.
    """
    if output is None or isinstance(output, DefaultFolder):
        return output
    if output == "":
        raise ConfigurationError("output is empty; name a folder, '.' for the current one")
    if not isinstance(output, str | os.PathLike):
        raise ConfigurationError(f"output must be a folder's path, got {output!r}")
    return Path(cast(str, output))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run beside engine, model and suites.

    Args:
        output: folder for `results.json`, `samples.jsonl` and the journal; None keeps all in
            memory. A run of the same spec that is there goes on, finished or not: nothing that was
            answered is computed again. Answers of a live model, which isn't known by content,
            are refused.
        fresh: start over where `output` holds a run.
        retry_failed: ask again for what failed in the run that `output` holds.
        cache: folder of answers that runs share; an answer serves only the model that gave it, with
            the same engine and the same options.
        limit: at most that many rows of each suite.
        isolate: run the model in a process of its own, which is replaced when it dies.
        failures: how many failed samples end the run.
        progress: receives the progress of the run; by default it is silent.
        backend: prepares the model that the engine attaches to, in place of a model.
        step: the step of training that the model is at; a report plots scores over it.
        record_tokens: keep each token of an answer with its log-probability in its sample.

    Raises:
        ConfigurationError: `output` or `cache` is empty or no path, or a number is out of range.
    """

    output: str | Path | DefaultFolder | None = None
    fresh: bool = False
    retry_failed: bool = False
    cache: str | Path | None = None
    limit: int | None = None
    isolate: bool = False
    failures: FailurePolicy = FailurePolicy()
    progress: Progress = field(default_factory=Progress)
    backend: ModelBackend | None = None
    step: int | None = None
    record_tokens: bool = False

    def __post_init__(self) -> None:
        check_limit(self.limit)
        check_step(self.step)
        parse_output(self.output)
        if self.cache == "" or not isinstance(self.cache, str | os.PathLike | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"cache must be a folder's path, got {self.cache!r}")

    @property
    def folder(self) -> Path | None:
        """The run folder, where it is known before the run begins."""
        found = parse_output(self.output)
        return found if isinstance(found, Path) else None
