"""Requests at vLLM: step by step on its engine, or in fixed batches through `LLM.generate`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalution_core import EngineRuntimeError, EvalutionError
from evalution_enginekit import TokenPrompt
from evalution_enginekit.serving import RequestUpdate, SpanGroup, Work
from evalution_vllm.outputs import begins_in_time, generation_update, group_scores
from evalution_vllm.parameters import Parameters
from evalution_vllm.upstream import BatchEngine, Output, StepEngine

_LISTED, _RANKED, _PLAIN = "listed", "ranked", "plain"
_NOT_BESIDE = {_LISTED: _RANKED, _RANKED: _LISTED}


@dataclass(frozen=True, slots=True)
class _Request:
    request_id: str
    work: Work
    parameters: Any

    @property
    def token_ids(self) -> list[int]:
        return list(self.work.fed if isinstance(self.work, SpanGroup) else self.work.token_ids)

    @property
    def kind(self) -> str:
        return _kind(self.work)


class StepRequests:
    """A `ServingRuntime` on vLLM's step API.

    Requests that list tokens don't run beside ones that ask for the likeliest: vLLM's model runner
    of the first generation (0.32, 0.33) then gives all of them the listed tokens alone.

    Args:
        engine: vLLM's engine.
        parameters: makes its sampling parameters.
        vocabulary: how many tokens can be ranked.
        reads_cache: prompt log-probabilities may begin behind the cached prefix.
    """

    def __init__(
        self, engine: StepEngine, parameters: Parameters, *, vocabulary: int, reads_cache: bool
    ):
        self._engine = engine
        self._parameters = parameters
        self._vocabulary = vocabulary
        self._reads_cache = reads_cache
        self._running: dict[str, _Request] = {}
        self._kinds: Counter[str] = Counter()
        self._held: deque[_Request] = deque()

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        parameters = self._parameters.generation(prompt, self._vocabulary)
        self._submit(_Request(request_id, prompt, parameters))

    def score(self, request_id: str, group: SpanGroup) -> None:
        parameters = self._parameters.scoring(group, reads_cache=self._reads_cache)
        self._submit(_Request(request_id, group, parameters))

    def advance(self) -> list[RequestUpdate]:
        updates = self._release()
        if self._running:
            updates += [
                update
                for output in self._engine.step()
                if (update := self._update(output)) is not None
            ]
        return updates

    def abort(self, request_ids: Sequence[str]) -> None:
        gone = set(request_ids)
        self._held = deque(request for request in self._held if request.request_id not in gone)
        running = [name for name in request_ids if name in self._running]
        for name in running:
            self._forget(name)
        if running:
            self._engine.abort_request(running)

    def wake(self) -> None:
        """A step is short."""

    def _submit(self, request: _Request) -> None:
        if self._has_to_wait(request):
            self._held.append(request)
        else:
            self._add(request)

    def _has_to_wait(self, request: _Request) -> bool:
        other = _NOT_BESIDE.get(request.kind)
        queued = any(held.kind == other for held in self._held)
        return other is not None and (queued or self._kinds[other] > 0)

    def _release(self) -> list[RequestUpdate]:
        """Submit what was held back and need not be any more; updates of what vLLM refuses."""
        refused: list[RequestUpdate] = []
        while self._held:
            other = _NOT_BESIDE[self._held[0].kind]
            if self._kinds[other] > 0:
                break
            request = self._held.popleft()
            try:
                self._add(request)
            except EvalutionError as error:
                refused.append(RequestUpdate(request.request_id, is_finished=True, error=error))
        return refused

    def _add(self, request: _Request) -> None:
        try:
            self._engine.add_request(
                request.request_id, prompt_of(request.token_ids), request.parameters
            )
        except self._parameters.refusals as error:
            raise self._parameters.refused(error) from error
        self._running[request.request_id] = request
        self._kinds[request.kind] += 1

    def _forget(self, name: str) -> _Request:
        request = self._running.pop(name)
        self._kinds[request.kind] -= 1
        return request

    def _update(self, output: Output) -> RequestUpdate | None:
        request = self._running.get(output.request_id)
        if request is None:
            return None
        if output.finished:
            self._forget(output.request_id)
        work = request.work
        if isinstance(work, TokenPrompt):
            return generation_update(output, work)
        if not output.finished:
            return None
        if not begins_in_time(output, work):
            again = self._parameters.scoring(work, reads_cache=False)
            self._add(_Request(request.request_id, work, again))
            return None
        return scored_update(output, work)


class BatchRuns:
    """What `FixedBatchRequests` runs: one call of `LLM.generate` for all that can go together."""

    def __init__(self, llm: BatchEngine, parameters: Parameters, *, vocabulary: int):
        self._llm = llm
        self._parameters = parameters
        self._vocabulary = vocabulary

    def __call__(self, batch: Mapping[str, Work]) -> Iterator[RequestUpdate]:
        requests: list[_Request] = []
        for name, work in batch.items():
            try:
                requests.append(_Request(name, work, self._made(work)))
            except EvalutionError as error:
                yield RequestUpdate(name, is_finished=True, error=error)
        listing = [request for request in requests if request.kind == _LISTED]
        others = [request for request in requests if request.kind != _LISTED]
        for part in (listing, others):
            if part:
                yield from self._run(part)

    def _made(self, work: Work) -> Any:
        if isinstance(work, SpanGroup):
            return self._parameters.scoring(work, reads_cache=False)
        return self._parameters.generation(work, self._vocabulary)

    def _run(self, requests: Sequence[_Request]) -> Iterator[RequestUpdate]:
        outputs = self._llm.generate(
            [{"prompt_token_ids": request.token_ids} for request in requests],
            [request.parameters for request in requests],
            use_tqdm=False,
        )
        for request, output in zip(requests, outputs, strict=True):
            # `LLM.generate` gives ids of its own, and outputs in the order of the prompts.
            output.request_id = request.request_id
            if isinstance(request.work, TokenPrompt):
                yield generation_update(output, request.work)
            else:
                yield scored_update(output, request.work)


def prompt_of(token_ids: list[int]) -> dict[str, Any]:
    """Ids as `add_request` takes them without rendering them first."""
    return {"type": "token", "prompt_token_ids": token_ids}


def scored_update(output: Output, group: SpanGroup) -> RequestUpdate:
    """The scores of a finished group, or what is wrong with them."""
    try:
        return RequestUpdate(
            output.request_id, is_finished=True, scores=group_scores(output, group)
        )
    except EngineRuntimeError as error:
        return RequestUpdate(output.request_id, is_finished=True, error=error)


def _kind(work: Work) -> str:
    if isinstance(work, SpanGroup):
        return _LISTED
    return _RANKED if work.logprobs else _PLAIN
