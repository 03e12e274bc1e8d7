"""Float64 values of the tiny model, which every engine is held to."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer

from tiny_model import reference_cases
from tiny_model.chat_template import render_chat
from tiny_model.decoding import decode_greedily, score
from tiny_model.llama import LlamaShape, Weights
from tiny_model.pairs import Pair, encode_pair, rolling_windows, truncate_left
from tiny_model.rows import Row
from tiny_model.tokenizer import BOS, EOS, special_id

Case = dict[str, Any]


class ReferenceModel:
    """The tiny model in float64 with its tokenizer."""

    def __init__(self, tokenizer: Tokenizer, weights: Weights, shape: LlamaShape) -> None:
        self.tokenizer = tokenizer
        self.weights = {name: weight.to(torch.float64) for name, weight in weights.items()}
        self.shape = shape

    def values(self, prose: list[Row]) -> dict[str, list[Case]]:
        """All cases by kind."""
        return {
            "scoring": [self.scored(*case) for case in reference_cases.SCORING],
            "truncation": [self.truncated(*case) for case in reference_cases.TRUNCATION],
            "generation": [self.generated(*case) for case in reference_cases.GENERATION],
            "full_prompt": [self.generated(*case) for case in reference_cases.FULL_PROMPTS],
            "encoding": [self.encoded(text) for text in reference_cases.ENCODING],
            "chat": [self.chatted(messages) for messages in reference_cases.CHAT],
            "rolling": [self.rolled(*case) for case in reference_cases.rolling_cases(prose)],
        }

    def scored(self, context: str, continuation: str) -> Case:
        """A pair that fits the model's context whole."""
        pair = encode_pair(self.tokenizer, context, continuation)
        if truncate_left(pair, self.shape.context)[1]:
            raise ValueError(f"too long for a scoring case: {context[:40]!r}...")
        texts = {"context": context, "continuation": continuation}
        return texts | self._scored_ids(pair)

    def truncated(self, context: str, continuation: str, max_model_len: int) -> Case:
        """A pair cut from the left to a smaller limit; the ids are those before the cut."""
        pair = encode_pair(self.tokenizer, context, continuation)
        cut_pair, cut = truncate_left(pair, max_model_len)
        ids = {"context_ids": pair[0], "continuation_ids": pair[1]}
        limits = {"max_model_len": max_model_len, "truncated_tokens": cut}
        texts = {"context": context, "continuation": continuation}
        return texts | limits | self._scored_ids(cut_pair) | ids

    def _scored_ids(self, pair: Pair) -> Case:
        found = score(self.weights, self.shape, [pair])[0]
        return {
            "context_ids": pair[0],
            "continuation_ids": pair[1],
            "token_logprobs": found.token_logprobs,
            "is_greedy": found.is_greedy,
        }

    def generated(self, prompt: str, max_new_tokens: int) -> Case:
        """The greedy continuation of a plain prompt."""
        ids = self.tokenizer.encode(prompt).ids
        start = {"prompt": prompt, "prompt_ids": ids, "max_new_tokens": max_new_tokens}
        return start | self._decoded(ids, max_new_tokens)

    def encoded(self, text: str) -> Case:
        """The ids of a text alone, and the texts of the ids without and with special tokens."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        decoded = {
            "decoded": self.tokenizer.decode(ids),
            "shown": self.tokenizer.decode(ids, skip_special_tokens=False),
        }
        return {"text": text, "token_ids": ids} | decoded

    def chatted(self, messages: list[dict[str, str]], max_new_tokens: int = 32) -> Case:
        """The greedy answer to a conversation."""
        rendered = render_chat(messages)
        ids = self.tokenizer.encode(rendered, add_special_tokens=False).ids
        start = {"messages": messages, "rendered": rendered, "prompt_ids": ids}
        return start | {"max_new_tokens": max_new_tokens} | self._decoded(ids, max_new_tokens)

    def _decoded(self, ids: list[int], max_new_tokens: int) -> Case:
        eos = special_id(self.tokenizer, EOS)
        output = decode_greedily(self.weights, self.shape, [ids], max_new_tokens, eos)[0]
        return {
            "token_ids": output.token_ids,
            "text": self.tokenizer.decode(output.token_ids),
            "finish_reason": output.finish_reason,
            "top2_gaps": output.top2_gaps,
        }

    def rolled(self, text: str, max_model_len: int) -> Case:
        """Every token of a text, window by window, the first after a BOS that isn't scored."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        logprobs: list[float] = []
        for window in rolling_windows(ids, special_id(self.tokenizer, BOS), max_model_len):
            logprobs += score(self.weights, self.shape, [window])[0].token_logprobs
        return {
            "text": text,
            "token_ids": ids,
            "max_model_len": max_model_len,
            "token_logprobs": logprobs,
        }
