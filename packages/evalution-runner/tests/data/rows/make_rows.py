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


def gpqa(chance: Random, index: int) -> Row:
    things = [f"{thing} {chance.randrange(9)}" for thing in chance.sample(THINGS, 4)]
    things[index % 4] = ["  two  blanks ", "a [title] b", "(B) or −1/2", "x² + 1."][index % 4]
    wrong = {f"Incorrect Answer {place}": things[place] for place in (1, 2, 3)}
    if index == 5:
        wrong["Incorrect Answer 3"] = None
    return {"Question": sentence(chance, index), "Correct Answer": things[0], **wrong}


def truthfulqa(chance: Random, index: int) -> Row:
    texts = [
        f"{name} {verb} it" for name, verb in zip(chance.sample(NAMES, 6), VERBS, strict=False)
    ]
    single = {"choices": texts[: 2 + index % 4], "labels": [1, 0, 0, 0, 0][: 2 + index % 4]}
    several = {"choices": texts, "labels": [1] * (1 + index % 5) + [0] * (5 - index % 5)}
    return {"question": sentence(chance, index), "mc1_targets": single, "mc2_targets": several}


def mmlu_pro(chance: Random, index: int) -> Row:
    options = [f"{thing} " for thing in chance.sample(THINGS, 3 + index % 5)]
    letter = chance.choice("ABCDEFGHIJ"[: len(options)])
    return {
        "question_id": index,
        "question": sentence(chance, index // 2),
        "options": options + ["naught", "all", "both", "none"][: index % 3],
        "answer": letter,
        "answer_index": "ABCDEFGHIJ".index(letter),
        "cot_content": f"A: Let's think step by step. It is so. The answer is ({letter}).",
        "category": ["law", "computer science"][index % 2],
        "src": "made",
    }


def drop(chance: Random, index: int) -> Row:
    name, place, year = chance.choice(NAMES), chance.choice(PLACES), chance.randrange(1900, 2000)
    one, other = chance.randrange(2, 30), chance.randrange(2, 4000)
    passage = f"{name} had {one} points, and {other:,} points near {place} on 3 May {year}."
    empty = {"number": "", "date": {"day": "", "month": "", "year": ""}, "spans": []}
    answers: list[dict[str, Any]] = [
        {**empty, "number": str(one)},
        {**empty, "date": {"day": "3", "month": "May", "year": str(year)}},
        {**empty, "spans": [name]},
        {**empty, "spans": [f"the {one} points", place]},
        {**empty, "number": f"{other:,}.0"},
        {**empty, "spans": [f" a well-known {name}, "]},
    ]
    checked = [answers[(index + shift) % 6] for shift in range(index % 3)] + [empty] * (index % 2)
    columns = {key: [answer[key] for answer in checked] for key in empty}
    return {
        "section_id": f"made_{index}",
        "query_id": f"made-{index}",
        "passage": f"{sentence(chance, index)} {passage}",
        "question": ["How many points?", "Who, and near which place?"][index % 2],
        "answer": {**answers[index % 6], "hit_id": "", "worker_id": ""},
        "validated_answers": {**columns, "hit_id": [], "worker_id": []},
    }


def bbh(task: str) -> Maker:
    def make(chance: Random, index: int) -> Row:
        things = chance.sample(THINGS, 4)
        listed = "\n".join(f"({name}) {thing}" for name, thing in zip("ABCD", things, strict=True))
        number = chance.randrange(2, 30)
        asked: dict[str, tuple[str, str]] = {
            "boolean_expressions": (f"{number} > 9 and not ( False ) is", str(number > 9)),
            "date_understanding": (f"Which?\nOptions:\n{listed}", f"({'ABCD'[number % 4]})"),
            "dyck_languages": ("Complete the rest. Input: [ { < ( )", "> } ]"),
            "object_counting": (f"I have {number} {things[0]}. How many?", str(number)),
            "sports_understanding": (f"Is it plausible? {things[0]}", ["no", "yes"][number % 2]),
            "web_of_lies": (f"Does {NAMES[number % 8]} tell the truth?", ["No", "Yes"][number % 2]),
            "word_sorting": (f"Sort. List: {' '.join(things)}", " ".join(sorted(things))),
        }
        question, target = asked[task]
        return {"input": f"{sentence(chance, index)} {question}", "target": target}

    return make


BBH = (
    "boolean_expressions",
    "date_understanding",
    "dyck_languages",
    "object_counting",
    "sports_understanding",
    "web_of_lies",
    "word_sorting",
)

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


PROGRAMS = [
    ("add", "a + b", "a - b"),
    ("largest", "max(a, b)", "min(a, b)"),
    ("distance", "abs(a - b)", "a - b"),
    ("repeat", "[a] * b", "[b] * a"),
    ("rest", "a % b", "a / b"),
]
"""Name, right expression of a and b, and a wrong one."""


def call_program(index: int, chance: Random) -> tuple[str, str, int, int, Any]:
    name, right, _ = PROGRAMS[index % len(PROGRAMS)]
    one, other = chance.randrange(4, 9), chance.randrange(1, 4)
    found = eval(right, {"a": one, "b": other})
    return f"{name}_{index}", right, one, other, found


def humaneval(chance: Random, index: int) -> Row:
    name, right, one, other, found = call_program(index, chance)
    return {
        "task_id": f"HumanEval/{index}",
        "prompt": f'\n\ndef {name}(a, b):\n    """ {sentence(chance, index)!r}\n    """\n',
        "canonical_solution": f"    return {right}\n",
        "test": f"\n\ndef check(candidate):\n    assert candidate({one}, {other}) == {found}\n\n",
        "entry_point": name,
    }


def mbpp(chance: Random, index: int) -> Row:
    calls = [call_program(index, chance) for _ in range(3)]
    return {
        "task_id": 11 + index,
        "text": f"Write a python function {calls[0][0]}. {sentence(chance, index)}",
        "code": f"def {calls[0][0]}(a, b):\r\n  return {calls[0][1]} ",
        "test_list": [f"assert {name}({a},{b}) == {found}" for name, _, a, b, found in calls],
        "test_setup_code": "",
        "challenge_test_list": [],
    }


INSTRUCTIONS: list[tuple[str, Row]] = [
    ("keywords:existence", {"keywords": ["harbour", "boat"]}),
    ("keywords:frequency", {"keyword": " boat ", "frequency": 2, "relation": "at least"}),
    ("keywords:forbidden_words", {"forbidden_words": ["rain", "storm"]}),
    ("keywords:letter_frequency", {"letter": "o", "let_frequency": 4, "let_relation": "less than"}),
    ("language:response_language", {"language": "de"}),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"}),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}),
    ("length_constraints:number_words", {"num_words": 8, "relation": "less than"}),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}),
    ("detectable_format:constrained_response", {}),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2}),
    ("detectable_format:json_format", {}),
    ("detectable_format:title", {}),
    ("combination:two_responses", {}),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Where is the boat?"}),
    ("startend:end_checker", {"end_phrase": "That is all."}),
    ("startend:quotation", {}),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
    ),
    ("change_case:english_capital", {}),
    ("change_case:english_lowercase", {}),
    ("punctuation:no_comma", {}),
]
"""Instructions of IFEval with their arguments: every kind there is."""


