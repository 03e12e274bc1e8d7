"""Asks one engine about itself, in a process of its own: `python -m evalution.doctor.probe`.

A question comes as JSON on stdin, the answer goes to stdout as JSON; whatever a runtime prints is
sent to stderr. Only the answer of a process that lives to give one is to be trusted.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from evalution.error_boundary import wrap_errors
from evalution.redaction import mask_text, register_secrets
from evalution_core import BaseEngine, ConfigurationError, EngineUnavailableError, EvalutionError
from evalution_core.discovery import ENGINES, EngineEntry
from evalution_core.plugins import PluginEntry
from evalution_core.redaction import redact


def main() -> None:
    """Answer the question on stdin."""
    answers = os.dup(1)
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    sys.path[:] = question["path"]
    name, value, distribution, version = question["entry"]
    answer = probe_engine(PluginEntry(name, value, distribution, version, ENGINES))
    with os.fdopen(answers, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    # A runtime's threads must not keep the process alive: all that was asked is answered.
    os._exit(0)


def probe_engine(entry: EngineEntry) -> dict[str, Any]:
    """Return an engine's capabilities and its runtime, or the reason why it doesn't work.

    `imported` is true if the adapter itself could be loaded.
    """
    found: dict[str, Any] = {"imported": False, "capabilities": [], "runtime": None, "error": None}
    try:
        kind = entry.load()
        found["imported"] = True
        with wrap_errors("capabilities"):
            found["capabilities"] = sorted(kind.capabilities)
        found["runtime"] = _describe_runtime(kind)
    except EvalutionError as error:
        found["error"] = mask_text(str(error))
    return found


def _describe_runtime(kind: type[BaseEngine]) -> dict[str, Any] | None:
    try:
        with wrap_errors("making it without options", ConfigurationError):
            register_secrets(engine := kind.from_options({}))
    except ConfigurationError:
        return None  # it needs options, which is no fault: there is nothing to ask yet
    with wrap_errors("describe_runtime", EngineUnavailableError):
        return redact(engine.describe_runtime())


if __name__ == "__main__":
    main()
