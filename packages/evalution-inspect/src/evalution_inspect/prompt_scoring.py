"""Log-probabilities of prompts, for `prompt_logprobs`."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from evalution_core import (
    BaseInferenceSession,
    EngineRuntimeError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    SessionClosedError,
)

_WINDOW = 64
"""Prompts scored in one call of the session."""

_Waiting = tuple[LoglikelihoodRequest, Future[LoglikelihoodOutput]]


class PromptScorer:
    """Scores the prompts of all tasks; those that wait are scored in one call of the session."""

    def __init__(self, session: BaseInferenceSession):
        self._session = session
        # A garbage collection under it may close this object.
        self._lock = threading.RLock()
        self._waiting: deque[_Waiting] = deque()
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompt scoring")

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Natural log-probability of each id but the first, given all ids before it.

        Raises:
            EvalutionError: the session refused the request, failed, or was closed.
        """
        if len(token_ids) < 2:
            return []
        request = LoglikelihoodRequest(
            context_input_ids=token_ids[:1], continuation_input_ids=token_ids[1:]
        )
        answer = Future[LoglikelihoodOutput]()
        with self._lock:
            if self._is_closed:
                raise SessionClosedError("the model is closed; make a new one")
            self._waiting.append((request, answer))
            self._thread.submit(self._score_waiting)
        output = await asyncio.wrap_future(answer)
        if output.token_logprobs is None or len(output.token_logprobs) != len(token_ids) - 1:
            raise EngineRuntimeError(
                "prompt_logprobs needs a value for every token of the prompt, and this engine "
                "gives their sum alone"
            )
        return output.token_logprobs

    def close(self) -> None:
        """Whoever waits, or comes later, gets a `SessionClosedError`."""
        with self._lock:
            self._is_closed = True
            left = self._taken(len(self._waiting))
        self._thread.shutdown(wait=False, cancel_futures=True)
        for _, answer in left:
            answer.set_exception(SessionClosedError("the model was closed meanwhile"))

    def _score_waiting(self) -> None:
        """One call for what waits; of the calls submitted meanwhile the next takes what came."""
        with self._lock:
            window = self._taken(_WINDOW)
        if not window:
            return
        left = dict(enumerate(answer for _, answer in window))
        error: BaseException = EngineRuntimeError("the session gave no score for a prompt")
        try:
            requests = enumerate([request for request, _ in window])
            for index, output in self._session.loglikelihood_continuous(requests):
                if isinstance(output, RequestFailure):
                    left.pop(index).set_exception(output.error)
                else:
                    left.pop(index).set_result(output)
        except BaseException as failure:  # noqa: BLE001 - those who wait raise it
            error = failure
        for answer in left.values():
            answer.set_exception(error)

    def _taken(self, most: int) -> list[_Waiting]:
        """The next of those that wait; whoever asked may be gone."""
        taken: list[_Waiting] = []
        while self._waiting and len(taken) < most:
            one = self._waiting.popleft()
            if one[1].set_running_or_notify_cancel():
                taken.append(one)
        return taken
