"""Print what the runner itself costs a request, with and without a run folder and its journal.

The peer is the mock session alone, given the same requests as a list. Pairs are interleaved; a cost
is the median over the pairs of what the run took longer, for one request: by the clock, and in
processor time over all threads. What a run of one row takes is left out: it is paid once.
Shapes stand in runner_cost.toml.
"""

from __future__ import annotations

import statistics
import time
import tomllib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import evalution
from evalution import Generation, MultipleChoice
from evalution.suites.suite import AnySuite
from evalution.suites.tasks.lambada import LambadaOpenAI
from evalution_core import BaseInferenceSession, Model
from evalution_core.kinds import RequestKind
from evalution_enginekit.mock import Mock


@dataclass(frozen=True)
class Took:
    wall: float
    processor: float

    def __sub__(self, other: Took) -> Took:
        return Took(self.wall - other.wall, self.processor - other.processor)


def suites(config: dict[str, Any]) -> list[AnySuite]:
    rows = [
        {
            "question": f"What is {row} plus {row % 7}?",
            "answer": str(row + row % 7),
            "choices": [str(row + choice) for choice in range(config["choices"])],
            "right": row % config["choices"],
            "text": f"Question {row}: what is {row} plus {row % 7}? It is {row + row % 7}",
        }
        for row in range(config["rows"])
    ]
    prompt = "Question: {question}\nAnswer:"
    return [
        LambadaOpenAI(data=rows, name="loglikelihood"),
        Generation(
            data=rows,
            prompt=prompt,
            target="answer",
            max_new_tokens=config["max_new_tokens"],
            name="generation",
        ),
        MultipleChoice(
            data=rows, prompt=prompt, choices="choices", target="right", name="multiple choice"
        ),
    ]


def alone(session: BaseInferenceSession, suite: AnySuite) -> Callable[[], object]:
    requests = [request for sample in suite.samples() for request in sample.requests]
    call = (
        session.generate_continuous
        if suite.request_kind is RequestKind.GENERATION
        else session.loglikelihood_continuous
    )
    return lambda: deque(call(enumerate(requests)), maxlen=0)  # pyright: ignore[reportArgumentType]


def whole(
    session: BaseInferenceSession, suite: AnySuite, folder: Path | None, limit: int | None = None
) -> Callable[[], object]:
    return lambda: evalution.run(
        session=session, tests=[suite], output=folder, fresh=True, limit=limit
    )


def took(run: Callable[[], object]) -> Took:
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return Took(time.perf_counter() - wall, time.process_time() - processor)


def costs(
    session: BaseInferenceSession, suite: AnySuite, folder: Path | None, pairs: int
) -> list[Took]:
    base, run = alone(session, suite), whole(session, suite, folder)
    start = whole(session, suite, folder, limit=1)
    took(base)
    found: list[Took] = []
    for pair in range(pairs):
        if pair % 2:
            longer = took(run) - took(start)
            found.append(longer - took(base))
        else:
            shorter = took(base)
            found.append(took(run) - took(start) - shorter)
    return found


def main() -> None:
    config = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    print(f"{'suite':<17}{'requests':>9}{'folder':>8}{'us (clock)':>12}{'us (processor)':>16}")
    worst = 0.0
    with Mock().build(Model("bench")) as session, TemporaryDirectory() as base:
        for suite in suites(config):
            count = sum(len(sample.requests) for sample in suite.samples())
            for folder in (None, Path(base) / "run"):
                found = costs(session, suite, folder, config["pairs"])
                wall, processor = (
                    1e6 * statistics.median(getattr(cost, kind) for cost in found) / count
                    for kind in ("wall", "processor")
                )
                worst = max(worst, processor)
                shown = "journal" if folder else "none"
                print(f"{suite.title:<17}{count:>9}{shown:>8}{wall:>12.1f}{processor:>16.1f}")
    print(f"the most is {worst:.1f} us a request; the bound is {config['bound_us']}")


if __name__ == "__main__":
    main()
