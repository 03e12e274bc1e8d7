"""What of a text is the answer, where a model thinks before it gives one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Thought(StrEnum):
    """How far the model thought before it answered."""

    ENDED = "ended"
    UNFINISHED = "unfinished"
    CLOSED = "closed"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer in a text; empty behind an unfinished thought."""

    answer: str
    thought: Thought


def reply_in(
    text: str,
    end_token: str,
    stops: Sequence[str],
    *,
    is_cut_off: bool,
    is_closed: bool = False,
) -> Reply:
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
        return Reply(text_before_stop(answer.lstrip(), stops), Thought.ENDED)
    if is_closed:
        return Reply(text_before_stop(text.lstrip(), stops), Thought.CLOSED)
    if is_cut_off:
        return Reply("", Thought.UNFINISHED)
    return Reply(text_before_stop(text, stops), Thought.ABSENT)


def text_before_stop(text: str, stops: Sequence[str]) -> str:
    """`text` up to the stop that an engine would have ended it at, or all of it.

    That is the one which is complete first; of several that end with the same character, the one
    that began first.
    """
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(found)[1]] if found else text
