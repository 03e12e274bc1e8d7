"""Methods of scoring token ids on a server, and the probe that chooses one.

Servers have been seen to give prompt log-probabilities that are missing, null, all zero, shifted by
one or of a prompt that was cut, without an error; scores are then those of chance. So a known text
is scored as a whole and in parts, and compared with the values that the server reports while it
generates. A method is used only if it passes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any, ClassVar, Literal, get_args

from evalution_core import (
    CheckResult,
    EngineRuntimeError,
    EvalutionError,
    GenerationOutput,
    UnsupportedRequestError,
)
from evalution_core.redaction import redact_text
from evalution_core.requests import TopLogprobs
from evalution_enginekit import (
    Tokenizer,
    TokenScore,
    TokenSpan,
    WrongScoresError,
    runtime_errors,
)
from evalution_enginekit.planning import take_top
from evalution_enginekit.scoring import complete_top_logprobs
from evalution_enginekit.self_check import score_tolerance, self_check
from evalution_openai.client.connection import ServerConnection
from evalution_openai.client.dialects import BodyWriter, count_scoring_tokens
from evalution_openai.client.responses import (
    Fields,
    check_fed,
    parse_id,
    quote,
    read_choice,
    read_count,
    read_logprobs,
    read_steps,
    to_list,
    to_mapping,
)

MethodName = Literal["evalution", "echo", "prompt_logprobs", "sglang", "stepwise"]

SCORING_SERVERS = "vLLM, SGLang and `evalution serve`"
"""Servers of which a method here scores, for messages."""
_TIE = 1e-9


@dataclass(slots=True)
class ServerRoutes:
    """The routes of a server for one model; `max_retries` may be less than the options allow."""

    connection: ServerConnection
    writer: BodyWriter
    max_retries: int | None = None

    async def complete(self, prompt: Sequence[int], **fields: Any) -> Fields:
        """Generate a token greedily, and return the answer with what `fields` ask for.

        Raises:
            EngineRuntimeError: the server fed another number of tokens than it was sent.
        """
        body = {"prompt": list(prompt), "max_tokens": 1, "temperature": 0.0, **fields}
        answer = await self.post_api("/completions", self.writer.complete_body(body))
        check_fed(prompt, read_count(to_mapping(answer.get("usage")).get("prompt_tokens")))
        return answer

    async def post_api(self, path: str, body: Fields) -> Fields:
        return await self._post(f"{self.connection.address.api}{path}", body)

    async def post_root(self, path: str, body: Fields) -> Fields:
        return await self._post(f"{self.connection.address.root}{path}", body)

    async def _post(self, url: str, body: Fields) -> Fields:
        tokens = count_scoring_tokens(body)
        return await self.connection.post(url, body, tokens=tokens, max_retries=self.max_retries)


class ScoringMethod(ABC):
    """One method of scoring.

    `needs` is the number of tokens beyond a span's fed ones that the server must have room for.
    """

    name: ClassVar[MethodName]
    needs: ClassVar[int] = 2

    def __init__(self, routes: ServerRoutes):
        self._routes = routes

    @abstractmethod
    async def score(self, span: TokenSpan) -> TokenScore:
        """Return the log-probabilities of `span.token_ids[span.start:]`.

        Raises:
            EngineRuntimeError: the answer holds something else; the message says what.
        """


class EvalRouteScoring(ScoringMethod):
    """Evalution's own route, on ids."""

    name: ClassVar[MethodName] = "evalution"
    needs: ClassVar[int] = 0

    async def score(self, span: TokenSpan) -> TokenScore:
        ids = list(span.token_ids)
        body: dict[str, Any] = {
            "context_input_ids": ids[: span.start],
            "continuation_input_ids": ids[span.start :],
            "truncation": "error",
        }
        if span.top_logprobs is not None:
            body["top_logprobs"] = span.top_logprobs
        answer = await self._routes.post_api("/eval/loglikelihood", body)
        values = read_logprobs(
            answer.get("token_logprobs"), len(ids) - span.start, "token_logprobs"
        )
        greedy: Any = answer.get("is_greedy")
        rows = [read_row(row) for row in to_list(answer.get("top_logprobs"))]
        return TokenScore(
            values,
            greedy if isinstance(greedy, bool) else None,
            top_logprobs=_take_tops(rows, span),
        )


