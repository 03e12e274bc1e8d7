"""Names of runs on a page: what sets each apart from the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, cast

from evalution.redaction import mask_text
from evalution.results import RunResult
from evalution_core.redaction import redact

ABSENT = "–"
_DISTINCTIONS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class RunLabel:
    """A run's name: the letter it bears throughout, and what sets it apart from the others.

    `distinctions` holds `option=value` of model, engine, limit and step, where they differ; of runs
    that are alike in all these the folder's name.
    `legend` is the letter with what distinguishes this run from its neighbours.
    """

    position: int
    letter: str
    model: str
    engine: str
    distinctions: Sequence[str]
    legend: str

    @property
    def title(self) -> str:
        return f"{self.model} on {self.engine}"


def label_runs(runs: Sequence[RunResult]) -> list[RunLabel]:
    """A label for each run, in their order; credentials are redacted."""
    settings = [_list_settings(run) for run in runs]
    titles = [f"{_name_model(run)} on {_name_engine(run)}" for run in runs]
    apart = find_differing_keys(settings)
    if len(set(map(_name_model, runs))) > 1:  # the model's name says it
        apart = [name for name in apart if name != "path"]
    labels: list[RunLabel] = []
    # An option that is not set says nothing; that another run sets it stands with that run.
    options = [[(key, found.get(key, ABSENT)) for key in apart] for found in settings]
    own = [[f"{key}={value}" for key, value in each if value != ABSENT] for each in options]
    alike = Counter(zip(titles, map(tuple, own), strict=True))
    for position, (run, distinctions) in enumerate(zip(runs, own, strict=True)):
        letter = _make_letter(position)
        if alike[titles[position], tuple(distinctions)] > 1 and run.folder is not None:
            distinctions.append(run.folder.name)
        title = [titles[position]] if len(set(titles)) > 1 or not distinctions else []
        labels.append(
            RunLabel(
                position=position,
                letter=letter,
                model=_name_model(run),
                engine=_name_engine(run),
                distinctions=(shown := distinctions[:_DISTINCTIONS_SHOWN]),
                legend=f"{letter} · {', '.join([*title, *shown])}",
            )
        )
    return labels


def _name_model(run: RunResult) -> str:
    return mask_text(str(run.model.get("label") or run.model.get("path") or "default model"))


def _name_engine(run: RunResult) -> str:
    return mask_text(str(run.engine.get("name") or "a live session"))


def flatten(value: Mapping[str, Any]) -> dict[str, str]:
    """Nested mappings as dotted names with one text each: `{"a": {"b": None}}` is `{"a.b": "–"}`.

    Credentials are redacted.
    """
    found: dict[str, str] = {}
    safe: dict[str, Any] = redact(value)
    for name, member in safe.items():
        if isinstance(member, dict) and member:
            inner = flatten(cast(dict[str, Any], member))
            found |= {f"{name}.{below}": text for below, text in inner.items()}
        else:
            found[name] = _format_text(cast(object, member))
    return found


def find_differing_keys(columns: Sequence[Mapping[str, object]]) -> list[str]:
    """The names whose values are not the same in all columns, in order of appearance."""
    names = dict.fromkeys(name for column in columns for name in column)
    return [name for name in names if any(c.get(name) != columns[0].get(name) for c in columns)]


def _list_settings(run: RunResult) -> dict[str, str]:
    engine: dict[str, Any] = run.engine.get("options") or {}
    model = {name: value for name, value in run.model.items() if name != "label"}
    return flatten(model) | flatten(engine) | flatten({"limit": run.limit, "step": run.step})


def _make_letter(position: int) -> str:
    count = len(ascii_uppercase)
    number = "" if position < count else str(position // count + 1)
    return f"{ascii_uppercase[position % count]}{number}"


def _format_text(value: object) -> str:
    if value is None or value in ({}, []):
        return ABSENT
    if isinstance(value, str) and value == value.strip():
        return value
    return json.dumps(value, ensure_ascii=False)  # in quotes, so that white space can be seen
