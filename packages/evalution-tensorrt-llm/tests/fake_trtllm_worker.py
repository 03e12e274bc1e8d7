"""The worker of the fake TensorRT-LLM, a thread that computes all requests a token at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from evalution_enginekit.sampling import next_token
from evalution_reference.llama import Floats, Llama
from evalution_reference.load import load_checkpoint

HOTTEST = 2.0
"""A temperature above it is refused, so that there is something to refuse."""
Entry = dict[int, tuple[float, int]]
"""Log-probability and rank by token."""

_numbers = count(1)


class Tensor:
    """The part of torch's that is used."""

    def __init__(self, values: Floats):
        self._values = values

    @property
    def shape(self) -> Items[int]:
        return self._values.shape

    def __getitem__(self, at: Any) -> Tensor:
        return Tensor(self._values[at])

    def float(self) -> Tensor:
        return Tensor(self._values.astype(np.float32))

    def numpy(self) -> Floats:
        return self._values


@dataclass(slots=True)
class Response:
    """The result of a step for a request; `rows` are the logits after the prompt's tokens."""

    token_ids: list[int] = field(default_factory=list[int])
    entries: list[Entry] = field(default_factory=list[Entry])
    reason: str | None = None
    rows: Floats | None = None
    error: Exception | str | None = None


@dataclass(slots=True)
class Sequence:
    prompt: list[int]
    params: Any
    limit: int
    stops: list[int]
    is_greedy: bool
    streams: bool
    salt: str | None
    number: int = field(default_factory=lambda: next(_numbers))
    send: Callable[[Response], None] = lambda _: None
    cache: Any = None
    cached: int = 0
    pending: list[int] = field(default_factory=list[int])
    generated: list[int] = field(default_factory=list[int])
    unsent: Response = field(default_factory=Response)


class Worker:
    """Computes until it is ended, as many sequences at a time as it is allowed to."""

    def __init__(self, args: Any):
        config, weights = load_checkpoint(Path(args.model))
        self._llama = Llama(config, weights, "float32")
        self._slots: int = args.max_batch_size
        self._cache_config = args.kv_cache_config
        self._seen: list[tuple[str | None, list[int]]] = []
        self._generator = np.random.default_rng(0)
        self._change = threading.Condition()
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="fake TensorRT-LLM", daemon=True)
        self._thread.start()

    @property
    def unfinished(self) -> int:
        with self._change:
            return len(self._waiting) + len(self._running)

    def submit(self, sequence: Sequence) -> None:
        with self._change:
            self._waiting.append(sequence)
            self._change.notify()

    def abort(self, number: int) -> None:
        with self._change:
            for queue in (self._waiting, self._running):
                for sequence in [one for one in queue if one.number == number]:
                    queue.remove(sequence)
                    sequence.send(Response(reason="cancelled"))

    def end(self) -> None:
        with self._change:
            self._is_over = True
            self._change.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                while not (self._is_over or self._waiting or self._running):
                    self._change.wait()
                if self._is_over:
                    return
                room = self._slots - len(self._running)
                fresh, self._waiting = self._waiting[:room], self._waiting[room:]
                for sequence in fresh:
                    sequence.cache, sequence.pending = self._llama.new_cache(), sequence.prompt
                self._running += fresh
                active = list(self._running)
            self._step(active)

    def _step(self, active: list[Sequence]) -> None:
        runs = [np.array(sequence.pending) for sequence in active]
        hidden = self._llama.extend(runs, [sequence.cache for sequence in active])
        begin = 0
        for sequence, run in zip(active, runs, strict=True):
            self._take(sequence, hidden[begin : begin + len(run)])
            begin += len(run)

    def _take(self, sequence: Sequence, hidden: Floats) -> None:
        params = sequence.params
        wants_rows = params.return_context_logits or params.prompt_logprobs
        rows = self._llama.logits(hidden if wants_rows and not sequence.generated else hidden[-1:])
        response = sequence.unsent
        if not sequence.generated:
            sequence.cached = self._reused(sequence)
            response.rows = rows[sequence.cached :] if wants_rows else rows
        token_id = self._chosen(sequence, rows[-1])
        sequence.generated.append(token_id)
        sequence.pending = [token_id]
        response.token_ids.append(token_id)
        if params.logprobs:
            response.entries += ranked(rows[-1:], params.logprobs, [token_id])
        if token_id in sequence.stops:
            response.reason = "stop"
        elif len(sequence.generated) == sequence.limit:
            response.reason = "length"
        if response.reason is None and not sequence.streams:
            return
        with self._change:
            if sequence not in self._running:
                return
            if response.reason is not None:
                self._running.remove(sequence)
            sequence.unsent = Response()
            sequence.send(response)

    def _chosen(self, sequence: Sequence, row: Floats) -> int:
        params = sequence.params
        if sequence.is_greedy:
            return int(row.argmax())
        return next_token(
            row,
            do_sample=True,
            temperature=params.temperature,
            top_p=1.0 if params.top_p is None else params.top_p,
            top_k=params.top_k or 0,
            generator=self._generator,
        )

    def _reused(self, sequence: Sequence) -> int:
        """Count the prompt's tokens that come in whole blocks from prompts of the same salt."""
        if not self._cache_config.enable_block_reuse:
            return 0
        block = self._cache_config.tokens_per_block
        longest = 0
        for salt, seen in self._seen:
            shared = 0
            while shared < min(len(seen), len(sequence.prompt) - 1) and salt == sequence.salt:
                if seen[shared] != sequence.prompt[shared]:
                    break
                shared += 1
            longest = max(longest, shared // block * block)
        self._seen.append((sequence.salt, sequence.prompt))
        return longest


def ranked(
    rows: Floats, likeliest: int, added: Items[int] | None, lie: str | None = None
) -> list[Entry]:
    """The `likeliest` tokens of each row, and the added one with the rank that is truly its own."""
    entries: list[Entry] = []
    for at, row in enumerate(lied(rows, lie)):
        logprobs = row - row.max()
        logprobs = logprobs - np.log(np.exp(logprobs).sum())
        best = np.argsort(-logprobs, kind="stable")[:likeliest]
        entry: Entry = {int(i): (float(logprobs[i]), rank) for rank, i in enumerate(best, 1)}
        if added is not None and at < len(added) and added[at] not in entry:
            value = logprobs[added[at]]
            entry[added[at]] = (float(value), int((logprobs > value).sum()) + 1)
        if lie == "zero":
            entry = dict.fromkeys(entry, (0.0, 1))
        entries.append(entry)
    return [] if lie == "missing" else entries


def lied(rows: Floats, lie: str | None) -> Floats:
    """The rows, or what a runtime that is wrong makes of them."""
    if lie == "shifted":
        return np.roll(rows, 1, axis=0)
    if lie == "zero":
        return np.zeros_like(rows)
    return rows[:0] if lie == "missing" else rows


def made(entry: Entry, kind: Any) -> dict[int, Any]:
    return {token_id: kind(logprob, rank) for token_id, (logprob, rank) in entry.items()}
