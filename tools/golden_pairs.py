"""Write the engine kit's golden cases: strings in, ids out, from lm-evaluation-harness itself.

Run it in the environment `lm-eval` (tools/envs): `.venv-lm-eval/bin/python tools/golden_pairs.py`.
The committed tokenizers stay as they are unless `--train` is given.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from golden_tokenizers import write_tokenizers
from lm_eval_tokens import TokensOnly

FOLDER = Path(__file__).parents[1] / "packages" / "evalution-enginekit" / "tests" / "golden"
SPECIALS: dict[str, dict[str, str]] = {
    "bytelevel": {"bos_token": "<s>", "eos_token": "</s>"},
    "unigram": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "crossing": {"eos_token": "</s>"},
}
PAIRS = [
    ("the cat", " sees"),
    ("the cat ", "sees"),
    ("the cat\n", "sees"),
    ("the cat \t\n ", " sees the house"),
    ("the cat\u3000", "sees"),
    ("the cat\xa0\u2028", "日本語"),
    ("the cat", ".\n\nthe end"),
    ("the cat.", "\n\nthe end"),
    ("the cat.\n", "\nthe end"),
    ("a tree, a", "n apple"),
    ("Привет", "!"),
    ("日", "本語"),
    ("naïve Zo", "ë"),
    ("", "the cat"),
    ("", " the cat"),
    ("", "<s>the cat"),
    ("", "</s>the cat"),
    ("", "<s>"),
    ("", ""),
    ("  ", "the cat"),
    ("\n\t", "<s>the cat"),
    ("<s>the cat", " sees"),
    ("<s>", "the cat"),
    ("<s><s>the cat", " sees"),
    ("<s", ">the cat"),
    ("</s>the cat", " sees"),
    ("</s>", "the cat"),
    ("the cat", "</s>"),
    ("the cat", ""),
    ("the cat ", ""),
    ("3.", "14"),
    ("t", "he"),
]
TEXTS = ["the cat sees the house.\n\nthe end", "<s>the cat sees", "</s>a dog", "日本語 naïve"]
LENGTHS = [1, 4, 64]
UNCONDITIONED = "an empty context always gets the conditioning token; lm-eval crashes without one"
NOTHING_TO_SCORE = "a continuation without a token is refused; lm-eval crashes on it"
ROLLING_PREFIX = "the leading token of a rolling text is conditioned on and never scored"


def pair_case(lm: TokensOnly, name: str, context: str, continuation: str) -> dict[str, Any]:
    case: dict[str, Any] = {"tokenizer": name, "context": context, "continuation": continuation}
    try:
        context_ids, continuation_ids = lm.pair(context, continuation)
    except IndexError:
        return case | {"lm_eval": "IndexError", "ours": None, "difference": NOTHING_TO_SCORE}
    case["lm_eval"] = [context_ids, continuation_ids]
    if not continuation_ids:
        return case | {"ours": None, "difference": NOTHING_TO_SCORE}
    if not context_ids:
        ours = [[lm.prefix_token_id], continuation_ids]
        return case | {"ours": ours, "difference": UNCONDITIONED}
    return case


def window_case(lm: TokensOnly, name: str, text: str, max_model_len: int) -> dict[str, Any]:
    """lm-eval's windows of the text; where it scores the leading token, also of the text's own."""
    lm._max_length = max_model_len
    case = {"tokenizer": name, "text": text, "max_model_len": max_model_len}
    case["lm_eval"] = lm.windows(text)
    token_ids = lm.tok_encode(text)
    leading = lm.tok_encode("")[:1] or [lm.prefix_token_id]
    if token_ids[:1] != leading:
        return case
    lm.tok_encode = lambda string, *_, **__: token_ids[1:]
    case |= {"ours": lm.windows(text), "difference": ROLLING_PREFIX}
    del lm.tok_encode
    return case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", action="store_true", help="train the three tokenizers again")
    if parser.parse_args().train:
        write_tokenizers(FOLDER)
    pairs: list[dict[str, Any]] = []
    windows: list[dict[str, Any]] = []
    for name, specials in SPECIALS.items():
        file = str(FOLDER / f"{name}.json")
        lm = TokensOnly(PreTrainedTokenizerFast(tokenizer_file=file, **specials))
        pairs += [pair_case(lm, name, *pair) for pair in PAIRS]
        windows += [window_case(lm, name, text, size) for text in TEXTS for size in LENGTHS]
    head = {"lm_eval": version("lm-eval"), "special_tokens": SPECIALS}
    lists = ",\n".join(
        f'"{title}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]"
        for title, cases in (("pairs", pairs), ("windows", windows))
    )
    text = json.dumps(head)[:-1] + ",\n" + lists + "}\n"
    (FOLDER / "golden_pairs.json").write_text(text, "utf-8")
    marked = sum("difference" in case for case in pairs + windows)
    print(f"{len(pairs)} pairs, {len(windows)} windows, {marked} marked differences")


if __name__ == "__main__":
    main()
