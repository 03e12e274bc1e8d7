"""Suites whose rows and questions a person declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from evalution.rows.local import Data, Row, Rows, is_same_data
from evalution.suites.declaration import PATH
from evalution.suites.prompts import Template, text_of
from evalution.suites.row_suite import Part


@dataclass(kw_only=True)
class LocalRows:
    """The rows of `data`: a file, `builtin:<name>/<rows>`, or in memory."""

    data: Data = field(metadata=PATH)
    name: str | None = None

    @property
    def title(self) -> str:
        return self.name or Rows(self.data).name

    def parts(self) -> Sequence[Part]:
        return [Part(Rows(self.data))]


@dataclass(kw_only=True)
class LocalQuestions(LocalRows):
    """A `prompt` from each row: a column's name, or a text with `{column}` in it.

    Solved rows come from `fewshot_data`, or from `data` itself, also where `fewshot_data` names
    the file of `data`.
    """

    prompt: str
    fewshot_data: Data | None = field(default=None, metadata=PATH)

    def parts(self) -> Sequence[Part]:
        if self.fewshot_data is None or is_same_data(self.data, self.fewshot_data):
            return super().parts()
        return [Part(Rows(self.data), Rows(self.fewshot_data))]

    def question_text(self, row: Row) -> str:
        return self.prompt_template.render(row)

    @cached_property
    def prompt_template(self) -> Template:
        return text_of(self.prompt, "prompt")
