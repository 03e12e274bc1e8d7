"""Requests at SGLang, to generate or to score, each followed on the engine's own event loop.

Both kinds are in one file because SGLang takes both by one call.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any, TypedDict

from evalution_core import EngineRuntimeError, EvalutionError, InvalidRequestError
from evalution_core.encoding import shared_prefix
from evalution_core.redaction import redact_text
from evalution_core.requests import FinishReason, TopLogprobs
from evalution_enginekit import TokenPrompt, TokenScore, WrongScoresError
from evalution_enginekit.planning import take_top
from evalution_enginekit.serving import EventLoopRequests, RequestUpdate, SpanGroup
from evalution_sglang.engine_thread import EngineThread

Entry = tuple[float | None, int, str | None]
"""A log-probability, the token that it belongs to, and the token's text."""

_FINISHED: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
_BAD_REQUEST = 400
_SEEDS = 1 << 63
_TOKENS_PER_UPDATE = 8
"""A prompt that a string can stop gets an update for each token."""
_SHARED_TOKENS = 32
"""Tokens that have to be saved for a wait of one step."""
_POLL_S = 0.002
_ABORT_S = 5.0


class Meta(TypedDict, total=False):
    """`meta_info` of an output, as far as it is read here.

    Entries of the input begin at `logprob_start_len`, where there is no value yet.
    """

    id: str
    finish_reason: dict[str, Any] | None
    cached_tokens: int
    input_token_logprobs: list[Entry]
    input_top_logprobs: list[list[Entry] | None]
    output_token_logprobs: list[Entry]
    output_top_logprobs: list[list[Entry]]
    output_token_ids_logprobs: list[list[Entry]]


class Output(TypedDict):
    """An output of one request; its tokens are those since the last one."""

    output_ids: list[int]
    meta_info: Meta


class Parameters:
    """Makes the arguments of `async_generate`.

    Args:
        vocabulary: how many tokens can be ranked.
        seeds: requests are sampled by seeds of their own.
    """

    def __init__(self, *, vocabulary: int, seeds: bool):
        self._vocabulary = vocabulary
        self._seeds = seeds

    def generation(self, prompt: TokenPrompt) -> dict[str, Any]:
        """Return arguments to generate up to one of the prompt's own stop ids, or its limit."""
        sampling: dict[str, Any] = {
            "max_new_tokens": prompt.max_new_tokens,
            "temperature": prompt.temperature if prompt.do_sample else 0.0,
            "top_p": prompt.top_p,
            "top_k": prompt.top_k or -1,
            "stop_token_ids": sorted(prompt.stop_ids),
            # With it upstream ignores stop ids too, so it is set only where there are none.
            "ignore_eos": not prompt.stop_ids,
            "stream_interval": 1 if prompt.stop else _TOKENS_PER_UPDATE,
        }
        if self._seeds and prompt.do_sample:
            # Without one, upstream takes the same for every request.
            seed = secrets.randbits(63) if prompt.seed is None else prompt.seed
            sampling["sampling_seed"] = seed % _SEEDS
        arguments: dict[str, Any] = {
            "input_ids": list(prompt.token_ids),
            "sampling_params": sampling,
            "stream": True,
        }
        if prompt.logprobs is not None:
            arguments["return_logprob"] = True
            arguments["top_logprobs_num"] = min(prompt.logprobs, self._vocabulary)
        return arguments

    def scoring(self, group: SpanGroup) -> dict[str, Any]:
        """Return arguments to generate one token, with all that `group_scores` reads.

        Log-probabilities start one token before the first that is scored, since the entry at the
        start has none; everything before it may come from the cache.
        """
        return {
            "input_ids": list(group.fed),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": group.start - 1 if group.inner else len(group.fed),
            # The likeliest token comes along: only its value shows whether there is a tie.
            "top_logprobs_num": group.top_logprobs or 1,
            "token_ids_logprob": group.listed,
        }


