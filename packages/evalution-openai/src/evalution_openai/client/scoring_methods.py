"""Ways to have token ids scored by a server, one class each."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, cast

from evalution_core import (
    CheckResult,
    EngineRuntimeError,
    EvalutionError,
    GenerationOutput,
    scrub,
)
from evalution_enginekit import Tokenizer, TokenScore, TokenSpan, runtime_errors
from evalution_enginekit.self_check import self_check
from evalution_openai.client.error_mapping import quote
from evalution_openai.client.responses import Fields, choice_of, mapping, next_tokens, spelled_id

RungName = Literal["evalution", "echo", "prompt_logprobs", "sglang", "stepwise"]
Post = Callable[[str, Mapping[str, Any]], Awaitable[Any]]

_ABOVE_ZERO = 1e-6
"""Rounding may lift the log-probability of a sure token this far."""
_TIE = 1e-9


class Rung(Protocol):
    """One way of scoring.

    `needs` says how many tokens more than a span's fed ones the server must have room for.
    """

    name: ClassVar[RungName]
    needs: ClassVar[int]

    async def score(self, span: TokenSpan) -> TokenScore:
        """Log-probabilities of `span.token_ids[span.start:]`.

        Raises:
            EngineRuntimeError: what came isn't that; the message tells what it is.
        """
        ...


class Places:
    """Where a model is asked: the routes of a server, and the fields that each body has."""

    def __init__(self, post: Post, api: str, root: str, written: Callable[[Fields], Fields]):
        self._post = post
        self._api = api
        self._root = root
        self._written = written

    async def completion(self, body: Fields) -> Fields:
        return await self._post(f"{self._api}/completions", self._written(body))

    async def under_api(self, path: str, body: Fields) -> Fields:
        return await self._post(f"{self._api}{path}", body)

    async def under_root(self, path: str, body: Fields) -> Fields:
        return await self._post(f"{self._root}{path}", body)


class EvalRung:
    """Evalution's own route, on ids."""

    name: ClassVar[RungName] = "evalution"
    needs: ClassVar[int] = 0

    def __init__(self, places: Places):
        self._places = places

    async def score(self, span: TokenSpan) -> TokenScore:
        ids = list(span.token_ids)
        body = {
            "context_input_ids": ids[: span.start],
            "continuation_input_ids": ids[span.start :],
            "truncation": "error",
        }
        answer = await self._places.under_api("/eval/loglikelihood", body)
        values = _numbers(answer.get("token_logprobs"), len(ids) - span.start, "token_logprobs")
        greedy: Any = answer.get("is_greedy")
        return TokenScore(values, greedy if isinstance(greedy, bool) else None)


class EchoRung:
    """Completions with `echo` and `logprobs`: the prompt's own log-probabilities come back.

    One token is generated besides, since servers refuse `max_tokens` 0; it isn't counted, whether
    it comes or not: how many ids the prompt has is known here.
    """

    name: ClassVar[RungName] = "echo"
    needs: ClassVar[int] = 2

    def __init__(self, places: Places):
        self._places = places

    async def score(self, span: TokenSpan) -> TokenScore:
        ids = list(span.token_ids)
        body = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0.0}
        answer = await self._places.completion(body)
        _check_count(answer, len(ids))
        logprobs: Any = choice_of(answer).get("logprobs")
        if not isinstance(logprobs, Mapping):
            raise EngineRuntimeError(f"echo gave logprobs {quote(repr(logprobs))}")
        fields = cast("Fields", logprobs)
        listed: Any = fields.get("token_logprobs")
        if not isinstance(listed, list) or not 0 <= len(cast("Any", listed)) - len(ids) <= 1:
            found = len(cast("Any", listed)) if isinstance(listed, list) else listed
            raise EngineRuntimeError(
                f"echo gave {found} token_logprobs for {len(ids)} prompt tokens and one generated"
            )
        scored = cast("list[Any]", listed)[span.start : len(ids)]
        values = _numbers(scored, len(ids) - span.start, "token_logprobs of the prompt")
        rows: Any = fields.get("top_logprobs")
        tops = cast("list[Any]", rows)[span.start : len(ids)] if isinstance(rows, list) else []
        return TokenScore(values, _is_greedy(values, [_values(row) for row in tops]))


