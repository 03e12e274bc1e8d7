"""JSON inside of HTML: no text in it can end the script element that holds it."""

from __future__ import annotations

from typing import Any

from evalution.results import to_json

_ESCAPES = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def embedded_json(value: Any) -> str:
    """Strict JSON for a `<script type="application/json">` element.

    What HTML reads inside such an element (`</script`, `<!--`) begins with a `<`, and JSON has that
    only in strings, where an escape means the same. Lone surrogates become escapes too: the page is
    UTF-8.
    """
    return _as_utf8(to_json(value)).translate(_ESCAPES)


def _as_utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
