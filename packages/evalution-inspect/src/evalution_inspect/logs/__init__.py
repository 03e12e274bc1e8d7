"""Runs as Inspect's logs, for `inspect view` and whatever else reads them."""

from evalution_inspect.logs.log_files import write_logs

__all__ = ["write_logs"]