def ifeval(chance: Random, index: int) -> Row:
    # The last rows have two instructions, one of which the first rows have alone.
    chosen = [INSTRUCTIONS[index % len(INSTRUCTIONS)]]
    if index >= len(INSTRUCTIONS):
        chosen.append(INSTRUCTIONS[-index % len(INSTRUCTIONS)])
    return {
        "key": 1000 + index,
        "prompt": f"Task {index}: {sentence(chance, index)}",
        "instruction_id_list": [name for name, _ in chosen],
        "kwargs": [arguments for _, arguments in chosen],
    }


def wmt(first: str, second: str) -> Maker:
    def make(chance: Random, index: int) -> Row:
        texts = [f"{index}: {sentence(chance, index).replace(chr(10), ' ')}", sentence(chance)]
        return {"translation": dict(zip((first, second), texts, strict=True))}

    return make


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
    "gpqa": (gpqa, {"train": 21}),
    "truthfulqa": (truthfulqa, {"validation": 21}),
    "mmlu_pro": (mmlu_pro, {"validation": 14, "test": 44}),
    "drop": (drop, {"train": 6, "validation": 24}),
    **{f"bbh/{task}": (bbh(task), {"test": 20}) for task in BBH},
    "math500": (math500, {"test": 23}),
    "humaneval": (humaneval, {"test": 21}),
    "mbpp": (mbpp, {"test": 21}),
    "ifeval": (ifeval, {"train": 30}),
    **{
        f"wmt/{first}-{second}": (wmt(first, second), {"validation": 4, "test": 20})
        for first, second in (("fr", "en"), ("de", "en"), ("ro", "en"))
    },
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
