"""The files of a run: its folder with journal, results and samples, and a cache of other runs."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

from evalution.environment import SCORING_POLICY, find_answering_engine
from evalution.journal.records import AnswerBase, make_answer_base
from evalution.journal.store import Journal, KnownAnswers
from evalution.result_file import RESULT_FILES, check_free, replace_file
from evalution.results import RunResult, SampleResult, SuiteResult, to_json
from evalution.runs.options import DefaultFolder, RunOptions, parse_output
from evalution.runs.run_identity import (
    RUN,
    STEP,
    find_differences,
    format_differences,
    is_asked,
    to_section,
)
from evalution.sample_columns import SampleIndex
from evalution.samples_file import SAMPLES, SamplesFile, write_errors
from evalution.user_input import parse_path
from evalution_core import BaseEngine, ConfigurationError, EvalutionError, Model

RESULTS = "results.json"
JOURNAL = "journal.sqlite"
CACHE = "answers.sqlite"
_IDENTITY, _TOKENIZER = "identity", "tokenizer"
_DAY = "chat_template_day"
_TEXT_TO_IDS = ("encoding", "chat_template", "chat_template_kwargs", "chat_template_kwargs_hash")
"""Parts of a tokenizer's record that decide which ids a model is fed."""


class RunFolder:
    """A folder to be filled, or one whose run goes on; of a finished one, what has changed since.

    Args:
        fresh: replace the run that is there; until `remove_replaced` nothing of it is lost.

    Raises:
        ConfigurationError: it can't be made or written, holds a run that can't go on, or files of
            a run's names that no run wrote; or another process is writing it.
    """

    def __init__(self, path: Path, *, fresh: bool = False):
        self.path = path
        self._samples: SamplesFile | None = None
        with _folder_errors(path):
            self.is_new = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            journal = path / JOURNAL
            _check_foreign(path)
            if not fresh:
                _check_journal(path)
            self.is_fresh, self._is_known = fresh, journal.exists()
            self.scores_before = {} if fresh else _read_scores(path / RESULTS)
            self.journal = Journal.open(journal) if self._is_known else Journal.create(journal)
            if self.journal.notice is not None:
                self.journal.notice += _keep_samples(path)
        weakref.finalize(self, self.journal.close)

    def remove_replaced(self) -> None:
        """Remove the run that a fresh one replaces."""
        self.journal.clear()  # a full disk fails here, and nothing is lost
        with write_errors(self.path):
            SampleIndex(self.samples_file).delete()
            for file in (self.path / RESULTS, self.samples_file):
                file.unlink(missing_ok=True)

    @property
    def samples_file(self) -> Path:
        return self.path / SAMPLES

    @property
    def samples(self) -> SamplesFile:
        """The file `samples.jsonl`, begun when it is first asked for."""
        # A run whose model can't be loaded leaves the lines that are there.
        if self._samples is None:
            self._samples = SamplesFile(self.samples_file)
        return self._samples

    def write_results(self, result: RunResult) -> None:
        """Replace `results.json`, whole or not at all."""
        with write_errors(self.path):
            text = to_json(result.to_dict(), indent=2) + "\n"
            replace_file(self.path / RESULTS, text.encode())

    def close(self) -> None:
        """Close the files. Idempotent."""
        with write_errors(self.path):
            try:
                if self._samples is not None:
                    self._samples.close()
            finally:
                self.journal.close()

    def discard(self) -> None:
        """Remove what was made, for a run that never began."""
        self.close()
        if self._is_known:
            return
        Journal.delete(self.path / JOURNAL)
        if self.is_new and not any(self.path.iterdir()):  # a backend may have left something
            self.path.rmdir()


def open_folder(output: Path | DefaultFolder | None, *, fresh: bool) -> RunFolder | None:
    """Open the folder of a run that begins or goes on, None without one; errors as `RunFolder`.

    A default folder gets a number where the name is taken: no two runs ever share one.
    """
    if output is None:
        return None
    if not isinstance(output, DefaultFolder):
        return RunFolder(output, fresh=fresh)
    base = path = output.path
    number = 2
    with _folder_errors(base):
        base.parent.mkdir(exist_ok=True)
        while not _make_folder(path):
            path, number = base.with_name(f"{base.name}-{number}"), number + 1
    folder = RunFolder(path)
    folder.is_new = True
    return folder


