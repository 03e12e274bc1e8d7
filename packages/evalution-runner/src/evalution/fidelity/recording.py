"""A reference's rows written to a file, window by window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from evalution.fidelity.divergence import TopRows
from evalution.fidelity.lockstep import RowSource, SessionTops
from evalution.fidelity.measurement import FidelityOptions, choose_window
from evalution.fidelity.reference_file import Recording, ReferenceWriter, check_place
from evalution.fidelity.requests import PreparedSuite, prepare_suite
from evalution.fidelity.sides import LiveSide, open_live
from evalution.fidelity.summary import digest_windows
from evalution.parity.check import check_suites
from evalution.progress import Progress
from evalution.runs.preflight import EngineAndModel, check_engine, check_model
from evalution.suites.suite import AnySuite, SuiteDeclaration
from evalution_core import (
    EngineRuntimeError,
    GenerationRequest,
    RequestFailure,
    UnsupportedRequestError,
)
from evalution_core.kinds import RequestKind


def record_reference(
    subject: EngineAndModel,
    tests: Sequence[SuiteDeclaration],
    path: Path,
    options: FidelityOptions | None = None,
    *,
    top: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the rows of all suites' requests to a file, and return how many windows it holds.

    What was written survives a kill: the same again goes on where it was.

    Args:
        subject: the reference.
        tests: suites that score; one that generates has to be measured against a live reference.
        path: the file; made if it isn't there.
        options: `window`, `limit` and `isolate` count.
        top: keep so many of the most likely tokens instead of whole rows.
        progress: receives the progress.

    Raises:
        ConfigurationError: an option, a row or a model is wrong, or the file can't be made or
            holds something else.
        UnsupportedRequestError: the session has neither rows nor most likely tokens, or a suite
            generates.
        EvalutionError: the engine failed, or the file can't be written.
    """
    options, progress = options or FidelityOptions(), progress or Progress()
    if top is not None:
        options = replace(options, top=top)
    check_place(path)
    suites = {name: suite for name, suite, _ in check_suites(tests, options.limit)}
    _refuse_generations(suites)
    check_model(subject.model, check_engine(subject.engine))
    with open_live(subject, progress, isolate=options.isolate) as side:
        window = choose_window(options.window, [side])
        prepared = _prepare_suites(suites, side, window, options.limit)
        source = side.open_rows(options.top)
        if top is None and isinstance(source, SessionTops):
            top = options.top
        recording = _describe_recording(side, prepared, window, top, source)
        with ReferenceWriter(path, recording) as writer:
            for suite in prepared:
                _record_suite(writer, suite, source, progress)
            writer.finish()
    return sum(len(suite.windows) for suite in prepared)


def _refuse_generations(suites: Mapping[str, AnySuite]) -> None:
    for name, suite in suites.items():
        if suite.request_kind is RequestKind.GENERATION:
            raise UnsupportedRequestError(
                f"suite {name!r} generates: its completions aren't kept in a file; record suites "
                "that score, or measure against the reference's spec"
            )


def _prepare_suites(
    suites: Mapping[str, AnySuite], side: LiveSide, window: int, limit: int | None
) -> list[PreparedSuite]:
    if side.codec is None:
        raise UnsupportedRequestError(
            "the reference's engine gives no tokenizer, so the ids of the texts aren't known; take "
            "an engine that encodes here"
        )
    prepared: list[PreparedSuite] = []
    for name, suite in suites.items():
        side.prepare(suite)
        found = prepare_suite(suite, name, side.codec, window, limit, _complete_nothing)
        prepared.append(found)
    return prepared


def _complete_nothing(requests: Sequence[GenerationRequest]) -> Iterator[list[int]]:
    assert not requests
    return iter(())


def _describe_recording(
    side: LiveSide,
    suites: Sequence[PreparedSuite],
    window: int,
    top: int | None,
    source: RowSource,
) -> Recording:
    """Describe the file; the first window is read to see the size of the vocabulary."""
    first = next(found.windows[0] for found in suites if found.windows)
    blocks = source.read([first])
    _, block = next(blocks)
    blocks.close()
    if isinstance(block, RequestFailure):
        raise block.error
    return Recording(
        side=side.describe(),
        vocabulary=0 if isinstance(block, TopRows) else block.shape[1],
        tokenizer=side.tokenizer or "",
        window=window,
        texts={suite.name: digest_windows(suite.windows) for suite in suites},
        top=top,
        versions=side.read_versions(),
    )


def _record_suite(
    writer: ReferenceWriter, suite: PreparedSuite, source: RowSource, progress: Progress
) -> None:
    """Write the windows that the file lacks; several of the same ids are one."""
    wanted = {(tuple(window.input_ids), window.start): window for window in suite.windows}
    missing = [window for window in wanted.values() if not writer.has(window)]
    done = len(wanted) - len(missing)
    progress.suite_started(suite.name, len(wanted))
    try:
        progress.samples_cached(done)
        blocks = source.read(missing)
        for at, found in groupby(blocks, key=lambda block: block[0]):
            with writer.add_window(missing[at]) as add:
                for _, block in found:
                    if isinstance(block, RequestFailure):
                        raise EngineRuntimeError(
                            f"suite {suite.name!r}, window {at + 1}: {block.error}"
                        ) from block.error
                    add(block)
            done += 1
            progress.sample_finished(done, 0, None)
    finally:
        progress.suite_finished()
