"""What differs between two runs besides their scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from evalution.results import RunResult

_SECTIONS = ("model", "engine", "scoring_policy", "versions")
_LEFT_OUT = frozenset({"engine.capabilities", "engine.self_check"})
"""What describes rather than decides."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of `results.json`, as `engine.options.dtype`; a side that lacks it has None."""

    field: str
    left: Any
    right: Any

    def to_dict(self) -> dict[str, Any]:
        return {"field": self.field, "left": self.left, "right": self.right}


def run_differences(left: RunResult, right: RunResult) -> list[Difference]:
    """Differences of model, engine, scoring policy, versions and row limit, in that order."""
    before = {name: getattr(left, name) for name in (*_SECTIONS, "limit", "step")}
    after = {name: getattr(right, name) for name in (*_SECTIONS, "limit", "step")}
    return [*leaf_differences(before, after)]


def leaf_differences(left: Any, right: Any, at: str = "") -> Iterator[Difference]:
    """A difference for each value that isn't the same, however deep it stands; `at` is its path.

    An empty mapping is the same as none at all.
    """
    if left == right or at in _LEFT_OUT:
        return
    if not (isinstance(left, Mapping) and isinstance(right, Mapping)):
        yield Difference(at, left, right)
        return
    before, after = cast(Mapping[str, Any], left), cast(Mapping[str, Any], right)
    for name in [*before, *(name for name in after if name not in before)]:
        if [side[name] for side in (before, after) if name in side] == [{}]:
            continue  # a field that is empty here, and that the other's Evalution didn't have yet
        place = f"{at}.{name}" if at else name
        yield from leaf_differences(before.get(name), after.get(name), place)
