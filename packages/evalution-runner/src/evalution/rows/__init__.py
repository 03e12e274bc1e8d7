"""Task rows: from files, folders, installed packages, memory and the Hub."""

from evalution.rows.local import BUILTIN, Data, Row, Rows, RowSource

__all__ = ["BUILTIN", "Data", "Row", "RowSource", "Rows"]
