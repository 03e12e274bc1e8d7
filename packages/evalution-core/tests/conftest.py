"""Reads a distribution's metadata once, before tests replace `sys.path`.

From Python 3.13 on, importlib.metadata imports `email` with the first file that it reads.
"""

from importlib.metadata import distribution

assert distribution("evalution-core").metadata["Name"] == "evalution-core"
