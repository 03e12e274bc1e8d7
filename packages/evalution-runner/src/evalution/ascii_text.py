"""Signs of our own texts for terminals and files that hold ASCII alone."""

from __future__ import annotations

import codecs
import locale
import os
from io import TextIOWrapper

SIGNS = str.maketrans(
    {
        "\N{UPWARDS ARROW}": "^",
        "\N{DOWNWARDS ARROW}": "v",
        "\N{RIGHTWARDS ARROW}": "->",
        "\N{EN DASH}": "-",
        "\N{MINUS SIGN}": "-",
        "\N{HORIZONTAL ELLIPSIS}": "...",
        "\N{PLUS-MINUS SIGN}": "+-",
        "\N{GREATER-THAN OR EQUAL TO}": ">=",
        "\N{LESS-THAN OR EQUAL TO}": "<=",
        "\N{INFINITY}": "inf",
        "\N{SUPERSCRIPT TWO}": "^2",
    }
)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(SIGNS)
    return "".join(sign if sign.isascii() else "?" for sign in text), error.end


codecs.register_error("evalution.signs", _replace)


def replace_lacking_signs(stream: object) -> None:
    """Have `stream` write signs that it lacks as ASCII; a terminal of the locale C lacks all.

    Python writes UTF-8 there, which is right for files only.
    """
    if not isinstance(stream, TextIOWrapper):
        return
    is_ascii = os.name == "posix" and "utf" not in locale.getencoding().lower()
    encoding = "ascii" if is_ascii and stream.isatty() else None
    stream.reconfigure(encoding=encoding, errors="evalution.signs")
