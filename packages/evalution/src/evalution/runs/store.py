"""What a run leaves on disk: its folder with the journal, and the answers it shares with others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalution.environment import (
    SCORING_POLICY,
    answering_engine,
    answering_software,
)
from evalution.journal import AnswerBase, Journal, answer_base
from evalution.results import RunResult, SampleResult, SuiteResult
from evalution.runs.answer_cache import AnswerStore, NoAnswers, SuiteAnswers
from evalution.runs.folder import DefaultFolder, RunFolder, as_output, opened_folder
from evalution.runs.run_identity import RUN, differences, is_asked, listed, section_of
from evalution.user_input import typed_path
from evalution_core import BaseEngine, ConfigurationError, Model, redact

CACHE = "answers.sqlite"
_IDENTITY, _TOKENIZER = "identity", "tokenizer"
_VARIABLES = ("chat_template_kwargs", "chat_template_kwargs_hash")
_TEXT_TO_IDS = ("encoding", "chat_template", *_VARIABLES)
"""What of a tokenizer's record decides on the ids that a model is fed."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a run is kept.

    Args:
        output: the run folder; an unfinished run that is there goes on.
        fresh: start over where `output` holds a run.
        retry_failed: ask again for what failed in the run that `output` holds.
        cache: folder of answers that all runs on this model share.

    Raises:
        ConfigurationError: `output` or `cache` is empty, or no path.
    """

    output: str | Path | DefaultFolder | None = None
    fresh: bool = False
    retry_failed: bool = False
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        as_output(self.output)
        if self.cache == "" or not isinstance(self.cache, str | os.PathLike | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"cache must be a folder's path, got {self.cache!r}")

    @property
    def folder(self) -> Path | None:
        """The run folder, where it is known before the run begins."""
        found = as_output(self.output)
        return found if isinstance(found, Path) else None


def run_answer_base(
    engine: BaseEngine | None, model: Model, record: Mapping[str, Any]
) -> AnswerBase:
    """What every key of a run's answers begins with; `record` is the engine's part of results."""
    tokenizer: Mapping[str, Any] = record["tokenizer"] or {}
    rendered_with = {name: tokenizer[name] for name in _VARIABLES if name in tokenizer}
    if engine is not None and rendered_with.get(_VARIABLES[0]) == redact(
        model.chat_template_kwargs
    ):
        rendered_with = {}  # the model tells them
    return answer_base(
        engine=engine and answering_engine(engine),
        model=model,
        identity=record["identity"],
        execution=record["execution"],
        scoring_policy=SCORING_POLICY,
        software=answering_software(engine),
        variables=rendered_with,
    )


class RunStore:
    """The open files of one run; without an `output` and a `cache` it keeps samples in memory.

    `notices` grows by what the journal has to say.
    """

    def __init__(self, storage: Storage, notices: list[str]):
        self._storage = storage
        self._notices = notices
        self._folder: RunFolder | None = None
        self._cache: Journal | None = None
        self._base: AnswerBase | None = None
        self._kept: list[SampleResult] = []

    @property
    def path(self) -> Path | None:
        """The run folder."""
        return None if self._folder is None else self._folder.path

    def open(
        self,
        declared: Mapping[str, Any],
        suites: Mapping[str, Mapping[str, Any]],
        *,
        is_whole: bool,
    ) -> None:
        """Take the folder, before weights are loaded, and see that the run in it is the same.

        Args:
            declared: what `run_declaration` gave.
            suites: what `suite_declaration` gave, by the suites' names in this run.
            is_whole: whether there will be no other suites.

        Raises:
            ConfigurationError: the folder can't be used, or its run was another; with the
                differences.
        """
        with ExitStack() as undo:
            self._folder = folder = opened_folder(
                as_output(self._storage.output),
                fresh=self._storage.fresh,
                retry_failed=self._storage.retry_failed,
            )
            undo.callback(self.discard)
            if folder is not None:
                self._check(folder, declared, suites, is_whole=is_whole)
                self._tell_notice(folder.journal)
            if self._storage.cache is not None:
                self._cache = _opened_cache(typed_path(os.fspath(self._storage.cache)))
                self._tell_notice(self._cache)
            undo.pop_all()

    def bind(self, base: AnswerBase, record: Mapping[str, Any]) -> None:
        """Say who answers, now that the session stands; `record` is the engine's part of results.

        Raises:
            ConfigurationError: the model's files are others than those of the run in the folder, or
                its tokenizer or chat template is, as where a server was started anew.
        """
        self._base = base
        if self._folder is not None:
            self._check_answering(self._folder, record)
        if self._cache is not None and not base.is_shareable:
            self._notices.append(
                "the cache isn't used: what this model is can't be told by its content"
            )
            self._cache.close()
            self._cache = None

    def begin_suite(self, name: str, declared: Mapping[str, Any]) -> AnswerStore:
        """Where the answers of a suite are kept.

        Raises:
            ConfigurationError: the run in the folder has another suite of this name.
        """
        self._kept = []
        if self._folder is not None:
            self._check(self._folder, None, {name: declared}, is_whole=False)
        if self._base is None or (self._folder is None and self._cache is None):
            return NoAnswers()
        journal = None if self._folder is None else self._folder.journal
        return SuiteAnswers(
            name, self._base, journal, self._cache, retry_failed=self._storage.retry_failed
        )

    def write(self, sample: SampleResult) -> None:
        """Put a sample into `samples.jsonl`, or keep it in memory."""
        (self._kept.append if self._folder is None else self._folder.append)(sample)

    def finish_suite(self, found: SuiteResult) -> None:
        """Tell a suite's result where its samples are."""
        if self._folder is None:
            found.kept_samples = self._kept
        else:
            self._folder.finish_suite()
            found.samples_file = self._folder.samples_file

    def write_results(self, result: RunResult) -> None:
        if self._folder is not None:
            self._folder.write_results(result)

    def close(self) -> None:
        """Close all files. Idempotent."""
        with ExitStack() as steps:
            if self._folder is not None:
                steps.callback(self._folder.close)
            if self._cache is not None:
                steps.callback(self._cache.close)

    def discard(self) -> None:
        """Leave the disk as it was, for a run that never began."""
        with ExitStack() as steps:
            if self._folder is not None:
                steps.callback(self._folder.discard)
            if self._cache is not None:
                steps.callback(self._cache.close)
        self._folder = self._cache = None

    def _check(
        self,
        folder: RunFolder,
        declared: Mapping[str, Any] | None,
        suites: Mapping[str, Mapping[str, Any]],
        *,
        is_whole: bool,
    ) -> None:
        now = {} if declared is None else {RUN: declared}
        now |= {section_of(name): suite for name, suite in suites.items()}
        before = folder.journal.declared(*(() if is_whole else now))
        if before and is_whole:
            asked = [name for name in sorted(before) if is_asked(name)]
            found = differences({name: before[name] for name in asked}, now)
        else:
            both = [name for name in now if name in before]
            found = differences({n: before[n] for n in both}, {n: now[n] for n in both})
        if found:
            raise ConfigurationError(
                f"{folder.path} holds an unfinished run of another spec: {listed(found)}; name "
                "another --output, or start over with --fresh"
            )
        folder.journal.declare_all({n: value for n, value in now.items() if n not in before})

    def _check_answering(self, folder: RunFolder, record: Mapping[str, Any]) -> None:
        now: dict[str, Any] = {_IDENTITY: record[_IDENTITY]}
        tokenizer: Mapping[str, Any] = record[_TOKENIZER] or {}
        if "encoding" in tokenizer:
            now[_TOKENIZER] = {name: tokenizer.get(name) for name in _TEXT_TO_IDS}
        before = folder.journal.declared(*now)
        found = differences(before.get(_IDENTITY, now[_IDENTITY]), now[_IDENTITY])
        if not found and _TOKENIZER in before:
            found = differences(before[_TOKENIZER], now[_TOKENIZER], _TOKENIZER)
        if found:
            raise ConfigurationError(
                f"{folder.path} holds an unfinished run of a model that was another: "
                f"{listed(found)}; name another --output, or start over with --fresh"
            )
        folder.journal.declare_all(now)

    def _tell_notice(self, journal: Journal) -> None:
        if journal.notice is not None:
            self._notices.append(journal.notice)


def _opened_cache(folder: Path) -> Journal:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the cache folder {folder} can't be made: {error.strerror}; name another --cache"
        ) from error
    return Journal.shared(folder / CACHE)
