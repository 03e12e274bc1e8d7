"""`evalution-guidellm`: GuideLLM's own command line, with the backend of kind `evalution` in it.

GuideLLM has no entry points for backends (its issue 551), so the stock `guidellm` knows none but
its own; a release that looks them up makes this script superfluous.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

from evalution.cli.errors import exit_status, print_error
from evalution_core import EvalutionError


def main() -> None:
    """Run GuideLLM; an error of the engine's ends it in one line."""
    # First: GuideLLM's command line lists the kinds of backends as it is imported.
    import_module("evalution_guidellm.backend")
    command: Callable[[], None] = import_module("guidellm.cli").cli
    try:
        command()
    except EvalutionError as error:
        print_error(error)
        sys.exit(exit_status(error))


if __name__ == "__main__":
    main()
