from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.results import MetricResult, RunResult, SampleResult, SuiteResult, to_json
from evalution.run_folder import ResultsNotWrittenError, RunFolder, default_folder
from evalution.table import complaints, console, result_table

values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_any_result_is_strict_json(value: Any) -> None:
    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    read = json.loads(to_json(value), parse_constant=refuse)
    if not isinstance(value, float):
        return
    assert read == value if math.isfinite(value) else read is None


def test_samples_are_read_back_in_the_order_of_the_rows(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for index, error in ((2, None), (0, None), (1, None), (0, "withdrawn")):
        folder.append(SampleResult("sums", index, prompt="é\u2028", error=error))
    folder.append(SampleResult("other", 0))
    folder.close()
    with folder.samples_file.open("a", encoding="utf-8") as samples:
        samples.write('{"suite": "sums", "index": 3, "prom')
    found = SuiteResult("sums", "", {}, {}, 3, 1, None, 3, 1.0, samples_file=folder.samples_file)
    assert [(sample.index, sample.error) for sample in found.samples] == [
        (0, "withdrawn"),
        (1, None),
        (2, None),
    ]
    assert found.samples[1].prompt == "é\u2028"


def test_a_full_disk_is_told_and_what_is_there_stays(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full to write to")
    folder = RunFolder(tmp_path / "run")
    folder.append(SampleResult("sums", 0))
    folder.close()
    full = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - the folder closes it
    folder._samples = full  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ResultsNotWrittenError, match="can't be written: No space left"):
        folder.append(SampleResult("sums", 1))
    with pytest.raises(ResultsNotWrittenError, match="can't be written: No space left"):
        folder.close()
    assert full.closed
    assert len(folder.samples_file.read_text(encoding="utf-8").splitlines()) == 1


def test_default_folders_are_new_and_have_plain_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = datetime(2026, 11, 21, 9, 30)
    first = default_folder("../Meta Llama: 8B", now)
    assert first == Path("runs/20261121-093000-Meta-Llama-8B")
    first.mkdir(parents=True)
    assert default_folder("../Meta Llama: 8B", now) == first.with_name(f"{first.name}-2")
    assert default_folder("///", now).name == "20261121-093000-model"


def run_result(**suite: Any) -> RunResult:
    metrics = {
        "ppl": MetricResult(1.5e9, None, False, 3),
        "acc": MetricResult(0.25, 0.125, True, 4),
        "none": MetricResult(None, None, True, 0),
    }
    return RunResult(
        {"path": "p"},
        {"name": "Mock"},
        {},
        {},
        limit=4,
        suites=[
            SuiteResult(
                **{
                    "name": "sums",
                    "type": "Generation",
                    "options": {},
                    "metrics": metrics,
                    "n": 4,
                    "failed": 0,
                    "truncated": None,
                    "requests": 4,
                    "seconds": 1.0,
                    **suite,
                }
            )
        ],
    )


def test_the_table_shows_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(result_table(run_result(truncated=2)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["p", "on", "Mock,", "at", "most", "4", "rows", "of", "each", "suite"]
    assert ["sums", "ppl", "↓", "1.5e+09", "3", "0", "2"] in lines
    assert ["acc", "↑", "0.2500", "±", "0.1250", "4", "0", "2"] in lines
    assert ["none", "↑", "–", "0", "0", "2"] in lines


def test_failures_are_told_with_the_first() -> None:
    found = run_result(failed=2, first_failure="row 1: too long", errors=["a stranger"])
    assert complaints(found) == [
        "sums: 2 of 4 samples failed; row 1: too long",
        "sums: a stranger",
    ]
    assert found.failed == 3
    assert complaints(run_result()) == []
