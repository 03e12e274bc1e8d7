"""The model that a server answers for: its session, what is known of it, and the lanes into it."""

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
from evalution_openai.server.errors import Problem, queue_full, unsupported
from evalution_openai.server.generation_lane import GenerationLane
from evalution_openai.server.scoring_lane import ScoringLane, loglikelihoods, rolling
from evalution_openai.server.settings import ServerSettings

ID_SPELLING = "token_id:"
_BATCH_SIZE = 8
"""Of a session that prefers none."""


@runtime_checkable
class WholeTokenizer(SpecialTokens, Protocol):
    """What the engine kit's tokenizers know beyond the contract's."""

    @property
    def eos_ids(self) -> frozenset[int]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def chat_template(self) -> Any: ...


class HeldBytes:
    """Bytes of bodies, each from when it came to the end of its answer.

    Args:
        limit: how many there may be.
    """

    def __init__(self, limit: int):
        self.total = 0
        self._limit = limit

    def check_room(self, size: int) -> None:
        """Raise a `Problem` (429) unless that many more may come."""
        if self.total + size > self._limit:
            raise Problem(
                429,
                f"the bodies of the requests that run or wait have {self.total} bytes; with this "
                f"one there would be more than the {self._limit} that are held; try again",
                kind="rate_limit_error",
                code="bodies_full",
                headers={"Retry-After": "1", "Connection": "close"},
            )


class HeldBody:
    """The share of one body."""

    def __init__(self, held: HeldBytes):
        self._held = held
        self._size = 0

    def add(self, size: int) -> None:
        """Count bytes that came; raises as `HeldBytes.check_room`."""
        self._held.check_room(size)
        self._held.total += size
        self._size += size

    def let_go(self) -> None:
        self._held.total -= self._size
        self._size = 0


class Served:
    """A session under a name.

    Args:
        session: stays with whoever gave it; `close` ends the lanes alone.
        name: what `/v1/models` says.
        capabilities: what the engine declares, for a session that tells nothing of its own.
        settings: the limits.
        metrics: counts what happens.
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
        self.admission = Admission(name, self.capabilities)
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
        self.bodies = HeldBytes(settings.most_held_bytes)
        self.generation = GenerationLane(
            session,
            limit=concurrent,
            refills=Capability.CONTINUOUS_BATCHING in self.capabilities,
            streams=Capability.STREAM in self.capabilities,
            waited=metrics.waited("generation"),
        )
        self.loglikelihood: ScoringLane[LoglikelihoodRequest, LoglikelihoodOutput] = ScoringLane(
            loglikelihoods(session), metrics.waited("loglikelihood")
        )
        self.rolling: ScoringLane[RollingLoglikelihoodRequest, RollingLoglikelihoodOutput] = (
            ScoringLane(rolling(session), metrics.waited("rolling"))
        )
        self._spelled: dict[int, str] = {}

    def can(self, capability: Capability) -> bool:
        return capability in self.capabilities

    def enter(self) -> None:
        """Take a place among the requests that run or wait; `leave` gives it back.

        Raises:
            Problem: 429, none is free.
        """
        if self.inside >= self.limit:
            raise queue_full(self.limit)
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1

    def check_name(self, name: str | None) -> None:
        """Raise a `Problem` (404) for another model than the served one."""
        if name is not None and name != self.name:
            raise Problem(
                404,
                f"model {name!r} is not served here; this server has {self.name!r}",
                code="model_not_found",
                param="model",
            )

    def codec(self, wanted: str) -> TextCodec:
        """The tokenizer; a `Problem` says that `wanted` needs one."""
        if self.tokenizer is None:
            raise unsupported(
                f"{wanted} needs the model's tokenizer, which this engine doesn't give"
            )
        return self.tokenizer

    def prompt_ids(self, text: str) -> list[int] | None:
        """Ids of a prompt as the session encodes it; None where that can't be known."""
        if not isinstance(self.tokenizer, SpecialTokens):
            return None
        token_ids = self.tokenizer.encode(text)
        leading = list(self.tokenizer.leading_ids)
        return token_ids if token_ids[: len(leading)] == leading else leading + token_ids

    def spelling(self, token_id: int) -> str:
        """The text of one token, special ones included.

        `token_id:N` without a tokenizer, and for a token that is a part of a character: many of
        those would read alike.
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

    def admit(self, requests: Sequence[GenerationRequest]) -> None:
        """Raise an `EvalutionError` for a request that the session would refuse."""
        for request in requests:
            self.admission.generation(request)

    def close(self) -> None:
        """End the lanes; the session is left as it is."""
        for lane in (self.generation, self.loglikelihood, self.rolling):
            lane.close()


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The figures of one server; two in one process don't mix."""

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
        """Have the two gauges asked for when the page is, instead of told with each request."""
        self._inside.set_function(inside)
        self._body_bytes.set_function(body_bytes)

    def waited(self, kind: str) -> Callable[[float], None]:
        return self._waits.labels(kind).observe

    def answered(self, route: str, status: int, seconds: float) -> None:
        if (found := self._answers.get((route, status))) is None:
            found = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._answers[route, status] = found
        answers, durations = found
        answers.inc()
        durations.observe(seconds)

    def page(self) -> bytes:
        return generate_latest(self._registry)
