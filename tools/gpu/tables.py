"""The table of docs/gpu.md and the line of README, from the records of a run on a card.

    python -m tools.gpu.tables [FOLDER]    write both; FOLDER: records to keep from now on

Kept records are in tools/gpu/records. Without any, every row says "not run".
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tools.gpu.goals import GOALS, list_rooflines, read_card
from tools.gpu.stages import STAGES
from tools.gpu.steps import ROOT, Attempts, Record, merge_attempts

KEPT = Path(__file__).with_name("records")
BEGIN, END = "<!-- begin: tools/gpu/tables.py -->", "<!-- end: tools/gpu/tables.py -->"
PAGE, README = ROOT / "docs" / "gpu.md", ROOT / "README.md"


def describe_run(attempts: Attempts) -> str:
    """Return the card, the day and the versions in a line."""
    card = read_card(attempts)
    if card is None:
        return "Nothing has been run on a GPU yet."
    versions = ", ".join(f"{name} {version}" for name, version in sorted(card["versions"].items()))
    return f"Run on one {card['card']} on {card['at']}, Python {card['python']}, {versions}."


def count_outcomes(attempts: Attempts, stage: str) -> str:
    found = [one["outcome"] for (name, _), one in attempts.items() if name == stage]
    kinds = ("passed", "failed", "timed out", "unavailable")
    counts = [f"{found.count(kind)} {kind}" for kind in kinds if kind in found]
    return ", ".join(counts) or "not run"


def make_page_tables(attempts: Attempts) -> str:
    """Return what ran, and each goal beside its figure, as Markdown."""
    lines = [describe_run(attempts), "", "| stage | steps |", "|---|---|"]
    lines += [f"| `{stage}` | {count_outcomes(attempts, stage)} |" for stage in STAGES]
    lines += ["", "| figure | goal | measured | verdict |", "|---|---|---|---|"]
    for goal in GOALS:
        lines.append(
            " ".join(["|", " | ".join([goal.name, goal.bound, *goal.judge(attempts)]), "|"])
        )
    lines += [f"\n{line}." for line in list_rooflines(attempts)]
    return "\n".join(lines)


def make_readme_table(attempts: Attempts) -> str:
    """Return the short table: the stages and what came of them."""
    rows = [f"| `{stage}` | {count_outcomes(attempts, stage)} |" for stage in STAGES]
    run = describe_run(attempts)
    return "\n".join([run, "", "| [stage](docs/gpu.md) | steps |", "|---|---|", *rows])


def replace_between(text: str, content: str) -> str:
    """Return the text with new content between its two markers."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{content}\n\n{END}{tail}"


def render() -> dict[Path, str]:
    """Return both files as they should be."""
    attempts = merge_attempts(Record(KEPT).read()) if KEPT.is_dir() else {}
    return {
        file: replace_between(file.read_text("utf-8"), make(attempts))
        for file, make in ((PAGE, make_page_tables), (README, make_readme_table))
    }


def keep_records(folder: Path) -> None:
    """Copy the last attempt at each step into the repository, without what no table reads."""
    attempts = merge_attempts(Record(folder).read())
    lines = [
        json.dumps({**one, "result": shorten(one["result"])}) + "\n" for one in attempts.values()
    ]
    Record(KEPT).file.write_text("".join(lines), "utf-8")


def shorten(result: Any) -> Any:
    """Return a report of conformance as its numbers of outcomes, one of parity as its verdict."""
    if isinstance(result, dict) and "engines" in result:
        checks = [check for engine in result["engines"] for check in engine["checks"]]
        return dict(Counter(check["outcome"] for check in checks))
    if isinstance(result, dict) and "is_within" in result:
        return {name: result[name] for name in ("is_within", "complaints", "tolerance", "notes")}
    return result


def main() -> None:
    if sys.argv[1:]:
        keep_records(Path(sys.argv[1]))
    for file, text in render().items():
        file.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
