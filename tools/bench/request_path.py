"""Count the modules and functions of ours that one more row enters, from its YAML to its result.

A spec of 4 and one of 24 rows run on `Reference` in this process, with a profiler hook on every
thread; what the longer run enters more often is on the row's way. `tools/check.py house` runs it.
Options: `--list` prints the modules and functions, `--most N` fails where there are more modules.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import yaml

from evalution.cli import main as command_line

FEW, MANY = 4, 24
SUITES: dict[str, dict[str, Any]] = {
    "multiple choice": {"type": "multiple_choice", "choices": "choices", "target": "right"},
    "generation": {"type": "generation", "target": "answer", "max_new_tokens": 4},
}
Key = tuple[str, str]


class Counts:
    """Calls by module and function, of our own packages, on every thread that starts meanwhile."""

    def __init__(self) -> None:
        self.calls: Counter[Key] = Counter()
        self.threads: set[int] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("evalution"):
            self.calls[module, frame.f_code.co_qualname] += 1
            self.threads.add(threading.get_ident())

    def __enter__(self) -> Counts:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def count_calls(folder: Path, suite: dict[str, Any], rows: int) -> Counts:
    """Run a spec of so many rows through the command line and return the calls it made."""
    data = folder / f"rows-{rows}.jsonl"
    records = [
        {
            "question": f"What is {row} plus {row + 1}?",
            "answer": str(2 * row + 1),
            "choices": [str(row + choice) for choice in range(4)],
            "right": row % 4,
        }
        for row in range(rows)
    ]
    data.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    prompt = "Question: {question}\nAnswer:"
    spec = {
        "engine": {"type": "Reference"},
        "model": {"path": "builtin:tiny"},
        "tests": [{**suite, "data": str(data), "prompt": prompt}],
    }
    file = folder / f"spec-{rows}.yaml"
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    output = str(folder / f"run-{rows}")
    sys.argv = ["evalution", "run", str(file), "--output", output]
    printed = io.StringIO()
    with (
        redirect_stdout(printed),
        redirect_stderr(printed),
        suppress(SystemExit),
        Counts() as counts,
    ):
        command_line()
    assert (folder / f"run-{rows}" / "results.json").is_file()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the modules and functions")
    parser.add_argument("--most", type=int, metavar="N", help="fail above N modules")
    chosen = parser.parse_args()
    is_within = True
    for name, suite in SUITES.items():
        with TemporaryDirectory() as folder:
            few = count_calls(Path(folder), suite, FEW)
            many = count_calls(Path(folder), suite, MANY)
        # A wait that happens to be longer is no way of a row: each row enters its own functions.
        added = {
            key: (calls - few.calls[key]) / (MANY - FEW)
            for key, calls in many.calls.items()
            if calls - few.calls[key] >= MANY - FEW
        }
        modules = sorted({module for module, _ in added})
        is_within &= chosen.most is None or len(modules) <= chosen.most
        print(
            f"{name}: {len(modules)} modules and {len(added)} functions for one more row "
            f"({sum(added.values()):.0f} calls, {len(many.threads)} threads)"
        )
        for module in modules if chosen.list else ():
            functions = sorted(function for owner, function in added if owner == module)
            print(f"  {module}: {', '.join(functions)}")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
