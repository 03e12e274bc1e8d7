from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import evalution
from evalution import suites
from evalution.progress import Progress
from evalution.results import to_json
from evalution.runs.progress_file import PROGRESS, ProgressFile, RunState, read_progress
from evalution.runs.token_record import TokenRecorder
from evalution.suites.suite import Sample
from evalution_core import GenerationOutput, GenerationRequest
from evalution_enginekit.mock import Mock


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_state_counts_samples_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("evalution.runs.progress_file.time.monotonic", clock.monotonic)
    progress = ProgressFile(Progress())
    progress.suites_planned([10, 100, 30])
    progress.suite_started("sums", 10)
    clock.now += 10
    progress.sample_finished(10, 1, None)
    progress.suite_finished()
    assert (progress.read().suite, progress.read().done, progress.read().rate) == (None, 10, None)
    progress.suite_started("more", 100)
    progress.samples_cached(40)
    clock.now += 5
    progress.tokens_computed(250)
    progress.sample_finished(60, 2, ("acc", 0.5))
    assert progress.read() == RunState(
        suite="more",
        suite_done=60,
        suite_total=100,
        suites_done=1,
        suites=3,
        done=70,
        total=140,
        failed=3,
        rate=4.0,
        tokens_per_second=50.0,
        left_s=40 / 4.0 + 30 * 15 / 30,
        running=("acc", 0.5),
    )


def test_suite_that_has_fewer_samples_than_planned_leaves_none_to_do() -> None:
    progress = ProgressFile(Progress())
    progress.suites_planned([10, 10])
    for total in (10, 7):
        progress.suite_started("sums", total)
        progress.sample_finished(total, 0, None)
        progress.suite_finished()
    state = progress.read()
    assert (state.done, state.total, state.suites_done, state.suites) == (17, 17, 2, 2)


class Watch(Progress):
    """Reads the file of a run while the run goes on."""

    def __init__(self, folder: Path, written: Callable[[], object]):
        self.found: list[RunState | None] = []
        self.loading: RunState | None = None
        self._folder = folder
        self._written = written

    def model_ready(self, seconds: float) -> None:
        self.loading = read_progress(self._folder)

    def suite_finished(self) -> None:
        self._written()
        self.found.append(read_progress(self._folder))


def test_file_is_there_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalution.runs.progress_file._WRITE_S", 0.001)
    watch = Watch(tmp_path / "run", lambda: wait_for(tmp_path / "run" / PROGRESS))
    evalution.run(
        engine=Mock(),
        model="m",
        tests=[suites.Generation(data=[{"q": "a"}] * 3, prompt="q", target="q")],
        output=tmp_path / "run",
        progress=watch,
    )
    (state,) = watch.found
    assert state is not None
    assert (state.total, state.suites, state.loading) == (3, 1, None)
    assert watch.loading is not None
    assert watch.loading.loading == ("m", "Mock")
    assert PROGRESS not in os.listdir(tmp_path / "run")


def test_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    (tmp_path / "progress.part").symlink_to(tmp_path / "other")
    file = ProgressFile(Progress())
    file.open(tmp_path)
    file.model_loading("m", "Mock")
    assert read_progress(tmp_path) is not None
    file.close()
    assert (tmp_path / "other").read_text() == "precious"


def wait_for(file: Path) -> None:
    while not file.exists():
        os.sched_yield()


def test_infinite_score_so_far_leaves_the_file_readable(tmp_path: Path) -> None:
    file = ProgressFile(Progress())
    file.open(tmp_path)
    try:
        file.sample_finished(1, 0, ("word_perplexity", math.inf))
        (tmp_path / PROGRESS).write_text(to_json(asdict(file.read())))
        state = read_progress(tmp_path)
    finally:
        file.close()
    assert state is not None
    assert (state.suite_done, state.running) == (1, None)


@pytest.mark.parametrize("text", ["", "[]", '{"done": "x"}', "[" * 200_000])
def test_file_that_holds_no_state_is_none(tmp_path: Path, text: str) -> None:
    assert read_progress(tmp_path) is None
    (tmp_path / PROGRESS).write_text(text)
    assert read_progress(tmp_path) is None


def test_file_of_a_killed_run_goes_stale(tmp_path: Path) -> None:
    (tmp_path / PROGRESS).write_text("{}")
    assert read_progress(tmp_path) == RunState()
    os.utime(tmp_path / PROGRESS, (1, 1))
    assert read_progress(tmp_path) is None


def test_recorded_tokens_stand_in_the_samples(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"q": "ab", "choices": ["x", "yz"], "right": 0}]
    tests = [
        suites.Generation(data=rows, prompt="q", target="q", max_new_tokens=4),
        suites.MultipleChoice(data=rows, prompt="q", choices="choices", target="right"),
    ]
    plain = evalution.run(engine=Mock(), model="m", tests=tests, output=tmp_path / "plain")
    found = evalution.run(
        engine=Mock(), model="m", tests=tests, output=tmp_path / "tokens", record_tokens=True
    )
    written, chosen = (suite.samples[0] for suite in found.suites)
    assert written.token_logprobs is not None
    assert "".join(text for _, text, _ in written.token_logprobs[0] or ()) == written.prediction
    assert chosen.token_logprobs is not None
    texts = ["".join(text for _, text, _ in tokens or ()) for tokens in chosen.token_logprobs]
    assert texts == [" x", " yz"]
    sums = [sum(logprob for *_, logprob in tokens or ()) for tokens in chosen.token_logprobs]
    assert sums == pytest.approx(chosen.extracted["logprobs"], abs=1e-5)
    assert chosen.extracted["choices"] == ["x", "yz"]
    assert [suite.metrics for suite in found.suites] == [suite.metrics for suite in plain.suites]
    assert "token_logprobs" not in (tmp_path / "plain" / "samples.jsonl").read_text()


def test_session_that_gives_no_log_probabilities_is_asked_for_none() -> None:
    session: Any = SimpleNamespace(capabilities=frozenset(), tokenizer=None)
    recorder = TokenRecorder(session)
    request = GenerationRequest("a")
    sample = Sample(0, "a", "b", [request])
    recorder.prepare(sample)
    assert sample.requests == [request]
    assert recorder.notice == "the engine gives no log-probabilities of tokens that it generates"
    without_ids = GenerationOutput("a", "b", token_logprobs=[-0.5])
    assert recorder.record([without_ids, GenerationOutput("a", "b"), None]) == [
        [[None, None, -0.5]],
        None,
        None,
    ]
