"""Code that a spec names: it is found before anything is imported, and refused unless allowed.

A spec is data that people send one another. These keys make it run what its author wrote: a module
of an engine or a suite, another interpreter, code beside a checkpoint or a task, a cluster, and
arguments of runtimes that name classes. Names of installed plugins and modules of this project are
free.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from evalution.user_input import check_code_permission

_PLUGINS = frozenset({"backend", "engine", "kind", "tests", "type"})
"""Keys whose value is the name of a plugin, or `module:Class`."""
_OURS = re.compile(r"evalution(_\w+)?(\.[a-z]\w*)*:\w+")
_CODE = frozenset(
    {
        "confirm_run_unsafe_code",
        "include_path",  # lm-eval's tasks name functions
        "python",
        "runtime_env",  # Ray installs and sets up what it says
        "trust_remote_code",
    }
)
"""Keys that run code unless their value is empty or false."""
_ARGUMENTS = re.compile(r"(?!chat_template|gen)\w*kwargs")
"""Names of options that hold any argument of a runtime."""
_CODE_ARGUMENT = re.compile(
    r"custom_|(^|_)(cls|class(_overrides)?|module(_path)?|plugin|processors?|executor_backend)$"
)
_DOTTED = re.compile(r"[A-Za-z_]\w*([.:][A-Za-z_]\w*)+|.*\.py")
_HUB_KERNEL = re.compile(r".*/.*")
_CLUSTER = re.compile(r"ray://.*|.*:\d+")
"""Ray's answers are unpickled."""


def check_named_code(document: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for the first place that names code, unless code is allowed."""
    for key, value in _walk(document):
        if _is_code(key, value):
            check_code_permission(f"{key}: {value!s:.200}")


def _walk(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the plain values with their keys; a list's members have the key of the list.

    The key of a runtime's argument begins with `kwargs.`. Rows within a spec are left out.
    """
    waiting: list[tuple[str, object]] = [("", document)]
    seen: set[tuple[str, int]] = set()
    while waiting:
        key, value = waiting.pop()
        if not isinstance(value, dict | list):
            yield key, value
        elif (place := (key, id(cast(object, value)))) not in seen:
            seen.add(place)
            if key in _CODE and value:
                yield key, "…"
            if isinstance(value, list):
                waiting += [(key, member) for member in cast("list[object]", value)]
                continue
            is_argument = key.startswith("kwargs.") or _ARGUMENTS.fullmatch(key)
            prefix = "kwargs." if is_argument else ""
            members = cast("dict[Any, object]", value).items()
            waiting += [(f"{prefix}{name}", each) for name, each in members if name != "data"]


def _is_code(key: str, value: object) -> bool:
    name = key.removeprefix("kwargs.")
    text = value.replace(" ", "") if isinstance(value, str) else ""
    if name in _CODE:
        return bool(value)
    if name in _PLUGINS:
        return ":" in text and not _OURS.fullmatch(text)
    if name == "address":
        return _CLUSTER.fullmatch(text) is not None
    if name == "execute":
        return text == "partial"
    if name == "tasks":
        return text.endswith((".yaml", ".yml"))
    if name == "attn_implementation":
        return _HUB_KERNEL.fullmatch(text) is not None
    if key == name or not value:
        return False
    return bool(_CODE_ARGUMENT.search(name) or _DOTTED.fullmatch(text))
