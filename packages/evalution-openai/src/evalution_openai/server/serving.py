"""The served model: its session, its limits, and the server's metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from evalution_core import (
    GUIDE_CAPABILITIES,
    BaseInferenceSession,
    Capability,
    GenerationRequest,
    HasMaxModelLen,
    HasPreferredBatchSize,
    HasTokenizer,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    SpecialTokens,
    TextCodec,
)
from evalution_enginekit.validation import Admission
from evalution_openai.server.errors import ApiError, make_queue_full, make_unsupported
from evalution_openai.server.generation_scheduler import GenerationScheduler
from evalution_openai.server.scoring_batcher import (
    ScoringBatcher,
    make_pair_scorer,
    make_text_scorer,
)
from evalution_openai.server.settings import ServerSettings

ID_SPELLING = "token_id:"
_BATCH_SIZE = 8
"""The batch size of a session that prefers none."""


@runtime_checkable
class WholeTokenizer(SpecialTokens, Protocol):
    """The engine kit's tokenizers, which know more than the contract asks."""

    @property
    def eos_ids(self) -> frozenset[int]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def chat_template(self) -> Any: ...


class BodyBudget:
    """Bytes of all bodies, each counted from its arrival to the end of its answer.

    Args:
        limit: the most bytes.
    """

    def __init__(self, limit: int):
        self.total = 0
        self._limit = limit

    def check_room(self, size: int) -> None:
        """Raise an `ApiError` (429) if there is no room for `size` more bytes."""
        if self.total + size > self._limit:
            raise ApiError(
                429,
                f"the bodies of the requests that run or wait have {self.total} bytes; with this "
                f"one there would be more than the {self._limit} that are held; try again",
                kind="rate_limit_error",
                code="bodies_full",
                headers={"Retry-After": "1", "Connection": "close"},
            )


class BodyReservation:
    """The bytes of one body."""

    def __init__(self, held: BodyBudget):
        self._held = held
        self._size = 0

    def add(self, size: int) -> None:
        """Count bytes that arrived; raises like `BodyBudget.check_room`."""
        self._held.check_room(size)
        self._held.total += size
        self._size += size

    def release(self) -> None:
        self._held.total -= self._size
        self._size = 0


