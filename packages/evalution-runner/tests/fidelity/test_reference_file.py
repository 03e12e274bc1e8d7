"""A recorded reference: what it keeps, what a kill leaves, and which files it refuses."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalution.fidelity.divergence import (
    Logprobs,
    TopRows,
    compare_rows,
    compare_top,
    select_top,
)
from evalution.fidelity.reference_file import Recording, ReferenceFile, ReferenceWriter
from evalution.fidelity.requests import Window
from evalution.fidelity.result import Side
from evalution.samples_file import ResultsNotWrittenError
from evalution_core import ConfigurationError

VOCABULARY = 40
RECORDING = Recording(
    side=Side({"path": "m"}, {"name": "Reference"}, 1_000),
    vocabulary=VOCABULARY,
    tokenizer="t0",
    window=16,
    texts={"wiki": "d0"},
    top=None,
    versions={"evalution": "0.1.0"},
)
TEXT = Window([1, 2, 3, 4, 5, 6], 2)


def draw_rows(seed: int, count: int, vocabulary: int = VOCABULARY, scale: float = 3.0) -> Logprobs:
    logits = np.random.default_rng(seed).normal(size=(count, vocabulary)) * scale
    logits -= logits.max(1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(1, keepdims=True))
    return logits.astype(np.float32)


def record(path: Path, windows: list[Window], recording: Recording = RECORDING) -> None:
    with ReferenceWriter(path, recording) as writer:
        for window in windows:
            if not writer.has(window):
                with writer.add_window(window) as add:
                    count = len(window.scored_ids)
                    rows = draw_rows(sum(window.input_ids), count, recording.vocabulary)
                    add(rows[:1])
                    add(rows[1:])
        writer.finish()


def read_all(path: Path, *windows: Window) -> list[Any]:
    with ReferenceFile(path) as file:
        return [rows for _, rows in file.read(windows)]


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reference.sqlite"


def test_view_in_place_of_a_table_is_refused(tmp_path: Path) -> None:
    """A query on it need never end."""
    file = tmp_path / "reference.sqlite"
    record(file, [TEXT])
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("ALTER TABLE meta RENAME TO held")
        connection.execute("CREATE VIEW meta AS SELECT * FROM held")
        connection.commit()
    for open_it in (ReferenceFile, lambda path: ReferenceWriter(path, RECORDING)):
        with pytest.raises(ConfigurationError, match="it is the database of another program"):
            open_it(file)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 7),
    st.sampled_from([2, 33, 5_000]),
    st.sampled_from([0.1, 3.0, 300.0]),
    st.sampled_from([None, 1, 8]),
)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_rows_come_back(
    tmp_path: Path, seed: int, count: int, vocabulary: int, scale: float, top: int | None
) -> None:
    path = tmp_path / f"{seed}-{count}-{vocabulary}-{scale}-{top}.sqlite"
    rows = draw_rows(seed, count, vocabulary, scale)
    window = Window([seed % vocabulary] * (count + 1), 1)
    token_ids = np.asarray(window.input_ids[1:])
    with ReferenceWriter(path, replace(RECORDING, vocabulary=vocabulary, top=top)) as writer:
        with writer.add_window(window) as add:
            add(rows)
        assert writer.has(window)
        assert not writer.has(replace(window, start=2))
    with ReferenceFile(path) as file:
        ((at, found),) = file.read([window])
    assert at == 0
    if top is not None:
        assert isinstance(found, TopRows)
        expected = select_top(rows, top, token_ids)
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        np.testing.assert_array_equal(found.logprobs, expected.logprobs)
        np.testing.assert_array_equal(found.text_logprobs, expected.text_logprobs)
        assert (compare_top(found, rows, token_ids)["kl"] == 0).all()
        return
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.exp(found.astype(np.float64)).sum(1), 1.0, atol=1e-6)
    assert (compare_rows(rows, found, token_ids)["kl"] < 3e-6).all()


def test_excluded_and_very_unlikely_tokens_come_back(path: Path) -> None:
    rows = np.full((1, VOCABULARY), -np.inf, np.float32)
    rows[0, [0, 1, 2]] = np.log([0.5, 0.5, 1.0])
    rows[0, 2] = -1e6
    with (
        ReferenceWriter(path, RECORDING) as writer,
        writer.add_window(window := Window([1, 2], 1)) as add,
    ):
        add(rows)
    found = read_all(path, window)[0]
    np.testing.assert_allclose(found[0, :2], np.log(0.5), rtol=1e-6)
    assert -70_000 < found[0, 2] < -60_000
    assert (found[0, 3:] == -np.inf).all()


@pytest.mark.parametrize("top", [None, 64])
def test_sizes_at_a_large_vocabulary(path: Path, top: int | None) -> None:
    vocabulary = 128_000
    window = Window(list(range(9)), 1)
    record(path, [window], replace(RECORDING, vocabulary=vocabulary, top=top))
    raw = 8 * vocabulary * 4
    assert path.stat().st_size <= raw * (0.4 if top is None else 0.01)


@pytest.mark.parametrize("top", [None, 3])
@given(killed=st.lists(st.integers(0, 3), max_size=3))
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_file_killed_at_any_window_is_completed(
    tmp_path: Path, top: int | None, killed: list[int]
) -> None:
    folder = tmp_path / f"{top}-{'-'.join(map(str, killed))}"
    folder.mkdir(exist_ok=True)
    recording = replace(RECORDING, top=top)
    windows = [Window(list(range(at, at + 5)), 1 + at % 2) for at in range(4)]
    record(folder / "whole.sqlite", windows, recording)
    path = folder / "0.sqlite"
    for life, until in enumerate(killed):
        # What a kill leaves: the files as they are in the middle of a window.
        with ReferenceWriter(path, recording) as writer:
            for window in windows[: until + 1]:
                if writer.has(window):
                    continue
                with writer.add_window(window) as add:
                    rows = draw_rows(sum(window.input_ids), len(window.scored_ids))
                    add(rows[:1])
                    if window is windows[until]:
                        left = folder / f"{life + 1}.sqlite"
                        for file in folder.glob(f"{path.name}*"):
                            shutil.copy(file, folder / file.name.replace(path.name, left.name))
                        path = left
                    add(rows[1:])
    record(path, windows, recording)
    assert dump(path) == dump(folder / "whole.sqlite")
    assert len(read_all(path, *windows)) == 8


def test_an_error_in_a_window_keeps_those_before(path: Path) -> None:
    record(path, [TEXT])
    other = Window([9, 9, 9], 1)
    with ReferenceWriter(path, RECORDING) as writer:
        for rows, message in (
            (draw_rows(0, 1), "a window of 2 rows got 1"),
            (draw_rows(0, 3), "a window of 2 rows got 3"),
            (draw_rows(0, 2, 7), "rows of 7 tokens, not 40"),
            (select_top(draw_rows(0, 2), 3, np.array([0, 1])), "without top takes whole rows"),
        ):
            with pytest.raises(ValueError, match=message), writer.add_window(other) as add:
                add(rows)
            assert not writer.has(other)
        assert writer.has(TEXT)


def test_ids_that_were_not_recorded_are_refused(path: Path) -> None:
    with ReferenceWriter(path, RECORDING):
        pass
    with pytest.raises(ConfigurationError, match="isn't finished; run the same"):
        read_all(path, TEXT)
    record(path, [TEXT])
    for other in (replace(TEXT, input_ids=[1, 2, 3, 4, 5, 7]), replace(TEXT, start=3)):
        with pytest.raises(ConfigurationError, match="has no rows of these ids: it was recorded"):
            read_all(path, other)


def test_a_file_that_is_no_reference_file_is_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be opened; name a file that"):
        ReferenceFile(path)
    path.write_text("no database" * 100)
    with pytest.raises(ConfigurationError, match="it isn't a SQLite database"):
        ReferenceFile(path)
    with pytest.raises(ConfigurationError, match="is no reference file, or a damaged one"):
        ReferenceWriter(path, RECORDING)
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE answers (number INTEGER)")
    connection.close()
    for opener in (ReferenceFile, lambda path: ReferenceWriter(path, RECORDING)):
        with pytest.raises(ConfigurationError, match="no reference file: it is the database of"):
            opener(path)


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    record(path, [TEXT])
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(ConfigurationError, match=r"^the reference .* this one knows 1\); upgrade"):
        ReferenceFile(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE chunks SET rows = substr(rows, 1, 20) WHERE first = 1",
        "UPDATE chunks SET rows = zeroblob(length(rows))",
        "UPDATE chunks SET normalisers = x'00'",
        "DELETE FROM chunks WHERE first = 0",
        "DELETE FROM chunks WHERE first = 1",
        "UPDATE chunks SET rows = 5",
        "UPDATE chunks SET count = 'one'",
        "UPDATE meta SET value = '{' WHERE name = 'recording'",
        "UPDATE meta SET value = 5 WHERE name = 'recording'",
        "UPDATE meta SET value = CAST(x'ff' AS TEXT) WHERE name = 'recording'",
        "DROP TABLE chunks",
    ],
)
def test_a_damaged_file_is_refused(path: Path, change: str) -> None:
    record(path, [TEXT])
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(ConfigurationError, match=r"is damaged .*record it again"):
        read_all(path, TEXT)


def test_another_recording_is_not_mixed_in(path: Path) -> None:
    record(path, [TEXT])
    with pytest.raises(ConfigurationError, match=r"another recording: window was 16, now 8;"):
        ReferenceWriter(path, replace(RECORDING, window=8))
    engine = {**RECORDING.side.engine, "execution": {"dtype": "float64"}}
    float64 = replace(RECORDING.side, engine=engine)
    with pytest.raises(ConfigurationError, match=r"dtype was None, now 'float64'"):
        ReferenceWriter(path, replace(RECORDING, side=float64))
    with pytest.raises(ConfigurationError, match=r"versions\.evalution was '0\.1\.0', now '9'"):
        ReferenceWriter(path, replace(RECORDING, versions={"evalution": "9"}))


def test_a_self_check_with_other_figures_is_the_same_recording(path: Path) -> None:
    engine = {**RECORDING.side.engine, "self_check": {"max_difference": 1e-15}}
    with ReferenceWriter(path, RECORDING):
        pass
    ReferenceWriter(
        path, replace(RECORDING, side=replace(RECORDING.side, engine=engine))
    ).__exit__()


def test_a_file_that_is_being_recorded_is_not_read(path: Path) -> None:
    with ReferenceWriter(path, RECORDING) as writer, writer.add_window(TEXT) as add:
        add(draw_rows(0, 4))
        with pytest.raises(ConfigurationError, match="is being recorded, or its recording was"):
            ReferenceFile(path)


def test_a_second_writer_is_refused(path: Path) -> None:
    with (
        ReferenceWriter(path, RECORDING),
        pytest.raises(ConfigurationError, match="another process is writing"),
    ):
        ReferenceWriter(path, RECORDING)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ResultsNotWrittenError, match="can't be written: unable to open"):
        ReferenceWriter(tmp_path / "absent" / "reference.sqlite", RECORDING)
