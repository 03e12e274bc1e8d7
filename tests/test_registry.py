"""Ratings of engines follow from their reports, and what is written of them is up to date."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

import pytest
import yaml

import registry
import release
from evalution_conformance.plugin import format_report

ROOT = Path(__file__).parents[1]

EXAMPLE = ROOT / "docs" / "registry" / "evalution-ctranslate2"


@pytest.fixture
def rated(tmp_path: Path) -> registry.Rated:
    """The example vendor's files, to be changed."""
    return registry.Rated(Path(shutil.copytree(EXAMPLE, tmp_path / "engine")))


def change_report(rated: registry.Rated, **facts: object) -> registry.Rated:
    report = json.loads((rated.folder / registry.REPORT).read_text("utf-8"))
    report["engines"][0] |= facts
    (rated.folder / registry.REPORT).write_text(json.dumps(report), encoding="utf-8")
    return registry.Rated(rated.folder)


def state(rated: registry.Rated, **rules: object) -> registry.Rated:
    scale = {**rated.scale, "rules": {**rated.scale["rules"], **rules}}
    (rated.folder / registry.SCALE).write_text(yaml.safe_dump(scale), encoding="utf-8")
    return registry.Rated(rated.folder)


def test_what_is_written_of_engines_is_proved_and_up_to_date(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert registry.main([]) == 0, capsys.readouterr().err


def test_every_engine_of_this_repository_is_rated() -> None:
    engines = {
        package.name
        for package in release.read_packages(ROOT).values()
        if "evalution.engines" in package.project.get("entry-points", {})
    }
    rated = {rated.folder.name for rated in registry.find_folders(ROOT)}
    assert engines - {"evalution-runner"} <= rated  # Replicas only wraps another engine


@pytest.mark.parametrize("rated", registry.find_folders(ROOT), ids=lambda rated: rated.folder.name)
def test_report_is_as_the_kit_writes_it(rated: registry.Rated) -> None:
    if rated.report is None:
        assert registry.rate(rated) is None
        return
    written = (rated.folder / registry.REPORT).read_text("utf-8")
    assert written == format_report(rated.report) + "\n"
    assert len(rated.report["engines"]) == 1, "the others would be rated by nothing"


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ({"is_built": False}, "conforms"),
        ({"chosen": ["discovery"]}, "whole"),
        ({"requirements": {}}, "runtime"),
        ({"compared_with": None}, "compared"),
        ({"tolerance": 1.0}, "precise"),
    ],
)
def test_rule_that_the_report_does_not_prove_is_named(
    rated: registry.Rated, facts: dict[str, object], rule: str
) -> None:
    assert not list(registry.find_problems(rated))
    problems = list(registry.find_problems(change_report(rated, **facts)))
    assert any(line.startswith(f"{rule} is 'done', and has to be 'todo'") for line in problems)


def test_report_on_another_engine_or_of_a_day_to_come_rates_nothing(rated: registry.Rated) -> None:
    change_report(rated, engine="Reference", distribution="evalution-reference")
    file = rated.folder / registry.REPORT
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "date": "9999-05-01"}))
    assert list(registry.find_problems(rated)) == [
        "conformance.json is of 9999-05-01, which is in the future; make it again",
        "conformance.json is about the engine Reference, not CTranslate2; put a report on "
        "CTranslate2 there",
        "conformance.json is about the distribution evalution-reference, not "
        "evalution-ctranslate2; put a report on evalution-ctranslate2 there",
    ]


def test_rule_that_is_done_may_not_be_called_open(rated: registry.Rated) -> None:
    (problem,) = registry.find_problems(state(rated, compared="todo"))
    assert problem.startswith("compared is 'todo', and has to be 'done' or exempt: answers were")


def test_exemption_needs_a_reason(rated: registry.Rated) -> None:
    (problem,) = registry.find_problems(state(rated, accelerator={"exempt": ""}))
    assert problem.startswith("accelerator is {'exempt': ''}, and has to be 'todo' or exempt")


def test_engine_without_a_report_says_why(rated: registry.Rated) -> None:
    (rated.folder / registry.SCALE).write_text(
        yaml.safe_dump({**rated.scale, "unrated": "it was run on a fake alone"}), encoding="utf-8"
    )
    both = registry.Rated(rated.folder)
    assert list(registry.find_problems(both)) == [
        "either there is a conformance.json, or `unrated` says why there is none"
    ]
    (rated.folder / registry.REPORT).unlink()
    alone = registry.Rated(rated.folder)
    assert not any("unrated" in line for line in registry.find_problems(alone))
    (row,) = list(registry.make_rows([registry.describe(alone)]))[2:]
    assert "no report: it was run on a fake alone" in row
    (rated.folder / registry.SCALE).write_text(yaml.safe_dump(rated.scale), encoding="utf-8")
    assert any("unrated" in line for line in registry.find_problems(registry.Rated(rated.folder)))


def test_row_leaves_out_what_a_server_does_not_say(rated: registry.Rated) -> None:
    entry = registry.describe(change_report(rated, dtype=None, execution={}))
    (row,) = list(registry.make_rows([entry]))[2:]
    assert "| ctranslate2 4.8.5, on its server |" in row


def test_rating_ends_before_the_first_open_rule(rated: registry.Rated) -> None:
    assert registry.rate(state(rated, accelerator="todo")) == "gold"
    assert registry.rate(state(rated, compared="todo")) == "bronze"
    assert registry.rate(state(rated, conforms="todo")) is None


def test_badge_turns_red_when_the_report_expires(rated: registry.Rated) -> None:
    entry = registry.describe(rated)
    expires = date.fromisoformat(entry["report"]["expires"])
    assert registry.RED not in registry.write_badge(entry, expires)
    late = registry.write_badge(entry, expires + (expires - date.fromisoformat("2026-01-01")))
    assert registry.RED in late
    assert f"until {expires}" in late
    assert registry.RED in registry.write_badge({**entry, "report": None}, expires)
