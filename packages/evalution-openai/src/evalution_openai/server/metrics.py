"""Metrics of a server in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from evalution_core.kinds import REQUEST_KINDS, RequestKind

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
        self._waits_by_kind = {kind: self._waits.labels(kind.label) for kind in REQUEST_KINDS}
        self._answers: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.prompt_tokens = tokens.labels("prompt")
        self.completion_tokens = tokens.labels("completion")

    def watch(self, *, inside: Callable[[], float], body_bytes: Callable[[], float]) -> None:
        """Read the two gauges when the page is made, instead of setting them for each request."""
        self._inside.set_function(inside)
        self._body_bytes.set_function(body_bytes)

    def note_wait(self, kind: RequestKind, seconds: float) -> None:
        self._waits_by_kind[kind].observe(seconds)

    def note_answer(self, route: str, status: int, seconds: float) -> None:
        if (found := self._answers.get((route, status))) is None:
            found = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._answers[route, status] = found
        answers, durations = found
        answers.inc()
        durations.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)
