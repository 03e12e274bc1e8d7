"""Requests at vLLM, to generate or to score: step by step on its engine, or in fixed batches.

Both kinds are in one file because one step of vLLM serves both.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from evalution_core import EngineRuntimeError, EvalutionError, InvalidRequestError
from evalution_core.redaction import redact_text
from evalution_core.requests import FinishReason, TopLogprobs
from evalution_enginekit import TokenPrompt, TokenScore, WrongScoresError
from evalution_enginekit.planning import take_top
from evalution_enginekit.serving import (
    FixedBatchRequests,
    RequestUpdate,
    ServingRequest,
    SpanGroup,
)
from evalution_vllm.upstream import BatchEngine, Logprobs, MakesParameters, Output, StepEngine

LISTED_LIMIT = 128
"""Tokens that a request of vLLM 0.32 and 0.33 can list."""

_SEEDS = 1 << 63
_TOKENS_PER_UPDATE = 8
"""A prompt that a string can stop gets an update for each token."""
_FINISHED: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
_LISTED, _RANKED, _PLAIN = "listed", "ranked", "plain"
_CONFLICTING = {_LISTED: _RANKED, _RANKED: _LISTED}


class Parameters:
    """Makes `SamplingParams`.

    Args:
        vllm: the runtime.
        vocabulary: how many tokens can be ranked.
        window: how many tokens can be fed.
        streams: tokens are returned as they are generated; False: all of them at the end.
    """

    def __init__(self, vllm: ModuleType, *, vocabulary: int, window: int, streams: bool = True):
        kinds = vllm.sampling_params.RequestOutputKind
        self._make: MakesParameters = vllm.SamplingParams
        self._vocabulary = vocabulary
        self._window = window
        self._final: Any = kinds.FINAL_ONLY
        self._generated: Any = kinds.DELTA if streams else kinds.FINAL_ONLY
        self.refusals: tuple[type[Exception], ...] = (vllm.exceptions.VLLMClientError, ValueError)
        """Errors that vLLM raises over one request that it can't serve."""

    def make(self, request_id: str, work: ServingRequest, *, reads_cache: bool = False) -> _Request:
        """Return a request of vLLM; raises like `generation`, and `reads_cache` as in `scoring`."""
        if isinstance(work, TokenPrompt):
            return _Request(request_id, work, self.generation(work), work.token_ids)
        parameters = self.scoring(work, reads_cache=reads_cache)
        return _Request(request_id, work, parameters, self.choose_fed(work))

    def generation(self, prompt: TokenPrompt) -> Any:
        """Return parameters to generate up to one of the prompt's own stop ids, or its limit.

        Raises:
            InvalidRequestError: vLLM refuses the prompt's values.
        """
        wanted = prompt.logprobs
        try:
            return self._make(
                max_tokens=prompt.max_new_tokens,
                temperature=prompt.temperature if prompt.do_sample else 0.0,
                top_p=prompt.top_p,
                top_k=prompt.top_k,
                # The runtime's generators take 64 bits, and a longer number would end its core.
                seed=None if prompt.seed is None else prompt.seed % _SEEDS,
                stop_token_ids=sorted(prompt.stop_ids),
                ignore_eos=True,
                logprobs=None if wanted is None else min(wanted, self._vocabulary),
                flat_logprobs=True,
                detokenize=False,
                output_kind=self._generated,
                stream_interval=None if prompt.stop else _TOKENS_PER_UPDATE,
            )
        except self.refusals as error:
            raise self.to_invalid_request(error) from error

    def scoring(self, group: SpanGroup, *, reads_cache: bool) -> Any:
        """Return parameters to generate one token, with all that `group_scores` reads.

        `reads_cache` lets prompt log-probabilities start after what the prefix cache has.
        """
        fed = self.choose_fed(group)
        wanted: dict[str, Any] = {}
        if len(fed) > group.start:
            # The likeliest token comes along, because vLLM counts a tie as a lower rank.
            wanted = {
                "prompt_logprobs": group.top_logprobs or 1,
                "skip_reading_prefix_cache": not reads_cache,
            }
        if group.top_logprobs is None:
            wanted["logprob_token_ids"] = group.listed
        elif len(fed) == len(group.fed):
            wanted["logprobs"] = self._vocabulary
        return self._make(
            max_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._final,
            **wanted,
        )

    def choose_fed(self, group: SpanGroup) -> Sequence[int]:
        """Return the ids to feed: all but the last token, or that too to rank others beside it.

        Of a generated token vLLM lists either given ones or the likeliest ones, never both. So in
        a full window, where the last token has no place, the whole row is read.
        """
        is_ranked = group.top_logprobs is not None and len(group.fed) < self._window
        return group.spans[0].token_ids if is_ranked else group.fed

    def to_invalid_request(self, error: Exception) -> EvalutionError:
        return InvalidRequestError(f"vLLM refuses the request: {redact_text(str(error))}")


