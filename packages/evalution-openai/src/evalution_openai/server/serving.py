"""The served model: its session, its limits and its metrics."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from evalution_core import (
    BaseInferenceSession,
    GenerationRequest,
    TextCodec,
)
from evalution_core.encoding import encode_with_leading
from evalution_core.kinds import RequestKind
from evalution_core.requests import Request
from evalution_enginekit import Tokenizer
from evalution_enginekit.async_session import AsyncSession
from evalution_enginekit.fair_queue import count_prompt
from evalution_enginekit.request_encoding import RequestValidator
from evalution_openai.server.errors import ApiError, make_busy, make_unsupported
from evalution_openai.server.settings import ServerSettings

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("evalution_openai.server")
_libc = ctypes.CDLL("libc.so.6") if platform.libc_ver()[0] == "glibc" else None
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The metrics of one server; two servers in one process have their own.

    Args:
        find_served: returns the model, while there is one; read when the page is made.
    """

    def __init__(self, find_served: Callable[[], ServedModel | None]) -> None:
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
        waits = Histogram(
            "evalution_queue_seconds",
            "Wait for a turn in the session.",
            ["kind"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        inside = Gauge(
            "evalution_requests_inside", "Requests that run or wait.", registry=self._registry
        )
        inside.set_function(lambda: served.inside if (served := find_served()) else 0)
        body_bytes = Gauge(
            "evalution_body_bytes",
            "Bytes of the bodies of requests that come, run or wait.",
            registry=self._registry,
        )
        body_bytes.set_function(lambda: served.bodies.total if (served := find_served()) else 0)
        self.aborted = Counter(
            "evalution_requests_aborted",
            "Requests whose client went away.",
            registry=self._registry,
        )
        tokens = Counter(
            "evalution_tokens", "Tokens of generation requests.", ["kind"], registry=self._registry
        )
        self._waits = {kind: waits.labels(kind.label) for kind in RequestKind}
        self._answers: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.prompt_tokens = tokens.labels("prompt")
        self.completion_tokens = tokens.labels("completion")

    def note_wait(self, kind: RequestKind, seconds: float) -> None:
        self._waits[kind].observe(seconds)

    def note_answer(self, route: str, status: int, seconds: float) -> None:
        if (found := self._answers.get((route, status))) is None:
            found = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._answers[route, status] = found
        answers, durations = found
        answers.inc()
        durations.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)


ID_SPELLING = "token_id:"
_BATCH_SIZE = 8
"""The batch size of a session that prefers none."""
LONG_TEXT = 32_768
"""Characters or ids beyond which a text is long: work on it takes more than a moment."""
_MOST_SPELLED = 2**19
"""Tokens whose text is kept: as many as the largest vocabularies have."""
_TRIM_AFTER_S = 1.0
_M_ARENA_MAX = -8
_MAX_TEXT = 2**20
_MAX_TEXT_PER_TOKEN = 8


def share_one_heap() -> None:
    """Have threads that start from now on share the one heap that glibc can trim to its end."""
    if _libc is not None:
        _libc.mallopt(_M_ARENA_MAX, 1)


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
            raise make_busy(
                f"the bodies of the requests that run or wait have {self.total} bytes; with this "
                f"one there would be more than the {self._limit} that are held",
                "bodies_full",
                {"Connection": "close"},
            )

    def take(self, size: int) -> None:
        """Count bytes that arrived; raises like `check_room`."""
        self.check_room(size)
        self.total += size


class TextThreads:
    """Threads for work on texts, which can't be interrupted: one for short ones, one for the rest.

    So no work on a long text delays that on a short one, little of it runs at once, and what waits
    is dropped when its client disconnects.
    """

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(1, "short texts")
        self._long = ThreadPoolExecutor(1, "long texts")
        self._trims = False

    async def run(self, size: int, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Run `function`, which works on `size` characters or ids, and return what it returns."""
        executor = self._short if size <= LONG_TEXT else self._long
        work = partial(function, *args, **more)
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    def trim_soon(self) -> None:
        """Give freed memory back to the system, once what works on long texts has ended.

        A body and its encoding take a hundred bytes for each character, which glibc would keep.
        """
        if _libc is not None and not self._trims:
            self._trims = True
            asyncio.get_running_loop().call_later(_TRIM_AFTER_S, self._trim, _libc.malloc_trim)

    def _trim(self, trim: Callable[[int], int]) -> None:
        self._trims = False
        with suppress(RuntimeError):  # closed meanwhile
            self._long.submit(trim, 0)

    def close(self) -> None:
        """Drop what waits; threads end with what they run."""
        self._short.shutdown(wait=False, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)


class ServedModel:
    """A session under a name.

    The session and its tokenizer may wait for another process: an event loop uses them through
    `calls` and `threads` alone, and makes this object on a thread.

    Args:
        session: where requests go; it stays the caller's.
        name: the name in `/v1/models`.
        settings: the limits.
        metrics: counts requests and tokens.
        secrets: texts that no answer and no line of the log may contain.
    """

    def __init__(
        self,
        session: BaseInferenceSession,
        name: str,
        settings: ServerSettings,
        metrics: Metrics,
        secrets: frozenset[str] = frozenset(),
    ):
        self.session = session
        self.name = name
        self.created = int(time.time())
        self.settings = settings
        self.metrics = metrics
        self.secrets = secrets
        self.info = session.info
        self.capabilities = session.capabilities
        self.validation = RequestValidator(name, self.capabilities)
        self.tokenizer = session.tokenizer
        self.max_model_len = self.info.max_model_len
        dtype = (session.describe_execution() or {}).get("dtype")
        self.dtype = dtype if isinstance(dtype, str) else None
        preferred = self.info.preferred_batch_size or _BATCH_SIZE
        concurrent = settings.max_concurrent or 2 * preferred
        self.limit = concurrent + settings.max_queue
        self.inside = 0
        self.bodies = BodyBudget(settings.body_budget)
        self.calls = AsyncSession(
            session, batch_size=settings.max_concurrent, on_start=metrics.note_wait
        )
        self.threads = TextThreads()
        fitting = _MAX_TEXT_PER_TOKEN * (self.max_model_len or 0)
        self.max_text = settings.max_text or max(_MAX_TEXT, fitting)
        self._spelled: dict[int, str] = {}
        self._has_noted_ids = False

    def enter(self) -> None:
        """Count a request that runs or waits, until `leave`.

        Raises:
            ApiError: 429, there are as many as allowed.
        """
        if self.inside >= self.limit:
            raise make_busy(
                f"{self.limit} requests are running or waiting, and no more are taken", "queue_full"
            )
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1

    def close(self) -> None:
        """Give up all requests, and wait for what runs in the session."""
        self.threads.close()
        self.calls.close()

    def check_length(self, size: int) -> None:
        """Raise an `ApiError` for a text of `size` characters or ids if it is too long."""
        if size > self.max_text:
            raise ApiError(
                400,
                f"a text of at least {size} characters or token ids is longer than the "
                f"{self.max_text} that this server takes; send it in parts, or start the server "
                "with --max-text",
                code="text_too_long",
            )

    def check_request(self, request: Request) -> None:
        """Raise as `check_length` for what a request has the session read."""
        self.check_length(sum(count_prompt(request, self.max_text)))

    def check_ids(self, token_ids: Iterable[int]) -> None:
        """Raise an `ApiError` for an id that the vocabulary doesn't have, where that is known."""
        size = self.tokenizer.vocabulary_size if isinstance(self.tokenizer, Tokenizer) else None
        if size is not None and (largest := max(token_ids, default=0)) >= size:
            raise ApiError(400, f"token id {largest} is outside the vocabulary of {size} tokens")

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
        self.check_length(len(text))
        return None if self.tokenizer is None else encode_with_leading(self.tokenizer, text)

    def note_ids(self, token_ids: Sequence[int]) -> None:
        """Log once that a prompt to score came without the ids that stand before every text."""
        leading = [] if self.tokenizer is None else list(self.tokenizer.leading_ids)
        if self._has_noted_ids or list(token_ids[: len(leading)]) == leading:
            return
        self._has_noted_ids = True
        _log.warning(
            "a prompt to score came as ids that don't begin with %s, as every text does here; ids "
            "are used as they are. lm-eval sends such ids unless it has "
            "tokenizer_backend=huggingface and add_bos_token=True",
            leading,
        )

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
            if len(self._spelled) >= _MOST_SPELLED:
                self._spelled.clear()
            self._spelled[token_id] = found
        return found

    def validate(self, requests: Sequence[GenerationRequest]) -> None:
        """Raise an `EvalutionError` or `ApiError` for a request that is refused."""
        for request in requests:
            self.validation.check_generation(request)
            self.check_request(request)
