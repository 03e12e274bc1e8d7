"""Which of a row's choices the model finds most likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, cast

from evalution.rows.local import Row
from evalution.suites.choice_suite import LEAST_CHOICES, ChoiceSuite
from evalution.suites.local_rows import LocalQuestions
from evalution.suites.prompts import Template, parse_template
from evalution_core import ConfigurationError


@dataclass(kw_only=True)
class MultipleChoice(LocalQuestions, ChoiceSuite):
    """Each choice is scored as a continuation of the prompt; the most likely one is the answer.

    `choices` is the column that holds a list of texts, or a list of texts with `{column}` in them.
    `target` is the column of the right one: its index, or its text. The metrics are all four of
    `ChoiceSuite`.
    """

    metric_names: ClassVar[Sequence[str]] = ("acc", "acc_norm", "acc_bytes", "acc_token")

    choices: str | Sequence[str]
    target: str

    def check_options(self) -> None:
        super().check_options()
        _ = self.prompt_template, self._choice_templates
        if not self.choices:
            raise self.wrong("choices", "must not be empty")
        if not isinstance(self.choices, str) and len(self.choices) < LEAST_CHOICES:
            raise self.wrong("choices", "must hold at least two texts to choose from")

    def choice_texts(self, row: Row) -> Sequence[str]:
        if (templates := self._choice_templates) is not None:
            return [template.render(row) for template in templates]
        found = row[str(self.choices)]
        if not isinstance(found, list | tuple) or not found:
            raise ConfigurationError(
                f"{row.place}: column {self.choices!r} holds no list of choices, but {found!r}"
            )
        return list(cast(Sequence[Any], found))

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        value = row[self.target]
        if isinstance(value, str) and value in choices:
            return choices.index(value)
        # A bool is an int too, but true is as likely the first of "yes" and "no".
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
            return value
        raise ConfigurationError(
            f"{row.place}: column {self.target!r} holds {value!r}, which is neither the text of a "
            f"choice nor an index from 0 to {len(choices) - 1}"
        )

    @cached_property
    def _choice_templates(self) -> list[Template] | None:
        if isinstance(self.choices, str):
            return None
        return [parse_template(text, "choices") for text in self.choices]
