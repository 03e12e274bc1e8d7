"""Ten thousand random cases through lm-evaluation-harness's own code and through ours.

What is deliberately different is in `DIFFERENCES`, and nothing else may be.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution_core import InvalidRequestError
from evalution_core.encoding import (
    conditioning_id,
    encode_pair,
    fit_pair,
    rolling_windows,
    strip_leading,
)
from evalution_enginekit import Tokenizer, TokenizerFile
from evalution_enginekit.tokenizer import HFTokenizer

lm_eval = pytest.importorskip("lm_eval", reason="needs the environment lm-eval of tools/envs")
transformers = pytest.importorskip("transformers", reason="needs the environment lm-eval")

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).parents[4]
KINDS = ("bytelevel", "unigram", "crossing")
CASES = 10_000
NOTHING, UNCONDITIONED, ROLLING_PREFIX = "nothing to score", "unconditioned", "rolling prefix"
DIFFERENCES = {
    NOTHING: "a continuation without a token of its own is refused; lm-eval crashes on it",
    UNCONDITIONED: "a context of only whitespace is conditioned as an empty one; where the "
    "tokenizer has no leading token, lm-eval leaves it without any and crashes on it",
    ROLLING_PREFIX: "the leading or conditioning token at the beginning of a rolling text is "
    "conditioned on and not scored; lm-eval scores it (its issue 3333)",
}
_PIECES = [
    *("the", "cat", "sees", " ", " ", "  ", "\n", "\n\n", "\t", ".", "...", ", ", "?\n", "a", "n"),
    *("he", "'t", "12", "3.", "Привет", "日本", "語", "é", "\u3000", "\xa0", "\u2028", "<s>", "<s"),
    *("</s>", ">", "<unk>", "\U0001f600", "house", "an apple", "was"),
]


@pytest.fixture(scope="module")
def tokens_only() -> Callable[..., Any]:
    """lm-eval's model without weights, of tools/lm_eval_tokens.py."""
    spec = importlib.util.spec_from_file_location(
        "lm_eval_tokens", ROOT / "tools" / "lm_eval_tokens.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.TokensOnly


class Both:
    """One tokenizer as lm-eval sees it and as we do, with or without a leading token."""

    def __init__(self, folder: Path, leads: bool, tokens_only: Callable[..., Any]):
        specials = json.loads((folder / "tokenizer_config.json").read_text())
        self.theirs = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), **specials
        )
        self.leads = leads
        self.lm = tokens_only(self.theirs)
        self.ours: list[Tokenizer] = [
            TokenizerFile(folder / "tokenizer.json"),
            HFTokenizer(self.theirs),
        ]


