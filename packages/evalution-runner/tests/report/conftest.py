from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from evalution import MetricResult, RunResult, SampleResult, SuiteResult
from evalution.parity import Tolerance, check_parity, write_parity
from evalution.report import write_report
from evalution.runs.preflight import EngineAndModel
from evalution.scoring.intervals import wilson_interval
from evalution.yaml_spec.run_spec import load_spec


class PageParser(HTMLParser):
    """The elements of a page, its scripts, and the text outside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        elif self._inside != "style":
            self.texts.append(data)


@dataclass(frozen=True, slots=True)
class Page:
    """A written page, and what a browser would make of it."""

    html: str
    parser: PageParser

    @property
    def text(self) -> str:
        """What stands on the page without its scripts, white space collapsed."""
        return " ".join(" ".join(self.parser.texts).split())

    @property
    def policy(self) -> str:
        metas = [found for tag, found in self.parser.elements if tag == "meta"]
        return next(
            found["content"] or ""
            for found in metas
            if found.get("http-equiv") == "Content-Security-Policy"
        )

    def data(self, name: str) -> Any:
        """The JSON of the script element of this id; None if there is none."""
        texts = [text for found, text in self.parser.scripts if found.get("id") == name]
        return json.loads(texts[0]) if texts else None


@pytest.fixture
def write_page(tmp_path: Path) -> Callable[..., Page]:
    """Writes a report and reads it back."""

    def write(*runs: RunResult, **options: Any) -> Page:
        written = write_report(runs, tmp_path / "page.html", **options)
        html = written.path.read_bytes().decode()
        assert written.size == len(html.encode())
        parser = PageParser()
        parser.feed(html)
        parser.close()
        return Page(html, parser)

    return write


@pytest.fixture
def make_suite() -> Callable[..., SuiteResult]:
    """A suite of samples; its metrics are the means of theirs."""

    def make(
        name: str, samples: Sequence[SampleResult] = (), *, higher: bool = True, **changes: Any
    ) -> SuiteResult:
        names = {metric: None for sample in samples for metric in sample.metrics}
        values = {
            metric: [sample.metrics[metric] for sample in samples if metric in sample.metrics]
            for metric in names
        }
        metrics = {
            metric: MetricResult(
                share := sum(found) / len(found),
                0.1,
                higher,
                len(found),
                wilson_interval(share, len(found)) if 0 <= share <= 1 else None,
            )
            for metric, found in values.items()
        }
        failed = sum(sample.error is not None for sample in samples)
        found = SuiteResult(
            name, "Generation", {}, metrics, len(samples), failed, 0, len(samples), 1.5
        )
        found.kept_samples = list(samples)
        for field, value in changes.items():
            setattr(found, field, value)
        return found

    return make


@pytest.fixture
def make_run() -> Callable[..., RunResult]:
    def make(*suites: SuiteResult, **changes: Any) -> RunResult:
        engine = {"name": "Mock", "distribution": "evalution-enginekit", "version": "0.1.0"}
        run = RunResult(
            model={"path": "m", "label": "my model"},
            engine=engine | {"options": {"dtype": "float32"}},
            scoring_policy={"bos": "exactly one"},
            versions={"python": "3.11"},
            status="done",
            started="2026-01-02T03:04:05+00:00",
            finished="2026-01-02T03:05:05+00:00",
            timings={"total_s": 60.0},
            suites=list(suites),
        )
        for field, value in changes.items():
            setattr(run, field, value)
        return run

    return make


@pytest.fixture
def make_sample() -> Callable[..., SampleResult]:
    def make(index: int, score: float | None = 1.0, **changes: Any) -> SampleResult:
        sample = SampleResult("sums", index, f"Question {index}?", f"target {index}", "prediction")
        sample.metrics = {} if score is None else {"acc": score}
        for field, value in changes.items():
            setattr(sample, field, value)
        return sample

    return make


@pytest.fixture(scope="session")
def parity_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A check of float32 against float64, with a tolerance that it misses."""
    reference = pytest.importorskip("evalution_reference", reason="needs evalution-reference")
    spec = load_spec("builtin:tiny/quickstart")
    sides = [
        EngineAndModel(reference.Reference(dtype=name), spec.model)
        for name in ("float64", "float32")
    ]
    result = check_parity(
        sides[0], sides[1], spec.tests, limit=4, tolerance=Tolerance(logprob=1e-9)
    )
    folder = tmp_path_factory.mktemp("parity")
    write_parity(result, folder)
    return folder
