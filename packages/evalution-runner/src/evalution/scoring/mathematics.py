"""Judgement of worked mathematical answers in LaTeX: the result in a text, and if it is right.

The rules are those of two published evaluations, so that their scores can be compared: of MATH
(Hendrycks et al. 2021, arXiv:2103.03874), by spelling alone, and of Minerva (Lewkowycz et al. 2022,
arXiv:2206.14858, appendix D), by spelling and then by sympy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from evalution.hints import require_extra
from evalution.scoring.text_metrics import MetricStep
from evalution.scoring.timed_calls import TimedCalls
from evalution_core import ConfigurationError

FORMULA_LIMIT_S = 30.0
"""Wall seconds after which a judgement by sympy or math-verify is stopped, and the answer wrong."""


def find_boxed(solution: str) -> str:
    r"""Return the content of a solution's last `\boxed{…}`, or of `\boxed …`, which has no braces.

    Raises:
        ConfigurationError: there is none.
    """
    if r"\boxed " in solution:
        return solution.rpartition(r"\boxed ")[2].partition("$")[0]
    start = solution.rfind(r"\boxed{")
    depth = 0
    for at in range(start, len(solution)) if start >= 0 else ():
        depth += (solution[at] == "{") - (solution[at] == "}")
        if solution[at] == "}" and not depth:
            return solution[start + len(r"\boxed{") : at]
    raise ConfigurationError(r"the solution has no result in \boxed{…}")


_SPELLINGS = (
    ("\n", ""),
    (r"\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    (r"\left", ""),
    (r"\right", ""),
    (r"^{\circ}", ""),
    (r"^\circ", ""),
    (r"\$", ""),
)
_UNIT = r"\text{ "
_LONGEST_VARIABLE = 2


def normalize_latex(text: str) -> str:
    """Return a formula in one spelling: units, degrees, blanks and `x =` don't count.

    Raises:
        ValueError: the rules don't apply; the formula is then compared as it stands.
    """
    for spelling, other in _SPELLINGS:
        text = text.replace(spelling, other)
    number, *units = text.split(_UNIT)
    if len(units) > 1:
        raise ValueError("a formula has one unit at most")
    text = number.replace(r"\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = f"0{text}"
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= _LONGEST_VARIABLE:
        text = sides[1]
    if re.search(r"\\sqrt(\\sqrt|\Z)", text):
        raise ValueError("a root of nothing")
    text = re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text).replace(" ", "")
    text = _brace_fractions(text)
    return _write_fraction(r"\frac{1}{2}" if text == "0.5" else text)


def _brace_fractions(text: str) -> str:
    r"""Write `\frac12` as `\frac{1}{2}`; a fraction without a denominator leaves all as it is."""
    first, *rest = text.split(r"\frac")
    braced = [first]
    for part in rest:
        if not part:
            raise ValueError("a fraction of nothing")
        if part[0] == "{":
            braced.append(part)
        elif len(part) == 1:
            return text
        elif part[1] == "{":
            braced.append(f"{{{part[0]}}}{part[1:]}")
        else:
            braced.append(f"{{{part[0]}}}{{{part[1]}}}{part[2:]}")
    return r"\frac".join(braced)


def _write_fraction(text: str) -> str:
    above, *below = text.split("/")
    if len(below) != 1:
        return text
    numerator, denominator = int(above), int(below[0])
    if text != f"{numerator}/{denominator}":
        return text
    return rf"\frac{{{numerator}}}{{{denominator}}}"


@dataclass(frozen=True)
class LatexMatch(MetricStep):
    """The answer, or what stands between its first and last dollar sign, spells the target."""

    name: ClassVar[str] = "exact_match"

    def extract(self, answer: str) -> str:
        first, last = answer.find("$"), answer.rfind("$")
        return answer if first == last else answer[first + 1 : last]

    def grade(self, found: str, target: str) -> float:
        try:
            return float(normalize_latex(found) == normalize_latex(target))
        except (ValueError, IndexError):
            return float(found == target)


NO_ANSWER = "[invalidanswer]"
_FINAL = re.compile(r"Final Answer: The final answer is(.*?). I hope it is correct.")

_EARLY = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    (r"\$", ""),
    (r"\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (r",\text{and}", ","),
    (r"\text{and}", ","),
    (r"\text{m}", r"\text{}"),
)
_WORDS = (
    r"square ways integers dollars mph inches ft hours km units \ldots sue points feet minutes "
    "digits cents degrees cm gm pounds meters meals edges students childrentickets multiples"
)
_DROPPED = (
    *_WORDS.split(" "),
    *(r"\text{s}", r"\text{.}", "\\text{\ns}", r"\text{}^2", r"\text{}^3", "\\text{\n}"),
    *(r"\text{}", r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', r"\dots"),
)
"""Units and marks, in the order in which they are removed."""
_FRAMES = (
    (r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$"),
    (r"(\\text\{)(.*?)(\})", r"\2"),
    (r"(\\textbf\{)(.*?)(\})", r"\2"),
    (r"(\\overline\{)(.*?)(\})", r"\2"),
    (r"(\\boxed\{)(.*)(\})", r"\2"),
    (r"(frac)([^{])(.)", r"frac{\2}{\3}"),
    (r"(sqrt)(\[[^\]]*\])(\w)", r"\1\2{\3}"),
    (r"(sqrt)(?!\[)([^{])", r"sqrt{\2}"),
)


def normalize_final_answer(text: str) -> str:
    """Return a result without units, frames and blanks, and shorthand TeX written out."""
    text = text.rpartition("=")[2]
    for word in filter(str.isalpha, _DROPPED):
        text = re.sub(rf"(?<!\\)\b{word}\b", "", text)
    for spelling, other in _EARLY:
        text = text.replace(spelling, other)
    for dropped in _DROPPED:
        text = _drop_unit(text, dropped) if dropped.isalpha() else text.replace(dropped, "")
    for pattern, other in _FRAMES:
        text = re.sub(pattern, other, text)
    text = text.replace("$", "")
    return text.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+", text) else text


def _drop_unit(text: str, word: str) -> str:
    r"""Remove a word wherever it stands but in a command: `ft` is no part of `\left`."""
    return re.sub(rf"(\\[a-zA-Z]+)|{word}", lambda found: found[1] or "", text)


@dataclass(frozen=True)
class SolutionMetric(MetricStep):
    """Base of metrics whose target is a worked solution, with its result in a box."""

    name: ClassVar[str]

    def check_target(self, target: str) -> None:
        find_boxed(target)
        for module, package in (
            ("math_verify", "math-verify"),
            ("antlr4", "antlr4-python3-runtime"),
        ):
            require_extra(module, "math", f"metric {self.name}", package)


@dataclass(frozen=True)
class FinalAnswerMatch(SolutionMetric):
    """The result behind "Final Answer: The final answer is" equals the solution's, by sympy."""

    name: ClassVar[str] = "exact_match"

    def extract(self, answer: str) -> str:
        found = _FINAL.search(f"{answer}I hope it is correct.")
        return normalize_final_answer(found[1].strip() if found else NO_ANSWER)

    def grade(self, found: str, target: str) -> float:
        right = normalize_final_answer(find_boxed(target))
        if found and found == right:
            return 1.0
        return float(bool(_formulas().call("compare_formulas", found, right)))


@dataclass(frozen=True)
class MathVerify(SolutionMetric):
    """The answer's result equals the solution's, as math-verify reads and compares both."""

    name: ClassVar[str] = "math_verify"

    def grade(self, found: str, target: str) -> float:
        return float(bool(_formulas().call("verify_solution", target, found)))


@cache
def _formulas() -> TimedCalls:
    return TimedCalls("evalution.scoring.formulas", FORMULA_LIMIT_S)
