"""`python -m evalution`, and the console script.

Importing the command line takes a moment: a Ctrl-C in it ends like one that comes later.
"""

from __future__ import annotations

import gc
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; see `evalution.cli` for the exit codes."""
    try:
        from evalution.cli import main as command_line  # noqa: PLC0415 - see above

        gc.freeze()  # no collection has to look at what stays, least of all those at the end
        command_line()
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept", file=sys.stderr)
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
