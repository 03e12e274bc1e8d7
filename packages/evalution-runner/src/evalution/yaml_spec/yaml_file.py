"""YAML as a spec may hold it: plain values, no key twice, and errors with a place."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from evalution.rows.local import decode_lines
from evalution.user_input import path_errors
from evalution_core import ConfigurationError

LARGEST_YAML = 1 << 20
"""Bytes of a file; a megabyte takes seconds to read."""
DEEPEST_YAML = 50
"""Levels of lists and mappings in one another."""
MOST_YAML_VALUES = 100_000
"""Values of a document, where each alias counts as what it names."""
LONGEST_YAML_NUMBER = 400
"""Characters of a number."""
_TOO_DEEP = f"{{}} is nested too deeply, over {DEEPEST_YAML} levels"
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

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, Any]:
        if not isinstance(node, yaml.MappingNode):  # the tag !!set may stand before anything
            raise yaml.constructor.ConstructorError(
                None, None, "a set must be a mapping of its members to nothing", node.start_mark
            )
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
    with path_errors(path):
        size = path.stat().st_size
    if size > LARGEST_YAML:
        raise ConfigurationError(
            f"{path} is larger than {LARGEST_YAML} bytes; rows stand in a file of their own, "
            "which `data` names"
        )
    return parse_yaml("".join(decode_lines(path)), str(path))


def parse_yaml(text: str, place: str) -> Any:
    """The one document of a text, whose name in messages is `place`; errors as `read_yaml`."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, place, {})
        return cast(Any, loader.construct_document(node))  # pyright: ignore[reportUnknownMemberType]
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"{place}{_find_place(error)}: not valid YAML: {_find_reason(error)}"
        ) from None
    except RecursionError:
        raise ConfigurationError(_TOO_DEEP.format(place)) from None
    except (ValueError, ArithmeticError) as error:  # an int of 5000 digits, a date, a huge float
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{place} holds a value that can't be read: {error}") from None


def _measure(
    node: yaml.Node, place: str, known: dict[int, tuple[int, int]], depth: int = 0
) -> tuple[int, int]:
    """Return the values and the levels in a node, where each alias counts as what it names.

    Raises:
        ConfigurationError: it goes over a limit, or an alias stands inside of what it names.
    """
    if known.get(id(node)) == (0, 0):
        raise ConfigurationError(f"{place}: an alias (*) stands inside of what it names")
    size, height = known.get(id(node), (1, 0))
    if depth + height > DEEPEST_YAML:
        raise ConfigurationError(_TOO_DEEP.format(place))
    if id(node) in known:
        return size, height
    known[id(node)] = 0, 0
    for member in _list_members(node):
        values, levels = _measure(member, place, known, depth + 1)
        size, height = size + values, max(height, levels + 1)
    if size > MOST_YAML_VALUES:
        line = node.start_mark.line + 1
        raise ConfigurationError(
            f"{place}, line {line}: aliases (*) and lists make more than {MOST_YAML_VALUES} values "
            "of it; write fewer"
        )
    known[id(node)] = size, height
    return size, height


def _list_members(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        return [member for pair in pairs for member in pair]
    if isinstance(node, yaml.SequenceNode):
        return cast("list[yaml.Node]", node.value)
    is_number = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
    if is_number and len(node.value) > LONGEST_YAML_NUMBER:
        raise yaml.constructor.ConstructorError(
            None, None, f"a number has over {LONGEST_YAML_NUMBER} characters", node.start_mark
        )
    return []


def _find_place(error: yaml.YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"


def _find_reason(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return ", ".join(part for part in (error.problem, error.context) if part) or str(error)
    return str(error)


EXAMPLES = {
    "backend": "; for instance `backend: {kind: local, params: {dtype: float32}}`",
    "engine": "; for instance `engine: {type: Reference}`",
    "test": "; for instance `{type: generation, data: rows.jsonl, …}`",
    "tests": "; for instance `tests: [{type: generation, data: rows.jsonl, …}]`",
}
"""Examples of sections, for messages."""

_KINDS: dict[type, str] = {
    int: "a number",
    float: "a number",
    bool: "true or false",
    str: "a text",
}


def read_declaration(declared: object, what: str) -> tuple[str, Mapping[str, Any]]:
    """The name and the options of the engine, test or backend that is declared in either form.

    Raises:
        ConfigurationError: it names none, or mixes the forms.
    """
    if isinstance(declared, str):
        return declared, {}
    fields = dict(as_mapping(declared, f"the {what}"))
    for key in ("type", "kind"):
        if key not in fields:
            continue
        name = fields.pop(key)
        if not isinstance(name, str):
            raise ConfigurationError(f"the {what}'s {key} must be a name, got {name!r}")
        return name, _read_options(fields, key, what)
    raise ConfigurationError(
        f"the {what} names no type (it has: {', '.join(fields) or 'nothing'}){EXAMPLES[what]}"
    )


def _read_options(fields: Mapping[str, Any], key: str, what: str) -> Mapping[str, Any]:
    if "params" not in fields:
        if key == "kind" and fields:
            raise ConfigurationError(
                f"the {what} has kind and {', '.join(fields)} side by side; put options under "
                "params, or write type in place of kind"
            )
        return fields
    if beside := [name for name in fields if name != "params"]:
        raise ConfigurationError(
            f"the {what} has options both under params and beside it: {', '.join(beside)}"
        )
    return as_mapping(fields["params"] or {}, f"the {what}'s params")


def as_mapping(found: object, what: str) -> Mapping[str, Any]:
    """`found`, where it is a mapping with text as keys.

    Raises:
        ConfigurationError: it is something else; `what` is its name in the message.
    """
    if not isinstance(found, Mapping):
        shown = "empty" if found is None else _KINDS.get(type(found), f"a {type(found).__name__}")
        raise ConfigurationError(f"{what} must be a mapping of names to values, but it is {shown}")
    mapping = cast(Mapping[Any, Any], found)
    for key in mapping:
        if not isinstance(key, str):
            raise ConfigurationError(f"{what} has the key {key!r}, which is no text; quote it")
    return mapping
