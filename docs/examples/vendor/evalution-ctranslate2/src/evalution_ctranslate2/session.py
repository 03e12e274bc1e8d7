"""The calls into CTranslate2: fixed batches, each token of which is reported to a callback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np

from evalution_core import Capability
from evalution_enginekit import (
    PromptQueue,
    TokenEvent,
    Tokenizer,
    TokenPrompt,
    TokenScore,
    TokenSession,
    TokenSpan,
    batches,
)
from evalution_enginekit.sampling import token_logprobs

LOGITS_AT_ONCE = 1 << 24
"""Logits that one call of `forward_batch` may return: 64 MiB of them."""


class Batch:
    """Prompts of one length and with the same sampling, at the runtime together.

    Of prompts of unequal lengths, CTranslate2 4.8 answers some as if they were others:
    https://github.com/OpenNMT/CTranslate2/issues/1318.
    """

    def __init__(self, prompts: Sequence[TokenPrompt], cancelled: set[int]):
        self._prompts = prompts
        self._cancelled = cancelled
        self._left = [prompt.max_new_tokens for prompt in prompts]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `generate_batch` that all prompts share."""
        prompt = self._prompts[0]
        arguments: dict[str, Any] = {
            "max_length": max(self._left),
            "end_token": [],  # each prompt has its own: `advance` ends it
            "include_prompt_in_result": False,
            "return_logits_vocab": prompt.logprobs is not None,
        }
        if is_sampled(prompt):
            arguments |= {
                "sampling_topk": prompt.top_k,
                "sampling_topp": prompt.top_p,
                "sampling_temperature": prompt.temperature,
            }
        return arguments

    def advance(self, step: Any) -> tuple[TokenEvent | None, bool]:
        """Return what one token means for its prompt: an event, and whether the prompt is over."""
        at = step.batch_id
        prompt = self._prompts[at]
        if prompt.key in self._cancelled:
            return None, True
        self._left[at] -= 1
        is_over = self._left[at] <= 0 or step.token_id in prompt.stop_ids
        if prompt.logprobs is None:
            return TokenEvent(prompt.key, [step.token_id]), is_over
        row = np.array(step.logits).reshape(1, -1)
        best = np.argsort(-row[0], kind="stable")[: prompt.logprobs]
        ids = np.array([step.token_id, *best])
        (logprob, *others), _ = token_logprobs(row, ids, np.zeros(len(ids), int))
        top = dict(zip(best.tolist(), others, strict=True))
        return TokenEvent(prompt.key, [step.token_id], [logprob], [top]), is_over


class CTranslate2Session(TokenSession):
    """A model in CTranslate2."""

    def __init__(
        self,
        generator: Any,
        vocabulary: Sequence[str],
        *,
        tokenizer: Tokenizer,
        capabilities: frozenset[Capability],
        identity: dict[str, Any] | None,
        max_model_len: int,
        batch_size: int,
    ):
        super().__init__(
            engine="CTranslate2",
            capabilities=capabilities,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            batch_size=batch_size,
            dtype=generator.compute_type,
            model_vocabulary=len(vocabulary),
        )
        self._generator = generator
        self._vocabulary = vocabulary
        self._identity = identity

    def identity(self) -> dict[str, Any] | None:
        """Return what the answers depend on: hashes of the model's files."""
        return self._identity

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        while prompts := feed.take(self._batch_size):
            cancelled: set[int] = set()
            for alike in group_prompts(prompts):
                yield from self._generate_batch(alike, cancelled, feed)

    def _generate_batch(
        self, prompts: Sequence[TokenPrompt], cancelled: set[int], feed: PromptQueue
    ) -> Iterator[Sequence[TokenEvent]]:
        """Yield on the session's thread what a callback reports on a thread of the runtime."""
        batch = Batch(prompts, cancelled)
        reported: SimpleQueue[TokenEvent | None] = SimpleQueue()

        def report(step: Any) -> bool:
            event, is_over = batch.advance(step)
            if event is not None:
                reported.put(event)
            return is_over

        texts = [[self._vocabulary[each] for each in prompt.token_ids] for prompt in prompts]
        with ThreadPoolExecutor(1) as runtime:
            try:
                done = runtime.submit(
                    self._generator.generate_batch, texts, callback=report, **batch.arguments()
                )
                done.add_done_callback(lambda _: reported.put(None))
                while (event := reported.get()) is not None:
                    cancelled.update(feed.cancelled())
                    if event.key not in cancelled:  # the runtime may be ahead of its reader
                        yield [event]
                done.result()
            finally:  # closed early, as by the end of the session: the callback ends the batch
                cancelled.update(prompt.key for prompt in prompts)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        lengths = [len(span.token_ids) - 1 for span in spans]
        scores: dict[int, TokenScore] = {}
        for batch in batches(lengths, token_budget=LOGITS_AT_ONCE // len(self._vocabulary)):
            fed = [list(spans[at].token_ids[:-1]) for at in batch]
            logits = np.array(self._generator.forward_batch(fed))
            for row, at in enumerate(batch):
                span = spans[at]
                positions = logits[row, span.start - 1 : lengths[at]]
                chosen = np.array(span.token_ids[span.start :])
                logprobs, is_best = token_logprobs(positions, chosen)
                scores[at] = TokenScore(logprobs, all(is_best))
        yield [scores[at] for at in range(len(spans))]

    def _release(self) -> None:
        self._generator.unload_model()

    def _describe(self) -> dict[str, Any]:
        return {"device": "cpu"}


def is_sampled(prompt: TokenPrompt) -> bool:
    return prompt.do_sample and prompt.temperature > 0


def group_prompts(prompts: Sequence[TokenPrompt]) -> list[list[TokenPrompt]]:
    """Return the prompts in groups that one call of CTranslate2 can serve."""
    groups: dict[object, list[TokenPrompt]] = {}
    for prompt in prompts:
        sampling = (prompt.temperature, prompt.top_k, prompt.top_p) if is_sampled(prompt) else None
        # The logits of a whole batch come with the first prompt's token: those go alone.
        alone = None if prompt.logprobs is None else prompt.key
        kind = len(prompt.token_ids), sampling, alone
        groups.setdefault(kind, []).append(prompt)
    return list(groups.values())
