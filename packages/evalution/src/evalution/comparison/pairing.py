"""Which samples of two runs are answers to the same row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalution.results import SampleResult

_OF_THE_ROWS = frozenset({"batch_size", "max_rows", "name", "order", "row_indices"})
"""Options that choose or arrange rows and leave their prompts as they are."""

Pair = tuple[SampleResult, SampleResult]


@dataclass(slots=True)
class Pairing:
    """The rows that both sides answered, and how many there are of every other kind.

    `other_rows`: the index is the same and the row is not. `other_prompts`: the same row, asked
    in other words; these are among the pairs. `left_failed` and `right_failed` count rows without
    an answer to compare; a row that failed on both sides counts in both.
    """

    pairs: list[Pair] = field(default_factory=list[Pair])
    left_only: int = 0
    right_only: int = 0
    left_failed: int = 0
    right_failed: int = 0
    other_rows: int = 0
    other_prompts: int = 0

    @property
    def are_all(self) -> bool:
        """Whether both sides have the same rows, answered or not."""
        return not (self.left_only or self.right_only or self.other_rows)

    def to_dict(self) -> dict[str, int]:
        counts = {name: getattr(self, name) for name in self.__slots__ if name != "pairs"}
        return {"paired": len(self.pairs), **counts}


def pair_samples(
    left: Sequence[SampleResult], right: Sequence[SampleResult], *, same_prompts: bool
) -> Pairing:
    """Match samples by their rows' index.

    Samples with another target are of other rows. So are those with another prompt, unless the
    suites' options differ so that they ask the same rows in other words: `same_prompts` is false.
    """
    found = Pairing()
    there = {sample.index: sample for sample in right}
    for before in left:
        after = there.pop(before.index, None)
        if after is None:
            found.left_only += 1
            continue
        _match(found, before, after, same_prompts=same_prompts)
    found.right_only = len(there)
    return found


def option_differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Options whose values differ, as `[left, right]`; one that a side lacks is None there."""
    names = [*left, *(name for name in right if name not in left)]
    return {
        name: [left.get(name), right.get(name)]
        for name in names
        if name != "name" and left.get(name) != right.get(name)
    }


def keeps_prompts(differing: Mapping[str, Any]) -> bool:
    """Whether suites with these differing options still put the same prompt for a row."""
    return _OF_THE_ROWS.issuperset(differing)


def _match(
    found: Pairing, before: SampleResult, after: SampleResult, *, same_prompts: bool
) -> None:
    is_other_prompt = before.prompt != after.prompt and None not in (before.prompt, after.prompt)
    if before.error is None and after.error is None:
        if before.target != after.target or (is_other_prompt and same_prompts):
            found.other_rows += 1
            return
        found.other_prompts += is_other_prompt
        found.pairs.append((before, after))
        return
    found.left_failed += before.error is not None
    found.right_failed += after.error is not None
