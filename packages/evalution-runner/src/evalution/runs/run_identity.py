"""The identity of a run: a declaration of what was asked, compared with that of a later run."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from evalution.results import to_json
from evalution.runs.backend import ModelBackend
from evalution.suites.suite import AnySuite, path_options
from evalution_core import BaseEngine, Model
from evalution_core.options import numeric_options

RUN = "run"
STEP = "step"
_SUITE = "suite "
_SPEED_ONLY = ("batch_size", "cache_dir")
"""Options of suites that change no answer."""

_SHOWN_DIFFERENCES = 8
_SHOWN_LENGTH = 60


def declare_run(
    engine: BaseEngine | None,
    model: Model,
    limit: int | None,
    record: Mapping[str, Any],
    backend: ModelBackend | None = None,
    step: int | None = None,
) -> dict[str, Any]:
    """Return engine, numeric options, model without label, limit, backend and step as JSON."""
    declared = model.to_dict()
    del declared["label"]
    if declared["path"] is not None and os.path.exists(declared["path"]):
        declared["path"] = os.path.abspath(declared["path"])
    return _plain(
        {
            "engine": {
                "name": record["name"] or record.get("session"),
                "version": record.get("version"),
                **({} if engine is None else _declare_options(engine)),
            },
            "model": declared,
            "limit": limit,
            **({} if backend is None else {"backend": backend.to_dict()}),
            STEP: step,
        }
    )


def _declare_options(engine: BaseEngine) -> dict[str, Any]:
    """Return the numeric options, of an engine that runs another one those of both."""
    found = numeric_options(engine)
    for name in found:
        if isinstance(inner := getattr(engine, name), BaseEngine):
            found[name] = {"name": type(inner).__name__, **_declare_options(inner)}
    return found


def declare_suite(suite: AnySuite) -> dict[str, Any]:
    """Return type and options as JSON; files by absolute path: the working folder may change."""
    options = suite.to_dict()
    for name in _SPEED_ONLY:
        options.pop(name, None)
    for name in path_options(type(suite)):
        if isinstance(found := getattr(suite, name), str) and os.path.exists(found):
            options[name] = os.path.abspath(found)
    return _plain({"type": type(suite).__name__, **options, **suite.provenance})


def declare_suites(suites: Sequence[AnySuite]) -> dict[str, dict[str, Any]]:
    """Return the declarations of a run's suites by the names they get in it."""
    return {name: declare_suite(suite) for name, suite in name_suites(suites)}


def name_suites(suites: Iterable[AnySuite]) -> list[tuple[str, AnySuite]]:
    """Return a run's suites with the names they get in it."""
    found: dict[str, AnySuite] = {}
    for suite in suites:
        found[find_free_name(suite.title, found)] = suite
    return list(found.items())


def find_free_name(title: str, taken: Container[str]) -> str:
    """Return `title`, with the first number from 2 that makes it unique where it is taken."""
    name, number = title, 2
    while name in taken:
        name, number = f"{title}-{number}", number + 1
    return name


def to_section(suite_name: str) -> str:
    """Return the section under which a suite's declaration is kept."""
    return f"{_SUITE}{suite_name}"


def is_asked(section: str) -> bool:
    """True if a section says what was asked for, as `declare_run` and `declare_suite`."""
    return section == RUN or section.startswith(_SUITE)


def find_differences(before: object, now: object, path: str = "") -> list[str]:
    """Return a phrase for each leaf that differs, `engine.dtype was 'float32', now 'float64'`."""
    return list(_walk(before, now, path))


def format_differences(found: list[str]) -> str:
    """Return the first few phrases in one line."""
    more = len(found) - _SHOWN_DIFFERENCES
    return "; ".join(found[:_SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def _walk(before: Any, now: Any, path: str) -> Iterator[str]:
    old, new = _as_mapping(before), _as_mapping(now)
    if old is None or new is None:
        if _to_exact(before) != _to_exact(now):
            yield f"{path} was {_shorten(before)}, now {_shorten(now)}"
        return
    for name in [*old, *(name for name in new if name not in old)]:
        inner = f"{path}.{name}" if path else name
        if name not in new:
            yield f"{inner} {_describe(old[name], 'was')}, now it isn't there"
        elif name not in old:
            yield f"{inner} {_describe(new[name], 'is')}, it wasn't there"
        else:
            yield from _walk(old[name], new[name], inner)


def _to_exact(value: Any) -> Any:
    """Return `value` with booleans as text: to a chat template false is another value than 0."""
    if isinstance(value, list):
        return [_to_exact(member) for member in cast(list[Any], value)]
    return str(value) if isinstance(value, bool) else value


def _describe(value: Any, verb: str) -> str:
    return f"{verb} asked for" if isinstance(value, dict) else f"{verb} {_shorten(value)}"


def _as_mapping(value: Any) -> dict[str, Any] | None:
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 1]}…"


def _plain(value: Any) -> dict[str, Any]:
    return json.loads(to_json(value))
