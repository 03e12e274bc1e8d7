"""The page as a whole: what it says of runs of every kind, and what it must never hold."""

from __future__ import annotations

import base64
import hashlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from evalution import MetricResult
from evalution.report import write_report
from evalution_core import ConfigurationError

pytest.importorskip("jinja2", reason="needs jinja2, of evalution[report]")

HOSTILE = [
    "</script><script>document.title = 'broken'</script>",
    "<!-- <script>",
    "]]> & &lt;b&gt; \u2028 \u2029 \x00 \ud800",
    "{{ 7 * 7 }} {% raw %}",
    "<img src=x onerror=alert(1)>",
]


def test_page_of_one_run_has_scores_and_no_differences(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    page = write_page(make_run(make_suite("sums", [make_sample(0), make_sample(1, 0.0)])))

    assert "my model on Mock" in page.text
    assert "0.5000 0.0945 to 0.9055" in page.text
    assert "n 2 0 failed 0 truncated" in page.text
    assert "2026-01-02 03:04 UTC 1 min 0 s" in page.text
    assert "Differences" not in page.text
    assert "best" not in page.text
    assert list(page.data("figures-data")) == ["scores-shares"]


def test_page_of_several_runs_has_scores_and_differences(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    worse = make_suite("sums", [make_sample(index, 0.0) for index in range(20)])
    better = make_suite("sums", [make_sample(index, 1.0) for index in range(20)])
    page = write_page(make_run(worse), make_run(better, limit=7))

    assert "1.0000 0.8389 to 1.0000 best" in page.text
    assert "limit=7" in page.text
    assert "Differences to A" in page.text
    assert "+1.0000 +0.7" in page.text  # the interval begins with its lower end
    assert "< 0.0001 20 0 20 better" in page.text
    assert list(page.data("figures-data")) == ["scores-shares", "differences-shares"]


def test_runs_of_other_options_are_not_ranked(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    suites = [
        make_suite("sums", [make_sample(0, value)], options={"num_fewshot": shots, "batch_size": 1})
        for value, shots in ((0.0, 0), (1.0, 5))
    ]
    page = write_page(*map(make_run, suites))

    assert "Not comparable: the runs have other options: num_fewshot" in page.text
    assert "batch_size" not in page.text.split("Run conditions")[0]
    assert "best" not in page.text.split("Run conditions")[0].split("no score is marked as best")[1]


def test_error_of_a_failed_run_is_shown(write_page: Any, make_run: Any) -> None:
    error = {"suite": "sums", "type": "EngineRuntimeError", "message": "out of memory"}
    page = write_page(make_run(status="failed", error=error, finished=None, timings={}))

    assert "EngineRuntimeError in suite sums: out of memory" in page.text
    assert "No suite was finished, so there are no scores." in page.text
    assert page.data("samples-data") is None
    assert page.data("figures-data") is None
    assert len(page.html) < 100_000  # without a figure, the chart library stays out


def test_precision_of_each_run_is_shown_and_a_difference_named(
    write_page: Any, make_run: Any, make_suite: Any
) -> None:
    runs = [
        make_run(make_suite("sums"), engine={"name": "E", "execution": {"dtype": dtype}})
        for dtype in ("float32", "bfloat16")
    ]
    difference = "Computed in bfloat16, the first run in float32: the scores differ by rounding too"
    assert difference in write_page(*runs).text
    alone = write_page(runs[0]).text.split("Run conditions")[0]
    assert "float32" in alone
    assert "Computed in" not in alone


def test_unfinished_run_is_marked(write_page: Any, make_run: Any) -> None:
    page = write_page(make_run(status="running", notices=["3 answers were lost with the journal"]))

    assert "The run is not finished" in page.text
    assert "3 answers were lost with the journal" in page.text


def test_run_without_samples(write_page: Any, make_run: Any, make_suite: Any) -> None:
    metrics = {"acc": MetricResult(0.5, None, True, 10)}
    page = write_page(make_run(make_suite("sums", metrics=metrics, n=10)))

    assert "0.5000" in page.text
    assert 'id="browser"' not in page.html


def test_samples_can_be_left_out(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    page = write_page(make_run(make_suite("sums", [make_sample(0)])), samples_per_suite=0)

    assert page.data("samples-data") is None
    assert "Question 0" not in page.html


def test_suite_without_binary_metric_is_shown(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    samples = [
        make_sample(index, None, prompt="", prediction=None, metrics={"word_perplexity": value})
        for index, value in enumerate((3.5, 2.25))
    ]
    page = write_page(make_run(make_suite("prose", samples, higher=False, truncated=None)))

    assert "word_perplexity ↓ 2.8750" in page.text
    assert "truncated" not in page.text
    [suite] = page.data("samples-data")["suites"]
    assert suite["metrics"] == [{"name": "word_perplexity", "higher": False, "binary": False}]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (math.inf, "∞"), (1234567.0, "1.23457e+06")]
)
def test_missing_infinite_and_large_scores_are_shown(
    write_page: Any, make_run: Any, make_suite: Any, value: float | None, shown: str
) -> None:
    metrics = {"word_perplexity": MetricResult(value, None, False, 1)}
    suites = [make_suite("prose", metrics=metrics) for _ in range(2)]
    page = write_page(*map(make_run, suites))

    assert f"word_perplexity ↓ {shown}" in page.text


def test_suite_that_only_one_run_has(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    run = make_run(make_suite("sums", [make_sample(0)]))
    page = write_page(run, make_run(make_suite("other", [make_sample(0)])))

    assert page.text.count("not run") == 2
    assert [row[3][1] for row in page.data("samples-data")["suites"][0]["rows"]] == [None]


def test_failures_stand_beside_the_scores(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    suite = make_suite(
        "sums",
        [make_sample(0), make_sample(1, None, error="TimeoutError: 30 s")],
        first_failure="row 1: TimeoutError: 30 s",
        errors=["the session answered 9, which nobody had asked"],
    )
    page = write_page(make_run(suite))

    assert "1 of 2 samples failed; first: row 1: TimeoutError: 30 s" in page.text
    assert "which nobody had asked" in page.text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_adds_no_element(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any, text: str
) -> None:
    def page_about(word: str) -> Any:
        chat = [{"role": "user", "content": word}]
        sample = make_sample(0, prompt=chat, target=word, extracted={word: [word]})
        suite = make_suite(word, [sample], first_failure=word, errors=[word], options={word: word})
        model = {"path": word, "label": word}
        return write_page(make_run(suite, model=model, error={"message": word}))

    page, harmless = page_about(text), page_about("harmless")

    assert [tag for tag, _ in page.parser.elements] == [tag for tag, _ in harmless.parser.elements]
    [[_, prompt, target, cells]] = page.data("samples-data")["suites"][0]["rows"]
    assert [prompt[0]["content"], target, cells[0]["x"]] == [text, text, {text: [text]}]


def test_nothing_is_fetched_and_only_the_page_s_scripts_run(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    page = write_page(make_run(make_suite("sums", [make_sample(0)])))
    linked = ("src", "srcset", "href", "action", "poster", "data")
    targets = {found.get(name) or "" for _, found in page.parser.elements for name in linked}
    handlers = [name for _, found in page.parser.elements for name in found if name[:2] == "on"]
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    running = [text for found, text in page.parser.scripts if "type" not in found]

    assert all(target == "" or target[0] == "#" or target == "data:," for target in targets)
    assert handlers == []
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in running
    ]
    assert len(running) == 6


def test_no_credential_reaches_the_page(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    header = "Authorization: Bearer planted-Secret1"
    sample = make_sample(0, None, error=f"refused: {header}")
    suite = make_suite("sums", [sample], first_failure=header, errors=[header])
    suite.options = {"data": "https://user:planted@host/rows.jsonl"}
    run = make_run(suite, error={"message": header}, notices=[header])
    run.engine["options"] = {"api_key": "planted", "base_url": "https://user:planted@host/v1"}
    run.engine["execution"] = {"headers": {"X-Api-Key": "planted"}}
    run.model["model_kwargs"] = {"token": "planted"}
    run.versions["note"] = header
    page = write_page(run, make_run())

    assert "planted" not in page.html
    assert page.html.count("***") > 5


def test_report_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="at least one run, parity check or fidelity measurement"
    ):
        write_report([], tmp_path / "page.html")


def test_negative_number_of_samples_is_refused(make_run: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="samples_per_suite must not be negative, got -1"):
        write_report([make_run()], tmp_path / "page.html", samples_per_suite=-1)


def test_unwritable_page_is_reported(make_run: Any, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "page.html"
    with pytest.raises(ConfigurationError, match=r"can't be written to .*; name another --output"):
        write_report([make_run()], file)


def test_missing_library_is_named_with_its_extra(
    make_run: Any, make_suite: Any, make_sample: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigurationError, match=r"needs jinja2.*evalution\[report\]"):
        write_report([make_run(make_suite("sums", [make_sample(0)]))], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
