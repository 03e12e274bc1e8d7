"""Runs tasks of lm-eval into a folder and kills itself after so many answers; 0: never.

python killed_lm_eval_run.py <run folder> <folder of tasks> <answers>
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import evalution
from evalution_lm_eval import LmEval
from evalution_reference import Reference
from evalution_reference.session import ReferenceSession

TASKS = ("tiny_choices", "tiny_sums")


def main(folder: str, tasks: str, answers: str) -> None:
    left = int(answers)
    generate = ReferenceSession.generate_continuous

    def watched(self: Any, requests: Any, *, batch_size: int | None = None) -> Iterator[Any]:
        nonlocal left
        for pair in generate(self, requests, batch_size=batch_size):
            yield pair
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    ReferenceSession.generate_continuous = watched  # pyright: ignore[reportAttributeAccessIssue]
    evalution.run(
        engine=Reference(dtype="float64", batch_size=1),
        model="builtin:tiny",
        tests=[LmEval(tasks=TASKS, include_path=tasks, include_defaults=False)],
        output=folder,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
