"""`evalution-guidellm`: GuideLLM's own command line, with the backend of kind `evalution` in it.

GuideLLM has no entry points for backends (its issue 551), so the stock `guidellm` knows none but
its own; a release that looks them up makes this script superfluous.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

from evalution.cli.errors import EXIT_FAILED, EXIT_USAGE, tell
from evalution_core import ConfigurationError, EvalutionError, UnsupportedRequestError


def main() -> None:
    """Run GuideLLM; an error of the engine's ends it in one line."""
    # First: GuideLLM's command line lists the kinds of backends as it is imported.
    import_module("evalution_guidellm.backend")
    command: Callable[[], None] = import_module("guidellm.cli").cli
    try:
        command()
    except EvalutionError as error:
        tell(error)
        is_usage = isinstance(error, ConfigurationError | UnsupportedRequestError)
        sys.exit(EXIT_USAGE if is_usage else EXIT_FAILED)


if __name__ == "__main__":
    main()
