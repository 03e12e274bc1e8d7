"""Suites that put a question, with solved ones before it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeVar

from evalution.rows.local import Row
from evalution.suites.fewshot import FixedShots, SeededShots
from evalution.suites.row_suite import Part, RowSuite
from evalution.suites.selection import Case
from evalution.suites.suite import Sample
from evalution.user_input import find_count_problem
from evalution_core import (
    Capability,
    GenerationOutput,
    LoglikelihoodOutput,
    Message,
    RollingLoglikelihoodOutput,
)

_SEED_BITS = 64

S = TypeVar("S", bound=Sample)
A = TypeVar("A", GenerationOutput, LoglikelihoodOutput, RollingLoglikelihoodOutput)


@dataclass(kw_only=True)
class PromptedSuite(RowSuite[S, A]):
    """A suite that asks a question: a prompt from each row, with solved rows before it.

    A solved row is its question, `target_delimiter` and its answer; `fewshot_delimiter` stands
    between rows. Solved rows are drawn with `fewshot_seed`, or with `fixed_shots` they are the
    first `num_fewshot`, which are then not evaluated where they are evaluated rows. No row is ever
    its own example. With `apply_chat_template` the question is a user's message, each solved row a
    turn before it, and a description the system's message.
    """

    num_fewshot: int = 0
    fewshot_seed: int = 1234
    fixed_shots: bool = False
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    apply_chat_template: bool = False

    @abstractmethod
    def question_text(self, row: Row) -> str:
        """The question of a row, as it stands in a prompt, without what follows it."""
        ...

    @abstractmethod
    def answer_text(self, row: Row) -> str:
        """The answer of a solved row, as it stands in a few-shot prompt."""
        ...

    def description_text(self, row: Row) -> str:
        """What stands before all questions, verbatim; nothing unless a suite says otherwise."""
        return ""

    def check_options(self) -> None:
        super().check_options()
        if problem := find_count_problem(self.num_fewshot, least=0):
            raise self.wrong("num_fewshot", problem)
        if self.fewshot_seed.bit_length() > _SEED_BITS:
            raise self.wrong("fewshot_seed", f"must fit into {_SEED_BITS} bits")

    @property
    def needs(self) -> frozenset[Capability]:
        chat = {Capability.CHAT} if self.apply_chat_template else set[Capability]()
        return super().needs | chat

    def prompt_of(self, case: Case, question: str | None = None) -> str | list[Message]:
        """The whole prompt of a row: a text, or messages for a chat.

        Args:
            case: the row and its solved ones.
            question: what is asked in place of `question_text`.
        """
        asked = self.question_text(case.row) if question is None else question
        description = self.description_text(case.row)
        if self.apply_chat_template:
            return self._chat(description, case.shots, asked)
        return self._text(description, case.shots, asked)

    def solved_rows(self, part: Part) -> Callable[[Row], Sequence[Row]]:
        if not self.num_fewshot:
            return super().solved_rows(part)
        source = part.rows if part.fewshot is None else part.fewshot
        if self.fixed_shots:
            return FixedShots(list(islice(source, self.num_fewshot)), self.num_fewshot).before
        pool = source if isinstance(source, Sequence) else list(source)
        is_shared = part.fewshot is None
        shots = SeededShots(pool, self.num_fewshot, self.fewshot_seed, is_shared, part.spare)
        return shots.before

    def skipped(self, part: Part) -> int:
        return self.num_fewshot if self.fixed_shots and part.fewshot is None else 0

    def _text(self, description: str, shots: Sequence[Row], question: str) -> str:
        solved = [
            self.question_text(shot) + self.target_delimiter + self.answer_text(shot)
            for shot in shots
        ]
        return description + self.fewshot_delimiter.join([*solved, question])

    def _chat(self, description: str, shots: Sequence[Row], question: str) -> list[Message]:
        messages = [_message("system", description)] if description else []
        for shot in shots:
            messages.append(_message("user", self.question_text(shot)))
            messages.append(_message("assistant", self.answer_text(shot)))
        return [*messages, _message("user", question)]


def _message(role: Literal["system", "user", "assistant"], content: str) -> Message:
    return {"role": role, "content": content}