def _keep_samples(path: Path) -> str:
    """Rename the samples that a run with a damaged journal has written; return a clause on it."""
    samples = path / SAMPLES
    if not samples.exists():
        return ""
    names = (path / f"samples.damaged-{number}.jsonl" for number in count(1))
    kept = next(name for name in names if not name.exists())
    os.replace(samples, kept)
    return f"; the samples that were written are now in {kept}"


def _check_unfinished(path: Path) -> None:
    """Refuse a finished run: its results would be replaced by those of suites yet unknown."""
    if _content(path / RESULTS).get("status") == "done":
        raise ConfigurationError(
            f"{path} already holds a finished run; name another --output, or start over with "
            "--fresh"
        )


def _check_journal(path: Path) -> None:
    if (path / RESULTS).exists() and not (path / JOURNAL).exists():
        raise ConfigurationError(
            f"{path} holds a run without its {JOURNAL}, which can't go on; name another --output, "
            "or start over with --fresh"
        )


def _check_foreign(path: Path) -> None:
    """Refuse results of other kinds, and files with a run's names that may be somebody's rows."""
    check_free(path, set(RESULT_FILES) - {RESULTS})
    if (path / JOURNAL).exists() or "schema_version" in _content(path / RESULTS):
        return
    for name in (RESULTS, SAMPLES):
        if (path / name).exists():
            raise ConfigurationError(
                f"{path} holds a {name} that no run is known to have written, and a run would "
                "replace it; name another --output"
            )


def _content(results: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(results.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}  # a part of a file: the journal is the truth
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _read_scores(results: Path) -> dict[str, Any]:
    """Return the metrics of a finished run by suite; none of another one."""
    found = _content(results)
    try:
        is_done = found["status"] == "done"
        return {suite["name"]: suite["metrics"] for suite in found["suites"] if is_done}
    except (KeyError, TypeError):
        return {}  # of another version


def _make_folder(path: Path) -> bool:
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


@contextmanager
def _folder_errors(path: Path) -> Generator[None]:
    try:
        yield
    except FileExistsError:
        raise ConfigurationError(f"{path} is a file; name another --output") from None
    except OSError as error:
        if isinstance(error, EvalutionError):
            raise
        raise ConfigurationError(
            f"the run folder {path} can't be written: {error.strerror}; name another --output"
        ) from error
    except ValueError as error:  # a null byte
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"the run folder {str(path)!r} has no possible name") from error


