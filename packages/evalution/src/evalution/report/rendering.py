"""The page's text: templates filled in, scripts inlined, and a policy that admits only these."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import Any

from evalution.report.number_texts import chance_text, score_text, signed_text
from evalution_core import ConfigurationError

_PACKAGE = "evalution.report"
_STYLES = ("report.css", "browser.css", "print.css")
_SCRIPTS = ("figures.js", "sample_rows.js", "sample_view.js", "sample_browser.js")


@dataclass(frozen=True, slots=True)
class Assets:
    """The style and the scripts of a page, as they stand in it."""

    style: str
    scripts: tuple[str, ...]

    @property
    def policy(self) -> str:
        """The Content-Security-Policy: nothing is fetched, and only these scripts may run.

        Plotly writes styles as it draws, and draws the images that it exports.
        """
        hashes = " ".join(f"'sha256-{_digest(script)}'" for script in self.scripts)
        return (
            f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'"
        )


def load_assets(*, with_figures: bool) -> Assets:
    """The page's own assets, after Plotly where there is something to plot.

    Raises:
        ConfigurationError: Plotly isn't installed.
    """
    folder = files(_PACKAGE) / "assets"
    own = [(folder / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    plotly = [_library("plotly.offline").get_plotlyjs()] if with_figures else []
    scripts = tuple(_as_html_reads_it(script) for script in [*plotly, *own])
    styles = [(folder / name).read_text(encoding="utf-8") for name in _STYLES]
    return Assets("\n".join(styles), scripts)


def render(template: str, values: Mapping[str, Any], *, package: str = _PACKAGE) -> str:
    """A template filled in; every value is escaped unless it is `Markup`.

    Args:
        template: its name in the folder `templates` of `package`, or of this one: another package's
            page extends `frame.html.j2`.
        values: what it shows.
        package: whose template it is.

    Raises:
        ConfigurationError: Jinja isn't installed.
    """
    jinja = _library("jinja2")
    folders = [jinja.PackageLoader(name) for name in dict.fromkeys((package, _PACKAGE))]
    environment = jinja.Environment(
        loader=jinja.ChoiceLoader(folders),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"score": score_text, "signed": signed_text, "chance": chance_text}
    return str(environment.get_template(template).render(values))


def _library(module: str) -> Any:
    """A module of the extra, imported when it is needed: nothing else of Evalution does."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"a report needs {module.split('.')[0]}, which isn't installed; "
            "pip install 'evalution[report]'"
        ) from error


def _as_html_reads_it(script: str) -> str:
    """The text whose hash a browser takes: HTML has one kind of line break."""
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
