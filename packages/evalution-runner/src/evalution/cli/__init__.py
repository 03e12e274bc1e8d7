"""The command line: one module a command, and what they share in `errors` and `options`.

Exit codes: 0 done, 1 the run failed, 2 a wrong spec or wrong use, 3 finished with failed requests,
or with engines that differ, 130 interrupted.
"""

from evalution.cli.program import app, main

__all__ = ["app", "main"]
