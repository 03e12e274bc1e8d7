"""The folder of a measurement: `fidelity.json`, and the badge beside it.

The badge is the result in one line of SVG, with all that a number needs to be read beside it.
"""

from __future__ import annotations

import html
from pathlib import Path

from evalution.fidelity.result import SCHEMA_VERSION, FidelityResult
from evalution.fidelity.wording import clean_text, format_kl, format_share, name_side
from evalution.result_file import ResultFile, write_whole

BADGE = "fidelity.svg"
FIDELITY_FILE = ResultFile(
    name="fidelity.json",
    type=FidelityResult,
    what="a fidelity measurement",
    command="evalution fidelity REFERENCE CANDIDATE --output DIR",
    newest_schema=SCHEMA_VERSION,
)
read_fidelity = FIDELITY_FILE.read

_LONGEST = 60
"""Characters of a part before its middle is left out."""
_CHARACTER = 6.1
"""Width of a character of the badge's font, in pixels; `textLength` makes it true of any font."""
_MARGIN = 8

_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="40" role="img" aria-label="{text}">
<title>{text}</title>
<rect width="{width}" height="40" rx="4" fill="#2b2f36"/>
<path d="M0 4a4 4 0 0 1 4-4h{top}a4 4 0 0 1 4 4v16H0z" fill="#1f5fd0"/>
<g font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11" fill="#fff">
<text x="{margin}" y="14" textLength="{first_width}">{first}</text>
<text x="{margin}" y="34" textLength="{second_width}">{second}</text>
</g>
</svg>
"""


def write_fidelity(result: FidelityResult, folder: Path) -> Path:
    """Write the badge, then `fidelity.json`, each whole or not at all; return where the latter is.

    Raises:
        ResultsNotWrittenError: the disk is full, or the folder is gone.
    """
    write_whole(folder / BADGE, make_badge(result))
    return FIDELITY_FILE.write(result, folder)


def make_badge(result: FidelityResult) -> str:
    """Return the mean KL with its interval, over what was compared, on which text, and how.

    A lower bound is shown by ≥.
    """
    divergence = result.overall.candidate.divergence
    first = f"KL {format_kl(divergence)} nats · against {_shorten(name_side(result.reference))}"
    mode = "whole vocabulary"
    if divergence.is_lower_bound:
        mode = f"top {result.top}, {format_share(divergence.covered)} of the mass"
    second = " · ".join(
        [
            _shorten(name_side(result.candidate)),
            _shorten(clean_text(", ".join(suite.name for suite in result.suites))),
            f"window {result.window}",
            mode,
        ]
    )
    widths = [round(len(text) * _CHARACTER) for text in (first, second)]
    width = max(widths) + 2 * _MARGIN
    return _SVG.format(
        width=width,
        top=width - _MARGIN,
        margin=_MARGIN,
        first=html.escape(first),
        second=html.escape(second),
        first_width=widths[0],
        second_width=widths[1],
        text=html.escape(f"{first} · {second}"),
    )


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}…{text[1 - half :]}"
