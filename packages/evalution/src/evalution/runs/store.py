"""The files of a run: its folder with the journal, and the answers it shares with other runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from evalution.environment import (
    SCORING_POLICY,
    find_answering_engine,
    read_answering_software,
)
from evalution.journal import AnswerBase, Journal, make_answer_base
from evalution.redaction import mask_value
from evalution.results import RunResult, SampleResult, SuiteResult
from evalution.runs.answer_cache import CachedAnswers
from evalution.runs.folder import RunFolder, open_folder, parse_output
from evalution.runs.options import RunOptions
from evalution.runs.run_identity import (
    RUN,
    find_differences,
    format_differences,
    is_asked,
    to_section,
)
from evalution.user_input import parse_path
from evalution_core import BaseEngine, ConfigurationError, Model

CACHE = "answers.sqlite"
_IDENTITY, _TOKENIZER = "identity", "tokenizer"
_VARIABLES = ("chat_template_kwargs", "chat_template_kwargs_hash")
_TEXT_TO_IDS = ("encoding", "chat_template", *_VARIABLES)
"""Parts of a tokenizer's record that decide which ids a model is fed."""


def make_run_answer_base(
    engine: BaseEngine | None, model: Model, record: Mapping[str, Any]
) -> AnswerBase:
    """Return the common part of a run's answer keys; `record` is the engine's part of results."""
    tokenizer: Mapping[str, Any] = record["tokenizer"] or {}
    rendered_with = {name: tokenizer[name] for name in _VARIABLES if name in tokenizer}
    if engine is not None and rendered_with.get(_VARIABLES[0]) == mask_value(
        model.chat_template_kwargs
    ):
        rendered_with = {}  # the model has them
    return make_answer_base(
        engine=engine and find_answering_engine(engine),
        model=model,
        identity=record["identity"],
        execution=record["execution"],
        scoring_policy=SCORING_POLICY,
        software=read_answering_software(engine),
        variables=rendered_with,
    )


class RunStore:
    """The open files of one run; without an `output` and a `cache` it keeps samples in memory.

    Notices of a journal are added to `notices`.
    """

    def __init__(self, options: RunOptions, notices: list[str]):
        self._options = options
        self._notices = notices
        self._folder: RunFolder | None = None
        self._cache: Journal | None = None
        self._base: AnswerBase | None = None
        self._samples: list[SampleResult] = []

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
        """Take the folder, before weights are loaded, and check that the run in it is the same.

        Args:
            declared: the result of `declare_run`.
            suites: results of `declare_suite`, by the suites' names in this run.
            is_whole: whether there will be no other suites.

        Raises:
            ConfigurationError: the folder can't be used, or its run was another; with the
                differences.
        """
        with ExitStack() as undo:
            self._folder = folder = open_folder(
                parse_output(self._options.output),
                fresh=self._options.fresh,
                retry_failed=self._options.retry_failed,
            )
            undo.callback(self.discard)
            if folder is not None:
                self._check(folder, declared, suites, is_whole=is_whole)
                self._add_notice(folder.journal)
            if self._options.cache is not None:
                self._cache = _open_cache(parse_path(os.fspath(self._options.cache)))
                self._add_notice(self._cache)
            undo.pop_all()

    def bind(self, base: AnswerBase, record: Mapping[str, Any]) -> None:
        """Note who answers, once the session is open; `record` is the engine's part of results.

        Raises:
            ConfigurationError: the model's files are others than those of the run in the folder, or
                its tokenizer or chat template is, as after the restart of a server.
        """
        self._base = base
        if self._folder is not None:
            self._check_answering(self._folder, record)
        if self._cache is not None and not base.is_shareable:
            self._notices.append(
                "the cache isn't used: this model can't be identified by its content"
            )
            self._cache.close()
            self._cache = None

    def begin_suite(self, name: str, declared: Mapping[str, Any]) -> CachedAnswers:
        """Return the answers of a suite that are kept.

        Raises:
            ConfigurationError: the run in the folder has another suite of this name.
        """
        self._samples = []
        if self._folder is not None:
            self._check(self._folder, None, {name: declared}, is_whole=False)
        assert self._base is not None
        journal = None if self._folder is None else self._folder.journal
        return CachedAnswers(
            name, self._base, journal, self._cache, retry_failed=self._options.retry_failed
        )

    def write(self, sample: SampleResult) -> None:
        """Put a sample into `samples.jsonl`, or keep it in memory."""
        (self._samples.append if self._folder is None else self._folder.append)(sample)

    def finish_suite(self, found: SuiteResult) -> None:
        """Note in a suite's result where its samples are."""
        if self._folder is None:
            found.kept_samples = self._samples
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
        now |= {to_section(name): suite for name, suite in suites.items()}
        before = folder.journal.read_declared(*(() if is_whole else now))
        if before and is_whole:
            asked = [name for name in sorted(before) if is_asked(name)]
            found = find_differences({name: before[name] for name in asked}, now)
        else:
            both = [name for name in now if name in before]
            found = find_differences({n: before[n] for n in both}, {n: now[n] for n in both})
        if found:
            raise ConfigurationError(
                f"{folder.path} holds an unfinished run of another spec: "
                f"{format_differences(found)}; name another --output, or start over with --fresh"
            )
        folder.journal.declare({n: value for n, value in now.items() if n not in before})

    def _check_answering(self, folder: RunFolder, record: Mapping[str, Any]) -> None:
        now: dict[str, Any] = {_IDENTITY: record[_IDENTITY]}
        tokenizer: Mapping[str, Any] = record[_TOKENIZER] or {}
        if "encoding" in tokenizer:
            now[_TOKENIZER] = {name: tokenizer.get(name) for name in _TEXT_TO_IDS}
        before = folder.journal.read_declared(*now)
        found = find_differences(before.get(_IDENTITY, now[_IDENTITY]), now[_IDENTITY])
        if not found and _TOKENIZER in before:
            found = find_differences(before[_TOKENIZER], now[_TOKENIZER], _TOKENIZER)
        if found:
            raise ConfigurationError(
                f"{folder.path} holds an unfinished run of another model: "
                f"{format_differences(found)}; name another --output, or start over with --fresh"
            )
        folder.journal.declare(now)

    def _add_notice(self, journal: Journal) -> None:
        if journal.notice is not None:
            self._notices.append(journal.notice)


def _open_cache(folder: Path) -> Journal:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the cache folder {folder} can't be made: {error.strerror}; name another --cache"
        ) from error
    return Journal.shared(folder / CACHE)
