"""Which way of scoring a server really has: each is tried once, and believed only if it agrees.

Servers have been seen to give prompt log-probabilities that are missing, null, all zero, shifted by
one or of a prompt that was cut, and no error; scores then are those of chance. So a known text is
scored whole and in parts, and, where the server tells the ids of what it generates, what it
generated is scored and compared with what it said while generating.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalution_core import (
    CheckResult,
    EngineRuntimeError,
    EvalutionError,
    GenerationOutput,
    scrub,
)
from evalution_enginekit import Tokenizer, TokenScore, TokenSpan, runtime_errors
from evalution_enginekit.self_check import self_check
from evalution_openai.answers import next_tokens, spelled_id
from evalution_openai.rungs import Places, Rung, RungName

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