@dataclass(frozen=True, slots=True)
class _Request:
    request_id: str
    work: ServingRequest
    parameters: Any
    token_ids: Sequence[int]

    @property
    def kind(self) -> str:
        if self.parameters.logprob_token_ids:
            return _LISTED
        return _RANKED if self.parameters.logprobs else _PLAIN

    def update(self, output: Output) -> RequestUpdate:
        work = self.work
        if isinstance(work, TokenPrompt):
            return generation_update(self.request_id, output, work)
        return RequestUpdate.from_scores(
            self.request_id, lambda: group_scores(output, work, self.token_ids)
        )


class StepRequests:
    """A `ServingRuntime` on vLLM's step API.

    Requests that list tokens don't run beside ones that ask for the likeliest: vLLM's model runner
    of the first generation (0.32, 0.33) then gives all of them the listed tokens alone.

    Args:
        engine: vLLM's engine.
        parameters: makes its sampling parameters.
        reads_cache: prompt log-probabilities may begin after the cached prefix.
    """

    def __init__(self, engine: StepEngine, parameters: Parameters, *, reads_cache: bool):
        self._engine = engine
        self._parameters = parameters
        self._reads_cache = reads_cache
        self._running: dict[str, _Request] = {}
        self._kinds: Counter[str] = Counter()
        self._held: deque[_Request] = deque()

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        self._submit(self._parameters.make(request_id, prompt))

    def score(self, request_id: str, group: SpanGroup) -> None:
        self._submit(self._parameters.make(request_id, group, reads_cache=self._reads_cache))

    def advance(self) -> list[RequestUpdate]:
        updates = self._add_held()
        if self._running:
            updates += [
                update
                for output in self._engine.step()
                if (update := self._update(output)) is not None
            ]
        return updates

    def abort(self, request_ids: Sequence[str]) -> None:
        dropped = set(request_ids)
        self._held = deque(request for request in self._held if request.request_id not in dropped)
        running = [name for name in request_ids if name in self._running]
        for name in running:
            self._forget(name)
        if running:
            self._engine.abort_request(running)

    def wake(self) -> None:
        """Do nothing: a step is short."""

    def flush(self) -> None:
        self._engine.reset_prefix_cache()

    def _submit(self, request: _Request) -> None:
        other = _CONFLICTING.get(request.kind)
        queued = any(held.kind == other for held in self._held)
        if other is not None and (queued or self._kinds[other] > 0):
            self._held.append(request)
        else:
            self._add(request)

    def _add_held(self) -> list[RequestUpdate]:
        """Submit requests that conflict with none any more; return updates of refused ones."""
        refused: list[RequestUpdate] = []
        while self._held and not self._kinds[_CONFLICTING[self._held[0].kind]]:
            request = self._held.popleft()
            try:
                self._add(request)
            except EvalutionError as error:
                refused.append(RequestUpdate.from_error(request.request_id, error))
        return refused

    def _add(self, request: _Request) -> None:
        try:
            self._engine.add_request(
                request.request_id, to_prompt(request.token_ids), request.parameters
            )
        except self._parameters.refusals as error:
            raise self._parameters.to_invalid_request(error) from error
        self._running[request.request_id] = request
        self._kinds[request.kind] += 1

    def _forget(self, name: str) -> None:
        request = self._running.pop(name)
        self._kinds[request.kind] -= 1

    def _update(self, output: Output) -> RequestUpdate | None:
        request = self._running.get(output.request_id)
        if request is None:
            return None
        if output.finished:
            self._forget(output.request_id)
        work = request.work
        if isinstance(work, SpanGroup):
            if not output.finished:
                return None
            if not has_scored_rows(output, work, request.token_ids):
                self._add(self._parameters.make(request.request_id, work))
                return None
        return request.update(output)


def make_batch_requests(llm: BatchEngine, parameters: Parameters) -> FixedBatchRequests[_Request]:
    """Return the requests of fixed batches, each a call of `LLM.generate` or two."""

    def complete(requests: Sequence[_Request]) -> Sequence[Output]:
        try:
            return llm.generate(
                [{"prompt_token_ids": list(request.token_ids)} for request in requests],
                [request.parameters for request in requests],
                use_tqdm=False,
            )
        except parameters.refusals as error:
            raise parameters.to_invalid_request(error) from error

    def run(requests: Sequence[_Request]) -> Iterator[RequestUpdate]:
        listing = [request for request in requests if request.kind == _LISTED]
        others = [request for request in requests if request.kind != _LISTED]
        for part in (listing, others):
            if part:
                # Their ids are vLLM's own, their order is that of the prompts.
                for request, output in zip(part, complete(part), strict=True):
                    yield request.update(output)

    return FixedBatchRequests(parameters.make, run, llm.reset_prefix_cache)


