"""Whether the text a model writes equals a column's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from evalution.rows.local import Row
from evalution.scoring.filters import (
    Filter,
    apply_filters,
    declared_filters,
    parse_filters,
    parse_steps,
)
from evalution.suites.declaration import parsed_by
from evalution.suites.generation_suite import EXACT_MATCH, GenerationSuite
from evalution.suites.local_rows import LocalQuestions
from evalution.suites.prompts import Template, text_of


@dataclass(kw_only=True)
class Generation(LocalQuestions, GenerationSuite):
    """The model completes the prompt; an answer is right if it equals the target.

    `target` is a column's name, or a text with `{column}` in it. Before the comparison `filters`
    run on the answer and `target_filters` on the target; nothing else is changed, not even spaces
    at the ends. Named pipelines (`{strict: [...], loose: [...]}`) each give a metric of their own,
    `exact_match,<name>`. Decoding is greedy and ends at a `stop` or after `max_new_tokens`.

    Of a model that thinks first, `think_end_token` is the text that ends its thought: only what
    follows it, without white space at its front, is the answer, and only there a `stop` counts.
    """

    target: str
    filters: Sequence[Filter] | Mapping[str, Sequence[Filter]] = field(
        default=(), metadata=parsed_by(parse_filters, declared_filters)
    )
    target_filters: Sequence[Filter] = field(
        default=(), metadata=parsed_by(parse_steps, declared_filters)
    )

    def check_options(self) -> None:
        super().check_options()
        _ = self.prompt_template, self._target_template
        if isinstance(self.filters, Mapping) and not self.filters:
            raise self.wrong("filters", "must name at least one pipeline")

    @property
    def answer_pipelines(self) -> Mapping[str, Sequence[Filter]]:
        return self._pipelines

    def answer_text(self, row: Row) -> str:
        return self._target_template.render(row)

    def expected_text(self, row: Row) -> str:
        return apply_filters(self.target_filters, self.answer_text(row))

    @cached_property
    def _target_template(self) -> Template:
        return text_of(self.target, "target")

    @cached_property
    def _pipelines(self) -> Mapping[str, Sequence[Filter]]:
        if isinstance(self.filters, Mapping):
            return {f"{EXACT_MATCH},{name}": steps for name, steps in self.filters.items()}
        return {EXACT_MATCH: self.filters}
