"""Steps that run on an answer before it is compared, declared as data; and reasoning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Protocol, cast, runtime_checkable

from pydantic import Field

from evalution.scoring.patterns import check_pattern, find_match, replace_matches
from evalution.scoring.steps import Step, StepKinds
from evalution_core import ConfigurationError


@runtime_checkable
class Filter(Protocol):
    """One step: text in, text out."""

    def apply(self, text: str) -> str: ...


@dataclass(frozen=True)
class FilterStep(Step):
    """Base of the filters that a spec names."""

    declared_as: ClassVar[str] = "filter"


@dataclass(frozen=True)
class Regex(FilterStep):
    """The text of one match, stripped; `fallback` where nothing matches.

    `match` chooses among several matches; `group` (a number or a name) what of it is taken. None
    takes the whole match if there are no groups, the group if there is one (even an empty text),
    else the first that isn't empty: lm-evaluation-harness 0.4.13's `regex` with `group_select` 0
    for "first" and -1 for "last".
    """

    pattern: Annotated[str, Field(description="Regular expression, as Python's re takes it.")]
    match: Annotated[
        Literal["first", "last"], Field(description="Match to take where there are several.")
    ] = "first"
    group: Annotated[
        int | str | None,
        Field(
            description="Number or name of the group to take; None takes the whole match, the only "
            "group, or the first that isn't empty."
        ),
    ] = None
    fallback: Annotated[str, Field(description="Text where nothing matches.")] = "[invalid]"

    def __post_init__(self) -> None:
        super().__post_init__()
        compiled = check_pattern("filter regex", self.pattern)
        known = {*range(compiled.groups + 1), *compiled.groupindex}
        if self.group is not None and self.group not in known:
            raise ConfigurationError(
                f"filter regex: {self.pattern!r} has no group {self.group!r} "
                f"(groups: {', '.join(str(name) for name in known)})"
            )

    def apply(self, text: str) -> str:
        found = find_match(self.pattern, text, last=self.match == "last")
        if found is None:
            return self.fallback
        if self.group is not None:
            taken = found[self.group]
        elif found.re.groups > 1:
            taken = next((group for group in found.groups() if group), None)
        else:
            taken = found[found.re.groups] or ""
        return self.fallback if taken is None else taken.strip()


@dataclass(frozen=True)
class Replace(FilterStep):
    """Every match of `pattern` replaced, by nothing unless `by` says otherwise."""

    pattern: Annotated[str, Field(description="Regular expression, as Python's re takes it.")]
    by: Annotated[str, Field(description="Replacement; it may refer to groups.")] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pattern("filter replace", self.pattern)
        # An alternative that always matches makes `re` read the replacement now.
        always = re.compile(f"{self.pattern}\n|")
        try:
            always.sub(self.by, "")
        except (re.error, IndexError) as error:
            raise ConfigurationError(
                f"filter replace: {self.by!r} can't replace a match of {self.pattern!r}: {error}; "
                "a backslash of the text itself is written twice"
            ) from None

    def apply(self, text: str) -> str:
        return replace_matches(self.pattern, self.by, text)


@dataclass(frozen=True)
class Strip(FilterStep):
    """Whitespace gone from both ends."""

    def apply(self, text: str) -> str:
        return text.strip()


@dataclass(frozen=True)
class Lower(FilterStep):
    """In lower case."""

    def apply(self, text: str) -> str:
        return text.lower()


@dataclass(frozen=True)
class FirstLine(FilterStep):
    """Up to the first line break."""

    def apply(self, text: str) -> str:
        return text.split("\n", 1)[0]


FILTERS: StepKinds[Filter] = StepKinds(
    "filter",
    {"regex": Regex, "replace": Replace, "strip": Strip, "lower": Lower, "first_line": FirstLine},
    Filter,
)


def apply_filters(filters: Sequence[Filter], text: str) -> str:
    """`text` after every step, in order.

    Raises:
        TypeError: a step gave something else than text.
    """
    for step in filters:
        text = step.apply(text)
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"filter {type(step).__name__} gave {text!r}, which is no text")
    return text


def parse_filters(declared: object) -> list[Filter] | dict[str, list[Filter]]:
    """Steps, or named pipelines of steps, as a spec declares them; errors as `StepKinds.parse`."""
    if isinstance(declared, Mapping):
        named = cast(Mapping[str, Any], declared)
        if not _is_step(named):
            return {str(name): FILTERS.parse(steps) for name, steps in named.items()}
    return FILTERS.parse(cast(object, declared))


def filters_to_yaml(filters: object) -> Any:
    """Steps or pipelines in the form in which a spec declares them."""
    if isinstance(filters, Mapping):
        named = cast(Mapping[str, Any], filters)
        return {name: filters_to_yaml(steps) for name, steps in named.items()}
    return FILTERS.to_yaml(filters)


def _is_step(declared: Mapping[str, Any]) -> bool:
    name, value = next(iter(declared.items()), (None, None))
    if len(declared) != 1 or isinstance(value, list | tuple):
        return False
    # `{strict: strip}` is a pipeline called strict; `{lowr: {}}` a step, misspelt.
    return name in FILTERS.kinds or not FILTERS.is_declared(value)


class Reasoning(StrEnum):
    """State of a model's reasoning before its answer."""

    ENDED = "ended"
    UNFINISHED = "unfinished"
    CLOSED = "closed"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class ReasoningSplit:
    """The answer in a text, which is empty if the reasoning is unfinished."""

    answer: str
    reasoning: Reasoning


def split_reasoning(
    text: str,
    end_token: str,
    stops: Sequence[str],
    *,
    is_cut_off: bool,
    is_closed: bool = False,
) -> ReasoningSplit:
    """The answer in a text that was generated without stop strings.

    It is what follows the first `end_token`, as in the reasoning parsers of serving runtimes,
    without white space at its front, up to the first stop. A text without the token is an answer
    as a whole, up to the first stop, unless it was cut off: then it is a thought. Behind a prompt
    that ended the thought already it is no thought.

    Args:
        end_token: what ends the thought, not empty.
        stops: what ends the answer; in the thought they may stand.
        is_cut_off: the text ended because its length ran out.
        is_closed: the prompt ends with `end_token`, as templates write it for a model that isn't
            to think.
    """
    _, token, answer = text.partition(end_token)
    if token:
        return ReasoningSplit(text_before_stop(answer.lstrip(), stops), Reasoning.ENDED)
    if is_closed:
        return ReasoningSplit(text_before_stop(text.lstrip(), stops), Reasoning.CLOSED)
    if is_cut_off:
        return ReasoningSplit("", Reasoning.UNFINISHED)
    return ReasoningSplit(text_before_stop(text, stops), Reasoning.ABSENT)


def text_before_stop(text: str, stops: Sequence[str]) -> str:
    """`text` up to the stop that an engine would have ended it at, or all of it.

    That is the one which is complete first; of several that end with the same character, the one
    that began first.
    """
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(found)[1]] if found else text