class PromptLogprobsRung:
    """vLLM's `prompt_logprobs`, which are listed by token id."""

    name: ClassVar[RungName] = "prompt_logprobs"
    needs: ClassVar[int] = 2

    def __init__(self, places: Places):
        self._places = places

    async def score(self, span: TokenSpan) -> TokenScore:
        ids = list(span.token_ids)
        body = {"prompt": ids, "prompt_logprobs": 1, "max_tokens": 1, "temperature": 0.0}
        answer = await self._places.completion(body)
        _check_count(answer, len(ids))
        listed: Any = choice_of(answer).get("prompt_logprobs", answer.get("prompt_logprobs"))
        if not isinstance(listed, list) or len(cast("Any", listed)) != len(ids):
            found = len(cast("Any", listed)) if isinstance(listed, list) else listed
            raise EngineRuntimeError(f"prompt_logprobs has {found} entries for {len(ids)} tokens")
        rows = [_by_id(row) for row in cast("list[Any]", listed)[span.start :]]
        own = [row.get(i) for i, row in zip(ids[span.start :], rows, strict=True)]
        values = _numbers(own, len(rows), "prompt_logprobs")
        return TokenScore(values, _is_greedy(values, [list(row.values()) for row in rows]))


class SGLangRung:
    """SGLang's `/generate`, from the token before the first that is scored.

    The entry at `logprob_start_len` is always null there, so it has to be one that isn't scored.
    """

    name: ClassVar[RungName] = "sglang"
    needs: ClassVar[int] = 2

    def __init__(self, places: Places):
        self._places = places

    async def score(self, span: TokenSpan) -> TokenScore:
        ids = list(span.token_ids)
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": span.start - 1,
            "top_logprobs_num": 1,
        }
        answer = await self._places.under_root("/generate", body)
        meta = mapping(answer.get("meta_info"))
        entries = _entries(meta.get("input_token_logprobs"))[1:]
        if [entry[1] for entry in entries] != ids[span.start :]:
            raise EngineRuntimeError(
                f"/generate gave log-probabilities of the ids {[entry[1] for entry in entries]}, "
                f"not of {ids[span.start :]}"
            )
        values = _numbers([entry[0] for entry in entries], len(entries), "input_token_logprobs")
        tops: Any = meta.get("input_top_logprobs")
        rows = cast("list[Any]", tops)[1:] if isinstance(tops, list) else []
        listed = [[float(entry[0]) for entry in _entries(row)] for row in rows]
        return TokenScore(values, _is_greedy(values, listed))


class StepwiseRung:
    """One request for each token: the wanted one has to be among the `top` most likely.

    Exact, or an error. A token is known by its id where the server spells ids, else by its text,
    where no other listed token reads alike.
    """

    name: ClassVar[RungName] = "stepwise"
    needs: ClassVar[int] = 1

    def __init__(self, places: Places, tokenizer: Tokenizer, top: int, *, tells_ids: bool):
        self._places = places
        self._tokenizer = tokenizer
        self._top = top
        self._extra = {"return_tokens_as_token_ids": True} if tells_ids else {}

    async def score(self, span: TokenSpan) -> TokenScore:
        ids = list(span.token_ids)
        steps = [await self._step(ids[:at], ids[at]) for at in range(span.start, len(ids))]
        return TokenScore(
            [value for value, _ in steps], _is_greedy([v for v, _ in steps], [r for _, r in steps])
        )

    async def _step(self, before: list[int], wanted: int) -> tuple[float, list[float]]:
        body = {"prompt": before, "logprobs": self._top, "max_tokens": 1, "temperature": 0.0}
        answer = await self._places.completion({**body, **self._extra})
        _check_count(answer, len(before))
        token, value, listed = next_tokens(answer)[0]
        found = {token: value, **listed}
        spelled = {name: spelled_id(name) for name in found}
        if None not in spelled.values():
            values = [v for name, v in found.items() if spelled[name] == wanted]
        else:
            # A server's tokenizer waits for this event loop.
            text = await asyncio.to_thread(
                self._tokenizer.decode, [wanted], skip_special_tokens=False
            )
            values = [v for name, v in found.items() if name == text and "\ufffd" not in text]
        if len(values) != 1:
            raise EngineRuntimeError(
                f"token {wanted} is not among the {len(found)} that the server lists at its step; "
                "a stepwise score would be a guess (raise stepwise_top as far as the server goes)"
            )
        (found_value,) = _numbers(values, 1, "top_logprobs")
        return found_value, list(found.values())


def _check_count(answer: Fields, expected: int) -> None:
    fed: Any = mapping(answer.get("usage")).get("prompt_tokens")
    if isinstance(fed, int) and fed != expected:
        raise EngineRuntimeError(
            f"{expected} ids were sent and the server fed {fed}: it cuts or adds tokens"
        )


def _numbers(listed: Any, expected: int, what: str) -> list[float]:
    values = cast("list[Any]", listed) if isinstance(listed, list) else []
    if len(values) != expected:
        raise EngineRuntimeError(f"{what}: {len(values)} values for {expected} tokens")
    for at, value in enumerate(values):
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise EngineRuntimeError(f"{what}: value {at} of {expected} is {value!r}")
        if value > _ABOVE_ZERO:
            raise EngineRuntimeError(f"{what}: value {at} of {expected} is {value!r}, above 0")
    return [float(value) for value in values]


