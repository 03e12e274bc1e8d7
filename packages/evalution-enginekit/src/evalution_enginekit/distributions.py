"""Rows of log-probabilities: read from an engine in blocks, or made into scores with top tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, islice, takewhile
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from evalution_core import EngineRuntimeError, EvalutionError, RequestFailure, SessionClosedError
from evalution_core.encoding import TokenSpan
from evalution_core.requests import DistributionRequest, DistributionRows, TopLogprobs, parse_item
from evalution_enginekit.planning import Target, TokenScore
from evalution_enginekit.runtime_thread import RuntimeThread, end_steps, runtime_errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Rows: TypeAlias = "NDArray[np.float32]"
"""Log-probabilities, of shape (positions, vocabulary)."""
K = TypeVar("K", bound=Hashable)
S = TypeVar("S")
_VALUES = 1 << 22
"""Values of a block, 16 MiB in float32: large enough for a matrix product to be efficient.

The memory of freed blocks of 32 MiB goes back to the system, and comes again page by page.
"""
_TILE = 1 << 17
"""Values that are worked on at once: with a copy they stay in the second-level cache."""


def count_block_rows(vocabulary: int) -> int:
    """Return the number of rows that an engine should compute at once."""
    return max(1, _VALUES // vocabulary)


def log_softmax_rows(logits: NDArray[np.floating[Any]]) -> Rows:
    """Return the rows of `logits`, of shape (positions, vocabulary), as log-probabilities.

    In the precision of the logits, but at least float32, with sums in float64.
    """
    import numpy as np  # noqa: PLC0415 - an engine that has no rows needs no NumPy

    dtype = np.float64 if logits.dtype == np.float64 else np.float32
    rows = np.empty(logits.shape, np.float32)
    height = max(1, _TILE // logits.shape[-1])
    for at in range(0, len(logits), height):
        values = logits[at : at + height].astype(dtype)
        values -= values.max(axis=-1, keepdims=True)
        sums = np.exp(values).sum(axis=-1, dtype=np.float64, keepdims=True)
        values -= np.log(sums).astype(dtype)
        rows[at : at + height] = values
    return rows


def split_spans(spans: Sequence[TokenSpan], rows: int) -> Iterator[list[TokenSpan]]:
    """Yield the spans in groups of at most `rows` positions, a longer span alone and in parts.

    The parts end where the number of fed tokens is a multiple of `rows`; each begins with all
    tokens of the one before, so that an engine that keeps a prefix runs none of them twice.
    """
    group: list[TokenSpan] = []
    room = rows
    for span in spans:
        count = len(span.token_ids) - span.start
        if count > room and group:
            yield group
            group, room = [], rows
        if count <= room:
            group.append(span)
            room -= count
            continue
        start, end = span.start, (span.start - 1) // rows * rows + 1
        while end < len(span.token_ids):
            end = min(end + rows, len(span.token_ids))
            yield [TokenSpan(span.token_ids[:end], start)]
            start = end
    if group:
        yield group


class RowBlock:
    """The rows of all positions of some spans, in order, filled in by the targets of their plan."""

    def __init__(self, spans: Sequence[TokenSpan], vocabulary: int):
        import numpy as np  # noqa: PLC0415 - as in `log_softmax_rows`

        counts = [len(span.token_ids) - span.start for span in spans]
        self._firsts = list(accumulate(counts, initial=0))
        self.rows: Rows = np.empty((self._firsts[-1], vocabulary), np.float32)

    def fill(
        self, targets: Sequence[Target], logits: NDArray[np.floating[Any]], rows: Sequence[int]
    ) -> None:
        """Set the rows that the targets read: those of the logits [rows, vocabulary] at `rows`."""
        places = [self._firsts[target.span] + target.slot for target in targets]
        height = max(1, _TILE // logits.shape[-1])
        for at in range(0, len(places), height):
            part = slice(at, at + height)
            self.rows[places[part]] = log_softmax_rows(logits[rows[part]])


def score_spans(
    score_tokens: Callable[[Sequence[TokenSpan]], Iterator[S]],
    compute_rows: Callable[[Sequence[TokenSpan]], Iterator[Rows]],
    spans: Sequence[TokenSpan],
) -> Iterator[S | list[TokenScore]]:
    """Score spans in their order, by rows those alone that want the most likely tokens.

    So the values of the others don't depend on what is scored beside them.
    """
    for is_ranked, run in groupby(spans, lambda span: span.top_logprobs is not None):
        if is_ranked:
            yield from score_by_rows(compute_rows, list(run))
        else:
            yield from score_tokens(list(run))


def score_by_rows(
    compute_rows: Callable[[Sequence[TokenSpan]], Iterator[Rows]], spans: Sequence[TokenSpan]
) -> Iterator[list[TokenScore]]:
    """Score spans by the rows of their positions, with the most likely tokens of each."""
    for span in spans:
        logprobs: list[float] = []
        tops: TopLogprobs = []
        is_greedy = True
        for block in compute_rows([span]):
            begin = span.start + len(logprobs)
            for row, token_id in zip(
                block, span.token_ids[begin : begin + len(block)], strict=True
            ):
                logprobs.append(float(row[token_id]))
                is_greedy &= bool(row[token_id] >= row.max())
                if span.top_logprobs is not None:
                    tops.append(find_top(row, span.top_logprobs))
            yield []
        yield [TokenScore(logprobs, is_greedy, top_logprobs=tops or None)]


def find_top(row: NDArray[np.floating[Any]], count: int) -> dict[int, float]:
    """Return the most likely ids of a row, best first; of equals, the smallest id."""
    import numpy as np  # noqa: PLC0415 - as above

    count = min(count, len(row))
    least = np.partition(row, len(row) - count)[len(row) - count]
    found = np.flatnonzero(row >= least)
    best = found[np.argsort(-row[found], kind="stable")][:count]
    return dict(zip(best.tolist(), row[best].tolist(), strict=True))


@dataclass(slots=True)
class _Job(Generic[K]):
    """A request's span, or its failure; `done` counts the rows that were delivered."""

    key: K
    found: TokenSpan | RequestFailure
    metadata: dict[str, Any]
    done: int = 0

    @property
    def missing(self) -> int:
        if isinstance(self.found, RequestFailure):
            return 0
        return len(self.found.token_ids) - self.found.start - self.done


