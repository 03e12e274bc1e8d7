"""One HTML page about one or several runs, readable without a network: `write_report`.

Importing this package doesn't import Jinja; writing a report needs it, from the extra `[report]`.
"""

from evalution.report.page import write_report

__all__ = ["write_report"]
