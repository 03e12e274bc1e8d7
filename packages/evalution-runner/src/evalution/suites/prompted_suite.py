"""Suites that ask a question: prompt templates, and the solved rows before a question."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from random import Random
from string import Formatter
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from evalution.rows.hub import is_same_data, open_rows
from evalution.rows.local import Data, Row
from evalution.suites.row_suite import FewshotRow, LocalRows, RowSuite, Split
from evalution.suites.suite import PATH, Sample
from evalution.user_input import LARGEST
from evalution_core import Capability, ConfigurationError
from evalution_core.requests import Message, Output

_YAML_HINT = "; for a brace of the text itself write {{ or }}"
_JINJA = re.compile(r"(?<![a-z{}^_])\{\{\s*([^\W\d]\w*)\s*(?:[.|[][^{}]*)?\}\}")
"""A column as Jinja writes it, also with a filter, and no argument of a TeX command."""


@dataclass(frozen=True, slots=True)
class Template:
    """Literal texts and columns in turn: `parts` of `(text, column or None)`."""

    source: str
    parts: tuple[tuple[str, str | None], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it needs, in order of their first use."""
        return tuple(dict.fromkeys(column for _, column in self.parts if column is not None))

    def render(self, row: Row) -> str:
        """The text for `row`, verbatim: nothing is stripped.

        Raises:
            ConfigurationError: the row lacks a column, or holds null or no text there.
        """
        return "".join(
            text if column is None else text + row.text(column) for text, column in self.parts
        )


def parse_template(source: str, option: str) -> Template:
    """A template from `{column}` placeholders; what stands outside braces is literal.

    Raises:
        ConfigurationError: braces that don't match, more than a column's name within them, or a
            text that is the same for all rows since its columns stand in two braces.
    """
    parts: list[tuple[str, str | None]] = []
    try:
        for text, column, format_spec, conversion in Formatter().parse(source):
            if column is not None and (format_spec or conversion or not column.strip()):
                raise ValueError(f"{{{column}}} must hold a column's name alone")
            parts.append((text, column))
    except ValueError as error:
        raise ConfigurationError(f"{option} {source!r}: {error}{_YAML_HINT}") from None
    template = Template(source, tuple(parts))
    if not template.columns and (found := _JINJA.search(source)):
        raise ConfigurationError(
            f"{option} {source!r}: {found[0]} is the text {found[0][1:-1]}; a column is "
            f"{{{found[1]}}}, with one brace"
        )
    return template


def parse_text(source: str, option: str) -> Template:
    """A template, or the column whose name `source` is if it has no braces.

    Raises:
        ConfigurationError: as `parse_template`, and for an empty `source`.
    """
    if not source:
        raise ConfigurationError(f"{option} is empty; name a column, or write a '{{column}}' text")
    if "{" in source or "}" in source:
        return parse_template(source, option)
    return Template(source, (("", source),))


@dataclass(slots=True)
class SeededShots:
    """Drawn for each row, as lm-evaluation-harness 0.4.13's default sampler draws them.

    One generator serves a whole suite, so a row's shots depend on how many rows came before it.

    Args:
        shared: the pool is the evaluated rows themselves. No row is ever its own example; with
            `draw_extra_shot` neither is an equal one.
        draw_extra_shot: draw one row more than is shown, if there is one, and leave out those that
            equal the question; None does so where rows are shared. lm-evaluation-harness does so in
            some tasks whose pool is another split, and doesn't in some whose pool is the same.
    """

    pool: Sequence[Row]
    count: int
    seed: int
    shared: bool
    draw_extra_shot: bool | None = None
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        if self.draw_extra_shot is None:
            self.draw_extra_shot = self.shared
        self.draw_extra_shot = self.draw_extra_shot and (self.shared or len(self.pool) > self.count)
        _require(len(self.pool), self.count + self.shared, self.shared)

    def before(self, row: Row) -> Sequence[Row]:
        """The shots of the next row; call it once for each row, in order."""
        if self.draw_extra_shot:
            return self._besides(row)
        drawn = self._random.sample(self.pool, self.count)
        if self.shared and any(shot.index == row.index for shot in drawn):
            return self._replace_own_row(drawn, row)
        return drawn

    def _besides(self, row: Row) -> Sequence[Row]:
        drawn = self._random.sample(self.pool, self.count + 1)
        others = [shot for shot in drawn if not self._is_same(shot, row)][: self.count]
        if len(others) < self.count:  # the row stands in the file more than once
            distinct = [shot for shot in self.pool if not self._is_same(shot, row)]
            _require(len(distinct), self.count, self.shared)
            others = self._random.sample(distinct, self.count)
        return others

    def _replace_own_row(self, drawn: Sequence[Row], row: Row) -> Sequence[Row]:
        # A generator of its own: the shots of all later rows stay lm-evaluation-harness's.
        taken = {shot.index for shot in drawn}
        other = Random(f"{self.seed}-{row.index}")
        while (shot := other.choice(self.pool)).index in taken:
            pass
        return [shot if found.index == row.index else found for found in drawn]

    def _is_same(self, shot: Row, row: Row) -> bool:
        # Columns alone are not enough: a row with a NaN in it doesn't equal itself.
        return (self.shared and shot.index == row.index) or shot.columns == row.columns


def _require(found: int, needed: int, shared: bool) -> None:
    if found < needed:
        question = ", one of them the question itself" if shared else ""
        raise ConfigurationError(
            f"{found} of {needed} few-shot rows found{question}; lower num_fewshot, or name a "
            "fewshot_data with more rows"
        )