class EchoScoring(ScoringMethod):
    """Completions with `echo` and `logprobs`, which return the prompt's own log-probabilities.

    One token is generated, since servers refuse `max_tokens` 0. It is left out by the number of
    ids in the prompt, whether the server returns it or not.
    """

    name: ClassVar[MethodName] = "echo"

    async def score(self, span: TokenSpan) -> TokenScore:
        ids = list(span.token_ids)
        spelled = {} if span.top_logprobs is None else {"return_tokens_as_token_ids": True}
        top = span.top_logprobs or 1
        answer = await self._routes.complete(ids, echo=True, logprobs=top, **spelled)
        logprobs = read_choice(answer).get("logprobs")
        if not (fields := to_mapping(logprobs)):
            raise EngineRuntimeError(f"echo gave logprobs {quote(repr(logprobs))}")
        listed = to_list(fields.get("token_logprobs"))
        if not 0 <= len(listed) - len(ids) <= 1:
            raise EngineRuntimeError(
                f"echo gave {len(listed)} token_logprobs for {len(ids)} prompt tokens and one "
                "generated"
            )
        scored = slice(span.start, len(ids))
        values = read_logprobs(
            listed[scored], len(ids) - span.start, "token_logprobs of the prompt"
        )
        rows = [to_mapping(row) for row in to_list(fields.get("top_logprobs"))[scored]]
        return _make_score(values, rows, [_spell_row(row) for row in rows], span)


class PromptLogprobsScoring(ScoringMethod):
    """vLLM's `prompt_logprobs`, listed by token id."""

    name: ClassVar[MethodName] = "prompt_logprobs"

    async def score(self, span: TokenSpan) -> TokenScore:
        ids = list(span.token_ids)
        answer = await self._routes.complete(ids, prompt_logprobs=span.top_logprobs or 1)
        listed = to_list(read_choice(answer).get("prompt_logprobs", answer.get("prompt_logprobs")))
        if len(listed) != len(ids):
            raise EngineRuntimeError(
                f"prompt_logprobs has {len(listed)} entries for {len(ids)} tokens"
            )
        rows = [read_row(row) for row in listed[span.start :]]
        own = [row.get(i) for i, row in zip(ids[span.start :], rows, strict=True)]
        values = read_logprobs(own, len(rows), "prompt_logprobs")
        return _make_score(values, rows, rows, span)


class SGLangScoring(ScoringMethod):
    """SGLang's `/generate`, from the token before the first scored one.

    Its entry at `logprob_start_len` is always null, so that must be a token that isn't scored.
    """

    name: ClassVar[MethodName] = "sglang"

    async def score(self, span: TokenSpan) -> TokenScore:
        ids = list(span.token_ids)
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": span.start - 1,
            "top_logprobs_num": span.top_logprobs or 1,
        }
        answer = await self._routes.post_root("/generate", body)
        meta = to_mapping(answer.get("meta_info"))
        entries = to_list(meta.get("input_token_logprobs"))[1:]
        if [entry[1] for entry in entries] != ids[span.start :]:
            raise EngineRuntimeError(
                f"/generate gave log-probabilities of the ids {[entry[1] for entry in entries]}, "
                f"not of {ids[span.start :]}"
            )
        values = read_logprobs(
            [entry[0] for entry in entries], len(entries), "input_token_logprobs"
        )
        listed = to_list(meta.get("input_top_logprobs"))[1:]
        rows = [{entry[1]: entry[0] for entry in to_list(row)} for row in listed]
        return _make_score(values, rows, rows, span)