def _is_greedy(values: Sequence[float], listed: Sequence[Sequence[float]]) -> bool | None:
    """Whether no listed token is more likely than the scored one, by value; None if unlisted."""
    if len(listed) != len(values) or not all(listed):
        return None
    return all(
        value >= max(row) - _TIE * max(1.0, abs(value))
        for value, row in zip(values, listed, strict=True)
    )


def _values(row: Any) -> list[float]:
    if not isinstance(row, Mapping):
        return []
    return [float(v) for v in cast("Fields", row).values() if isinstance(v, int | float)]


def _by_id(row: Any) -> dict[int, Any]:
    if not isinstance(row, Mapping):
        return {}
    entries = cast("Mapping[str, Any]", row).items()
    return {int(i): entry.get("logprob") for i, entry in entries if str(i).lstrip("-").isdecimal()}


def _entries(value: Any) -> list[list[Any]]:
    return cast("list[list[Any]]", value) if isinstance(value, list) else []


_UNLIMITED = 1 << 31

Call = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


@dataclass(frozen=True, slots=True)
class Climb:
    """What the ladder came to: the first rung that holds by name, and what the others gave."""

    name: RungName | None
    check: CheckResult
    refused: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def reason(self) -> str:
        """Why there is no scoring, by what the server returned."""
        tried = "; ".join(f"{name}: {why}" for name, why in self.refused.items())
        return f"the server can't score prompts ({tried})"


class Probe:
    """Tries rungs on one server; not for any event loop, since it waits for answers."""

    def __init__(
        self,
        call: Call,
        places: Places,
        tokenizer: Tokenizer,
        *,
        max_model_len: int | None,
        dtype: str | None,
        tells_ids: bool,
    ):
        self._call = call
        self._places = places
        self._tokenizer = tokenizer
        self._window = max_model_len or _UNLIMITED
        self._dtype = dtype or "unknown"
        self._extra = (
            {"return_token_ids": True, "return_tokens_as_token_ids": True} if tells_ids else {}
        )

    def climb(self, rungs: Sequence[Rung]) -> Climb:
        """The first of `rungs` whose scores hold."""
        refused: dict[str, str] = {}
        for rung in rungs:
            try:
                with runtime_errors("reading what it answered"):
                    result = self._checked(rung)
            except EvalutionError as error:
                refused[rung.name] = scrub(str(error))
                continue
            if result.outcome == "passed":
                return Climb(rung.name, result, refused)
            refused[rung.name] = result.detail
        nothing = CheckResult("not checkable", "the server can't score prompts")
        return Climb(None, nothing, refused)

    def _checked(self, rung: Rung) -> CheckResult:
        """The kit's self check on a rung; without the next tokens where their ids aren't told."""
        compared = self._check(rung, compares=True)
        return compared if compared.outcome != "not checkable" else self._check(rung, False)

    def _check(self, rung: Rung, compares: bool) -> CheckResult:
        def score(spans: Sequence[TokenSpan]) -> Sequence[TokenScore]:
            async def together() -> list[TokenScore]:
                return await asyncio.gather(*(rung.score(span) for span in spans))

            return self._call(together)

        return self_check(
            self._tokenizer,
            complete=self._generated if compares else None,
            score=score,
            max_model_len=max(self._window - rung.needs, 1),
            dtype=self._dtype,
        )

    def _generated(self, token_ids: Sequence[int], length: int) -> GenerationOutput:
        """Greedy tokens with the log-probabilities that the server gives while generating."""

        async def asked() -> Any:
            body = {
                "prompt": list(token_ids),
                "max_tokens": length,
                "temperature": 0.0,
                "logprobs": 2,
            }
            return await self._places.completion({**body, **self._extra})

        try:
            steps = next_tokens(self._call(asked))
        except EngineRuntimeError:
            return GenerationOutput("", "")
        found = [self._id_of(token) for token, _, _ in steps]
        known = found.index(None) if None in found else len(found)
        tops = [dict(enumerate(listed.values())) for _, _, listed in steps[:known]]
        return GenerationOutput(
            "",
            "",
            token_ids=[i for i in found[:known] if i is not None],
            token_logprobs=[logprob for _, logprob, _ in steps[:known]],
            top_logprobs=tops,
        )

    def _id_of(self, token: str) -> int | None:
        """The id of a token by its spelling, where only one id reads so."""
        if (told := spelled_id(token)) is not None:
            return told
        ids = self._tokenizer.encode(token)
        if len(ids) != 1 or self._tokenizer.decode(ids, skip_special_tokens=False) != token:
            return None
        return ids[0]
