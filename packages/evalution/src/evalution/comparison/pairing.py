"""Which samples of two runs are answers to the same row."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evalution.samples import SampleColumns

_OF_THE_ROWS = frozenset({"batch_size", "max_rows", "name", "order", "row_indices"})
"""Options that choose or arrange rows and leave their prompts as they are."""


@dataclass(slots=True)
class Pairing:
    """The rows that both sides answered, and how many there are of every other kind.

    `left` and `right` tell where these rows stand in the columns of each side. `other_rows`: the
    index is the same and the row is not. `other_prompts`: the same row, asked in other words; these
    are among the paired. `left_failed` and `right_failed` count rows without an answer to compare;
    a row that failed on both sides counts in both.
    """

    left: array[int] = field(default_factory=lambda: array("q"))
    right: array[int] = field(default_factory=lambda: array("q"))
    left_only: int = 0
    right_only: int = 0
    left_failed: int = 0
    right_failed: int = 0
    other_rows: int = 0
    other_prompts: int = 0

    @property
    def paired(self) -> int:
        """How many rows both sides answered."""
        return len(self.left)

    @property
    def are_all(self) -> bool:
        """Whether both sides have the same rows, answered or not."""
        return not (self.left_only or self.right_only or self.other_rows)

    def to_dict(self) -> dict[str, int]:
        counts = {n: getattr(self, n) for n in self.__slots__ if n not in ("left", "right")}
        return {"paired": self.paired, **counts}


def pair_samples(left: SampleColumns, right: SampleColumns, *, same_prompts: bool) -> Pairing:
    """Match samples by their rows' index; both sides are in the order of the rows.

    Samples with another target are of other rows. So are those with another prompt, unless the
    suites' options differ so that they ask the same rows in other words: `same_prompts` is false.
    """
    found, matched, after = Pairing(), 0, 0
    for before, row in enumerate(left.rows):
        while after < len(right) and right.rows[after] < row:
            after += 1
        if after == len(right) or right.rows[after] != row:
            found.left_only += 1
            continue
        matched += 1
        _match(found, (left, before), (right, after), same_prompts=same_prompts)
    found.right_only = len(right) - matched
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
    found: Pairing,
    before: tuple[SampleColumns, int],
    after: tuple[SampleColumns, int],
    *,
    same_prompts: bool,
) -> None:
    (left, here), (right, there) = before, after
    if left.failed[here] or right.failed[there]:
        found.left_failed += left.failed[here]
        found.right_failed += right.failed[there]
        return
    prompts = left.prompts[here], right.prompts[there]
    is_other_prompt = prompts[0] != prompts[1] and 0 not in prompts
    if left.targets[here] != right.targets[there] or (is_other_prompt and same_prompts):
        found.other_rows += 1
        return
    found.other_prompts += is_other_prompt
    found.left.append(here)
    found.right.append(there)