class StepwiseScoring(ScoringMethod):
    """One request for each token, which must be among the `top` most likely of its step.

    The result is exact, or an error. A token is identified by its id where the server returns ids,
    else by its text if no other listed token has the same.
    """

    name: ClassVar[MethodName] = "stepwise"
    needs: ClassVar[int] = 1

    def __init__(self, routes: ServerRoutes, tokenizer: Tokenizer, top: int, *, returns_ids: bool):
        super().__init__(routes)
        self._tokenizer = tokenizer
        self._top = top
        self._extra = {"return_tokens_as_token_ids": True} if returns_ids else {}

    async def score(self, span: TokenSpan) -> TokenScore:
        ids = list(span.token_ids)
        if (span.top_logprobs or 0) > self._top:
            raise UnsupportedRequestError(
                f"top_logprobs={span.top_logprobs} is more than stepwise_top={self._top}, the "
                "tokens that the server lists at a step; ask for fewer, or raise stepwise_top as "
                "far as the server goes"
            )
        steps = [await self._step(ids[:at], ids[at]) for at in range(span.start, len(ids))]
        rows = [row for _, row in steps]
        return _make_score([v for v, _ in steps], rows, [_spell_row(row) for row in rows], span)

    async def _step(self, before: list[int], wanted: int) -> tuple[float, dict[str, float]]:
        answer = await self._routes.complete(before, logprobs=self._top, **self._extra)
        token, value, listed = read_steps(answer)[0]
        found = {token: value, **listed}
        spelled = {name: parse_id(name) for name in found}
        if None not in spelled.values():
            values = [v for name, v in found.items() if spelled[name] == wanted]
        else:
            # A remote tokenizer waits for this event loop.
            text = await asyncio.to_thread(
                self._tokenizer.decode, [wanted], skip_special_tokens=False
            )
            values = [v for name, v in found.items() if name == text and "\ufffd" not in text]
        if len(values) != 1:
            raise EngineRuntimeError(
                f"token {wanted} is not among the {len(found)} that the server lists at its step; "
                "a stepwise score would be a guess (raise stepwise_top as far as the server goes)"
            )
        (found_value,) = read_logprobs(values, 1, "top_logprobs")
        return found_value, found


def _make_score(
    values: list[float],
    rows: Sequence[Mapping[Any, float]],
    by_id: Sequence[Mapping[int, float]],
    span: TokenSpan,
) -> TokenScore:
    """Return a score; `rows` are the tokens listed at its positions, `by_id` those with an id.

    It is greedy where no listed token beats the scored one; unknown where none are listed.
    """
    is_greedy = None
    if len(rows) == len(values) and all(rows):
        is_greedy = all(
            value >= max(row.values()) - _TIE * max(1.0, abs(value))
            for value, row in zip(values, rows, strict=True)
        )
    return TokenScore(values, is_greedy, top_logprobs=_take_tops(by_id, span))


def _take_tops(rows: Sequence[Mapping[int, float]], span: TokenSpan) -> TopLogprobs | None:
    if span.top_logprobs is None:
        return None
    for row in rows:
        read_logprobs(list(row.values()), len(row), "top_logprobs")
    return [take_top(row, span.top_logprobs) for row in rows]


def _spell_row(row: Mapping[str, float]) -> dict[int, float]:
    """Return the tokens of a row that are spelled as their ids."""
    return {i: value for name, value in row.items() if (i := parse_id(name)) is not None}


def read_row(row: Any) -> dict[int, Any]:
    """Read the log-probabilities of one position by token id, as numbers or as vLLM's entries."""
    entries = to_mapping(row).items()
    return {
        int(i): to_mapping(entry).get("logprob", entry)
        for i, entry in entries
        if str(i).lstrip("-").isdecimal()
    }


PROBE_TEXT = "The first of 3 apples"
_UNLIMITED = 1 << 31

Call = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


@dataclass(frozen=True, slots=True)
class ScoringChoice:
    """The first method that passed, and the answers to those that failed."""

    method: ScoringMethod | None
    check: CheckResult
    refused: dict[str, str] = field(default_factory=dict[str, str])
    top_problem: str | None = None
    """The reason for not listing the likeliest tokens, of a method that passed."""

    @property
    def name(self) -> MethodName | None:
        return self.method.name if self.method is not None else None

    @property
    def reason(self) -> str:
        """Return the reason for not scoring, and what can be done."""
        name = "echo" if "echo" in self.refused else next(reversed(self.refused))
        why = self.refused[name]
        if name not in get_args(MethodName):  # none was tried
            return why
        return (
            f"the server returns no right log-probabilities of a prompt ({name}: {why}); "
            f"{SCORING_SERVERS} do"
        )


