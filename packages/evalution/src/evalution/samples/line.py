"""The form of `samples.jsonl`: a sample a line, whose suite and row come first.

A last line without its end was cut short, by a full disk or a killed process, and is no sample.
"""

from __future__ import annotations

import json
import re
from typing import Any

from evalution.samples.sample import SampleResult
from evalution.strict_json import to_json

_HEAD = re.compile(rb'\{"suite": "([^"\\]*)", "index": (\d+), ')
"""How a line begins; not if the name of its suite needs an escape, or another tool wrote it."""


def line_of(sample: SampleResult) -> bytes:
    """The sample as a line with its end; what UTF-8 can't hold, a lone surrogate, is escaped."""
    return (to_json(sample.to_dict()) + "\n").encode("utf-8", "backslashreplace")


def sample_of(line: bytes) -> SampleResult:
    """The sample of a line.

    Raises:
        ValueError: it is none; its cause says why.
    """
    try:
        fields: Any = json.loads(line.decode("utf-8"))
        sample = SampleResult(**fields)
        if type(sample.suite) is str and type(sample.index) is int:
            return sample
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    raise ValueError(f"a sample has a suite and a row, got {sample.suite!r} and {sample.index!r}")


def place_of(line: bytes) -> tuple[str, int]:
    """The suite and the row of a line, of which the rest isn't read if a run wrote it.

    Raises:
        ValueError: it holds no sample, as far as it was read.
    """
    if head := _HEAD.match(line):
        return head[1].decode("utf-8"), int(head[2])
    sample = sample_of(line)
    return sample.suite, sample.index
