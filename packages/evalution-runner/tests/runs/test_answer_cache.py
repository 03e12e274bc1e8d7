"""Answers that runs share: each serves the model that gave it, and no other."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import evalution
from evalution import Generation
from evalution.replicas import Replicas
from evalution.results import RunResult
from evalution_core import EngineSpec, Model
from evalution_core.builtins import builtin_path
from evalution_reference import Reference

ROWS = [{"q": f"{i} + 0?", "a": "4"} for i in range(10)]


def sums(**options: Any) -> Generation:
    return Generation(data=ROWS, prompt="q", target="a", name="sums", **options)


def test_runs_share_answers_through_a_cache_and_models_do_not(tmp_path: Path) -> None:
    def run(dtype: Literal["float32", "float64"], **options: Any) -> list[int]:
        found = evalution.run(
            engine=Reference(dtype=dtype),
            model="builtin:tiny",
            tests=[sums(**options)],
            cache=tmp_path / "cache",
        )
        return [suite.cached for suite in found.suites]

    assert run("float32", max_rows=3) == [0]
    assert run("float32") == [3]
    assert run("float32") == [10]
    assert run("float64") == [0]
    assert run("float32", max_new_tokens=5) == [0]


def test_answers_of_a_chat_template_with_other_variables_are_not_shared(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}{{ thinks }}")

    def cached_requests(**variables: bool) -> int:
        model = Model(str(folder), chat_template_kwargs=variables)
        tests = [sums(max_rows=2, max_new_tokens=2)]
        found = evalution.run(
            engine=Reference(), model=model, tests=tests, cache=tmp_path / "cache"
        )
        return found["sums"].cached

    assert [cached_requests(), cached_requests(), cached_requests(thinks=False)] == [0, 2, 0]
    assert [cached_requests(thinks=True), cached_requests(thinks=False)] == [0, 2]


def test_cache_is_left_out_where_the_model_can_not_be_identified_by_content(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    for _ in range(2):
        engine = scripted(scripted_session())
        result = evalution.run(engine=engine, model="m", tests=[sums()], cache=tmp_path)
        assert result["sums"].cached == 0
        assert result.notices == [
            "the cache isn't used: this model can't be identified by its content"
        ]


def test_replicas_find_the_answers_of_the_engine_within(tmp_path: Path) -> None:
    tests, cache = [sums(max_rows=3)], tmp_path / "cache"
    alone = evalution.run(engine=Reference(), model="builtin:tiny", tests=tests, cache=cache)
    engine = Replicas(engine=EngineSpec("Reference"), replicas=2)
    found = evalution.run(engine=engine, model="builtin:tiny", tests=tests, cache=cache)
    assert found["sums"].cached == 3
    assert found.engine["tokenizer"] == alone.engine["tokenizer"]


def test_answers_to_chats_that_show_the_date_serve_runs_of_that_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), folder)
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%d') }}{{ messages[0].content }}")

    def run(day: int, output: str | None = None, *, chat: bool = True) -> RunResult:
        clock = SimpleNamespace(now=lambda: datetime(2026, 11, day))
        monkeypatch.setattr("evalution_enginekit.template_sandbox.datetime", clock)
        return evalution.run(
            engine=Reference(),
            model=str(folder),
            tests=[sums(max_rows=2, max_new_tokens=2, apply_chat_template=chat)],
            cache=tmp_path / "cache",
            output=output and tmp_path / output,
        )

    assert [run(day)["sums"].cached for day in (1, 1, 20)] == [0, 2, 0]
    assert [run(day, chat=False)["sums"].cached for day in (1, 20)] == [0, 2]
    assert "the chat template" not in str(run(1, "out").notices + run(1, "out").notices)
    resumed = run(20, "out")
    assert resumed["sums"].cached == 2
    assert resumed.engine["tokenizer"]["chat_template_day"] == "2026-11-20"
    (notice,) = [text for text in resumed.notices if text.startswith("the chat template")]
    assert "began on 2026-11-01, and chats that it asks from now on have 2026-11-20" in notice


def test_another_release_of_a_runtime_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> int:
        found = evalution.run(
            engine=Reference(), model="builtin:tiny", tests=[sums(max_rows=3)], cache=tmp_path
        )
        return found["sums"].cached

    assert (run(), run()) == (0, 3)
    monkeypatch.setattr(Reference, "describe_runtime", lambda _: {"version": "99.0"})
    assert (run(), run()) == (0, 3)
    monkeypatch.setattr("evalution.environment._read_version", lambda *_: "99.0")
    assert (run(), run()) == (0, 3)
    monkeypatch.setattr("evalution.environment.PROBE", "a text that is now read otherwise")
    assert (run(), run()) == (0, 3)
