"""Rate engines by what was proved on them, and write the list of them: docs/registry.md.

    uv run tools/registry.py                  check every quality_scale.yaml, and what was written
    uv run tools/registry.py --write          write docs/engines.json, its copy, and the page
    uv run tools/registry.py --badges FOLDER  write a badge for each engine, as of today

An engine has a `quality_scale.yaml` beside it, and the conformance report that it speaks of:
engines of this repository in their package, others in a folder of docs/registry.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SCALE, REPORT = "quality_scale.yaml", "conformance.json"
PAGE, DATA = "docs/registry.md", "docs/engines.json"
COPY = "packages/evalution-runner/src/evalution/engines/available.json"
BEGIN, END = "<!-- begin: tools/registry.py -->\n", "<!-- end: tools/registry.py -->\n"
SHOWN = ("passed", "refused", "gap", "skipped")
LIFETIME = timedelta(days=183)
"""Time after which a report proves nothing any more."""
COLOURS = {"bronze": "#a5682a", "silver": "#71797e", "gold": "#b8860b", "platinum": "#4a6d8c"}
RED = "#b00020"


@dataclass(frozen=True)
class Rated:
    """An engine's folder: what its quality_scale.yaml states, and its report."""

    folder: Path

    @cached_property
    def scale(self) -> dict[str, Any]:
        return yaml.safe_load((self.folder / SCALE).read_text(encoding="utf-8"))

    @cached_property
    def report(self) -> dict[str, Any] | None:
        file = self.folder / REPORT
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    @cached_property
    def checked(self) -> dict[str, Any]:
        """The engine's part of the report, empty without one."""
        return self.report["engines"][0] if self.report else {}

    @cached_property
    def project(self) -> dict[str, Any]:
        """`pyproject.toml`, of an engine of this repository."""
        file = self.folder / "pyproject.toml"
        return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    @property
    def distribution(self) -> str:
        return self.scale.get("distribution") or self.project["project"]["name"]

    @property
    def runtime(self) -> str | None:
        """Version of the runtime that the report is about, None if it was a stand-in."""
        return self.checked.get("requirements", {}).get(self.scale["runtime"])

    def count(self, outcome: str) -> int:
        return sum(check["outcome"] == outcome for check in self.checked.get("checks", []))


def conforms(rated: Rated) -> bool:
    wrong = sum(map(rated.count, ("failed", "not run", "gap closed")))
    return bool(rated.checked) and rated.checked["is_built"] and not wrong


def runs_all_checks(rated: Rated) -> bool:
    return bool(rated.checked) and rated.checked["chosen"] is None


def is_compared(rated: Rated) -> bool:
    return rated.checked.get("compared_with") is not None


def is_on_runtime(rated: Rated) -> bool:
    return rated.runtime is not None


def is_gapless(rated: Rated) -> bool:
    return conforms(rated) and not rated.count("gap")


def is_precise(rated: Rated) -> bool:
    own, usual = rated.checked.get("tolerance"), rated.checked.get("dtype_tolerance")
    return own is not None and usual is not None and own <= usual


def has_recorded_upstream(rated: Rated) -> bool:
    return bool(rated.project.get("tool", {}).get("evalution", {}).get("upstream"))


def runs_on_accelerator(rated: Rated) -> bool:
    device = str(rated.checked.get("execution", {}).get("device") or "cpu").lower()
    return not device.startswith("cpu")


RULES: dict[str, dict[str, tuple[str, Callable[[Rated], bool]]]] = {
    "bronze": {
        "conforms": ("a conformance report in which no check failed", conforms),
        "whole": ("the report is about all checks", runs_all_checks),
    },
    "silver": {
        "runtime": ("on the real runtime, whose version it names", is_on_runtime),
        "compared": ("answers were compared with an oracle, or with stored values", is_compared),
    },
    "gold": {
        "gapless": ("no check is declared as a gap", is_gapless),
        "precise": ("within the tolerance of its arithmetic", is_precise),
        "upstream": ("the runtime's names are compared with its source", has_recorded_upstream),
    },
    "platinum": {"accelerator": ("the report is from an accelerator", runs_on_accelerator)},
}
"""Tier to its rules: what each means, and the check that decides whether it is done."""


def find_folders(root: Path) -> list[Rated]:
    places = ("packages/*", "docs/registry/*")
    files = [file for place in places for file in sorted(root.glob(f"{place}/{SCALE}"))]
    return [Rated(file.parent) for file in files]


def find_problems(rated: Rated) -> Iterator[str]:
    """Yield where a quality_scale.yaml states something else than the report proves."""
    stated = rated.scale["rules"]
    known = {rule for rules in RULES.values() for rule in rules}
    for rule in sorted(known ^ stated.keys()):
        yield f"rule {rule} is {'missing' if rule in known else 'unknown'}"
    for rules in RULES.values():
        for rule, (meaning, check) in rules.items():
            status = stated.get(rule)
            if isinstance(status, Mapping) and set(status) == {"exempt"} and status["exempt"]:
                continue
            expected = "done" if check(rated) else "todo"
            if status is not None and status != expected:
                yield f"{rule} is {status!r}, and has to be {expected!r} or exempt: {meaning}"
    if rated.report is not None:
        yield from find_strange(rated, rated.report)
    if bool(rated.scale.get("unrated")) is (rated.report is not None):
        yield f"either there is a {REPORT}, or `unrated` says why there is none"


