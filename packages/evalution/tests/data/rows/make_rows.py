"""Writes the rows beside it: for each task a folder with a file for each split of its dataset.

Columns, their order and their types are the dataset's; texts are put together here from a seed, and
the first rows of each task hold what breaks prompts: blanks at the ends, brackets, other scripts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

Row = dict[str, Any]
Maker = Callable[[Random, int], Row]

NAMES = ["Mira", "Tomás", "Aigerim", "Jonas", "Wei", "Odile", "Ngozi", "Søren"]
THINGS = ["apples", "stamps", "candles", "marbles", "tickets", "bricks", "postcards", "buttons"]
PLACES = ["the harbour", "a small kitchen", "the old mill", "Žilina", "the library", "北京"]
VERBS = ["carried", "counted", "painted", "sold", "hid", "weighed", "mended"]
ENDS = [".", ".", ".", "!", "?", "", " .", "…"]
ODD = [
    "It ends with a blank ",
    "  It begins with two blanks",
    "A [bracket] and a {brace} stand here",
    "Да, всё ясно: 日本語 と emoji \U0001f600",
    "He said \"no\", then 'yes'; 50% & <more>",
    "Two\nlines",
    "A tab\tand a no-break\u00a0space",
    "{{question}} is no template here",
]


def sentence(chance: Random, index: int | None = None) -> str:
    if index is not None and index < len(ODD):
        return ODD[index]
    parts = [chance.choice(group) for group in (NAMES, VERBS, THINGS, PLACES)]
    return "{} {} some {} near {}".format(*parts) + chance.choice(ENDS)


def pair(first: str, second: str, labels: int) -> Maker:
    def make(chance: Random, index: int) -> Row:
        other = sentence(chance, (index + 3) % 12)
        label = chance.randrange(labels)
        return {first: sentence(chance, index), second: other, "label": label, "idx": index}

    return make


def single(chance: Random, index: int) -> Row:
    return {"sentence": sentence(chance, index), "label": chance.randrange(2), "idx": index}


def hellaswag(chance: Random, index: int) -> Row:
    titles = ["[header] How to sort {} [title] Begin early. [step] ", "", "", "a [substeps] b "]
    ctx_a = titles[index % 4].format(chance.choice(THINGS)) + sentence(chance, index)
    ctx_b = ["", "then the man", "Élan of a dancer", "she  holds two  things"][index % 4]
    endings = [
        sentence(chance) + [" [title] And on.", "", " [substeps] ", "  twice"][(index + i) % 4]
        for i in range(4)
    ]
    return {
        "ind": 10 * index,
        "activity_label": chance.choice(["Sorting", "Sailing a boat", " Family Life "]),
        "ctx_a": ctx_a,
        "ctx_b": ctx_b,
        "ctx": f"{ctx_a} {ctx_b}",
        "endings": endings,
        "source_id": f"made~{index}",
        "split": "val",
        "split_type": ["indomain", "zeroshot"][index % 2],
        "label": str(chance.randrange(4)),
    }


def piqa(chance: Random, index: int) -> Row:
    return {
        "goal": sentence(chance, index),
        "sol1": sentence(chance, (index + 5) % 12),
        "sol2": sentence(chance) + " Then wait.",
        "label": chance.randrange(2),
    }


def arc(chance: Random, index: int) -> Row:
    count = {0: 3, 1: 5}.get(index % 5, 4)
    labels = list("1234") if index % 5 == 2 else list("ABCDE")[:count]
    texts = [f"{thing}{' ' * (i == 1)}" for i, thing in enumerate(chance.sample(THINGS, count))]
    return {
        "id": f"Made_{index}",
        "question": sentence(chance, index),
        "choices": {"text": texts, "label": labels},
        "answerKey": chance.choice(labels),
    }


def winogrande(chance: Random, index: int) -> Row:
    one, two = chance.sample(NAMES, 2)
    texts = [
        f"{one} lent {two} a lamp because _ had no light.",
        f"_ thanked {two}, and {one} smiled _ back.",
        f"The lamp stood near {one} and not {two}, so the moth flew to _.",
        f"  {one} waved; the postman saw _ , not {two} .  ",
    ]
    answer = chance.choice("12")
    return {"sentence": texts[index % 4], "option1": one, "option2": two, "answer": answer}


def boolq(chance: Random, index: int) -> Row:
    question = f"is there a {chance.choice(THINGS)[:-1]} in {chance.choice(PLACES)}"
    passage = f"{sentence(chance, index)} {sentence(chance)}"
    label = chance.randrange(2)
    return {"question": question, "passage": passage, "idx": index, "label": label}


def mmlu(subject: str) -> Maker:
    def make(chance: Random, index: int) -> Row:
        choices = [str(n) for n in chance.sample(range(100), 4)]
        choices[index % 4] = ["I only", " both ", "−1/2", "x² + 1"][index % 4]
        answer = chance.randrange(4)
        row = {"question": sentence(chance, index), "subject": subject}
        return {**row, "choices": choices, "answer": answer}

    return make


def lambada(chance: Random, index: int) -> Row:
    endings = ["lamp", "naïve", "Ngozi's", "don’t", "“quoted", "100", "end.", "well-known", ""]
    words = [sentence(chance, index), sentence(chance), "and nobody saw the"]
    return {"text": " ".join([*words, endings[index % len(endings)]])}


def wikitext(chance: Random, index: int) -> Row:
    artefacts = [
        ' \n = Title {} = \n \n It weighed 1 @,@ 240 t ( 1 @.@ 2 kt ) ; " X " , 1912 @-@ 14 . \n',
        " \n = = Section = = \n It 's the crew 's [ sic ] log : N days at 20 ° C /' 5/ ? Yes ! \n ",
        " \n = = = Part = = = \n ' one ' { two } ( three ) ' 4 ' and s ' end . \n \n",
        " = = = = Deep = = = = \n über 日本 @-@ go , 3 @.@ 5 % ( a ( b ) c ) \n",
    ]
    page = artefacts[index % 4].replace("{}", str(index)) + " " + sentence(chance, index)
    return {"page": f"{page} \n {sentence(chance)} \n"}


def gsm8k(chance: Random, index: int) -> Row:
    name, thing = chance.choice(NAMES), chance.choice(THINGS)
    have, more = chance.randrange(2, 9000), chance.randrange(2, 90)
    total = have + more
    finals = [f"{total}", f"{total:,}", f"${total}", f"-{more}", f"{total}.50", f" {total} ", "0.5"]
    question = f"{name} has {have} {thing} and gets {more} more. How many {thing} are there?"
    answer = (
        f"{name} has {have}+{more}=<<{have}+{more}={total}>>{total} {thing}.\n"
        f"So there are {total:,}.\n#### {finals[index % len(finals)]}"
    )
    return {"question": sentence(chance, index) + " " + question, "answer": answer}


def platinum(chance: Random, index: int) -> Row:
    status = ["consensus", "verified", "revised"][index % 3]
    return {**gsm8k(chance, index), "cleaning_status": status}


def standard_lambada(chance: Random, index: int) -> Row:
    return {**lambada(chance, index), "domain": "News"}


RESULTS = [
    (r"\frac{3}{4}", "3/4"),
    (r"\dfrac{1}{2}", "0.5"),
    (r"12\sqrt{3}", r"12\sqrt3"),
    ("[2,5)", "[2, 5)"),
    ("(1,-2)", "(1, -2)"),
    ("x=5", "5"),
    (r"45^\circ", "45"),
    ("1,000", "1000"),
    (r"\$32.50", "32.50"),
    (r"\frac{x+1}{2}", r"\frac{1+x}{2}"),
    (r"2\pi \text{ cm}", r"2\pi"),
    (r"30\%", "30"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"-\frac{2}{3}", "-2/3"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("x^2-4", "(x-2)(x+2)"),
    (r"\sqrt[3]{9}", "9^{1/3}"),
    ("6", "six"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("p - q", "-q+p"),
    (".25", r"\frac14"),
    (r"\frac35", r"\frac{3}{5} \text{ m} \text{ or so}"),
]
"""Results of problems, each with a spelling that may or may not be taken for the same."""


def math500(chance: Random, index: int) -> Row:
    result, _ = RESULTS[index % len(RESULTS)]
    box = f"\\boxed {result}$" if index == 17 else f"\\boxed{{{result}}}$"
    return {
        "problem": f"Problem number {index}: {sentence(chance, index)} Find $x$.",
        "solution": f"We add $\\frac{{1}}{{{index + 2}}}$ to \\fbox{{all}} and get ${box}.",
        "answer": result,
        "subject": "Algebra",
        "level": 1 + index % 5,
        "unique_id": f"test/algebra/{index}.json",
    }


GLUE: dict[str, tuple[Maker, str]] = {
    "sst2": (single, "validation"),
    "cola": (single, "validation"),
    "mrpc": (pair("sentence1", "sentence2", 2), "validation"),
    "qqp": (pair("question1", "question2", 2), "validation"),
    "qnli": (pair("question", "sentence", 2), "validation"),
    "rte": (pair("sentence1", "sentence2", 2), "validation"),
    "wnli": (pair("sentence1", "sentence2", 2), "validation"),
    "mnli": (pair("premise", "hypothesis", 3), "validation_matched"),
}
TASKS: dict[str, tuple[Maker, dict[str, int]]] = {
    **{task: (maker, {"train": 8, split: 22}) for task, (maker, split) in GLUE.items()},
    "hellaswag": (hellaswag, {"train": 6, "validation": 20}),
    "piqa": (piqa, {"train": 6, "validation": 20}),
    "arc_easy": (arc, {"train": 6, "validation": 2, "test": 20}),
    "arc_challenge": (arc, {"train": 6, "validation": 2, "test": 20}),
    "winogrande": (winogrande, {"train": 6, "validation": 20}),
    "boolq": (boolq, {"train": 6, "validation": 20}),
    **{
        f"mmlu/{subject}": (mmlu(subject), {"dev": 5, "validation": 2, "test": 20})
        for subject in ("abstract_algebra", "high_school_european_history", "virology")
    },
    "lambada_openai": (lambada, {"test": 24}),
    "lambada_standard": (standard_lambada, {"validation": 6, "test": 20}),
    "wikitext": (wikitext, {"train": 2, "validation": 2, "test": 20}),
    "gsm8k": (gsm8k, {"train": 12, "test": 21}),
    "gsm8k_platinum": (platinum, {"test": 21}),
    "math500": (math500, {"test": 23}),
}


def files() -> Iterator[tuple[str, str]]:
    """Each file's path, relative to this folder, and what stands in it."""
    for task, (maker, splits) in TASKS.items():
        chance = Random(task)
        first: list[Row] = []
        for number, (split, count) in enumerate(splits.items()):
            rows = [maker(chance, index + number) for index in range(count)]
            # A row stands twice in the first split and once in each other: it may come up as its
            # own example.
            first = first or rows
            rows[-1] = first[-2]
            yield f"{task}/{split}.jsonl", lines(rows)


def lines(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


if __name__ == "__main__":
    for path, text in files():
        target = Path(__file__).parent / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")
