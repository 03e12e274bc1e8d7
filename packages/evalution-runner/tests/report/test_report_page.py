"""The page as a whole: what it says of runs of every kind, and what it must never hold."""

from __future__ import annotations

import base64
import hashlib
import html
import sys
from pathlib import Path
from typing import Any

import pytest

from evalution.report import write_report
from evalution.report.page import read_folders
from evalution.report.view_page import render_view_page
from evalution_core import ConfigurationError

HOSTILE = [
    "</script><script>document.title = 'broken'</script>",
    "<!-- <script>",
    "]]> & &lt;b&gt; \u2028 \u2029 \x00 \ud800",
    "{{ 7 * 7 }} {% raw %}",
    "<img src=x onerror=alert(1)>",
]


def test_page_of_twenty_rows_has_less_than_a_megabyte(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    page = write_page(make_run(make_suite("sums", [make_sample(index) for index in range(20)])))

    assert "my model on Mock" in page.text
    assert len(page.html) < 1_000_000
    assert list(page.data("documents")) == ["runs", "details", "comparisons", "samples", "counts"]


def test_samples_can_be_left_out(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    page = write_page(make_run(make_suite("sums", [make_sample(0)])), samples_per_suite=0)

    assert page.data("documents")["samples"] == {"sums": []}
    assert "Question 0" not in page.html


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
    [row] = page.data("documents")["samples"][text]
    shared = row["shared"]
    assert [shared["messages"][0]["content"], shared["target"]] == [text, text]
    assert row["runs"]["A"]["extracted"] == {text: [text]}


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
    assert len(running) == 13


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


@pytest.mark.parametrize(
    ("value", "problem"), [(-1, "not be negative, got -1"), ("5", "be an int")]
)
def test_number_of_samples_that_is_none_is_refused(
    make_run: Any, tmp_path: Path, value: Any, problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"samples_per_suite must {problem}"):
        write_report([make_run()], tmp_path / "page.html", samples_per_suite=value)


def test_unwritable_page_is_reported(make_run: Any, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "page.html"
    with pytest.raises(ConfigurationError, match=r"can't be written to .*; name another --output"):
        write_report([make_run()], file)


def test_missing_library_is_named_with_its_extra(
    parity_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    parity = read_folders([parity_folder]).parity
    with pytest.raises(ConfigurationError, match=r"needs jinja2.*evalution-runner\[report\]"):
        write_report([], tmp_path / "page.html", parity=parity)
    assert not (tmp_path / "page.html").exists()


def test_live_page_holds_no_document_and_may_ask_its_server_alone() -> None:
    page = render_view_page()

    assert "connect-src 'self'" in page.policy
    assert html.escape(page.policy) in page.html
    assert 'id="documents"' not in page.html
