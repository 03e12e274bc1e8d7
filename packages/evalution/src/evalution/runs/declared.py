"""What a run was asked to be, so that a later one can tell whether it is the same."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from evalution.journal.keys import LATER_FIELDS
from evalution.results import to_json
from evalution.runs.backend import ModelBackend
from evalution.suites.suite import AnySuite, path_options
from evalution_core import BaseEngine, Model
from evalution_core.options import numeric_options

RUN = "run"
_SUITE = "suite "
_CHANGE_NOTHING = ("batch_size", "cache_dir")
"""Options of suites by which no answer becomes another."""

_SHOWN_DIFFERENCES = 8
_SHOWN_LENGTH = 60


def run_declaration(
    engine: BaseEngine | None,
    model: Model,
    limit: int | None,
    record: Mapping[str, Any],
    backend: ModelBackend | None = None,
) -> dict[str, Any]:
    """Engine with the options that change numbers, model without its label, limit; JSON-safe.

    A run with a backend has that besides.
    """
    declared = model.to_dict()
    for name in ("label", *(name for name in LATER_FIELDS if not declared[name])):
        del declared[name]
    if declared["path"] is not None and Path(declared["path"]).exists():
        declared["path"] = os.path.abspath(declared["path"])
    return _plain(
        {
            "engine": {
                "name": record["name"] or record.get("session"),
                "version": record.get("version"),
                **({} if engine is None else numeric_options(engine)),
            },
            "model": declared,
            "limit": limit,
            **({} if backend is None else {"backend": backend.to_dict()}),
        }
    )


def suite_declaration(suite: AnySuite) -> dict[str, Any]:
    """Type and options; files by absolute path, as the working folder may be another next time."""
    options = suite.to_dict()
    for name in _CHANGE_NOTHING:
        options.pop(name, None)
    for name in path_options(type(suite)):
        if isinstance(found := getattr(suite, name), str) and os.path.exists(found):
            options[name] = os.path.abspath(found)
    return _plain({"type": type(suite).__name__, **options, **suite.provenance})


def suite_declarations(suites: Sequence[AnySuite]) -> dict[str, dict[str, Any]]:
    """The declarations of a run's suites by the names they get in it."""
    declared: dict[str, dict[str, Any]] = {}
    for suite in suites:
        declared[free_name(suite.title, declared)] = suite_declaration(suite)
    return declared


def free_name(title: str, taken: Container[str]) -> str:
    """`title`, or with the first number from 2 that makes it a name of its own."""
    name, number = title, 2
    while name in taken:
        name, number = f"{title}-{number}", number + 1
    return name


def section_of(suite_name: str) -> str:
    """Under which name a suite's declaration is kept."""
    return f"{_SUITE}{suite_name}"


def is_asked(section: str) -> bool:
    """Whether a section says what was asked for, as `run_declaration` and `suite_declaration`."""
    return section == RUN or section.startswith(_SUITE)


def differences(before: object, now: object, path: str = "") -> list[str]:
    """A phrase for each leaf that isn't the same, `engine.dtype was 'float32', now 'float64'`."""
    return list(_differences(before, now, path))


def listed(found: list[str]) -> str:
    """The first few phrases in one line."""
    more = len(found) - _SHOWN_DIFFERENCES
    return "; ".join(found[:_SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def _differences(before: Any, now: Any, path: str) -> Iterator[str]:
    old, new = _as_mapping(before), _as_mapping(now)
    if old is None or new is None:
        if _exact(before) != _exact(now):
            yield f"{path} was {_shown(before)}, now {_shown(now)}"
        return
    for name in [*old, *(name for name in new if name not in old)]:
        inner = f"{path}.{name}" if path else name
        if name not in new:
            yield f"{inner} {_told(old[name], 'was')}, now it isn't there"
        elif name not in old:
            yield f"{inner} {_told(new[name], 'is')}, it wasn't there"
        else:
            yield from _differences(old[name], new[name], inner)


def _exact(value: Any) -> Any:
    """`value` with booleans as text: to a chat template false is another value than 0."""
    if isinstance(value, list):
        return [_exact(member) for member in cast(list[Any], value)]
    return str(value) if isinstance(value, bool) else value


def _told(value: Any, verb: str) -> str:
    return f"{verb} asked for" if isinstance(value, dict) else f"{verb} {_shown(value)}"


def _as_mapping(value: Any) -> dict[str, Any] | None:
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 1]}…"


def _plain(value: Any) -> dict[str, Any]:
    return json.loads(to_json(value))
