"""The logs of a run as files in a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from inspect_ai.log import EvalLog, write_eval_log

from evalution.results import RunResult
from evalution.runs.folder import SAMPLES
from evalution.samples import SamplesReader
from evalution_core import ConfigurationError, did_you_mean
from evalution_inspect.logs.log_samples import eval_sample
from evalution_inspect.logs.suite_log import model_name, suite_log, unfinished_log


def write_logs(run: RunResult, folder: Path | str, suites: Sequence[str] = ()) -> list[Path]:
    """Write a log for each suite of a run, and give their paths.

    Of a run that failed, the suite in which it ended has a log too, with the error. Names follow
    Inspect's own logs: the time, the suite, an id. Writing a run again replaces its logs.

    Args:
        run: as `evalution.runs.reader.read_run` gives it.
        folder: is made if there is none.
        suites: only these; all of them if empty.

    Raises:
        ConfigurationError: the run has no such suite, or nothing to write; or a file can't be read
            or written.
    """
    target = Path(folder)
    ended_in = _ended_in(run)
    names = [suite.name for suite in run.suites] + ([ended_in] if ended_in else [])
    for name in suites:
        if name not in names:
            raise ConfigurationError(
                f"the run has no suite {name!r}{did_you_mean(name, names)} "
                f"(suites: {', '.join(names) or 'none'})"
            )
    if not names:
        raise ConfigurationError("no suite of the run was begun, so there is nothing to write")
    logs = _logs(run, ended_in, set(suites or names))
    try:
        target.mkdir(parents=True, exist_ok=True)
        return [_write(log, target) for log in logs]
    except OSError as error:
        raise ConfigurationError(f"{target} can't be written: {error.strerror}") from error


def _logs(run: RunResult, ended_in: str | None, wanted: set[str]) -> Iterator[EvalLog]:
    for suite in run.suites:
        if suite.name in wanted:
            yield suite_log(run, suite)
    if ended_in in wanted:
        assert ended_in is not None
        file = run.folder / SAMPLES if run.folder else None
        found = SamplesReader(file).of(ended_in) if file and file.is_file() else ()
        samples = [eval_sample(sample, model_name(run)) for sample in found]
        yield unfinished_log(run, ended_in, samples)


def _ended_in(run: RunResult) -> str | None:
    name = (run.error or {}).get("suite")
    return name if name not in [suite.name for suite in run.suites] else None


def _write(log: EvalLog, folder: Path) -> Path:
    created = log.eval.created.replace(":", "-")
    task = re.sub(r"[^\w.-]|_", "-", log.eval.task)
    path = folder / f"{created}_{task}_{log.eval.task_id}.eval"
    write_eval_log(log, path)
    return path