class SharedPrefixes:
    """Groups in the order of their submission, where neighbours share their prefixes.

    SGLang caches a prefix once a request has computed it, and requests that come together start
    together: each would compute the prefix. So a group waits for the first one that has it.

    Each length of the newest group's prefix has an owner: the first group that had it.
    """

    def __init__(self) -> None:
        self._newest: Sequence[int] = ()
        self._owners: list[tuple[int, str]] = []
        self._unfinished: set[str] = set()
        self._waiting: defaultdict[str, dict[str, SpanGroup]] = defaultdict(dict)

    def enter(self, name: str, group: SpanGroup) -> bool:
        """Return whether the group may be started now; if not, `leave` returns it later."""
        fed = group.fed
        owner, computed = self._find_owner(shared_prefix(self._newest, fed))
        self._newest = fed
        self._owners.append((len(fed), name))
        self._unfinished.add(name)
        if owner is None:
            return True
        length, owner_name = owner
        # The cache is read up to where the scores begin.
        readable = min(length, group.start - 1 if group.inner else len(fed))
        if readable - computed < _SHARED_TOKENS:
            return True
        self._waiting[owner_name][name] = group
        return False

    def leave(self, name: str) -> dict[str, SpanGroup]:
        """Forget a finished or aborted group; return those that waited for it."""
        self._unfinished.discard(name)
        for others in self._waiting.values():
            others.pop(name, None)
        return self._waiting.pop(name, {})

    def _find_owner(self, shared: int) -> tuple[tuple[int, str] | None, int]:
        """Return the unfinished owner of the first `shared` tokens, and how many are computed."""
        longest: str | None = None
        while self._owners and self._owners[-1][0] > shared:
            longest = self._owners.pop()[1]
        if longest is not None and shared and (not self._owners or self._owners[-1][0] < shared):
            self._owners.append((shared, longest))
        computed = max(
            (length for length, owner in self._owners if owner not in self._unfinished), default=0
        )
        if not self._owners or self._owners[-1][1] not in self._unfinished:
            return None, computed
        return self._owners[-1], computed


class EngineRequests(EventLoopRequests):
    """A `ServingRuntime` on SGLang's asynchronous calls.

    Args:
        thread: runs SGLang's engine.
        parameters: makes the arguments of its calls.
    """

    def __init__(self, thread: EngineThread, parameters: Parameters):
        super().__init__(thread.engine.loop)
        self._thread = thread
        self._engine = thread.engine
        self._parameters = parameters
        self._prefixes = SharedPrefixes()

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        self.start(request_id, self._generate(request_id, prompt))

    def score(self, request_id: str, group: SpanGroup) -> None:
        if self._prefixes.enter(request_id, group):
            self.start(request_id, self._score(request_id, group))

    def advance(self) -> list[RequestUpdate]:
        self._thread.ensure_alive()
        updates = super().advance()
        self._thread.ensure_alive()
        for update in updates:
            if update.is_finished:
                self._leave(update.request_id)
        return updates

    def abort(self, request_ids: Sequence[str]) -> None:
        if self._thread.is_alive:
            self.run(self._abort_at_engine(set(request_ids)))
        super().abort(request_ids)
        for name in request_ids:
            self._leave(name, aborted=set(request_ids))

    def flush(self) -> None:
        self._thread.ensure_alive()
        self.run(self._engine.tokenizer_manager.flush_cache(timeout_s=_ABORT_S))
        self._prefixes = SharedPrefixes()

    def _leave(self, name: str, aborted: Collection[str] = ()) -> None:
        """Start the groups that waited for this one's prefix, but for those aborted with it."""
        for follower, group in self._prefixes.leave(name).items():
            if follower not in aborted:
                self.start(follower, self._score(follower, group))

    async def _abort_at_engine(self, names: set[str]) -> None:
        """Abort requests, and wait a few seconds until SGLang works on none of them."""
        manager = self._engine.tokenizer_manager
        for name in names:
            manager.abort_request(name)
        deadline = time.monotonic() + _ABORT_S
        while names & manager.rid_to_state.keys():
            self._thread.ensure_alive()
            if time.monotonic() > deadline:
                raise EngineRuntimeError("SGLang still runs requests that were aborted")
            await asyncio.sleep(_POLL_S)

    async def _generate(self, request_id: str, prompt: TokenPrompt) -> AsyncIterator[RequestUpdate]:
        arguments = self._parameters.generation(prompt)
        outputs: Any = await self._engine.async_generate(rid=request_id, **arguments)
        try:
            async for output in outputs:
                yield generation_update(request_id, output, prompt)
        except ValueError as error:
            raise _to_invalid_request(str(error)) from error

    async def _score(self, request_id: str, group: SpanGroup) -> AsyncIterator[RequestUpdate]:
        try:
            output: Any = await self._engine.async_generate(
                rid=request_id, **self._parameters.scoring(group)
            )
        except ValueError as error:
            raise _to_invalid_request(str(error)) from error
        yield score_update(request_id, output, group)


