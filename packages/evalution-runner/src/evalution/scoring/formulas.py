"""Equality of formulas by sympy and math-verify: a process that `mathematics` starts.

Own module: nothing else may import it, since the libraries take a second to load and stop
themselves by signals, which only a main thread receives.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from evalution.scoring.timed_calls import answer_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

COMPARISON_LIMIT_S = 5
"""Seconds for one comparison of two formulas, as in lm-evaluation-harness 0.4.13."""


def compare_formulas(one: str, other: str) -> bool:
    """Return whether the difference of two LaTeX formulas simplifies to zero.

    False where one can't be read, or where that takes more than `COMPARISON_LIMIT_S`.
    """
    latex, sympy = import_module("sympy.parsing.latex"), import_module("sympy")
    try:
        with _stop_after(COMPARISON_LIMIT_S):
            return bool(sympy.simplify(latex.parse_latex(one) - latex.parse_latex(other)) == 0)
    except Exception:  # noqa: BLE001 - sympy's parser raises many kinds, and a timeout is no answer
        return False


def verify_solution(solution: str, answer: str) -> bool:
    """Return whether math-verify finds the same result in both texts."""
    library = import_module("math_verify")
    return bool(library.verify(gold=library.parse(solution), target=library.parse(answer)))


FUNCTIONS: dict[str, Callable[[str, str], bool]] = {
    "compare_formulas": compare_formulas,
    "verify_solution": verify_solution,
}


def call_function(name: str, *arguments: Any) -> bool:
    """Call one of `FUNCTIONS` by its name."""
    return FUNCTIONS[name](*arguments)


@contextmanager
def _stop_after(seconds: int) -> Generator[None]:
    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    import_module("math_verify")
    import_module("sympy.parsing.latex")
    answer_calls(call_function)
