"""MATH-500: five hundred competition problems with worked solutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from evalution.rows.local import Row
from evalution.scoring.filters import Filter
from evalution.scoring.mathematics import (
    FinalAnswerMatch,
    LatexMatch,
    MathVerify,
    find_boxed,
    normalize_final_answer,
)
from evalution.scoring.text_metrics import TextMetric
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.generation_suite import GenerationSuite, Stop
from evalution.suites.prompted_suite import FixedShotsOption, NumFewshot

_PATH = "HuggingFaceH4/MATH-500"
_CLOSING = "\nFinal Answer: The final answer is ${}$. I hope it is correct."
_SOLVED = [
    (
        r"Find the domain of the expression  $\frac{\sqrt{x-2}}{\sqrt{5-x}}$.",
        r"The expressions inside each square root must be non-negative. Therefore, $x-2 \ge 0$, so "
        r"$x\ge2$, and $5 - x \ge 0$, so $x \le 5$. Also, the denominator cannot be equal to zero, "
        r"so $5-x>0$, which gives $x<5$. Therefore, the domain of the expression is "
        r"$\boxed{[2,5)}$.",
    ),
    (
        r"If $\det \mathbf{A} = 2$ and $\det \mathbf{B} = 12,$ then find "
        r"$\det (\mathbf{A} \mathbf{B}).$",
        r"We have that $\det (\mathbf{A} \mathbf{B}) = (\det \mathbf{A})(\det \mathbf{B}) = "
        r"(2)(12) = \boxed{24}.$",
    ),
    (
        "Terrell usually lifts two 20-pound weights 12 times. If he uses two 15-pound weights "
        "instead, how many times must Terrell lift them in order to lift the same total weight?",
        r"If Terrell lifts two 20-pound weights 12 times, he lifts a total of $2\cdot 12\cdot20=480"
        r"$ pounds of weight.  If he lifts two 15-pound weights instead for $n$ times, he will lift"
        r" a total of $2\cdot15\cdot n=30n$ pounds of weight.  Equating this to 480 pounds, we can "
        "solve for $n$:\n"
        r"\begin{align*}"
        "\n"
        r"30n&=480\\"
        "\n"
        r"\Rightarrow\qquad n&=480/30=\boxed{16}"
        "\n"
        r"\end{align*}",
    ),
    (
        "If the system of equations\n\n\\begin{align*}\n6x-4y&=a,\\\\\n6y-9x &=b.\n\\end{align*}has"
        " a solution $(x, y)$ where $x$ and $y$ are both nonzero,\nfind $\\frac{a}{b},$ assuming "
        "$b$ is nonzero.",
        "If we multiply the first equation by $-\\frac{3}{2}$, we obtain\n\n"
        "$$6y-9x=-\\frac{3}{2}a.$$Since we also know that $6y-9x=b$, we have\n\n"
        "$$-\\frac{3}{2}a=b\\Rightarrow\\frac{a}{b}=\\boxed{-\\frac{2}{3}}.$$",
    ),
]
"""Problems of MATH's training set with solutions: the prompt of Minerva's appendix D.2."""


@dataclass(kw_only=True)
class HendrycksMath500(DatasetRows, GenerationSuite):
    """500 competition problems of MATH (Hendrycks et al. 2021; Lightman et al. 2023).

    The answer, or what stands between its first and last dollar sign, is compared with the
    solution's boxed result by its spelling alone.
    """

    task = "hendrycks_math500"
    dataset = Dataset(_PATH, "test", "default", rows=500)
    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {}
    text_metrics: ClassVar[Sequence[TextMetric]] = (LatexMatch(),)

    stop: Stop = ("Problem:",)

    def question_text(self, row: Row) -> str:
        return f"Problem: {row.text('problem')}\nAnswer:"

    def answer_text(self, row: Row) -> str:
        return find_boxed(row.text("solution"))


@dataclass(kw_only=True)
class MinervaMath500(HendrycksMath500):
    """500 competition problems of MATH, after the four solved ones of Minerva (Lewkowycz 2022).

    `exact_match` takes the result behind "Final Answer: The final answer is" and compares it by
    sympy; `math_verify` takes it from anywhere in the answer, by math-verify (extra math).
    """

    task = "minerva_math500"
    dataset = Dataset(
        _PATH,
        "test",
        "default",
        fewshot_rows=[{"problem": problem, "solution": solution} for problem, solution in _SOLVED],
        rows=500,
    )
    text_metrics = (FinalAnswerMatch(), MathVerify())

    num_fewshot: NumFewshot = 4
    fixed_shots: FixedShotsOption = True

    def question_text(self, row: Row) -> str:
        return f"Problem:\n{row.text('problem')}\n\nSolution:"

    def answer_text(self, row: Row) -> str:
        return normalize_final_answer(find_boxed(row.text("solution")))

    def solved_text(self, row: Row) -> str:
        solution = row.text("solution")
        return solution + _CLOSING.format(find_boxed(solution))

    def expected_text(self, row: Row) -> str:
        return row.text("solution")
