"""Which of several contexts makes the same continuation most likely."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from evalution.rows.local import Row
from evalution.suites.choice_suite import ChoiceSample, ChoiceSuite, checked_choices
from evalution.suites.selection import Case


@dataclass(kw_only=True)
class ContextChoiceSuite(ChoiceSuite):
    """The choices are contexts, and each is scored by the same continuation after it.

    A solved row is its right context with the continuation; the prompt that a sample shows is the
    right one too.
    """

    @abstractmethod
    def continuation_text(self, row: Row) -> str:
        """What is scored after each of the contexts, without the delimiter before it."""
        ...

    def question_text(self, row: Row) -> str:
        contexts = checked_choices(row, self.choice_texts(row))
        return contexts[self.gold_index(row, contexts)]

    def answer_text(self, row: Row) -> str:
        return self.continuation_text(row)

    def sample(self, case: Case) -> ChoiceSample:
        row = case.row
        contexts: Sequence[str] = checked_choices(row, self.choice_texts(row))
        gold = self.gold_index(row, contexts)
        prompts = [self.prompt_of(case, context) for context in contexts]
        continuation = self.continuation_text(row)
        requests = [self.request(prompt, continuation) for prompt in prompts]
        return ChoiceSample(
            row.index, prompts[gold], contexts[gold], requests, contexts, gold, subset=row.subset
        )
