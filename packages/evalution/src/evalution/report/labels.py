"""What each of several runs is called on the page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, cast

from evalution.report.number_texts import ABSENT
from evalution.results import RunResult
from evalution_core import redact, scrub

_DISTINCTIONS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class RunLabel:
    """A run's name: the letter it bears throughout, and what sets it apart from the others.

    `distinctions` holds `option=value` of model, engine, limit and step, where they differ.
    `legend` is the letter with what a reader needs to tell this run from its neighbours.
    """

    position: int
    letter: str
    model: str
    engine: str
    distinctions: Sequence[str]
    folder: str | None

    legend: str

    @property
    def title(self) -> str:
        return f"{self.model} on {self.engine}"


def label_runs(runs: Sequence[RunResult]) -> list[RunLabel]:
    """A label for each run, in their order; credentials are redacted."""
    settings = [_settings(run) for run in runs]
    apart = differing_keys(settings)
    titles = [f"{_model(run)} on {_engine(run)}" for run in runs]
    labels: list[RunLabel] = []
    for position, (run, found) in enumerate(zip(runs, settings, strict=True)):
        letter = _letter(position)
        # An option that is not set says nothing; that another run sets it stands with that run.
        own = [(key, found.get(key, ABSENT)) for key in apart]
        distinctions = [f"{key}={value}" for key, value in own if value != ABSENT]
        title = [titles[position]] if len(set(titles)) > 1 or not distinctions else []
        labels.append(
            RunLabel(
                position=position,
                letter=letter,
                model=_model(run),
                engine=_engine(run),
                distinctions=(shown := distinctions[:_DISTINCTIONS_SHOWN]),
                folder=run.folder.name if run.folder else None,
                legend=f"{letter} · {', '.join([*title, *shown])}",
            )
        )
    return labels


def _model(run: RunResult) -> str:
    return scrub(str(run.model.get("label") or run.model.get("path") or "default model"))


def _engine(run: RunResult) -> str:
    return scrub(str(run.engine.get("name") or "a live session"))


def flattened(value: Mapping[str, Any]) -> dict[str, str]:
    """Nested mappings as dotted names with one text each: `{"a": {"b": None}}` is `{"a.b": "–"}`.

    Credentials are redacted.
    """
    found: dict[str, str] = {}
    safe: dict[str, Any] = redact(value)
    for name, member in safe.items():
        if isinstance(member, dict) and member:
            inner = flattened(cast(dict[str, Any], member))
            found |= {f"{name}.{below}": text for below, text in inner.items()}
        else:
            found[name] = _text(cast(object, member))
    return found


def differing_keys(columns: Sequence[Mapping[str, object]]) -> list[str]:
    """The names whose values are not the same in all columns, in order of appearance."""
    names = ordered_union(columns)
    return [name for name in names if any(c.get(name) != columns[0].get(name) for c in columns)]


def ordered_union(groups: Iterable[Iterable[str]]) -> list[str]:
    """Every name of all groups once, in order of appearance."""
    return list(dict.fromkeys(name for group in groups for name in group))


def _settings(run: RunResult) -> dict[str, str]:
    engine: dict[str, Any] = run.engine.get("options") or {}
    model = {name: value for name, value in run.model.items() if name != "label"}
    return flattened(model) | flattened(engine) | flattened({"limit": run.limit, "step": run.step})


def _letter(position: int) -> str:
    count = len(ascii_uppercase)
    number = "" if position < count else str(position // count + 1)
    return f"{ascii_uppercase[position % count]}{number}"


def _text(value: object) -> str:
    if value is None or value in ({}, []):
        return ABSENT
    if isinstance(value, str) and value == value.strip():
        return value
    return json.dumps(value, ensure_ascii=False)  # in quotes, so that white space can be seen
