"""Word problems over one-digit numbers, answered in worked steps that end in `#### n`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

NAMES = ("Tom", "Anna", "Ben", "Mia", "Sam", "Lily", "Max", "Eva", "Leo", "Nora")
THINGS = ("apples", "books", "coins", "pens", "eggs", "cups", "balls", "stones", "cards", "stamps")

_ADD = (
    "What is {a} + {b}?",
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have?",
    "{name} has {a} {things}. {other} gives {name} {b} {things}. "
    "How many {things} does {name} have now?",
    "There are {a} {things} in a box and {b} {things} in a bag. How many {things} are there?",
)
_SUBTRACT = (
    "What is {a} - {b}?",
    "{name} has {a} {things} and loses {b}. How many {things} are left?",
)
_TWO_STEPS = (
    "What is {a} + {b} + {c}?",
    "{name} has {a} {things}, gets {b} more and then {c} more. How many {things} does {name} have?",
)


@dataclass(frozen=True, slots=True)
class SumQuestion:
    """A question and its worked answer; `held_out` ones never occur in training."""

    question: str
    answer: str
    held_out: bool


def _is_held_out(question: str) -> bool:
    return hashlib.sha256(question.encode()).digest()[0] % 8 == 0


def sum_question(random: Random) -> SumQuestion:
    """One question, drawn from all templates, names, things and numbers."""
    a, b, c = (random.randrange(10) for _ in range(3))
    name, other = random.sample(NAMES, 2)
    words = {"name": name, "other": other, "things": random.choice(THINGS)}
    kind = random.choices(("add", "subtract", "two_steps"), (5, 2, 3))[0]
    if kind == "add":
        template, steps, result = random.choice(_ADD), [f"{a} + {b} = {a + b}"], a + b
    elif kind == "subtract":
        a, b = max(a, b), min(a, b)
        template, steps, result = random.choice(_SUBTRACT), [f"{a} - {b} = {a - b}"], a - b
    else:
        template, result = random.choice(_TWO_STEPS), a + b + c
        steps = [f"{a} + {b} = {a + b}", f"{a + b} + {c} = {result}"]
    question = template.format(a=a, b=b, c=c, **words)
    answer = "\n".join([*steps, f"#### {result}"])
    return SumQuestion(question, answer, _is_held_out(question))


def split_sum_question(random: Random, *, held_out: bool) -> SumQuestion:
    """One question of the wanted side of the split."""
    while True:
        drawn = sum_question(random)
        if drawn.held_out == held_out:
            return drawn
