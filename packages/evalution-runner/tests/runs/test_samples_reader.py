"""Samples are read from their file as if all of it were in memory, and without that."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalution.results import SampleResult, SuiteResult
from evalution.samples import KeptSamples, parse_place, parse_sample, to_line
from evalution.samples_file import SamplesFile, SamplesReader
from evalution_core import ConfigurationError

SUITES = ["s", "é \u2028", 'a"b\\', "\ud800"]
Form = Callable[[SampleResult], bytes]
PLACES = st.lists(st.tuples(st.sampled_from(SUITES), st.integers(0, 9)), max_size=30)


def suite_of(file: Path, name: str = "s") -> SuiteResult:
    return SuiteResult(name, "", {}, {}, 0, 0, None, 0, 1.0, samples_file=file)


def compact(sample: SampleResult) -> bytes:
    """The line as another program may have written it."""
    fields = dict(reversed(sample.to_dict().items()))
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


@given(PLACES, st.booleans(), st.sampled_from([to_line, compact]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_file_gives_what_memory_would(
    tmp_path: Path, places: list[tuple[str, int]], is_ordered: bool, form: Form
) -> None:
    given = sorted(set(places)) if is_ordered else places
    samples = [SampleResult(*place, target=str(n)) for n, place in enumerate(given)]
    file = tmp_path / "samples.jsonl"
    file.write_bytes(b"".join(map(form, samples)) + b'{"suite": "s", "index": 3, "prom')

    reader = SamplesReader(file)
    assert reader.suites == list(dict.fromkeys(suite for suite, _ in given))
    for name in SUITES:
        kept = KeptSamples(sample for sample in samples if sample.suite == name)
        found = reader.of(name)
        assert list(found) == list(kept) == suite_of(file, name).samples
        assert len(found) == len(kept)
        rows = [row for row in (7, 0, 9, 7) if row in kept]
        assert [row for row in (7, 0, 9, 7) if row in found] == rows
        assert list(found.at(rows)) == list(kept.at(rows))


@given(st.sampled_from(SUITES), st.integers(0, 2**40), st.text())
def test_place_of_a_line_is_that_of_its_sample(suite: str, index: int, text: str) -> None:
    sample = SampleResult(suite, index, prompt=text)
    for line in (to_line(sample), compact(sample)):
        assert parse_sample(line) == sample
        assert parse_place(line) == (suite, index)
    assert to_line(sample).count(b"\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\n", "JSONDecodeError: "),
        (b"\xff\n", "UnicodeDecodeError: "),
        (b"[]\n", "TypeError: "),
        (b"[" * 100_000 + b"\n", "RecursionError: "),
        (b'{"suite": "s"}\n', "TypeError: "),
        (b'{"suite": "s", "index": "0"}\n', "a sample has a suite and a row, got 's' and '0'"),
        (b'{"suite": "s", "index": 1%s}\n' % (b"0" * 30), "a sample has a suite and a row"),
        (b'{"suite": "s", "index": 0, "prompt": 0}\n', "prompt is a text or a list of messages"),
        (b'{"suite": "s", "index": 0, "prompt": ["a"]}\n', "prompt is a text or a list"),
        (
            b'{"suite": "s", "index": 0, "error": 5}\n',
            "target, prediction, error and group are texts",
        ),
        (b'{"suite": "s", "index": 0, "tokens": []}\n', "extracted, metrics and tokens are obj"),
        (b'{"suite": "s", "index": 0, "metrics": {"a": "1"}}\n', "metrics and tokens hold numbers"),
        (
            b'{"suite": "s", "index": 0, "token_logprobs": [[[1]]]}\n',
            "ValueError: not enough values",
        ),
        (b'{"suite": "s", "index": 0, "token_logprobs": [["abc"]]}\n', "token_logprobs are lists"),
    ],
)
def test_line_that_holds_no_sample_is_reported(tmp_path: Path, line: bytes, message: str) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_bytes(to_line(SampleResult("s", 0)) + line)
    with pytest.raises(ConfigurationError) as caught:
        suite_of(file).samples  # noqa: B018 - the property reads the file
    assert f"{file} is damaged or was not written by a run: {message}" in str(caught.value)
    assert SamplesReader(file).suites == ["s"]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM suites WHERE first = 0",  # the disk was full while it was added
        "UPDATE columns SET data = x'0102' WHERE name = 'rows'",
    ],
)
def test_damaged_index_hides_no_samples(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "samples.jsonl"
    writer = SamplesFile(file)
    for name in ("a", "b"):
        writer.append(SampleResult(name, 3))
        writer.finish_suite()
    writer.close()
    with closing(sqlite3.connect(tmp_path / "samples.index")) as index, index:
        index.execute(damage)
    reader = SamplesReader(file)
    assert [len(reader.of(name)) for name in ("a", "b")] == [1, 1]
    assert reader.suites == ["a", "b"]
    assert list(reader.columns("b").rows) == [3]


def test_file_that_changes_between_two_looks_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_bytes(b"".join(to_line(SampleResult("s", row)) for row in (1, 0, 2)))
    found = suite_of(file).stored_samples
    assert [sample.index for sample in found] == [0, 1, 2]
    file.write_bytes(b"".join(to_line(SampleResult("s", row)) for row in (0, 1, 2)))
    message = "changed while it was read; try again once its run has ended"
    with pytest.raises(ConfigurationError, match=message):
        list(found)
    with pytest.raises(ConfigurationError, match=message):
        list(found.at([3]))


@pytest.mark.parametrize("step", [1, -1])
def test_of_a_large_file_only_what_is_asked_for_is_held(tmp_path: Path, step: int) -> None:
    file, rows, text = tmp_path / "samples.jsonl", 3_000, "word " * 1_000
    with file.open("wb") as lines:
        for row in range(rows)[::step]:
            lines.write(to_line(SampleResult("s", row, prompt=text)))
    tracemalloc.start()
    try:
        found = suite_of(file).stored_samples
        assert [sample.index for sample in islice(found, 2)] == [0, 1]
        assert sum(sample.error is None for sample in found) == len(found) == rows
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < rows * len(text) / 3
