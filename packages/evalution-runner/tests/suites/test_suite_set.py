"""A declaration that stands for several suites, and suites that sum up in their own way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution.results import MetricResult
from evalution.scoring.metrics import Measure, MetricAccumulator, Score
from evalution.suites import AnySuite, Generation, Perplexity, SuiteSet
from evalution.yaml_spec.run_spec import parse_test
from evalution_core import ConfigurationError, Model
from evalution_enginekit.mock import Mock

TEXTS = [{"text": "one two"}, {"text": "three"}]


@dataclass(kw_only=True)
class Both(SuiteSet):
    """Texts to be scored, and to be completed."""

    count: int = 2

    def suites(self) -> Sequence[AnySuite]:
        rows = TEXTS[: self.count]
        asked = Generation(name="written", data=rows, prompt="text", target="text")
        return [Perplexity(name="scored", data=rows, text="text"), asked][: self.count]


class Longest:
    """The length of the longest answer."""

    def __init__(self) -> None:
        self.lengths: dict[int, float] = {}

    def record(self, index: int, score: Score, group: str | None = None) -> Mapping[str, float]:
        self.lengths[index] = float(len(score.prediction or ""))
        return {"longest": self.lengths[index]}

    def fail(
        self,
        index: int,
        measures: Mapping[str, Measure] | None = None,
        group: str | None = None,
    ) -> dict[str, float]:
        self.lengths.pop(index, None)
        return {}

    @property
    def running(self) -> None:
        return None

    def results(self) -> dict[str, MetricResult]:
        longest = max(self.lengths.values(), default=None)
        return {"longest": MetricResult(longest, None, True, len(self.lengths))}


@dataclass(kw_only=True)
class LongestAnswer(Generation):
    """How long the longest answer is."""

    def make_accumulator(self) -> MetricAccumulator:
        return Longest()


def names(result: Any) -> list[tuple[str, int]]:
    return [(suite.name, suite.n) for suite in result.suites]


def test_each_suite_of_a_set_is_a_suite_of_the_run() -> None:
    found = evalution.run(engine=Mock(), model="m", tests=[Both()])
    assert names(found) == [("scored", 2), ("written", 2)]
    with evalution.Run(Mock(), Model("m")) as handle:
        handle.run(Both())
    assert names(handle.result) == [("scored", 2), ("written", 2)]


def test_the_folder_of_a_run_knows_each_suite_of_a_set(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    found = evalution.run(engine=Mock(), model="m", tests=[Both()], output=folder)
    written = json.loads((folder / "results.json").read_text(encoding="utf-8"))["suites"]
    assert [suite["name"] for suite in written] == ["scored", "written"]
    assert [len(suite.samples) for suite in found.suites] == [2, 2]


def test_a_set_without_suites_and_what_is_none_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="test 'Both' stands for no suite at all"):
        evalution.run(engine=Mock(), model="m", tests=[Both(count=0)])

    @dataclass(kw_only=True)
    class Wrong(Both):
        def suites(self) -> Sequence[AnySuite]:
            return [3]  # pyright: ignore[reportReturnType]

    with pytest.raises(ConfigurationError, match=r"a test must be a suite such as .* got 3"):
        evalution.run(engine=Mock(), model="m", tests=[Wrong()])

    @dataclass(kw_only=True)
    class Broken(Both):
        def suites(self) -> Sequence[AnySuite]:
            raise RuntimeError("it fell over")

    with pytest.raises(ConfigurationError, match="test 'Broken': RuntimeError: it fell over"):
        evalution.run(engine=Mock(), model="m", tests=[Broken()])


def test_a_spec_declares_a_set_as_it_declares_a_suite(tmp_path: Path) -> None:
    found = parse_test({"type": f"{__name__}:Both", "count": 1}, tmp_path)
    assert isinstance(found, SuiteSet)
    with pytest.raises(ConfigurationError, match="Both has no option 'cont'; did you mean 'count'"):
        parse_test({"type": f"{__name__}:Both", "cont": 1}, tmp_path)


def test_a_suite_may_sum_up_what_is_no_mean() -> None:
    suite = LongestAnswer(name="long", data=TEXTS, prompt="text", target="text")
    found = evalution.run(engine=Mock(), model="m", tests=[suite])["long"]
    lengths = [len(sample.prediction or "") for sample in found.samples]
    assert found.metrics["longest"] == MetricResult(float(max(lengths)), None, True, 2)
    assert [sample.metrics["longest"] for sample in found.samples] == lengths