def find_strange(rated: Rated, report: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a report is another engine's, or of no day that has been."""
    if (written := report.get("date")) is None:
        yield f"{REPORT} has no date; write it with evalution-conformance 0.1 or newer"
    elif written > str(date.today() + timedelta(days=1)):  # it may be tomorrow elsewhere
        yield f"{REPORT} is of {written}, which is in the future; make it again"
    for fact, own in ("engine", rated.scale["engine"]), ("distribution", rated.distribution):
        if (other := rated.checked.get(fact)) != own:
            yield f"{REPORT} is about the {fact} {other}, not {own}; put a report on {own} there"


def rate(rated: Rated) -> str | None:
    """Return the highest tier whose rules, and those of all lower ones, are done or exempt."""
    reached = None
    for tier, rules in RULES.items():
        if any(rated.scale["rules"].get(rule) == "todo" for rule in rules):
            break
        reached = tier
    return reached


def describe(rated: Rated) -> dict[str, Any]:
    """Return what the list says of an engine."""
    project = rated.project.get("project", {})
    here = f"tree/main/packages/{rated.folder.name}"
    entry: dict[str, Any] = {
        "engine": rated.scale["engine"],
        "distribution": rated.distribution,
        "source": rated.scale.get("source") or f"{project['urls']['Source']}/{here}",
        "summary": rated.scale.get("summary") or project["description"],
        "rating": rate(rated),
    }
    if rated.report is None:
        return {**entry, "report": None, "unrated": rated.scale["unrated"]}
    written = date.fromisoformat(rated.report["date"])
    return {
        **entry,
        "report": {
            "by": rated.scale["by"],
            "date": str(written),
            "expires": str(written + LIFETIME),
            "version": rated.checked["version"],
            "runtime": rated.runtime and f"{rated.scale['runtime']} {rated.runtime}",
            "device": rated.checked["execution"].get("device"),
            "dtype": rated.checked["dtype"],
            "platform": rated.report["platform"],
            **{outcome: rated.count(outcome) for outcome in SHOWN},
        },
    }


def make_rows(entries: list[dict[str, Any]]) -> Iterator[str]:
    yield "| engine | package | rating | what was checked | passed, refused, gaps | by | until |"
    yield "|---|---|---|---|---|---|---|"
    for entry in entries:
        package = f"[{entry['distribution']}]({entry['source']})"
        start = f"| `{entry['engine']}` | {package} | {entry['rating'] or '–'} |"
        if (report := entry["report"]) is None:
            yield f"{start} no report: {entry['unrated']} | | | |"
            continue
        ran = report["runtime"] or "a stand-in for the runtime"
        dtype = f"{report['dtype']} " if report["dtype"] else ""  # a server may not say it
        where = f"{ran}, {dtype}on {report['device'] or 'its server'}"
        counts = f"{report['passed']}, {report['refused']}, {report['gap']}"
        yield f"{start} {where} | {counts} | {report['by']} | {report['expires']} |"


def write_badge(entry: Mapping[str, Any], today: date) -> str:
    """Return an SVG with the rating, red where the report has expired or there is none."""
    rating, report = entry["rating"], entry["report"]
    if rating is None or report is None:
        text, colour = "no report", RED
    elif str(today) > report["expires"]:
        text, colour = f"{rating} until {report['expires']}", RED
    else:
        text, colour = rating, COLOURS[rating]
    left, right = 68, 12 + 7 * len(text)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="Evalution: {escape(text)}">'
        f'<rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,sans-serif" font-size="11">'
        f'<text x="6" y="14">Evalution</text><text x="{left + 6}" y="14">{escape(text)}</text>'
        "</g></svg>\n"
    )


def make_files(root: Path) -> dict[str, str]:
    """Return the written files by their paths: the list, its copy in the runner, and the page."""
    entries = sorted(map(describe, find_folders(root)), key=lambda entry: entry["engine"].lower())
    data = json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
    page = (root / PAGE).read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    rows = "\n".join(make_rows(entries))
    rules = "\n".join(
        f"| {tier} | `{rule}` | {meaning} |"
        for tier, rules in RULES.items()
        for rule, (meaning, _) in rules.items()
    )
    table = f"\n{rows}\n\n| tier | rule | done means |\n|---|---|---|\n{rules}\n\n"
    return {DATA: data, COPY: data, PAGE: before + BEGIN + table + END + rest.partition(END)[2]}


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--badges", type=Path, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    problems = [
        f"{rated.folder.name}: {problem}"
        for rated in find_folders(root)
        for problem in find_problems(rated)
    ]
    files = {} if problems else make_files(root)
    for path, text in files.items():
        if asked.write:
            (root / path).write_text(text, encoding="utf-8")
        elif not (root / path).is_file() or (root / path).read_text("utf-8") != text:
            problems.append(f"{path} is out of date: uv run tools/registry.py --write")
    if asked.badges and not problems:
        asked.badges.mkdir(parents=True, exist_ok=True)
        for entry in json.loads(files[DATA]):
            badge = write_badge(entry, date.today())
            (asked.badges / f"{entry['distribution']}.svg").write_text(badge, encoding="utf-8")
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