class ServedModel:
    """A session under a name.

    Args:
        session: where requests go; it stays the caller's.
        name: the name in `/v1/models`.
        capabilities: those of the engine, for a session that declares none.
        settings: the limits.
        metrics: counts requests and tokens.
    """

    def __init__(
        self,
        session: BaseInferenceSession,
        name: str,
        capabilities: frozenset[Capability] | None,
        settings: ServerSettings,
        metrics: Metrics,
    ):
        self.session = session
        self.name = name
        self.created = int(time.time())
        self.settings = settings
        self.metrics = metrics
        self.capabilities = session.capabilities or capabilities or GUIDE_CAPABILITIES
        self.validation = Admission(name, self.capabilities)
        self.tokenizer: TextCodec | None = (
            session.tokenizer if isinstance(session, HasTokenizer) else None
        )
        self.max_model_len = session.max_model_len if isinstance(session, HasMaxModelLen) else None
        preferred = (
            session.preferred_batch_size
            if isinstance(session, HasPreferredBatchSize)
            else _BATCH_SIZE
        )
        concurrent = settings.max_concurrent or 2 * preferred
        self.limit = concurrent + settings.max_queue
        self.inside = 0
        self.bodies = BodyBudget(settings.body_budget)
        self.generation = GenerationScheduler(
            session,
            limit=concurrent,
            refills=Capability.CONTINUOUS_BATCHING in self.capabilities,
            streams=Capability.STREAM in self.capabilities,
            waited=metrics.make_wait_observer("generation"),
        )
        self.loglikelihood: ScoringBatcher[LoglikelihoodRequest, LoglikelihoodOutput] = (
            ScoringBatcher(make_pair_scorer(session), metrics.make_wait_observer("loglikelihood"))
        )
        self.rolling: ScoringBatcher[RollingLoglikelihoodRequest, RollingLoglikelihoodOutput] = (
            ScoringBatcher(make_text_scorer(session), metrics.make_wait_observer("rolling"))
        )
        self._spelled: dict[int, str] = {}

    def can(self, capability: Capability) -> bool:
        return capability in self.capabilities

    def enter(self) -> None:
        """Count a request that runs or waits, until `leave`.

        Raises:
            ApiError: 429, there are as many as allowed.
        """
        if self.inside >= self.limit:
            raise make_queue_full(self.limit)
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1

    def check_name(self, name: str | None) -> None:
        """Raise an `ApiError` (404) for another model than the served one."""
        if name is not None and name != self.name:
            raise ApiError(
                404,
                f"model {name!r} is not served here; this server has {self.name!r}",
                code="model_not_found",
                param="model",
            )

    def require_tokenizer(self, wanted: str) -> TextCodec:
        """Return the tokenizer; an `ApiError` says that `wanted` needs one."""
        if self.tokenizer is None:
            raise make_unsupported(
                f"{wanted} needs the model's tokenizer, which this engine doesn't give"
            )
        return self.tokenizer

    def encode_prompt(self, text: str) -> list[int] | None:
        """Encode a prompt as the session does; None where that is unknown."""
        if not isinstance(self.tokenizer, SpecialTokens):
            return None
        token_ids = self.tokenizer.encode(text)
        leading = list(self.tokenizer.leading_ids)
        return token_ids if token_ids[: len(leading)] == leading else leading + token_ids

    def spell(self, token_id: int) -> str:
        """Return the text of one token, also of a special one.

        `token_id:N` without a tokenizer, and for a token that is a part of a character, since many
        of those would have the same text.
        """
        found = self._spelled.get(token_id)
        if found is None:
            found = "\ufffd"
            if self.tokenizer is not None:
                found = self.tokenizer.decode([token_id], skip_special_tokens=False)
            if "\ufffd" in found:
                found = f"{ID_SPELLING}{token_id}"
            self._spelled[token_id] = found
        return found

    def validate(self, requests: Sequence[GenerationRequest]) -> None:
        """Raise an `EvalutionError` for a request that the session would refuse."""
        for request in requests:
            self.validation.generation(request)

    def close(self) -> None:
        """End all calls; the session stays open."""
        for scheduler in (self.generation, self.loglikelihood, self.rolling):
            scheduler.close()


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The metrics of one server; two servers in one process have their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "evalution_requests",
            "Answers by route and status.",
            ["route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "evalution_request_seconds",
            "From the request to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._waits = Histogram(
            "evalution_queue_seconds",
            "Wait for a turn in the session.",
            ["kind"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._inside = Gauge(
            "evalution_requests_inside", "Requests that run or wait.", registry=self._registry
        )
        self._body_bytes = Gauge(
            "evalution_body_bytes",
            "Bytes of the bodies of requests that come, run or wait.",
            registry=self._registry,
        )
        self.aborted = Counter(
            "evalution_requests_aborted",
            "Requests whose client went away.",
            registry=self._registry,
        )
        tokens = Counter(
            "evalution_tokens", "Tokens of generation requests.", ["kind"], registry=self._registry
        )
        self._answers: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.prompt_tokens = tokens.labels("prompt")
        self.completion_tokens = tokens.labels("completion")

    def watch(self, *, inside: Callable[[], float], body_bytes: Callable[[], float]) -> None:
        """Read the two gauges when the page is made, instead of setting them for each request."""
        self._inside.set_function(inside)
        self._body_bytes.set_function(body_bytes)

    def make_wait_observer(self, kind: str) -> Callable[[float], None]:
        return self._waits.labels(kind).observe

    def note_answer(self, route: str, status: int, seconds: float) -> None:
        if (found := self._answers.get((route, status))) is None:
            found = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._answers[route, status] = found
        answers, durations = found
        answers.inc()
        durations.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)
