"""Text from the columns of a row. A template knows columns and nothing else of Python."""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter

from evalution.rows.local import Row
from evalution_core import ConfigurationError

_YAML_HINT = "; for a brace of the text itself write {{ or }}"


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
        ConfigurationError: braces that don't match, or more than a column's name within them.
    """
    parts: list[tuple[str, str | None]] = []
    try:
        for text, column, format_spec, conversion in Formatter().parse(source):
            if column is not None and (format_spec or conversion or not column.strip()):
                raise ValueError(f"{{{column}}} must hold a column's name alone")
            parts.append((text, column))
    except ValueError as error:
        raise ConfigurationError(f"{option} {source!r}: {error}{_YAML_HINT}") from None
    return Template(source, tuple(parts))


def text_of(source: str, option: str) -> Template:
    """A template, or the column whose name `source` is if it has no braces.

    Raises:
        ConfigurationError: as `parse_template`, and for an empty `source`.
    """
    if not source:
        raise ConfigurationError(f"{option} is empty; name a column, or write a '{{column}}' text")
    if "{" in source or "}" in source:
        return parse_template(source, option)
    return Template(source, (("", source),))
