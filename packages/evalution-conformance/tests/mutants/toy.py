"""The toy's tokenizer, in which words merge, and its language model, a table.

The next token's distribution depends on a hash of all tokens before it, so that a BOS too many, a
shifted position or a cut context shows in every number.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    RequestStream,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    secret,
    speed_only,
)
from evalution_core.streams import open_stream
from evalution_enginekit import (
    ByteTokenizer,
    CompletionChunk,
    PromptQueue,
    RequestLoop,
    RequestPrompt,
    RequestSession,
    TokenEvent,
    Tokenizer,
    TokenPrompt,
    TokenScore,
    TokenSession,
    TokenSpan,
    bind_tokenizer,
    run_continuous_batching,
)
from evalution_enginekit.distributions import Rows
from evalution_enginekit.session import KitSession

_MERGES = ("answer", "garden", " the", "the", " an", "an", " is", "ne", "ng", "é", ". ")
_FIRST_MERGE = ByteTokenizer().vocabulary_size
_VOCABULARY = _FIRST_MERGE + len(_MERGES)
_MERGE_PATTERN = re.compile("|".join(map(re.escape, _MERGES)))
_SPECIAL_PATTERN = re.compile(r"(<bos>|<eos>|<user>|<assistant>)")
_ROWS = 61
_BLOCK = 3
"""Rows of a block, whichever request they belong to."""
_MODULUS = 1_000_003
_COMMON = (*b" etaoinshrdlu\n.,0123", 0xF0, *range(_FIRST_MERGE, _VOCABULARY))
_CAT = (0xF0, 0x9F, 0x90, 0xB1)


class MergingTokenizer(ByteTokenizer):
    """Bytes, and a few words and pieces that are one token wherever they stand."""

    def __init__(self, *, has_template: bool = True):
        super().__init__(has_template=has_template)
        self.vocabulary_size = _VOCABULARY

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = []
        for part in _SPECIAL_PATTERN.split(text):
            if _SPECIAL_PATTERN.fullmatch(part):
                token_ids += super().encode(part)
                continue
            at = 0
            for match in _MERGE_PATTERN.finditer(part):
                token_ids += part[at : match.start()].encode()
                token_ids.append(_FIRST_MERGE + _MERGES.index(match[0]))
                at = match.end()
            token_ids += part[at:].encode()
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        spelled: list[int] = []
        for token_id in token_ids:
            if token_id < _FIRST_MERGE:
                spelled.append(token_id)
            else:
                spelled += _MERGES[token_id - _FIRST_MERGE].encode()
        return super().decode(spelled, skip_special_tokens=skip_special_tokens)


class Table:
    """Log-probabilities of the next token: a row for each residue of the hash of the prefix."""

    def __init__(self, salt: int):
        chance = random.Random(salt)
        self.rows = [self._row(chance, _COMMON, 4.0) for _ in range(_ROWS)]
        # A character of four bytes, once begun, goes on.
        self.forced = {
            byte: self._row(chance, (following,), 12.0) for byte, following in pairwise(_CAT)
        }

    @staticmethod
    def _row(chance: random.Random, favoured: Iterable[int], lead: float) -> list[float]:
        logits = [chance.gauss(0, 1) for _ in range(_VOCABULARY)]
        for token_id in favoured:
            logits[token_id] += lead
        if lead < 10:
            logits[ByteTokenizer().eos_id or 0] += lead
        total = math.log(math.fsum(math.exp(logit) for logit in logits))
        return [logit - total for logit in logits]

    def after(self, state: int, last: int) -> list[float]:
        return self.forced.get(last) or self.rows[state % _ROWS]


table = cache(Table)


def advance(state: int, token_id: int) -> int:
    """The hash of a prefix with one token more."""
    return (state * 31 + token_id * 7 + 11) % _MODULUS


def find_top(row: Sequence[float], count: int) -> dict[int, float]:
    """The most likely ids of a row, best first."""
    best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:count]
    return {token_id: row[token_id] for token_id in best}


K = TypeVar("K")

CAPABILITIES = frozenset(Capability) - {
    Capability.ATTACH,
    Capability.BEAMS,
    Capability.MULTIMODAL,
    Capability.TOOLS,
}
WEIGHTS = str(Path(__file__).with_name("toy.weights"))
"""The toy's model, text of a few bytes."""
UNTEMPLATED = "toy-without-template"
INCOMPLETE = "toy-without-a-row"


@dataclass(slots=True)
class Toy(BaseEngine):
    """The sound engine, or with `fault` a session that has one."""

    max_model_len: int = 96
    batch_size: int = speed_only(default=4)
    fault: str = ""
    endpoint: str = "local"
    api_key: str | None = secret()

    capabilities = CAPABILITIES

    def build(self, model: Model) -> BaseInferenceSession:
        return SESSIONS.get(self.fault, ToySession)(self, model)


