"""One HTML page about one or several runs, readable without a network: `write_report`.

Importing this package imports neither Jinja nor Plotly; writing a report needs both, from the
extra `[report]`.
"""

from evalution.report.page import write_report

__all__ = ["write_report"]
