"""`evalution-lm-eval`: lm-eval's command with our engines among its models."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from evalution_core import EvalutionError

NAME = "evalution"
"""The name for `--model`."""


def register() -> None:
    """Make `--model evalution` known in this process; for an lm-eval that finds no entry points.

    lm-eval looks for models of other packages (entry points of the group `lm_eval.models`) from the
    release after 0.4.13 on; this does nothing there.
    """
    # Its own models are listed by an import, which it leaves out once one is registered.
    import_module("lm_eval.models")
    models: Any = import_module("lm_eval.api.registry").model_registry
    if NAME not in models:
        models.register(NAME, target="evalution_lm_eval.model:EvalutionLM")


def main() -> None:
    """Run lm-eval's command line; an error of ours is one line and exit status 1."""
    register()
    try:
        import_module("lm_eval.__main__").cli_evaluate()
    except EvalutionError as error:
        sys.exit(f"evalution-lm-eval: {type(error).__name__}: {error}")
