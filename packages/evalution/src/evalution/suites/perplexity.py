"""How well the model predicts the texts of a column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from evalution.rows.local import Row
from evalution.suites.local_rows import LocalRows
from evalution.suites.perplexity_suite import PerplexitySuite
from evalution.suites.prompts import Template, text_of


@dataclass(kw_only=True)
class Perplexity(LocalRows, PerplexitySuite):
    """Each row's `text`, a column's name or a text with `{column}` in it, is scored as a whole.

    Metrics are those of `PerplexitySuite`.
    """

    text: str

    def check_options(self) -> None:
        super().check_options()
        _ = self._template

    def scored_text(self, row: Row) -> str:
        return self._template.render(row)

    @cached_property
    def _template(self) -> Template:
        return text_of(self.text, "text")
