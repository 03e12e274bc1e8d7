"""The golden cases: what lm-evaluation-harness made of strings, and each deliberate difference."""

from __future__ import annotations

from typing import Any

import pytest

from evalution_core import InvalidRequestError, LoglikelihoodRequest
from evalution_core.encoding import (
    conditioning_id,
    encode_pair,
    encode_request,
    fit_pair,
    rolling_windows,
    strip_leading,
)
from evalution_enginekit import TokenizerFile, TokenSpan

Tokenizers = dict[str, TokenizerFile]


def scored_pair(tokenizer: TokenizerFile, case: dict[str, Any]) -> list[list[int]] | None:
    context_ids, continuation_ids = encode_pair(tokenizer, case["context"], case["continuation"])
    try:
        fit_pair(context_ids, continuation_ids, max_model_len=1 << 20, truncation="error")
    except InvalidRequestError:
        return None
    return [context_ids, continuation_ids]


def test_pairs_are_lm_evals_except_where_marked(
    golden: dict[str, Any], golden_tokenizers: Tokenizers
) -> None:
    assert len(golden["pairs"]) >= 90
    for case in golden["pairs"]:
        ours = scored_pair(golden_tokenizers[case["tokenizer"]], case)
        expected = case["ours"] if "difference" in case else case["lm_eval"]
        assert ours == expected, case
        assert ("difference" in case) == (ours != case["lm_eval"]), case


def test_windows_are_lm_evals_except_where_marked(
    golden: dict[str, Any], golden_tokenizers: Tokenizers
) -> None:
    assert len(golden["windows"]) >= 30
    for case in golden["windows"]:
        tokenizer = golden_tokenizers[case["tokenizer"]]
        spans = rolling_windows(
            strip_leading(tokenizer, tokenizer.encode(case["text"])),
            conditioning_id(tokenizer),
            case["max_model_len"],
        )
        ours = [[list(s.token_ids[: s.start]), list(s.token_ids[s.start :])] for s in spans]
        assert ours == case.get("ours", case["lm_eval"]), case
        assert ("difference" in case) == (ours != case["lm_eval"]), case


@pytest.mark.parametrize("name", ["bytelevel", "unigram", "crossing"])
def test_a_request_is_encoded_as_the_golden_pairs_are(
    name: str, golden: dict[str, Any], golden_tokenizers: Tokenizers
) -> None:
    cases = [case for case in golden["pairs"] if case["tokenizer"] == name]
    assert len(cases) >= 30
    for case in cases:
        request = LoglikelihoodRequest(case["context"], case["continuation"])
        ours = encode_request(golden_tokenizers[name], request, request.context)
        expected = case.get("ours") or case["lm_eval"]
        assert list(ours) == expected or (expected == "IndexError" and not ours[1])


def test_spans_feed_what_lm_eval_feeds() -> None:
    pair = fit_pair([1, 2, 3], [4, 5], max_model_len=3, truncation="left")
    assert pair.span == TokenSpan([2, 3, 4, 5], 2)
    assert pair.span.fed == [2, 3, 4]
    assert pair.truncated_tokens == 1
