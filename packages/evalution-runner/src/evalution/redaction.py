"""Masks known secrets at the runner's borders: in messages, logs, results and the journal.

Core recognises credentials by their form (in URLs, in authorization headers) and secret options by
their declaration. A runtime may also put a key into the text of an error, where only its value can
find it: the secrets that a run was given are registered here for as long as the process runs.
"""

from __future__ import annotations

from typing import Any

from evalution_core.redaction import find_secrets, redact, redact_text

_secrets: set[str] = set()


def register_secrets(value: object) -> None:
    """Register every secret in an engine, a model, or any plain value."""
    _secrets.update(find_secrets(value))


def mask_text(text: str) -> str:
    """Return `text` without registered secrets, and without credentials of a known form."""
    return redact_text(text, tuple(_secrets))


def mask_value(value: object) -> Any:
    """Return a JSON-safe copy of `value`, every text in it masked."""
    return redact(value, tuple(_secrets))