def make_run_answer_base(
    engine: BaseEngine | None,
    model: Model,
    record: Mapping[str, Any],
    software: Mapping[str, str],
) -> AnswerBase:
    """Return the common part of a run's answer keys; `record` is the engine's part of results."""
    tokenizer: Mapping[str, Any] = record["tokenizer"] or {}
    return make_answer_base(
        engine=engine and find_answering_engine(engine),
        model=model,
        identity=record["identity"],
        execution=record["execution"],
        scoring_policy=SCORING_POLICY,
        software=software,
        tokenizer={name: tokenizer[name] for name in _TEXT_TO_IDS if name in tokenizer},
        day=tokenizer.get(_DAY),
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
        self._declare: Callable[[], None] = lambda: None
        self._samples: list[SampleResult] = []
        self.can_resume = False
        """True if a later run may take up the answers in the folder; known once the session is."""

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
            output = parse_output(self._options.output)
            self._folder = folder = open_folder(output, fresh=self._options.fresh)
            undo.callback(self.discard)
            if folder is not None:
                if not (is_whole or self._options.retry_failed or folder.is_fresh):
                    _check_unfinished(folder.path)
                self._declare = partial(self._check, folder, declared, suites, is_whole=is_whole)
                if not folder.is_fresh:
                    self._declare()
                self._add_notice(folder.journal)
            if self._options.cache is not None:
                self._cache = _open_cache(parse_path(os.fspath(self._options.cache)))
                self._add_notice(self._cache)
            undo.pop_all()

    def bind(self, base: AnswerBase, record: Mapping[str, Any]) -> None:
        """Note who answers, once the session is open; `record` is the engine's part of results.

        Raises:
            ConfigurationError: the model's files are others than those of the run in the folder, or
                its tokenizer or chat template is, as after the restart of a server; or it is a live
                model, which isn't known by content.
        """
        self._base = base
        if self._folder is not None:
            if self._folder.is_fresh:
                self._folder.remove_replaced()
                self._declare()
            self._check_answering(self._folder, record)
        if self._cache is not None and not base.is_shareable:
            self._notices.append(
                "the cache isn't used: this model can't be identified by its content"
            )
            self._cache.close()
            self._cache = None

    def begin_suite(
        self,
        name: str,
        declared: Mapping[str, Any] | None = None,
        base: AnswerBase | None = None,
    ) -> KnownAnswers:
        """Return the answers of a suite that are kept; those of `base` if another one answers.

        A suite that isn't declared may be another one when the run goes on.

        Raises:
            ConfigurationError: the run in the folder has another suite of this name.
        """
        self._samples = []
        if self._folder is not None and declared is not None:
            self._check(self._folder, None, {name: declared}, is_whole=False)
        base = base or self._base
        assert base is not None
        journal = None if self._folder is None else self._folder.journal
        return KnownAnswers(
            name, base, journal, self._cache, retry_failed=self._options.retry_failed
        )

    @property
    def write(self) -> Callable[[SampleResult], None]:
        """The call that puts a sample of the suite into `samples.jsonl`, or keeps it in memory."""
        return self._samples.append if self._folder is None else self._folder.samples.append

    def finish_suite(self, found: SuiteResult) -> None:
        """Note in a suite's result where its samples are."""
        if self._folder is None:
            found.kept_samples = self._samples
        else:
            self._folder.samples.finish_suite()
            found.samples_file = self._folder.samples_file
            now = json.loads(to_json(found.to_dict()))["metrics"]
            before = self._folder.scores_before.get(found.name, now)
            if before != now and not self._options.retry_failed:
                self._notices.append(
                    f"{found.name}: the scores of the finished run in {self.path} were others and "
                    "are replaced; since then its rows, judge, software or device changed, and "
                    f"{found.requests - found.cached} of {found.requests} requests were asked again"
                )

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
        run_before = before.get(RUN)
        if declared and isinstance(run_before, dict) and STEP not in run_before:  # an older version
            now[RUN] = {name: value for name, value in declared.items() if name != STEP}
        if before and is_whole:
            asked = [name for name in sorted(before) if is_asked(name)]
            found = find_differences({name: before[name] for name in asked}, now)
        else:
            both = [name for name in now if name in before]
            found = find_differences({n: before[n] for n in both}, {n: now[n] for n in both})
        if found:
            raise ConfigurationError(
                f"{folder.path} holds a run of another spec: "
                f"{format_differences(found)}; name another --output, or start over with --fresh"
            )
        folder.journal.declare({n: value for n, value in now.items() if n not in before})

    def _check_answering(self, folder: RunFolder, record: Mapping[str, Any]) -> None:
        now: dict[str, Any] = {_IDENTITY: record[_IDENTITY]}
        tokenizer: Mapping[str, Any] = record[_TOKENIZER] or {}
        if "encoding" in tokenizer:
            now[_TOKENIZER] = {name: tokenizer.get(name) for name in _TEXT_TO_IDS}
        before = folder.journal.read_declared(*now, _DAY)
        found = find_differences(before.get(_IDENTITY, now[_IDENTITY]), now[_IDENTITY])
        if not found and _TOKENIZER in before:
            old: dict[str, Any] = before[_TOKENIZER]
            if old.get("chat_template") is None and now[_TOKENIZER]["chat_template"] is not None:
                old = now[_TOKENIZER] | {"encoding": old["encoding"]}  # unknown of older workers
            found = find_differences(old, now[_TOKENIZER], _TOKENIZER)
        if found:
            raise ConfigurationError(
                f"{folder.path} holds a run of another model: "
                f"{format_differences(found)}; name another --output, or start over with --fresh"
            )
        is_live = record["name"] is None or self._options.backend is not None
        self.can_resume = not is_live or record[_IDENTITY] is not None
        if not self.can_resume and folder.journal.count():
            raise ConfigurationError(
                f"{folder.path} holds answers of a live model; its weights may have changed since, "
                "so they can't be taken up again: name another --output, or start over with --fresh"
            )
        if (day := tokenizer.get(_DAY)) is not None:
            now[_DAY] = before.get(_DAY, day)
            if now[_DAY] != day:
                self._notices.append(
                    f"the chat template prints the date: this run began on {now[_DAY]}, and chats "
                    f"that it asks from now on have {day}; --fresh asks all of them again"
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
    return Journal.open_shared(folder / CACHE)
