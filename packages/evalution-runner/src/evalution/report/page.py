"""The page: read from folders of runs, parity checks and fidelity measurements, and written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalution.fidelity.result import FidelityResult
from evalution.fidelity.store import FIDELITY_FILE
from evalution.hints import import_extra
from evalution.parity.result import PARITY_FILE, ParityResult
from evalution.report.documents import make_documents
from evalution.report.fidelity import FidelityView, make_candidate_groups, make_fidelity_view
from evalution.report.parity import ParityView, make_parity_view
from evalution.report.view_page import render_page
from evalution.result_file import replace_file
from evalution.results import RunResult
from evalution.runs.reader import read_run
from evalution.runs.store import RESULTS
from evalution.user_input import check_count, parse_path, read_beginning
from evalution.view.labels import RunLabel, label_runs
from evalution_core import ConfigurationError


@dataclass(frozen=True, slots=True)
class Folders:
    """Results that folders hold, of each kind in the order of the folders."""

    runs: list[RunResult]
    parity: list[ParityResult]
    fidelity: list[FidelityResult]


def read_folders(paths: Sequence[str | os.PathLike[str]]) -> Folders:
    """Return the results in the folders; a folder may hold one of each kind.

    Raises:
        ConfigurationError: a folder holds none, or a file in it is damaged or of a newer version.
    """
    found = Folders([], [], [])
    for given in paths:
        path = parse_path(os.fspath(given))
        has_other = False
        if PARITY_FILE.is_in(path):
            has_other = True
            found.parity.append(PARITY_FILE.read(path))
        if FIDELITY_FILE.is_in(path):
            has_other = True
            found.fidelity.append(FIDELITY_FILE.read(path))
        if not has_other or (path / RESULTS).is_file():
            found.runs.append(read_run(path))
    return found


DEFAULT_SAMPLES = 2000
"""Rows of each suite that a page holds unless somebody asks for another number."""


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """Path and size of a report."""

    path: Path
    size: int


def write_report(
    runs: Sequence[RunResult],
    path: str | os.PathLike[str],
    *,
    samples_per_suite: int = DEFAULT_SAMPLES,
    parity: Sequence[ParityResult] = (),
    fidelity: Sequence[FidelityResult] = (),
) -> WrittenReport:
    """Write one HTML page about `runs` that needs nothing beside it; an older one is replaced.

    Args:
        runs: in the order in which they stand side by side; the others are compared to the first.
        path: the file; its folder must exist.
        samples_per_suite: at most that many rows of each suite are in the page, failed ones and
            those that the runs answered differently first; 0 leaves out all samples. Of very
            long samples there may be fewer, and the page says how many there are.
        parity: checks of two engines against each other, shown beside the runs or alone.
        fidelity: measurements, shown likewise; those of one reference also beside each other.

    Raises:
        ConfigurationError: there is no run, a number is out of range, a file of samples is damaged,
            the page can't be written, or the extra `[report]` isn't installed, which pages with
            parity or fidelity need.
    """
    if not (runs or parity or fidelity):
        raise ConfigurationError(
            "a report needs at least one run, parity check or fidelity measurement"
        )
    check_count("samples_per_suite", samples_per_suite, least=0)
    page = _render_page(runs, parity, fidelity, samples_per_suite).encode(
        "utf-8", "backslashreplace"
    )
    file = parse_path(os.fspath(path))
    if not file.name:
        raise ConfigurationError(f"{str(path)!r} names no file for the report; name an --output")
    try:
        if file.is_file() and read_beginning(file, 14).lower() != b"<!doctype html":
            raise ConfigurationError(f"{file} is there already, and no page; name another --output")
        replace_file(file, page)
    except OSError as error:
        raise ConfigurationError(
            f"the report can't be written to {file}: {error.strerror}; name another --output"
        ) from error
    return WrittenReport(file, len(page))


def _render_page(
    runs: Sequence[RunResult],
    checks: Sequence[ParityResult],
    measurements: Sequence[FidelityResult],
    samples_per_suite: int,
) -> str:
    labels = label_runs(runs)
    parity = [make_parity_view(check, position) for position, check in enumerate(checks)]
    fidelity = [make_fidelity_view(found, position) for position, found in enumerate(measurements)]
    candidates = list(make_candidate_groups(measurements))
    views = (*parity, *candidates, *fidelity)
    sections = [("Parity", parity), ("Candidates", candidates), ("Fidelity", fidelity)]
    heading = _make_title(labels, parity, fidelity)
    page = render_page(
        heading,
        f"{heading} – Evalution report",
        documents=make_documents(runs, samples_per_suite) if runs else None,
        figures={figure.name: figure for view in views for figure in view.figures},
        sections="".join(
            _render_section(
                f"{name}.html.j2",
                {"parity": parity, "candidates": candidates, "fidelity": fidelity},
            )
            for name, found in (("parity", parity), ("fidelity", fidelity))
            if found
        ),
        links=[(f"#{name.lower()}", name) for name, found in sections if found],
    )
    return page.html


def _make_title(
    labels: Sequence[RunLabel], parity: Sequence[ParityView], fidelity: Sequence[FidelityView]
) -> str:
    if not labels:
        if parity:
            return f"{parity[0].right} against {parity[0].left}"
        more = len(fidelity) - 1
        named = f"{fidelity[0].candidate} and {more} more" if more else fidelity[0].candidate
        return f"{named} against {fidelity[0].reference}"
    titles = {label.title for label in labels}
    if len(titles) == 1:
        return f"{titles.pop()}" + (f", {len(labels)} runs" if len(labels) > 1 else "")
    return f"{len(labels)} runs compared"


def _render_section(template: str, values: Mapping[str, Any]) -> str:
    """Return a template filled in; every value is escaped.

    Raises:
        ConfigurationError: Jinja isn't installed.
    """
    jinja = import_extra("jinja2", "report", "this report", "jinja2")
    environment = jinja.Environment(
        loader=jinja.PackageLoader("evalution.report"),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return str(environment.get_template(template).render(values))
