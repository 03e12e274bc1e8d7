"""Code that a spec names: it is found before anything is imported, and refused unless allowed.

A spec is data that people send one another. These keys make it run what its author wrote: a module
of an engine or a suite, another interpreter, code beside a checkpoint or a task, a cluster, and
arguments of runtimes that name classes. Names of installed plugins and modules of this project are
free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

from evalution.user_input import check_code_permission

_PLUGINS = frozenset({"backend", "engine", "kind", "tests", "type"})
"""Keys whose value is the name of a plugin, or `module:Class`."""
_OURS = re.compile(r"evalution(_\w+)?(\.[a-z]\w*)*:\w+")
_CODE = frozenset(
    {
        "allow_all_kernels",  # of anybody, from the Hub
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
    r"^custom_|(^|_)(cls|class(_(name|overrides))?|module(_path)?|plugin|processors?"
    r"|executor_backend|addr(ess)?|endpoint|host|ip|init_method|rpc_servers)$"
)
_DOTTED = re.compile(r"[A-Za-z_]\w*([.:][A-Za-z_]\w*)+|.*\.py")
_ATTENTION = "attn_implementation"
"""Part of the names by which Transformers takes it, the fields of its configuration included."""
_CLUSTER = re.compile(r"ray://.*|.*:\d+")
"""Ray's answers are unpickled, and so are those of a runtime's other processes."""
_ROWS = ("data", "fewshot_data")


def check_named_code(document: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for the first place that names code, unless code is allowed."""
    for key, value in _walk(document):
        if _is_code(key, value):
            shown = "…" if isinstance(value, dict | list) else " ".join(str(value).split())
            check_code_permission(f"{key}: {shown:.200}")


def _walk(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the values with their keys; a list's members have the key of the list.

    So have those of a mapping of attentions. The key of a runtime's argument begins with `kwargs.`,
    also within JSON in a text, and that of a value for lm-eval's tasks with `metadata.`. Rows
    within a spec are left out.
    """
    waiting: list[tuple[str, object]] = [("", document)]
    seen: set[tuple[str, int]] = set()
    parse = cache(_parse_json)  # and held: `seen` knows values by the place where they lie
    while waiting:
        key, value = waiting.pop()
        if not isinstance(value, dict | list):
            yield key, value
            if key.startswith("kwargs.") and isinstance(value, str) and value.lstrip()[:1] in "{[":
                waiting.append((key, parse(value)))
        elif (place := (key, id(cast(object, value)))) not in seen:
            seen.add(place)
            yield key, cast(object, value)
            if isinstance(value, list):
                waiting += [(key, member) for member in cast("list[object]", value)]
                continue
            is_argument = key.startswith("kwargs.") or _ARGUMENTS.fullmatch(key)
            is_metadata = key == "metadata" or key.startswith("metadata.")
            prefix = "kwargs." if is_argument else "metadata." if is_metadata else ""
            members = cast("dict[Any, object]", value).items()
            waiting += [(f"{prefix}{name}", each) for name, each in members if name not in _ROWS]
            if _ATTENTION in key:
                waiting += [(key, each) for _, each in members]


def _parse_json(text: str) -> object:
    """Return the value of JSON, None if it's none."""
    try:
        return json.loads(text)
    except RecursionError:  # which another parser may get to the end of
        check_code_permission(f"JSON that is nested too deeply to be checked, {text:.80}…")
    except ValueError:
        pass
    return None


def _is_code(key: str, value: object) -> bool:
    name = key.removeprefix("kwargs.").removeprefix("metadata.")
    text = "".join(value.split()) if isinstance(value, str) else ""
    if name in _CODE:
        return bool(value)
    if name == "weights_only":  # or pickles are loaded
        return value is not True
    is_named = (
        (name in _PLUGINS and ":" in text and not _OURS.fullmatch(text))
        or (name == "address" and _CLUSTER.fullmatch(text))
        or (name == "execute" and text == "partial")
        or (name == "tasks" and text.endswith((".yaml", ".yml")))
        or (_ATTENTION in name and "/" in text)
    )
    if is_named or key == name or not value:
        return bool(is_named)
    if key.startswith("metadata."):  # tasks load tokenizers by it, with their code
        return bool(text)
    is_code = _CODE_ARGUMENT.search(name) or _DOTTED.fullmatch(text)
    return bool(is_code) or text.startswith(("ray://", "tcp://"))