@dataclass(frozen=True, slots=True)
class ScoringProbe:
    """Tries methods on one server; it blocks, so don't use it on an event loop."""

    call: Call
    routes: ServerRoutes
    tokenizer: Tokenizer
    max_model_len: int | None
    dtype: str | None
    returns_ids: bool

    def choose_method(self, methods: Sequence[ScoringMethod]) -> ScoringChoice:
        """Return the first of `methods` whose scores are right."""
        refused: dict[str, str] = {}
        for method in methods:
            try:
                with runtime_errors("reading what it answered"):
                    result = self._check_method(method)
            except EvalutionError as error:
                refused[method.name] = redact_text(str(error))
                continue
            if result.outcome == "passed":
                return ScoringChoice(method, result, refused, self._find_top_problem(method))
            refused[method.name] = result.detail
        nothing = CheckResult("not checkable", "the server can't score prompts")
        return ScoringChoice(None, nothing, refused)

    def _find_top_problem(self, method: ScoringMethod) -> str | None:
        """Return what is wrong with the likeliest tokens; None if generation lists the same."""
        prompt = [*self.tokenizer.leading_ids, *self.tokenizer.encode(PROBE_TEXT)]
        # Lists may be in float32 where scores are wider.
        tolerance = max(map(score_tolerance, ("float32", self.dtype or "unknown")))
        try:
            with runtime_errors("reading what it answered"):
                made = self._generate(prompt, 3)
                ids = [*prompt, *(made.token_ids or ())]
                start = len(prompt) if made.token_ids else max(1, len(prompt) - 2)
                span = TokenSpan(ids, start, top_logprobs=2)
                tops = complete_top_logprobs(span, self.call(lambda: method.score(span))) or []
                # Two tokens that are listed by their text may be listed as one.
                steps = made.top_logprobs or [] if self.returns_ids else []
                for top, step in zip(tops, steps, strict=False):
                    expected = sorted(step.values(), reverse=True)[:2]
                    differences = map(sub, top.values(), expected)
                    if max(map(abs, differences), default=0.0) > tolerance:
                        raise WrongScoresError(
                            f"the likeliest tokens of a position have {list(top.values())}, and "
                            f"{expected} where they are generated"
                        )
        except EvalutionError as error:
            return redact_text(str(error))
        return None

    def _check_method(self, method: ScoringMethod) -> CheckResult:
        """Run the kit's self check; without next tokens if the server returns no ids for them."""
        compared = self._check(method, compares=True)
        return compared if compared.outcome != "not checkable" else self._check(method, False)

    def _check(self, method: ScoringMethod, compares: bool) -> CheckResult:
        def score(spans: Sequence[TokenSpan]) -> Sequence[TokenScore]:
            async def together() -> list[TokenScore]:
                return await asyncio.gather(*(method.score(span) for span in spans))

            return self.call(together)

        return self_check(
            self.tokenizer,
            complete=self._generate if compares else None,
            score=score,
            max_model_len=max((self.max_model_len or _UNLIMITED) - method.needs, 1),
            dtype=self.dtype or "unknown",
        )

    def _generate(self, token_ids: Sequence[int], length: int) -> GenerationOutput:
        """Generate greedy tokens with the log-probabilities that the server reports for them."""
        fields: dict[str, Any] = {"max_tokens": length, "logprobs": 2}
        if self.returns_ids:
            fields |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
        try:
            steps = read_steps(self.call(lambda: self.routes.complete(token_ids, **fields)))
        except EngineRuntimeError:
            return GenerationOutput("", "")
        found = [self._find_id(token) for token, _, _ in steps]
        known = found.index(None) if None in found else len(found)
        tops = [dict(enumerate(listed.values())) for _, _, listed in steps[:known]]
        return GenerationOutput(
            "",
            "",
            token_ids=[i for i in found[:known] if i is not None],
            token_logprobs=[logprob for _, logprob, _ in steps[:known]],
            top_logprobs=tops,
        )

    def _find_id(self, token: str) -> int | None:
        """Find the id of a token by its spelling; None if several ids have the same text."""
        if (spelled := parse_id(token)) is not None:
            return spelled
        ids = self.tokenizer.encode(token)
        if len(ids) != 1 or self.tokenizer.decode(ids, skip_special_tokens=False) != token:
            return None
        return ids[0]
