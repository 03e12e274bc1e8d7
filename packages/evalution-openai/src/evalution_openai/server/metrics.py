"""What `/metrics` tells, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
