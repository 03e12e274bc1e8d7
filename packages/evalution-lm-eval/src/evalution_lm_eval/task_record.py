"""What decides a task's scores, by value: its configuration and the code that it names."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from evalution_core import redact
from evalution_lm_eval.loading import LoadedTask
from evalution_lm_eval.upstream import Group

_PLACE = "config_source"
"""Where lm-eval found the file, which it writes among a task's metadata."""
_DIGITS = 16


def task_record(loaded: LoadedTask) -> dict[str, Any]:
    """Version, data set and configuration of a task, JSON-safe and without credentials.

    A function is told by its name and a digest of its file. What that file imports isn't told, nor
    is what the rows hold: a row that changed is asked again.
    """
    task = loaded.task
    config = dict(task.config.to_dict(keep_callable=True))
    metadata: Any = config.get("metadata")
    if isinstance(metadata, Mapping):
        known = cast(Mapping[str, Any], metadata)
        config["metadata"] = {name: known[name] for name in known if name != _PLACE}
    return {
        "version": task.VERSION,
        "dataset": [task.DATASET_PATH, task.DATASET_NAME],
        "rows": loaded.size,
        "code": _code(type(task)),
        "config": redact(_named(config)),
    }


def group_record(group: Group) -> dict[str, Any]:
    """The members of a group, and how it sums them up."""
    return {
        "members": group.child_names,
        "metrics": [redact(_named(vars(metric))) for metric in group.aggregate_metric_list or ()],
    }


def _named(value: Any) -> Any:
    """`value` with each function in it as text."""
    if callable(value):
        return _code(value)
    if isinstance(value, Mapping):
        return {key: _named(member) for key, member in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_named(member) for member in cast("list[Any]", value)]
    return value


def _code(found: Any) -> str:
    """As `utils.py:process_docs 0a1b2c3d4e5f6071`; the name alone for what isn't from a file."""
    name = str(getattr(found, "__qualname__", type(found).__qualname__))
    try:
        file = Path(inspect.getfile(inspect.unwrap(found)))
        content = file.read_bytes()
    except (TypeError, OSError):  # built in, or an object that can be called
        return name
    return f"{file.name}:{name} {hashlib.sha256(content).hexdigest()[:_DIGITS]}"
