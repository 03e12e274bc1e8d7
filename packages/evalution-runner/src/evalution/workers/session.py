"""A session whose work is done by sessions in worker processes, and building one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from evalution.environment import Environment, make_tokenizer_record
from evalution.workers.jobs import (
    CallJob,
    PooledStream,
    StreamItem,
    make_call_job,
    split_metadata,
)
from evalution.workers.process import WorkerProcess, make_environments
from evalution.workers.rows import RowReader
from evalution.workers.supervision import Supervision, WorkerOptions
from evalution.workers.wire import (
    ANSWERER,
    SpecialIds,
    Start,
    main_module,
    pack_configuration,
    pack_request,
)
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    CheckResult,
    ConfigurationError,
    EngineRuntimeError,
    EngineSpec,
    EvalutionError,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    SessionInfo,
    StreamEvent,
    TextCodec,
    UnsupportedRequestError,
)
from evalution_core.errors import raise_failures
from evalution_core.kinds import RequestKind
from evalution_core.requests import DistributionRequest, DistributionRows, Output, Request


class RemoteTokenizer:
    """The tokenizer of a session in another process; each call is a round trip."""

    def __init__(self, ask: Callable[..., Any], special_ids: SpecialIds):
        self._ask = ask
        self.leading_ids, self.bos_id, self.eos_id = special_ids

    def encode(self, text: str) -> list[int]:
        return self._ask("encode", text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._ask("decode", list(token_ids), skip_special_tokens=skip_special_tokens)

    def make_record(self) -> dict[str, Any] | None:
        return self._ask(make_tokenizer_record.__name__)


K = TypeVar("K", bound=Hashable)

_UNREAD = 64
_RUN = 8
"""Requests in a row that are scored by one worker: the choices of a question share a prefix."""
_FAILED, _UNCHECKED = ("failed", "not checkable")


class SupervisedSession(BaseInferenceSession):
    """Spreads requests over workers, each with a session of its own that is restarted if it ends.

    `batch_size` caps what runs at once over all workers. A list call is a stream of its requests:
    those that are refused are raised together when the others are answered. A request that ends its
    worker is a `RequestFailure` in a stream; a list call raises its `EngineRuntimeError`, with the
    request's index in `in_flight`.
    """

    def __init__(
        self,
        supervision: Supervision,
        *,
        requests_limit: int | None,
        description: dict[str, Any],
    ):
        self._supervision = supervision
        self._scheduler = supervision.scheduler
        self._requests_limit = requests_limit
        self._description = description
        self._check_lock = threading.Lock()
        self._check_result: CheckResult | None = None
        ready = [slot.ready for slot in self._scheduler.slots if slot.ready is not None]
        infos = [found.info for found in ready]
        preferred = [info.preferred_batch_size for info in infos if info.preferred_batch_size]
        self._info = SessionInfo(
            frozenset[Capability].intersection(*(info.capabilities for info in infos))
            - find_lost_capabilities(len(infos)),
            infos[0].max_model_len,
            sum(preferred) or None,
        )
        self._environment = ready[0].environment
        special_ids = ready[0].special_ids
        self._tokenizer = None if special_ids is None else RemoteTokenizer(self._ask, special_ids)

    @property
    def info(self) -> SessionInfo:
        return self._info

    @property
    def environment(self) -> Environment | None:
        """The software of the workers, where it isn't this program's."""
        return self._environment

    @property
    def tokenizer(self) -> TextCodec | None:
        return self._tokenizer

    @property
    def requests_in_flight(self) -> int:
        return self._scheduler.in_flight

    def generate(
        self, requests: list[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        return self._collect(RequestKind.GENERATION, requests, batch_size)

    def loglikelihood(
        self, requests: list[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        return self._collect(RequestKind.LOGLIKELIHOOD, requests, batch_size)

    def loglikelihood_rolling(
        self, requests: list[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]:
        return self._collect(RequestKind.ROLLING, requests, batch_size)

    def generate_continuous(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, GenerationOutput | RequestFailure]]:
        return self._open_stream(RequestKind.GENERATION, requests, batch_size)

    def loglikelihood_continuous(
        self, requests: Iterable[tuple[K, LoglikelihoodRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, LoglikelihoodOutput | RequestFailure]]:
        return self._open_stream(RequestKind.LOGLIKELIHOOD, requests, batch_size, run=_RUN)

    def loglikelihood_rolling_continuous(
        self,
        requests: Iterable[tuple[K, RollingLoglikelihoodRequest]],
        *,
        batch_size: int | None = None,
    ) -> Iterator[tuple[K, RollingLoglikelihoodOutput | RequestFailure]]:
        return self._open_stream(RequestKind.ROLLING, requests, batch_size)

    def stream(
        self, requests: Iterable[tuple[K, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, StreamEvent]]:
        if Capability.STREAM not in self._info.capabilities:
            self._scheduler.ensure_open()
            raise UnsupportedRequestError("the engine in the worker process can't stream")
        return self._open_stream(RequestKind.GENERATION, requests, batch_size, deltas=True)

    def distributions(
        self, requests: Iterable[tuple[K, DistributionRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[K, DistributionRows | RequestFailure]]:
        cap = self._begin(batch_size)
        if Capability.DISTRIBUTIONS not in self._info.capabilities:
            workers = len(self._scheduler.slots)
            raise UnsupportedRequestError(
                "the engine in the worker process can't give distributions"
                if workers == 1
                else f"distributions come in order, from one worker, and this session has {workers}"
                "; use `isolate: true` or one replica"
            )
        return RowReader(self._scheduler, requests, cap).read()

    def check(self) -> CheckResult:
        """Return the worst result of all workers' checks."""
        self._scheduler.ensure_open()
        with self._check_lock:
            if self._check_result is None:
                found: list[CheckResult] = [job.result.result() for job in self._ask_all("check")]
                found.sort(
                    key=lambda result: (result.outcome == _FAILED, result.outcome == _UNCHECKED)
                )
                self._check_result = found[-1] if found else self._ask("check")
            assert self._check_result is not None
            return self._check_result

    def gc(self) -> None:
        for job in self._ask_all("gc"):
            try:
                job.result.result()
            except EngineRuntimeError:
                # Its worker ended: the next one has nothing to release.
                self._scheduler.ensure_open()

    def identity(self) -> dict[str, Any] | None:
        """Return that of the first worker.

        Raises:
            ConfigurationError: another one answers by other files or settings.
        """
        scheduler = self._scheduler
        if scheduler.answerer is None:
            # The first reads the files, whose hashes the others on its machine then find.
            scheduler.compare_answerer(self._ask(ANSWERER))
            for job in self._ask_all(ANSWERER) if len(scheduler.slots) > 1 else ():
                scheduler.compare_answerer(job.result.result())
        assert scheduler.answerer is not None
        return scheduler.answerer["identity"]

    def describe_execution(self) -> dict[str, Any]:
        return {**(self._ask("describe_execution") or {}), **self._description}

    def close(self) -> None:
        self._supervision.close()

    # within

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        job = make_call_job(method, *arguments, **options)
        self._scheduler.submit(job)
        return job.result.result()

    def _ask_all(self, method: str) -> list[CallJob]:
        jobs: list[CallJob] = []
        with self._scheduler.lock:
            self._scheduler.ensure_open()
            for slot in self._scheduler.ready_slots():
                job = make_call_job(method)
                self._scheduler.submit(job, slot)
                jobs.append(job)
        return jobs

    def _begin(self, batch_size: int | None) -> int | None:
        self._scheduler.ensure_open()
        if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
            raise InvalidRequestError(f"batch_size must be an int >= 1, got {batch_size!r}")
        limits = [limit for limit in (batch_size, self._requests_limit) if limit is not None]
        return min(limits, default=None)

    def _open_stream(
        self,
        kind: RequestKind,
        requests: Iterable[tuple[K, Request]],
        batch_size: int | None,
        *,
        deltas: bool = False,
        run: int = 1,
    ) -> Iterator[tuple[K, Any]]:
        cap = self._begin(batch_size)
        stream = PooledStream(
            self._scheduler.lock,
            kind,
            deltas=deltas,
            batch_size=cap,
            unread_bound=cap or self._info.preferred_batch_size or _UNREAD,
            run=run,
        )
        return self._read(stream, requests)

    def _read(
        self, stream: PooledStream, requests: Iterable[tuple[K, Request]]
    ) -> Iterator[tuple[K, Any]]:
        self._scheduler.open(stream)
        threading.Thread(
            target=self._feed, args=(requests, stream), name="evalution input", daemon=True
        ).start()
        try:
            yield from stream.results()
        finally:
            self._scheduler.release(stream)

    def _feed(self, requests: Iterable[tuple[Hashable, Request]], stream: PooledStream) -> None:
        try:
            source = iter(requests)
            while self._scheduler.wait_for_room(stream):
                try:
                    key, request = next(source)
                except StopIteration:
                    self._scheduler.end_input(stream)
                    return
                bare, metadata = split_metadata(request)
                item = StreamItem(b"", stream=stream, key=key, metadata=metadata)
                try:
                    item.payload = pack_request(bare)
                except InvalidRequestError as error:
                    with self._scheduler.lock:
                        stream.reject(item, error)
                else:
                    self._scheduler.place(stream, item)
        except BaseException as error:  # noqa: BLE001 - it is raised again at the reading end
            self._scheduler.end_input(stream, error)

    def _collect(
        self, kind: RequestKind, requests: Sequence[Request], batch_size: int | None
    ) -> list[Any]:
        """Answer a list as a stream; raise what failed when all others are answered."""
        outputs: dict[int, Output] = {}
        errors: dict[int, EvalutionError] = {}
        for index, answer in kind.open_stream(self, enumerate(requests), batch_size=batch_size):
            if isinstance(answer, RequestFailure):
                errors[index] = answer.error
            else:
                outputs[index] = answer
        for _, error in sorted(errors.items()):
            if not isinstance(error, InvalidRequestError | UnsupportedRequestError):
                raise error
        if errors:
            raise_failures(errors, len(requests), are_others_answered=True)
        return [outputs[index] for index in range(len(requests))]