@pytest.fixture(scope="module")
def tokenizers(
    golden_folders: dict[str, Path],
    tokens_only: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Both]:
    both: list[Both] = []
    for kind in KINDS:
        source = golden_folders[kind]
        content = json.loads((source / "tokenizer.json").read_text("utf-8"))
        specials = json.loads((source / "tokenizer_config.json").read_text())
        for leads in (True, False):
            folder = tmp_path_factory.mktemp(kind)
            leading = specials.get("bos_token", specials["eos_token"])
            content["post_processor"] = _leading(content, leading) if leads else None
            (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
            (folder / "tokenizer_config.json").write_text(json.dumps(specials))
            both.append(Both(folder, leads, tokens_only))
    return both


def _leading(content: dict[str, Any], token: str) -> dict[str, Any]:
    (token_id,) = [entry["id"] for entry in content["added_tokens"] if entry["content"] == token]
    piece = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [piece, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [piece, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }


def _text(chance: random.Random, longest: int) -> str:
    return "".join(chance.choices(_PIECES, k=chance.randrange(longest + 1)))


def test_pairs(tokenizers: list[Both], record_property: Callable[[str, object], None]) -> None:
    chance, found = random.Random(2), Counter[str]()
    for number in range(CASES):
        both = tokenizers[number % len(tokenizers)]
        context, continuation = _text(chance, 8), _text(chance, 4)
        try:
            theirs = both.lm.pair(context, continuation)
        except IndexError:
            assert (context, continuation) == ("", "")
            theirs = ([both.lm.prefix_token_id], [])
        difference = None
        if not theirs[0]:
            assert not context.strip()
            assert not both.leads
            difference, theirs = UNCONDITIONED, ([both.lm.prefix_token_id], theirs[1])
        for tokenizer in both.ours:
            assert encode_pair(tokenizer, context, continuation) == theirs, (context, continuation)
        if not theirs[1]:
            difference = NOTHING
            with pytest.raises(InvalidRequestError, match="no token of its own"):
                fit_pair(*theirs, max_model_len=9, truncation="left")
        found[difference or "equal"] += 1
    _report("pairs", found, record_property)
    assert set(found) == {"equal", NOTHING, UNCONDITIONED}


def test_cut_from_the_left(
    tokenizers: list[Both], record_property: Callable[[str, object], None]
) -> None:
    chance, found = random.Random(3), Counter[str]()
    lm, size = tokenizers[0].lm, len(tokenizers[0].theirs)
    for _ in range(CASES):
        max_length = lm._max_length = chance.randrange(1, 12)
        lengths = chance.randrange(16), chance.randrange(max_length + 2)
        ids = [chance.choices(range(size), k=length) for length in lengths]
        try:
            theirs = lm.fed(*ids)
        except AssertionError:
            assert not ids[0] or not ids[1] or len(ids[1]) > max_length
            found["refused by both"] += 1
            if ids[0]:
                told = "a continuation is never cut" if ids[1] else "no token of its own"
                with pytest.raises(InvalidRequestError, match=told):
                    fit_pair(*ids, max_model_len=max_length, truncation="left")
            continue
        pair = fit_pair(*ids, max_model_len=max_length, truncation="left")
        assert pair.span.fed == theirs
        assert pair.span.token_ids[pair.span.start :] == ids[1]
        found["cut" if pair.truncated_tokens else "whole"] += 1
    _report("cut from the left", found, record_property)
    assert set(found) == {"cut", "whole", "refused by both"}


def test_rolling_windows_of_ids(record_property: Callable[[str, object], None]) -> None:
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    chance, found = random.Random(4), Counter[str]()
    for _ in range(CASES):
        ids = chance.choices(range(50), k=chance.randrange(80))
        size = chance.randrange(1, 24)
        theirs = [
            make_disjoint_window(window)
            for window in get_rolling_token_windows(ids, -1, max_seq_len=size, context_len=1)
        ]
        spans = rolling_windows(ids, -1, size)
        ours = [(list(s.token_ids[: s.start]), list(s.token_ids[s.start :])) for s in spans]
        assert ours == theirs
        found["equal"] += 1
    _report("windows of ids", found, record_property)


def test_rolling_windows_of_texts(
    tokenizers: list[Both], record_property: Callable[[str, object], None]
) -> None:
    chance, found = random.Random(5), Counter[str]()
    for number in range(CASES):
        both = tokenizers[number % len(tokenizers)]
        text = _text(chance, 12)
        both.lm._max_length = chance.randrange(1, 16)
        theirs = both.lm.windows(text)
        scored = [i for _, ids in theirs for i in ids]
        difference = None
        if scored[:1] == [both.lm.prefix_token_id]:
            difference, scored = ROLLING_PREFIX, scored[1:]
        for tokenizer in both.ours:
            if not scored:
                difference = NOTHING
                with pytest.raises(InvalidRequestError, match="at least one token of text"):
                    strip_leading(tokenizer, tokenizer.encode(text))
                continue
            spans = rolling_windows(
                strip_leading(tokenizer, tokenizer.encode(text)),
                conditioning_id(tokenizer),
                both.lm._max_length,
            )
            ours = [(list(s.token_ids[: s.start]), list(s.token_ids[s.start :])) for s in spans]
            assert [i for _, ids in ours for i in ids] == scored, text
            assert difference is not None or ours == theirs, text
        found[difference or "equal"] += 1
    _report("windows of texts", found, record_property)
    assert set(found) == {"equal", ROLLING_PREFIX, NOTHING}


def _report(what: str, found: Counter[str], record_property: Callable[[str, object], None]) -> None:
    for outcome, count in found.items():
        record_property(f"{what}: {outcome}", count)
    print(f"{what}: {dict(found)}")
    assert found.total() == CASES
    assert set(found) - {"equal", "cut", "whole", "refused by both"} <= set(DIFFERENCES)