_SEED_BITS = 64
NumFewshot = Annotated[
    int, Field(ge=0, le=LARGEST, description="Solved rows before each question.")
]
FixedShotsOption = Annotated[
    bool,
    Field(
        description="Show the first num_fewshot solved rows before every question, in place of "
        "rows that are drawn for each."
    ),
]
TargetDelimiter = Annotated[
    str, Field(description="Text between a question and its answer; left out in a chat.")
]

S = TypeVar("S", bound=Sample)
A = TypeVar("A", bound=Output)


@dataclass(kw_only=True)
class PromptedSuite(RowSuite[S, A]):
    """A suite that asks a question: a prompt from each row, with solved rows before it.

    A solved row is its question, `target_delimiter` and its answer; `fewshot_delimiter` stands
    between rows. Solved rows are drawn with `fewshot_seed`, or with `fixed_shots` they are the
    first `num_fewshot`, which are then not evaluated where they are evaluated rows. No row is its
    own example, unless solved rows come from elsewhere and hold it too. With `apply_chat_template`
    the question is a user's message, each solved row a turn before it, and a description the
    system's message.
    """

    num_fewshot: NumFewshot = 0
    fewshot_seed: Annotated[
        int, Field(description="Seed by which the solved rows of each prompt are drawn.")
    ] = 1234
    fixed_shots: FixedShotsOption = False
    target_delimiter: TargetDelimiter = " "
    fewshot_delimiter: Annotated[str, Field(description="Text between solved rows.")] = "\n\n"
    apply_chat_template: Annotated[
        bool,
        Field(
            description="Ask in a chat: the question is a user's message, each solved row a turn "
            "before it."
        ),
    ] = False

    @abstractmethod
    def question_text(self, row: Row) -> str:
        """The question of a row, as it stands in a prompt, without what follows it."""
        ...

    @abstractmethod
    def answer_text(self, row: Row) -> str:
        """The answer of a row."""
        ...

    def solved_text(self, row: Row) -> str:
        """The answer of a solved row in a prompt, with the steps to it where the suite has them."""
        return self.answer_text(row)

    def description_text(self, row: Row) -> str:
        """Return the text before all questions, verbatim; nothing unless a suite says otherwise."""
        return ""

    def check_options(self) -> None:
        super().check_options()
        if self.fewshot_seed.bit_length() > _SEED_BITS:
            raise self.wrong("fewshot_seed", f"must fit into {_SEED_BITS} bits")

    @property
    def needs(self) -> frozenset[Capability]:
        chat = {Capability.CHAT} if self.apply_chat_template else set[Capability]()
        return super().needs | chat

    def build_prompt(self, fewshot: FewshotRow, question: str | None = None) -> str | list[Message]:
        """The whole prompt of a row: a text, or messages for a chat.

        Args:
            fewshot: the row and its solved ones.
            question: what is asked in place of `question_text`.
        """
        asked = self.question_text(fewshot.row) if question is None else question
        description = self.description_text(fewshot.row)
        if self.apply_chat_template:
            return self._chat(description, fewshot.shots, asked)
        return self._text(description, fewshot.shots, asked)

    def choose_shots(self, split: Split) -> Callable[[Row], Sequence[Row]]:
        if not self.num_fewshot:
            return super().choose_shots(split)
        source = split.rows if split.fewshot is None else split.fewshot
        if self.fixed_shots:
            first = list(islice(source, self.num_fewshot))
            _require(len(first), self.num_fewshot, shared=False)
            return lambda row: first
        pool = source if isinstance(source, Sequence) else list(source)
        is_shared = split.fewshot is None
        shots = SeededShots(
            pool, self.num_fewshot, self.fewshot_seed, is_shared, split.draw_extra_shot
        )
        return shots.before

    def skipped(self, split: Split) -> int:
        return self.num_fewshot if self.fixed_shots and split.fewshot is None else 0

    def _text(self, description: str, shots: Sequence[Row], question: str) -> str:
        solved = [
            self.question_text(shot) + self.target_delimiter + self.solved_text(shot)
            for shot in shots
        ]
        return description + self.fewshot_delimiter.join([*solved, question])

    def _chat(self, description: str, shots: Sequence[Row], question: str) -> list[Message]:
        messages = [_message("system", description)] if description else []
        for shot in shots:
            messages.append(_message("user", self.question_text(shot)))
            messages.append(_message("assistant", self.solved_text(shot)))
        return [*messages, _message("user", question)]


def _message(role: Literal["system", "user", "assistant"], content: str) -> Message:
    return {"role": role, "content": content}


@dataclass(kw_only=True)
class LocalQuestions(LocalRows):
    """A `prompt` from each row: a column's name, or a text with `{column}` in it.

    Solved rows come from `fewshot_data`, or from `data` itself, also where `fewshot_data` names
    the file of `data`.
    """

    prompt: Annotated[str, Field(description="Question: a column, or a text with {column} in it.")]
    fewshot_data: Annotated[
        Data | None,
        Field(
            description="Solved rows, like data, and none of its rows; None takes them from data "
            "itself, and never a row for its own example."
        ),
    ] = field(default=None, metadata=PATH)

    def splits(self) -> Sequence[Split]:
        if self.fewshot_data is None or is_same_data(self.data, self.fewshot_data):
            return super().splits()
        return [Split(open_rows(self.data), open_rows(self.fewshot_data))]

    def question_text(self, row: Row) -> str:
        return self.prompt_template.render(row)

    @cached_property
    def prompt_template(self) -> Template:
        return parse_text(self.prompt, "prompt")