def to_prompt(token_ids: Sequence[int]) -> dict[str, Any]:
    """Return ids in the form that `add_request` takes without rendering them first."""
    return {"type": "token", "prompt_token_ids": list(token_ids)}


def generation_update(request_id: str, output: Output, prompt: TokenPrompt) -> RequestUpdate:
    """Return the new tokens of a prompt, with the log-probabilities that it asks for."""
    completion = output.outputs[0]
    update = RequestUpdate(request_id, output.finished, completion.token_ids)
    if prompt.logprobs is not None and completion.logprobs is not None:
        update.logprobs, update.top_logprobs = _generated_logprobs(
            completion.logprobs, prompt.logprobs
        )
    if output.finished:
        reason = completion.finish_reason
        update.finish = _FINISHED.get(reason or "")
        update.runtime = {
            "cached_tokens": output.num_cached_tokens,
            "stop_reason": completion.stop_reason,
        }
        if update.finish is None:
            update.error = EngineRuntimeError(
                f"vLLM ended the request before it was complete: {reason}"
            )
    return update


def has_scored_rows(output: Output, group: SpanGroup, fed: Sequence[int]) -> bool:
    """Return whether the rows that `group` needs were computed, not replaced by the cache."""
    return len(fed) == group.start or (output.num_cached_tokens or 0) < group.start


def group_scores(output: Output, group: SpanGroup, fed: Sequence[int]) -> list[TokenScore]:
    """Return the scores of the spans of `group`, of which `fed` was the prompt.

    Raises:
        WrongScoresError: an entry that should be there is missing, or belongs to another token.
    """
    inner, inner_is_greedy, tops = _prompt_scores(output, group, fed)
    runtime = {"cached_tokens": output.num_cached_tokens}
    if len(fed) > len(group.fed):
        return [TokenScore(inner, inner_is_greedy, runtime, tops)]
    last = output.outputs[0].logprobs
    if last is None or len(last) != 1:
        raise WrongScoresError("vLLM returned no log-probabilities of the listed tokens")
    begin, end = last.start_indices[0], last.end_indices[0]
    likeliest = last.logprobs[begin]
    listed = dict(zip(last.token_ids[begin:end], last.logprobs[begin:end], strict=True))
    if group.top_logprobs is not None:
        tops.append(take_top(listed, group.top_logprobs))
    scores: list[TokenScore] = []
    for span in group.spans:
        value = listed.get(span.token_ids[-1])
        if value is None:
            raise WrongScoresError(f"vLLM left out listed token {span.token_ids[-1]}")
        is_greedy = inner_is_greedy and value >= likeliest
        scores.append(TokenScore([*inner, value], is_greedy, runtime, tops or None))
    return scores


def _prompt_scores(
    output: Output, group: SpanGroup, fed: Sequence[int]
) -> tuple[list[float], bool, TopLogprobs]:
    """Return log-probabilities of scored tokens inside the prompt, and whether all are greedy.

    And the likeliest tokens in their places, for a group that wants them.
    """
    wanted = len(fed) - group.start
    if not wanted:
        return [], True, []
    rows = output.prompt_logprobs
    if rows is None or len(rows) < wanted:
        found = 0 if rows is None else len(rows)
        raise WrongScoresError(f"vLLM returned {found} of {wanted} prompt log-probabilities")
    values: list[float] = []
    tops: TopLogprobs = []
    is_greedy = True
    # Counted from the end: a runner may leave out the rows that it took from the cache.
    for position in range(group.start, len(fed)):
        at = len(rows) - len(fed) + position
        row = rows.start_indices[at]
        if rows.token_ids[row] != fed[position]:
            raise WrongScoresError(
                f"vLLM's prompt log-probabilities are shifted: token {rows.token_ids[row]} where "
                f"{fed[position]} was fed"
            )
        values.append(rows.logprobs[row])
        is_greedy = is_greedy and rows.logprobs[row] >= rows.logprobs[row + 1]
        if group.top_logprobs is not None:
            others = slice(row + 1, rows.end_indices[at])
            listed = zip(rows.token_ids[others], rows.logprobs[others], strict=True)
            tops.append(take_top(dict(listed), group.top_logprobs))
    return values, is_greedy, tops


def _generated_logprobs(found: Logprobs, wanted: int) -> tuple[list[float], list[dict[int, float]]]:
    values: list[float] = []
    top: list[dict[int, float]] = []
    for begin, end in zip(found.start_indices, found.end_indices, strict=True):
        values.append(found.logprobs[begin])
        likeliest = slice(begin + 1, min(end, begin + 1 + wanted))
        top.append(dict(zip(found.token_ids[likeliest], found.logprobs[likeliest], strict=True)))
    return values, top