def generation_update(request_id: str, output: Output, prompt: TokenPrompt) -> RequestUpdate:
    """Return the new tokens of a prompt, with the log-probabilities that it asks for."""
    meta = output["meta_info"]
    ended = meta.get("finish_reason")
    if ended is not None and ended["type"] not in _FINISHED:
        return RequestUpdate.from_error(request_id, _to_error(ended))
    if ended is not None and isinstance(matched := ended.get("matched"), str):
        # No stop string is ever sent: upstream names logits that are no numbers so.
        fault = EngineRuntimeError(f"SGLang ended the prompt: {matched}")
        return RequestUpdate.from_error(request_id, fault)
    update = RequestUpdate(request_id, token_ids=output["output_ids"])
    if prompt.logprobs is not None:
        chosen = meta.get("output_token_logprobs", [])
        update.logprobs = [value for value, _, _ in chosen if value is not None]
        update.top_logprobs = [{} for _ in chosen]
        if prompt.logprobs:
            update.top_logprobs = [_by_token(row) for row in meta.get("output_top_logprobs", [])]
    if ended is not None:
        update.is_finished = True
        update.finish = _FINISHED[ended["type"]]
        update.runtime = {
            "cached_tokens": meta.get("cached_tokens"),
            "stop_reason": ended.get("matched"),
        }
    return update


def score_update(request_id: str, output: Output, group: SpanGroup) -> RequestUpdate:
    """Return the scores of a group, or the error that took their place."""
    meta = output["meta_info"]
    ended = meta.get("finish_reason") or {"type": "none"}
    if ended["type"] not in _FINISHED:
        return RequestUpdate.from_error(request_id, _to_error(ended))
    return RequestUpdate.from_scores(request_id, lambda: group_scores(meta, group))


def group_scores(meta: Meta, group: SpanGroup) -> list[TokenScore]:
    """Return the scores of the spans of `group`.

    Raises:
        WrongScoresError: an entry that should be there is missing, or belongs to another token.
    """
    inner, inner_is_greedy, tops = _prompt_scores(meta, group)
    rows, top = meta.get("output_token_ids_logprobs", []), meta.get("output_top_logprobs", [])
    if len(rows) != 1 or len(top) != 1:
        raise WrongScoresError("SGLang returned no log-probabilities of the listed tokens")
    listed, likeliest = _by_token(rows[0]), _largest(top[0])
    if group.top_logprobs is not None:
        tops.append(take_top(_by_token(top[0]), group.top_logprobs))
    runtime = {"cached_tokens": meta.get("cached_tokens")}
    scores: list[TokenScore] = []
    for span in group.spans:
        value = listed.get(span.token_ids[-1])
        if value is None:
            raise WrongScoresError(f"SGLang left out listed token {span.token_ids[-1]}")
        is_greedy = inner_is_greedy and value >= likeliest
        scores.append(TokenScore([*inner, value], is_greedy, runtime, tops or None))
    return scores


def _prompt_scores(meta: Meta, group: SpanGroup) -> tuple[list[float], bool, TopLogprobs]:
    """Return log-probabilities of scored tokens inside the prompt, and whether all are greedy.

    And the likeliest tokens in their places, for a group that wants them.
    """
    if not group.inner:
        return [], True, []
    entries, top = meta.get("input_token_logprobs", []), meta.get("input_top_logprobs", [])
    if len(entries) != group.inner + 1 or len(top) != len(entries):
        raise WrongScoresError(
            f"SGLang returned {len(entries)} prompt log-probabilities; {group.inner} and an empty "
            f"one before them were asked for"
        )
    values: list[float] = []
    tops: TopLogprobs = []
    is_greedy = True
    fed = group.fed[group.start :]
    for expected, (value, token_id, _), best in zip(fed, entries[1:], top[1:], strict=True):
        if token_id != expected:
            raise WrongScoresError(
                f"SGLang's prompt log-probabilities are shifted: token {token_id} where {expected} "
                f"was fed"
            )
        if value is None:
            raise WrongScoresError(f"SGLang left out the log-probability of token {expected}")
        values.append(value)
        is_greedy = value >= _largest(best) and is_greedy
        if group.top_logprobs is not None:
            tops.append(take_top(_by_token(best or ()), group.top_logprobs))
    return values, is_greedy, tops


def _by_token(row: Sequence[Entry]) -> dict[int, float]:
    return {token_id: value for value, token_id, _ in row if value is not None}


def _largest(row: list[Entry] | None) -> float:
    values = [value for value, _, _ in row or () if value is not None]
    if not values:
        raise WrongScoresError("SGLang left out the likeliest token of a position")
    return max(values)


def _to_error(ended: dict[str, Any]) -> EvalutionError:
    """Return the error of a request that SGLang ended without finishing it."""
    message = str(ended.get("message") or ended["type"])
    if ended.get("status_code") == _BAD_REQUEST:
        return _to_invalid_request(message)
    return EngineRuntimeError(
        f"SGLang ended the request before it was complete: {redact_text(message)}"
    )


def _to_invalid_request(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"SGLang refuses the request: {redact_text(message)}")
