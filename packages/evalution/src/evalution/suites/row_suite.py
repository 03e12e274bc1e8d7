"""Suites over task rows, and those that put a question with solved ones before it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TypeVar

from evalution.counts import count_problem
from evalution.fewshot import FixedShots, SeededShots
from evalution.prompts import Template, text_of
from evalution.rows import Data, Row, Rows, is_same_data
from evalution.suites.declaration import PATH
from evalution.suites.suite import Sample, Suite
from evalution_core import (
    Capability,
    ConfigurationError,
    GenerationOutput,
    LoglikelihoodOutput,
    Message,
    RollingLoglikelihoodOutput,
)

_SEED_BITS = 64

S = TypeVar("S", bound=Sample)
A = TypeVar("A", GenerationOutput, LoglikelihoodOutput, RollingLoglikelihoodOutput)


@dataclass(kw_only=True)
class RowSuite(Suite[S, A]):
    """A suite with one sample for each row of `data`, at most `max_rows` of them."""

    data: Data = field(metadata=PATH)
    max_rows: int | None = None

    @property
    def title(self) -> str:
        return self.name or Rows(self.data).name

    def check_options(self) -> None:
        if self.max_rows is not None and (problem := count_problem(self.max_rows, least=1)):
            raise self.wrong("max_rows", problem)

    def rows(self, limit: int | None, *, skip: int = 0) -> Iterator[Row]:
        """The rows to evaluate: those after the first `skip`, no more than either bound allows.

        Raises:
            ConfigurationError: while iterating; also when there is not a single row.
        """
        bounds = [bound for bound in (limit, self.max_rows) if bound is not None]
        stop = skip + min(bounds) if bounds else None
        row = None
        for row in islice(Rows(self.data), skip, stop):
            yield row
        if row is None:
            besides = f" besides the {skip} few-shot rows" if skip else ""
            raise ConfigurationError(f"{Rows(self.data).place} holds no rows{besides}")


@dataclass(kw_only=True)
class PromptedSuite(RowSuite[S, A]):
    """A suite that asks a question: a prompt from each row, with solved rows before it.

    `prompt` is a column's name, or a text with `{column}` in it. A solved row is its prompt,
    `target_delimiter` and its answer; `fewshot_delimiter` stands between rows. Solved rows come
    from `fewshot_data`, or from `data` itself: drawn with `fewshot_seed`, or with `fixed_shots` the
    first `num_fewshot`, which are then not evaluated where they are rows of `data`. No row is ever
    its own example, also where `fewshot_data` names the file of `data`.
    With `apply_chat_template` the question is a user's message, each solved row a turn before it.
    """

    prompt: str
    num_fewshot: int = 0
    fewshot_data: Data | None = field(default=None, metadata=PATH)
    fewshot_seed: int = 1234
    fixed_shots: bool = False
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    apply_chat_template: bool = False

    def check_options(self) -> None:
        super().check_options()
        if problem := count_problem(self.num_fewshot, least=0):
            raise self.wrong("num_fewshot", problem)
        if self.fewshot_seed.bit_length() > _SEED_BITS:
            raise self.wrong("fewshot_seed", f"must fit into {_SEED_BITS} bits")
        _ = self.prompt_template

    @cached_property
    def prompt_template(self) -> Template:
        return text_of(self.prompt, "prompt")

    @property
    def needs(self) -> frozenset[Capability]:
        chat = {Capability.CHAT} if self.apply_chat_template else set[Capability]()
        return super().needs | chat

    @abstractmethod
    def answer_text(self, row: Row) -> str:
        """The answer of a solved row, as it stands in a few-shot prompt."""
        ...

    def questions(self, limit: int | None) -> Iterator[tuple[Row, str | list[Message]]]:
        """Each row to evaluate with its whole prompt: a text, or messages for a chat."""
        shots = self._shots()
        for row in self.rows(limit, skip=self._skipped):
            before = shots.before(row) if shots else ()
            if self.apply_chat_template:
                yield row, self._chat(before, row)
            else:
                yield row, self._text(before, row)

    @property
    def shares_rows(self) -> bool:
        """Whether solved rows come from the evaluated ones.

        Raises:
            ConfigurationError: `data` or `fewshot_data` isn't there.
        """
        return self.fewshot_data is None or is_same_data(self.data, self.fewshot_data)

    @property
    def _skipped(self) -> int:
        return self.num_fewshot if self.fixed_shots and self.shares_rows else 0

    def _shots(self) -> SeededShots | FixedShots | None:
        if not self.num_fewshot:
            return None
        rows = Rows(self.data if self.fewshot_data is None else self.fewshot_data)
        if self.fixed_shots:
            return FixedShots(list(islice(rows, self.num_fewshot)), self.num_fewshot)
        return SeededShots(list(rows), self.num_fewshot, self.fewshot_seed, self.shares_rows)

    def _text(self, before: Sequence[Row], row: Row) -> str:
        solved = [
            self.prompt_template.render(shot) + self.target_delimiter + self.answer_text(shot)
            for shot in before
        ]
        return self.fewshot_delimiter.join([*solved, self.prompt_template.render(row)])

    def _chat(self, before: Sequence[Row], row: Row) -> list[Message]:
        messages: list[Message] = []
        for shot in before:
            messages.append(_message("user", self.prompt_template.render(shot)))
            messages.append(_message("assistant", self.answer_text(shot)))
        return [*messages, _message("user", self.prompt_template.render(row))]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
