"""Columns of a person's rows for options that a spec leaves out: proposed, and taken on a yes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evalution.rows.local import RowSource
from evalution.user_input import ask
from evalution_core import ConfigurationError

_USUAL: Mapping[str, Sequence[str]] = {
    "prompt": ("question", "prompt", "input", "instruction", "query", "problem"),
    "target": ("answer", "target", "output", "label", "gold", "solution", "reference", "response"),
    "choices": ("choices", "options", "endings"),
    "text": ("text", "content", "document", "passage"),
}
"""Options that name a column, and the usual names of such columns, the likeliest first."""


def names_column(option: str) -> bool:
    """True if it is an option for which a column can be proposed."""
    return option in _USUAL


def propose_columns(options: Iterable[str], columns: Iterable[str]) -> dict[str, str] | None:
    """A column for each option; None unless each has one, and no two the same."""
    found: dict[str, str] = {}
    by_name = {column.strip().casefold(): column for column in columns}
    for option in options:
        usual = next((by_name[name] for name in _USUAL[option] if name in by_name), None)
        if usual is None:
            return None
        found[option] = usual
    return found if len(set(found.values())) == len(found) else None


class MissingOptionsError(ConfigurationError):
    """Options of a suite over rows are missing.

    Attributes:
        proposed: a column for each, or a placeholder where none is proposed.
    """

    def __init__(self, message: str, proposed: Mapping[str, str]):
        super().__init__(message)
        self.proposed = proposed


def choose_columns(suite: str, options: Sequence[str], rows: RowSource) -> dict[str, str]:
    """The columns of `rows` for options that are missing, if a person says yes to them.

    Raises:
        MissingOptionsError: there is nobody to ask, who said no, or nothing to propose; with the
            columns, and the line to write where one is proposed.
    """
    first = next(iter(rows), None)
    columns = list(first.columns) if first is not None else []
    proposed = propose_columns(options, columns)
    listed = " and ".join(map(repr, options))
    needs = f"suite {suite} needs the option{'s' if len(options) > 1 else ''} {listed}"
    found = f"the columns of {rows.place} are {', '.join(columns) or 'none, as it has no rows'}"
    if proposed is None:
        raise MissingOptionsError(f"{needs}; {found}", dict.fromkeys(options, "COLUMN"))
    line = ", ".join(f"{option}: {column}" for option, column in proposed.items())
    if not ask(f"{needs}; {found}; take {line}?"):
        raise MissingOptionsError(f"{needs}; {found}; write, if it fits: {line}", proposed)
    return proposed
