"""WikiText-2: whole articles of Wikipedia, untokenised."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evalution.rows.local import Row
from evalution.scoring.filters import Filter, Replace, apply_filters
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.language_modelling import PerplexitySuite


def _verbatim(found: str, by: str) -> Replace:
    return Replace(re.escape(found), by)


UNTOKENISED: Sequence[Filter] = (
    _verbatim("s '", "s'"),
    # Looks for slashes and so changes nothing in real text; lm-evaluation-harness has it.
    Replace(r"/' [0-9]/", "/'[0-9]/"),
    *(_verbatim(f" @{mark}@ ", mark) for mark in "-,."),
    *(_verbatim(f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
    Replace(r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
    Replace(r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    Replace(r"{\s*([^}]*?)\s*}", r"{\1}"),
    Replace(r"\"\s*([^\"]*?)\s*\"", r'"\1"'),
    Replace(r"'\s*([^']*?)\s*'", r"'\1'"),
    *(_verbatim(" ".join("=" * count), "=" * count) for count in (4, 3, 2)),
    _verbatim(" ° ", "°"),
    _verbatim(" \n", "\n"),
    _verbatim("\n ", "\n"),
    _verbatim(" N ", " 1 "),
    _verbatim(" 's", "'s"),
)
"""Steps that turn WikiText's tokens into text again, those of lm-evaluation-harness 0.4.13."""


@dataclass(kw_only=True)
class Wikitext(DatasetRows, PerplexitySuite):
    """Perplexity of whole articles (Merity et al. 2016, arXiv:1609.07843).

    The article is scored as text; words and bytes are counted in it as it is published, in tokens.
    """

    task = "wikitext"
    dataset = Dataset("EleutherAI/wikitext_document_level", "test", "wikitext-2-raw-v1")

    def scored_text(self, row: Row) -> str:
        return apply_filters(UNTOKENISED, self.counted_text(row))

    def counted_text(self, row: Row) -> str:
        return row.text("page")