def build_supervised(
    engine: BaseEngine,
    model: Model,
    *,
    workers: int = 1,
    options: WorkerOptions | None = None,
    devices: Sequence[str] | None = None,
    elsewhere: tuple[Path, EngineSpec] | None = None,
) -> SupervisedSession:
    """Load `model` in worker processes, which are gone when the session is closed.

    They inherit this process's environment with the credentials in it, which the engine may need.
    What they print goes to standard error.

    Args:
        engine: built once in each worker. It and the model must pickle.
        workers: how many processes; they answer one session's requests together.
        options: deadlines and restarts.
        devices: what each worker sees as `CUDA_VISIBLE_DEVICES`, one entry for each. None leaves
            the devices as they are and divides the cores.
        elsewhere: an interpreter of another environment, and the engine by its name there.

    Raises:
        ConfigurationError: the engine or model can't be pickled, or allows fewer workers.
        EvalutionError: what the build raised in a worker.
        EngineRuntimeError: workers ended too often, or one missed its deadline, while loading.
    """
    check_workers(engine, workers, devices)
    options = options or WorkerOptions()
    python, source = elsewhere or (None, engine)
    packed = pack_configuration(source), pack_configuration(model)
    start = Start(*packed, main_module(*packed), options.beat, options.heartbeat_timeout)
    environments = make_environments(workers, devices)
    supervision = Supervision(
        workers, lambda index: WorkerProcess(start, environments[index], python), options
    )
    supervision.start()
    description: dict[str, Any] = {"isolated": True, "replicas": workers}
    if python is not None:
        description["python"] = str(python)
    if devices is not None:
        description["visible_devices"] = list(devices)
    return SupervisedSession(
        supervision, requests_limit=engine.requests_limit, description=description
    )


def find_lost_capabilities(workers: int) -> frozenset[Capability]:
    """Return what a session over so many workers can't do, whatever the engine can."""
    # Live objects stay in their process, and rows come in the order of one session.
    several = {Capability.DISTRIBUTIONS} if workers > 1 else set[Capability]()
    return frozenset({Capability.ATTACH, *several})


def check_workers(engine: BaseEngine, workers: int, devices: Sequence[str] | None = None) -> None:
    """Raise `ConfigurationError` unless so many workers may build the engine."""
    name = type(engine).__name__
    if type(workers) is not int or workers < 1:
        raise ConfigurationError(
            f"replicas, the number of workers, must be an int of at least 1, got {workers!r}"
        )
    for limit, what in (
        (engine.processes_limit, "may be built in at most {} process(es) at once"),
        (engine.requests_limit, "may have at most {} request(s) in flight over all processes"),
    ):
        if limit is not None and workers > limit:
            raise ConfigurationError(
                f"engine {name} {what.format(limit)}, so {workers} workers can't be used; ask for "
                f"{limit} or fewer"
            )
    if devices is not None and len(devices) != workers:
        raise ConfigurationError(
            f"{workers} workers need {workers} devices, one entry each, got {list(devices)!r}"
        )