class ToyHooks(KitSession[Any, Any]):
    """Places to plant a fault in a session of either base: before a request is run, and after.

    `change_request`, `change_pair` and `change_text` give the request that is really run;
    `change_output`, `change_score` and `change_rolling_score` the output that is given back;
    `feed_prompt` the ids that the model is fed to complete a prompt. `score_span` is the model.
    """

    salt = 0
    weights = b""
    tokenizer_class = MergingTokenizer
    codec: Any

    @property
    def table(self) -> Table:
        return table(self.salt + self.weights.count(0))

    def load_weights(self, path: Path) -> None:
        """Read the file that stands for weights: each zero byte in it changes the table."""
        self.weights = path.read_bytes()

    def load_tokenizer(self, model: Model) -> Tokenizer:
        if model.path == INCOMPLETE:
            self.meet_missing_weight()
        if (path := Path(model.path or "")).is_file():
            self.load_weights(path)
        unbound = self.tokenizer_class(has_template=model.path != UNTEMPLATED)
        return bind_tokenizer(model, unbound)

    def meet_missing_weight(self) -> None:
        raise ConfigurationError("the toy's table has no row 7")

    def feed_prompt(self, token_ids: Sequence[int]) -> Sequence[int]:
        return token_ids

    def score_span(self, token_ids: Sequence[int], start: int) -> TokenScore:
        """Scores `token_ids[start:]`, however long the span is."""
        scored = list(zip(self.find_rows(token_ids, start), token_ids[start:], strict=True))
        return TokenScore(
            [row[token_id] for row, token_id in scored],
            all(row[token_id] >= max(row) for row, token_id in scored),
        )

    def find_rows(self, token_ids: Sequence[int], start: int) -> list[list[float]]:
        """The distributions of `token_ids[start:]`."""
        state, last = 0, 0
        rows: list[list[float]] = []
        for index, token_id in enumerate(token_ids):
            if index >= start:
                rows.append(self.table.after(state, last))
            state, last = advance(state, token_id), token_id
        return rows

    def identity(self) -> dict[str, object] | None:
        return {"toy": self.salt, **({"weights": self.weights.hex()} if self.weights else {})}

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return request

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        return output

    def change_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodRequest:
        return request

    def change_score(
        self, request: LoglikelihoodRequest, output: LoglikelihoodOutput
    ) -> LoglikelihoodOutput:
        return output

    def change_text(self, request: RollingLoglikelihoodRequest) -> RollingLoglikelihoodRequest:
        return request

    def change_rolling_score(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        return output

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        outputs = super().generate(
            [self.change_request(r) for r in requests], batch_size=batch_size
        )
        return [self.change_output(r, o) for r, o in zip(requests, outputs, strict=True)]

    def generate_continuous(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, requests: Iterable[tuple[Any, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[Any, GenerationOutput | RequestFailure]]:
        known: dict[Any, GenerationRequest] = {}
        call = partial(super().generate_continuous, batch_size=batch_size)
        return self._change_outputs(open_stream(call, self._note_requests(requests, known)), known)

    def stream(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, requests: Iterable[tuple[Any, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        return super().stream(self._note_requests(requests, {}), batch_size=batch_size)

    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        outputs = super().loglikelihood(
            [self.change_pair(r) for r in requests], batch_size=batch_size
        )
        return [self.change_score(r, o) for r, o in zip(requests, outputs, strict=True)]

    def loglikelihood_rolling(
        self, requests: Sequence[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]:
        outputs = super().loglikelihood_rolling(
            [self.change_text(r) for r in requests], batch_size=batch_size
        )
        return [self.change_rolling_score(r, o) for r, o in zip(requests, outputs, strict=True)]

    # The contract's own, which asks the list call: a fault in that one is in both.
    loglikelihood_rolling_continuous = (
        BaseInferenceSession.loglikelihood_rolling_continuous  # pyright: ignore[reportAssignmentType]
    )

    def _note_requests(
        self, requests: Iterable[tuple[K, GenerationRequest]], known: dict[K, GenerationRequest]
    ) -> Iterator[tuple[K, GenerationRequest]]:
        for key, request in requests:
            known[key] = request
            yield key, self.change_request(request)

    def _change_outputs(
        self,
        results: RequestStream[K, GenerationOutput | RequestFailure],
        known: dict[K, GenerationRequest],
    ) -> Iterator[tuple[K, GenerationOutput | RequestFailure]]:
        with results:
            for key, result in results:
                if isinstance(result, GenerationOutput):
                    yield key, self.change_output(known.pop(key), result)
                else:
                    yield key, result


class ToySession(ToyHooks, TokenSession):
    """A sound session on token ids; its faults are planted as in `ToyHooks`."""

    def __init__(self, engine: Toy, model: Model):
        self.codec = self.load_tokenizer(model)
        super().__init__(
            engine=type(engine).__name__,
            capabilities=engine.capabilities,
            tokenizer=self.codec,
            max_model_len=engine.max_model_len,
            batch_size=engine.batch_size,
            dtype="float64",
        )

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        return run_continuous_batching(feed, self._batch_size, self._start, self._step)

    def _start(self, prompt: TokenPrompt) -> _Sequence:
        return _Sequence(prompt, self.feed_prompt(prompt.token_ids))

    def _step(self, sequences: list[_Sequence]) -> list[TokenEvent]:
        return [sequence.step(self.table) for sequence in sequences]

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        yield [self.score_span(span.token_ids, span.start) for span in spans]

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        rows = [row for span in spans for row in self.find_rows(span.token_ids, span.start)]
        for at in range(0, len(rows), _BLOCK):
            yield np.array(rows[at : at + _BLOCK], np.float32)


class ToyRequestSession(ToyHooks, RequestSession):
    """A sound session on whole requests, as a server has it."""

    def __init__(self, engine: Toy, model: Model):
        self.codec = self.load_tokenizer(model)
        super().__init__(
            engine=type(engine).__name__,
            capabilities=engine.capabilities - {Capability.DISTRIBUTIONS},
            loop=RequestLoop("the toy session", engine.batch_size),
            tokenizer=self.codec,
            max_model_len=engine.max_model_len,
            dtype="float64",
        )

    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        asked = prompt.request
        token_ids = list(prompt.token_ids or ())
        known = TokenPrompt(
            0,
            token_ids,
            asked.max_new_tokens,
            prompt.stop_ids,
            asked.do_sample,
            asked.temperature,
            asked.top_p,
            asked.top_k,
            asked.seed,
            logprobs=asked.logprobs,
        )
        sequence = _Sequence(known, self.feed_prompt(token_ids))
        while True:
            await asyncio.sleep(0)
            event = sequence.step(self.table)
            finish = None
            if sequence.is_done:
                finish = "stop" if event.token_ids[0] in prompt.stop_ids else "length"
            yield CompletionChunk(
                token_ids=event.token_ids,
                logprobs=event.logprobs,
                top_logprobs=event.top_logprobs,
                finish=finish,
            )
            if finish:
                return

    async def _score(self, span: TokenSpan) -> TokenScore:
        score = self.score_span(span.token_ids, span.start)
        if span.top_logprobs is None:
            return score
        rows = self.find_rows(span.token_ids, span.start)
        return replace(score, top_logprobs=[find_top(row, span.top_logprobs) for row in rows])


SESSIONS: dict[str, Any] = {ToyRequestSession.__name__: ToyRequestSession}
"""Faulty sessions by name, for the option `fault`, and the sound one of the other base."""


class _Sequence:
    def __init__(self, prompt: TokenPrompt, token_ids: Sequence[int]):
        self._prompt = prompt
        self._state, self._last = 0, 0
        for token_id in token_ids:
            self._take(token_id)
        self._count = 0
        self._random = random.Random(prompt.seed)
        self.is_done = False

    def step(self, rows: Table) -> TokenEvent:
        row = rows.after(self._state, self._last)
        token_id = self._choose(row)
        self._take(token_id)
        self._count += 1
        self.is_done = (
            token_id in self._prompt.stop_ids or self._count >= self._prompt.max_new_tokens
        )
        if self._prompt.logprobs is None:
            return TokenEvent(self._prompt.key, [token_id])
        top = find_top(row, self._prompt.logprobs)
        return TokenEvent(self._prompt.key, [token_id], [row[token_id]], [top])

    def _take(self, token_id: int) -> None:
        self._state, self._last = advance(self._state, token_id), token_id

    def _choose(self, row: Sequence[float]) -> int:
        prompt = self._prompt
        if not prompt.do_sample:
            return row.index(max(row))
        allowed = sorted(range(len(row)), key=row.__getitem__, reverse=True)[: prompt.top_k or None]
        weights = [math.exp(row[i] / prompt.temperature) for i in allowed]
        least = prompt.top_p * math.fsum(weights)
        kept, mass = 0, 0.0
        while kept < len(weights) and mass < least:
            mass += weights[kept]
            kept += 1
        return self._random.choices(allowed[:kept], weights[:kept])[0]
