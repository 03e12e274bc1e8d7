"""YAML as a spec may hold it: plain values, no key twice, and errors with a place."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import yaml

from evalution_core import ConfigurationError

_DEPTH = 50
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a mapping with the same key twice, and half a character."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        found: Any = super().construct_scalar(node)  # pyright: ignore[reportUnknownMemberType]
        try:
            # JSON escapes a character beyond U+FFFF as two, and JSON is YAML.
            return found.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise yaml.constructor.ConstructorError(
                None, None, "a lone surrogate is no valid text", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, yaml.Node] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = cast(Any, self.construct_object(key_node, deep=True))  # pyright: ignore[reportUnknownMemberType]
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a plain value", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands here a second time", key_node.start_mark
                )
            seen[key] = key_node
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """The one document of a file.

    Raises:
        ConfigurationError: the file can't be read, or isn't YAML; with line and column.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} isn't UTF-8 text: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror}") from error
    try:
        found = yaml.load(text, _Loader)
        _check_shape(found, path)
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"{path}{_place(error)}: not valid YAML: {_reason(error)}"
        ) from None
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deeply") from None
    except ValueError as error:  # what a tag makes of its text: an int of 5000 digits, a date
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{path} holds a value that can't be read: {error}") from None
    return found


def _check_shape(
    found: object, path: Path, above: tuple[int, ...] = (), done: set[int] | None = None
) -> None:
    # An alias may stand inside of what it names; whoever walks through that never comes back.
    done = set() if done is None else done
    if id(found) in above:
        raise ConfigurationError(f"{path}: an alias (*) stands inside of what it names")
    if id(found) in done or not isinstance(found, dict | list):
        return
    if len(above) >= _DEPTH:
        raise ConfigurationError(f"{path} is nested too deeply, over {_DEPTH} levels")
    holder = cast(dict[Any, object] | list[object], found)
    for member in holder.values() if isinstance(holder, dict) else holder:
        _check_shape(member, path, (*above, id(holder)), done)
    done.add(id(holder))


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"


def _reason(error: yaml.YAMLError) -> str:
    problem: str | None = getattr(error, "problem", None)
    context: str | None = getattr(error, "context", None)
    return ", ".join(part for part in (problem, context) if part) or str(error)