class DistributionReader:
    """Reads rows from an engine, block by block, each computed when the caller asks for it."""

    def __init__(
        self,
        thread: RuntimeThread,
        compute_rows: Callable[[Sequence[TokenSpan]], Iterator[Rows]],
    ):
        self._thread = thread
        self._compute_rows = compute_rows

    def read(
        self,
        requests: Iterable[tuple[K, DistributionRequest]],
        prepare: Callable[[DistributionRequest], TokenSpan | RequestFailure],
        at_once: int,
    ) -> Iterator[tuple[K, DistributionRows | RequestFailure]]:
        """Yield rows in the order of the requests, of which the engine is given some at once.

        Requests that fail together are tried one by one. What the input raises is raised after the
        rows of all that it gave.
        """
        source = enumerate(requests)
        broken: BaseException | None = None
        while broken is None:
            jobs: deque[_Job[K]] = deque()
            try:
                for position, item in islice(source, at_once):
                    jobs.append(_make_job(item, position, prepare))
            except BaseException as error:  # noqa: BLE001 - it is raised again, after the rows
                broken = error
            if not jobs:
                break
            while jobs:
                if isinstance(failure := jobs[0].found, RequestFailure):
                    yield jobs.popleft().key, failure
                else:
                    yield from self._read_some(jobs)
        if broken is not None:
            raise broken

    def _read_some(
        self, jobs: deque[_Job[K]]
    ) -> Iterator[tuple[K, DistributionRows | RequestFailure]]:
        """Yield rows of the jobs up to one that has failed; after an error, of the first alone."""
        ready = takewhile(lambda found: isinstance(found, TokenSpan), (job.found for job in jobs))
        spans = cast("list[TokenSpan]", list(ready))
        left = len(jobs) - len(spans)
        try:
            yield from self._read_spans(jobs, spans)
            return
        except EvalutionError as error:
            fault = _require_open(error)
        if len(jobs) > left + 1:
            first = spans[len(spans) - len(jobs) + left]
            rest = replace(first, start=first.start + jobs[0].done)
            try:
                yield from self._read_spans(jobs, [rest])
                return
            except EvalutionError as error:
                fault = _require_open(error)
        if len(jobs) == left:
            raise fault
        job = jobs.popleft()
        yield job.key, RequestFailure(fault, job.metadata)

    def _read_spans(
        self, jobs: deque[_Job[K]], spans: Sequence[TokenSpan]
    ) -> Iterator[tuple[K, DistributionRows]]:
        left = len(jobs) - len(spans)
        blocks: Iterator[Rows] = self._call(lambda: iter(self._compute_rows(spans)))
        try:
            while (block := self._call(lambda: next(blocks, None))) is not None:
                at = 0
                while at < len(block):
                    if len(jobs) == left:
                        raise EngineRuntimeError("more distributions came than were asked for")
                    job = jobs[0]
                    rows = block[at : at + job.missing]
                    first, job.done = job.done, job.done + len(rows)
                    if not job.missing:
                        jobs.popleft()
                    yield job.key, DistributionRows(first, memoryview(rows))
                    at += len(rows)
            if len(jobs) > left:
                raise EngineRuntimeError(
                    f"distributions of {jobs[0].missing} positions are missing"
                )
        finally:
            self._thread.post(lambda: end_steps(blocks, "distributions"))

    def _call(self, function: Callable[[], Any]) -> Any:
        with runtime_errors("distributions"):
            return self._thread.call(function)


def _require_open(error: EvalutionError) -> EvalutionError:
    """Return the error of a request; raise that of a closed session."""
    if isinstance(error, SessionClosedError):
        raise error
    return error


def _make_job(
    item: object,
    position: int,
    prepare: Callable[[DistributionRequest], TokenSpan | RequestFailure],
) -> _Job[Any]:
    parsed = parse_item(item, position)
    if isinstance(parsed, RequestFailure):
        return _Job(None, parsed, {})
    key, request = parsed
    found = prepare(request)
    metadata = found.metadata if isinstance(found, RequestFailure) else request.metadata
    return _Job(key, found, metadata)
