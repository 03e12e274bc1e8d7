"""A deterministic engine without a model: for tests of runners, servers and the kit itself.

Its language model is a table: the distribution of the next token depends on the last two tokens
only, and is chosen among a few by a hash. Numbers are the same on every machine.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    Model,
    speed_only,
    validate_options,
)
from evalution_core.encoding import TokenSpan
from evalution_enginekit.batching import run_continuous_batching
from evalution_enginekit.chat import ChatTemplate
from evalution_enginekit.distributions import Rows
from evalution_enginekit.generation import PromptQueue, TokenEvent, TokenPrompt
from evalution_enginekit.planning import TokenScore
from evalution_enginekit.session import TokenSession
from evalution_enginekit.tokenizer import Tokenizer, bind_tokenizer

_ROWS = 61
_COMMON = b" etaoinshrdlucmfwypvbgk.,\n0123456789AB"

MOCK_CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}

_SPECIALS = ("<bos>", "<eos>", "<user>", "<assistant>")
_BYTES = 256
_PATTERN = re.compile("|".join(map(re.escape, _SPECIALS)))
_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, then `<bos>`, `<eos>`, `<user>`, `<assistant>`.

    Args:
        adds_bos: whether `<bos>` leads every text.
        has_template: whether it can render chat.
    """

    def __init__(self, *, adds_bos: bool = True, has_template: bool = True):
        self.leading_ids: tuple[int, ...] = (_BYTES,) if adds_bos else ()
        self.bos_id: int | None = _BYTES
        self.eos_id: int | None = _BYTES + 1
        self.eos_ids = frozenset({_BYTES + 1})
        self.special_ids = frozenset(range(_BYTES, _BYTES + len(_SPECIALS)))
        self.vocabulary_size = _BYTES + len(_SPECIALS)
        self.chat_template = ChatTemplate(_TEMPLATE) if has_template else None
        self.source = "bytes"
        self.notice: str | None = None

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = []
        at = 0
        for match in _PATTERN.finditer(text):
            token_ids.extend(text[at : match.start()].encode())
            token_ids.append(_BYTES + _SPECIALS.index(match[0]))
            at = match.end()
        token_ids.extend(text[at:].encode())
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        spelled = bytearray()
        for token_id in token_ids:
            if token_id < _BYTES:
                spelled.append(token_id)
            elif not skip_special_tokens:
                spelled.extend(_SPECIALS[token_id - _BYTES].encode())
        return spelled.decode("utf-8", errors="replace")


@dataclass(slots=True)
class Mock(BaseEngine):
    """Answers instantly and always the same. `model.path` picks the table, any name will do."""

    max_model_len: Annotated[
        int, Field(ge=2, description="Tokens that the model is fed at most.")
    ] = 512
    batch_size: Annotated[int, Field(ge=1, description="Sequences that run side by side.")] = (
        speed_only(default=8)
    )

    capabilities = MOCK_CAPABILITIES | {Capability.ATTACH}

    def __post_init__(self) -> None:
        validate_options(self)

    def attach(self, handles: Mapping[str, Any], model: Model | None = None) -> MockSession:
        """Answer for the model that the training backend `mock` names in its handles.

        Raises:
            ConfigurationError: the handles name no model.
        """
        if "model" not in handles:
            raise ConfigurationError(
                "engine Mock attaches to handles with 'model', as the training backend 'mock' has "
                f"them, got {', '.join(handles) or 'none'}"
            )
        return self.build(model or Model())

    def build(self, model: Model) -> MockSession:
        tokenizer = bind_tokenizer(model, ByteTokenizer())
        return MockSession(model.path or "mock", self.max_model_len, self.batch_size, tokenizer)


class MockSession(TokenSession):
    def __init__(
        self, name: str, max_model_len: int, batch_size: int, tokenizer: Tokenizer | None = None
    ):
        super().__init__(
            engine="Mock",
            capabilities=MOCK_CAPABILITIES,
            tokenizer=tokenizer or ByteTokenizer(),
            max_model_len=max_model_len,
            batch_size=batch_size,
            dtype="float64",
        )
        self._name = name
        self._table = table(name)

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        return run_continuous_batching(feed, self._batch_size, _Sequence, self._step)

    def _step(self, sequences: list[_Sequence]) -> list[TokenEvent]:
        return [sequence.step(self._table) for sequence in sequences]

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        yield [self._score(span.token_ids, span.start) for span in spans]

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        import numpy as np  # noqa: PLC0415 - for distributions alone

        for span in spans:
            yield np.array(self._find_rows(span.token_ids, span.start), np.float32)

    def _find_rows(self, token_ids: Sequence[int], start: int) -> list[list[float]]:
        return [self._table.row(token_ids[:at]) for at in range(start, len(token_ids))]

    def _score(self, token_ids: Sequence[int], start: int) -> TokenScore:
        rows = self._find_rows(token_ids, start)
        chosen = token_ids[start:]
        return TokenScore(
            [row[token_id] for row, token_id in zip(rows, chosen, strict=True)],
            all(row[token_id] >= max(row) for row, token_id in zip(rows, chosen, strict=True)),
        )

    def identity(self) -> dict[str, object]:
        return {"mock": self._name}


class _Sequence:
    def __init__(self, prompt: TokenPrompt):
        self._prompt = prompt
        self._last = list(prompt.token_ids[-2:])
        self._count = 0
        self._random = random.Random(prompt.seed)
        self.is_done = False

    def step(self, table: Table) -> TokenEvent:
        row = table.row(self._last)
        token_id = self._choose(row)
        self._last = [*self._last[-1:], token_id]
        self._count += 1
        self.is_done = (
            token_id in self._prompt.stop_ids or self._count >= self._prompt.max_new_tokens
        )
        if self._prompt.logprobs is None:
            return TokenEvent(self._prompt.key, [token_id])
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[: self._prompt.logprobs]
        top = {token: row[token] for token in best}
        return TokenEvent(self._prompt.key, [token_id], [row[token_id]], [top])

    def _choose(self, row: Sequence[float]) -> int:
        prompt = self._prompt
        if not prompt.do_sample:
            return row.index(max(row))
        allowed = sorted(range(len(row)), key=row.__getitem__, reverse=True)[: prompt.top_k or None]
        largest = row[allowed[0]]
        weights = [math.exp((row[i] - largest) / prompt.temperature) for i in allowed]
        kept, mass, enough = 0, 0.0, prompt.top_p * math.fsum(weights)
        while kept < len(weights) and mass < enough:
            mass += weights[kept]
            kept += 1
        return self._random.choices(allowed[:kept], weights[:kept])[0]


class Table:
    """Log-probabilities of the next token, a row for each class of the last two tokens."""

    def __init__(self, name: str):
        chance = random.Random(hashlib.sha256(name.encode()).digest())
        vocabulary = ByteTokenizer().vocabulary_size
        self._rows: list[list[float]] = []
        for _ in range(_ROWS):
            logits = [chance.gauss(0, 1) for _ in range(vocabulary)]
            for token_id in _COMMON:
                logits[token_id] += 4
            logits[ByteTokenizer().eos_id or 0] += 4
            total = math.log(math.fsum(math.exp(logit) for logit in logits))
            self._rows.append([logit - total for logit in logits])

    def row(self, token_ids: Sequence[int]) -> list[float]:
        before = token_ids[-2] if len(token_ids) > 1 else 0
        return self._rows[(before * 31 + token_ids[-1] * 7) % _ROWS]


table = cache(Table)
