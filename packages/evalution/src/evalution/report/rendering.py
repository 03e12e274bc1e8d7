"""Numbers as a reader sees them."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import ascii_uppercase
from typing import Any, cast

from evalution.hints import import_extra
from evalution.redaction import mask_text
from evalution.results import RunResult, to_json
from evalution_core.redaction import redact

_FROM_HERE_IN_DIGITS = 1000
_LEAST_CHANCE_SHOWN = 0.0001
_LEAST_DIFFERENCE_SHOWN = 0.00005
_MINUTE = 60
_HOUR = 3600
ABSENT = "–"


def format_score(value: float | None) -> str:
    """A score in four decimals, or in six digits from a thousand on; a dash for None."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return str(value).replace("inf", "∞").replace("-", "−")
    text = f"{value:.4f}" if abs(value) < _FROM_HERE_IN_DIGITS else f"{value:.6g}"
    return text.replace("-", "−")


def format_difference(value: float | None) -> str:
    """A difference as `format_score` shows it, with its sign; a tiny one is never shown as zero."""
    if value is None or not value:
        return format_score(value)
    if abs(value) < _LEAST_DIFFERENCE_SHOWN:
        return f"{value:+.0e}".replace("-", "−")
    return f"+{format_score(value)}" if value > 0 else format_score(value)


def format_chance(p_value: float | None) -> str:
    """A p-value in as many digits as mean something."""
    if p_value is None:
        return ABSENT
    return "< 0.0001" if p_value < _LEAST_CHANCE_SHOWN else f"{p_value:.4f}"


def format_duration(seconds: float | None) -> str:
    """A duration in the two largest units."""
    if seconds is None:
        return ABSENT
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {int(seconds % _MINUTE)} s"
    return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"


_DISTINCTIONS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class RunLabel:
    """A run's name: the letter it bears throughout, and what sets it apart from the others.

    `distinctions` holds `option=value` of model, engine, limit and step, where they differ.
    `legend` is the letter with what distinguishes this run from its neighbours.
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
    settings = [_list_settings(run) for run in runs]
    apart = find_differing_keys(settings)
    titles = [f"{_name_model(run)} on {_name_engine(run)}" for run in runs]
    labels: list[RunLabel] = []
    for position, (run, found) in enumerate(zip(runs, settings, strict=True)):
        letter = _make_letter(position)
        # An option that is not set says nothing; that another run sets it stands with that run.
        own = [(key, found.get(key, ABSENT)) for key in apart]
        distinctions = [f"{key}={value}" for key, value in own if value != ABSENT]
        title = [titles[position]] if len(set(titles)) > 1 or not distinctions else []
        labels.append(
            RunLabel(
                position=position,
                letter=letter,
                model=_name_model(run),
                engine=_name_engine(run),
                distinctions=(shown := distinctions[:_DISTINCTIONS_SHOWN]),
                folder=run.folder.name if run.folder else None,
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
    names = merge_in_order(columns)
    return [name for name in names if any(c.get(name) != columns[0].get(name) for c in columns)]


def merge_in_order(groups: Iterable[Iterable[str]]) -> list[str]:
    """Every name of all groups once, in order of appearance."""
    return list(dict.fromkeys(name for group in groups for name in group))


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


_PACKAGE = "evalution.report"
_STYLES = ("report.css", "fidelity.css", "browser.css", "print.css")
_CHARTS = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
_SCRIPTS = ("figures.js", "sample_rows.js", "sample_view.js", "sample_browser.js")


@dataclass(frozen=True, slots=True)
class Assets:
    """The style and the scripts of a page, as they stand in it."""

    style: str
    scripts: tuple[str, ...]

    @property
    def policy(self) -> str:
        """The Content-Security-Policy: nothing is fetched, and only these scripts may run.

        Figures hold styles of their own.
        """
        hashes = " ".join(f"'sha256-{_hash_script(script)}'" for script in self.scripts)
        return (
            f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        )


def load_assets(*, with_figures: bool) -> Assets:
    """Return the page's own assets, after the chart library where there is something to draw."""
    folder = files(_PACKAGE) / "assets"
    names = [*(_CHARTS if with_figures else ()), *_SCRIPTS]
    found = [(folder / name).read_text(encoding="utf-8") for name in names]
    scripts = tuple(map(_normalize_line_ends, found))
    styles = [(folder / name).read_text(encoding="utf-8") for name in _STYLES]
    return Assets("\n".join(styles), scripts)


def render(template: str, values: Mapping[str, Any], *, package: str = _PACKAGE) -> str:
    """A template filled in; every value is escaped unless it is `Markup`, `tojson` is strict.

    Args:
        template: its name in the folder `templates` of `package`, or of this one: another package's
            page extends `frame.html.j2`.
        values: what it shows.
        package: whose template it is.

    Raises:
        ConfigurationError: Jinja isn't installed.
    """
    jinja = _import_library("jinja2")
    folders = [jinja.PackageLoader(name) for name in dict.fromkeys((package, _PACKAGE))]
    environment = jinja.Environment(
        loader=jinja.ChoiceLoader(folders),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies |= {"json.dumps_function": to_json, "json.dumps_kwargs": {}}
    environment.filters |= {
        "score": format_score,
        "signed": format_difference,
        "chance": format_chance,
    }
    return str(environment.get_template(template).render(values))


def _import_library(module: str) -> Any:
    return import_extra(module, "report", "a report", module.split(".")[0])


def _normalize_line_ends(script: str) -> str:
    """The text whose hash a browser takes: HTML has one kind of line break."""
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _hash_script(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
