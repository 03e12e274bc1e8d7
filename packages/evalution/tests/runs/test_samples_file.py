from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalution.results import SampleResult, to_json
from evalution.samples import SamplesFile, SamplesReader, parse_place


def line(suite: str, index: int, target: str) -> str:
    return to_json(SampleResult(suite, index, target=target).to_dict()) + "\n"


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.text(max_size=5)), max_size=20)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_finished_suite_lies_in_the_order_of_its_rows_with_the_last_word_of_each(
    tmp_path: Path, suites: list[list[tuple[int, str]]]
) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    expected = ""
    for number, samples in enumerate(suites):
        for index, target in samples:
            file.append(SampleResult(str(number), index, target=target))
        file.finish_suite()
        latest = dict(samples)
        expected += "".join(line(str(number), index, latest[index]) for index in sorted(latest))
    file.close()
    assert (tmp_path / "samples.jsonl").read_bytes().decode() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["samples.jsonl"]


def test_what_an_unfinished_suite_wrote_can_be_read(tmp_path: Path) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    for index in (3, 1, 3):
        file.append(SampleResult("s", index, target=str(index)))
    file.close()
    assert [sample.index for sample in SamplesReader(file.path).of("s")] == [1, 3]


def test_ordering_reads_each_line_and_not_a_buffer_for_each(tmp_path: Path) -> None:
    counters = Path("/proc/self/io")
    if not counters.exists():
        pytest.skip("this system has no /proc/self/io to measure how much was read")

    def bytes_read() -> int:
        return int(counters.read_text().split()[1])

    file, rows = SamplesFile(tmp_path / "samples.jsonl"), 2_000
    for row in range(rows):
        file.append(SampleResult("s", row * 7 % rows, target="word " * 400))
    before = bytes_read()
    file.finish_suite()
    read = bytes_read() - before
    file.close()
    size = file.path.stat().st_size
    lines = file.path.read_bytes().splitlines(keepends=True)
    assert [parse_place(line)[1] for line in lines] == list(range(rows))
    assert read < 20 * size


def test_closing_twice_is_no_error(tmp_path: Path) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.append(SampleResult("s", 0))
