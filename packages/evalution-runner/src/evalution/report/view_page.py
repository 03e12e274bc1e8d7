"""The page of runs: one frame and one set of scripts for a report and for the live view."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import Any

from evalution.results import to_json

_STYLES = ("report.css", "pages.css", "fidelity.css", "print.css")
_CHARTS = ("vendor/d3.min.js", "vendor/plot.umd.min.js", "figures.js")
_PAGES = (
    "dom.js", "source.js", "charts.js", "progress.js", "overview.js", "comparison.js",
    "run_page.js", "sample_detail.js", "samples_page.js", "app.js",
)  # fmt: skip
_LINKS = (("#/", "Overview"), ("#/compare", "Compare"), ("#/samples", "Samples"))


@dataclass(frozen=True, slots=True)
class ViewPage:
    """A page, and the Content-Security-Policy that it names, for a server's header."""

    html: str
    policy: str


def render_view_page() -> ViewPage:
    """Return the page of `evalution view`, whose scripts ask the server for documents."""
    return render_page("Runs", "Evalution", is_live=True, footer="Nothing leaves this machine.")


def render_page(
    heading: str,
    title: str,
    *,
    documents: Mapping[str, Any] | None = None,
    figures: Mapping[str, Any] | None = None,
    sections: str = "",
    links: Sequence[tuple[str, str]] = (),
    is_live: bool = False,
    footer: str = "",
) -> ViewPage:
    """Return a page that needs nothing beside it, or its server alone.

    Args:
        heading: what the page is about.
        title: what the browser shows.
        documents: what the scripts read in place of a server's answers; runs are shown if there
            are documents or `is_live`.
        figures: by name, those that `sections` have a place for.
        sections: HTML below the runs.
        links: addresses and texts of these sections.
        is_live: the documents come from the server that sent the page.
        footer: a sentence; by default, what made the page.
    """
    has_runs = is_live or documents is not None
    names = [*_CHARTS, *(_PAGES if has_runs else ())] if has_runs or figures else []
    scripts = [_read_asset(name) for name in names]
    policy = _make_policy(scripts, is_live=is_live)
    held = {"documents": documents, "figures-data": figures or None}
    made_by = (
        f"Made by evalution {version('evalution-runner')}. This page loads nothing from anywhere."
    )
    values = {
        "policy": html.escape(policy),
        "title": html.escape(title),
        "heading": html.escape(heading),
        "style": "\n".join(map(_read_asset, _STYLES)),
        "nav": _make_nav([*(_LINKS if has_runs else ()), *links]),
        "page": _PLACE if has_runs else "",
        "sections": f'<div id="sections">{sections}</div>' if sections else "",
        "footer": html.escape(footer or made_by),
        "data": "\n".join(_embed(name, data) for name, data in held.items() if data is not None),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return ViewPage(Template(_read_asset("page.html")).substitute(values), policy)


_PLACE = (
    '<div id="page"></div>\n<noscript><p class="notice warning">Runs and their samples are shown '
    "by the scripts in this page, which are not allowed to run here.</p></noscript>"
)


def _make_nav(links: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<a href="{address}">{text}</a>' for address, text in links)
    return f'<nav class="pages" aria-label="Pages">{items}</nav>'


def _embed(name: str, data: Mapping[str, Any]) -> str:
    """Return the element with the data; no text in it can end the element."""
    text = to_json(data)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _make_policy(scripts: Sequence[str], *, is_live: bool) -> str:
    """Return the policy: only these scripts may run, and at most the server's own be fetched.

    Figures hold styles of their own.
    """
    own = "'self'" if is_live else "'none'"
    hashes = " ".join(f"'sha256-{_hash_script(script)}'" for script in scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {own}; base-uri 'none'; form-action 'none'"
    )


def _hash_script(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _read_asset(name: str) -> str:
    """Return the file's text with the one kind of line break that HTML has: it is hashed."""
    text = (files("evalution.report") / "assets" / name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")
