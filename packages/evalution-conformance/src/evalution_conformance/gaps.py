"""Known failures of an engine, written down beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Owner = Literal["ours", "upstream", "never"]


@dataclass(frozen=True, slots=True)
class Gap:
    """A check that the engine fails today.

    `owner` says who has to act: `ours`, `upstream`, or `never` where nobody will. A gap is strict:
    once the check passes, the run fails until the gap is removed.
    """

    owner: Owner
    reason: str

    def __post_init__(self) -> None:
        if self.owner not in get_args(Owner):
            raise ValueError(f"a gap is 'ours', 'upstream' or 'never', got {self.owner!r}")
        if not self.reason.strip():
            raise ValueError("a gap needs a reason; name the issue that tracks it")
