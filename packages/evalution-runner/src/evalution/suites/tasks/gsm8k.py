"""The eight worked sums that chain-of-thought prompts begin with (Wei et al. 2022, table 20)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from evalution.rows.local import Row
from evalution.scoring.filters import Filter, Lower, Regex, Replace
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.generation_suite import GenerationSuite, Stop
from evalution.suites.prompted_suite import FixedShotsOption, NumFewshot, TargetDelimiter

EXAMPLES: list[tuple[str, str, int]] = [
    (
        "There are 15 trees in the grove. Grove workers will plant trees in the grove today. After "
        "they are done, there will be 21 trees. How many trees did the grove workers plant today?",
        "There are 15 trees originally. Then there were 21 trees after some more were planted. So "
        "there must have been 21 - 15 = 6.",
        6,
    ),
    (
        "If there are 3 cars in the parking lot and 2 more cars arrive, how many cars are in the "
        "parking lot?",
        "There are originally 3 cars. 2 more cars arrive. 3 + 2 = 5.",
        5,
    ),
    (
        "Leah had 32 chocolates and her sister had 42. If they ate 35, how many pieces do they "
        "have left in total?",
        "Originally, Leah had 32 chocolates. Her sister had 42. So in total they had 32 + 42 = 74. "
        "After eating 35, they had 74 - 35 = 39.",
        39,
    ),
    (
        "Jason had 20 lollipops. He gave Denny some lollipops. Now Jason has 12 lollipops. How "
        "many lollipops did Jason give to Denny?",
        "Jason started with 20 lollipops. Then he had 12 after giving some to Denny. So he gave "
        "Denny 20 - 12 = 8.",
        8,
    ),
    (
        "Shawn has five toys. For Christmas, he got two toys each from his mom and dad. How many "
        "toys does he have now?",
        "Shawn started with 5 toys. If he got 2 toys each from his mom and dad, then that is 4 "
        "more toys. 5 + 4 = 9.",
        9,
    ),
    (
        "There were nine computers in the server room. Five more computers were installed each "
        "day, from monday to thursday. How many computers are now in the server room?",
        "There were originally 9 computers. For each of 4 days, 5 more computers were added. So 5 "
        "* 4 = 20 computers were added. 9 + 20 is 29.",
        29,
    ),
    (
        "Michael had 58 golf balls. On tuesday, he lost 23 golf balls. On wednesday, he lost 2 "
        "more. How many golf balls did he have at the end of wednesday?",
        "Michael started with 58 golf balls. After losing 23 on tuesday, he had 58 - 23 = 35. "
        "After losing 2 more, he had 35 - 2 = 33 golf balls.",
        33,
    ),
    (
        "Olivia has $23. She bought five bagels for $3 each. How much money does she have left?",
        "Olivia had 23 dollars. 5 bagels for 3 dollars each will be 5 x 3 = 15 dollars. So she has "
        "23 - 15 dollars left. 23 - 15 is 8.",
        8,
    ),
]


_NUMBER_MARK = "####"


def format_examples(conclusion: str) -> list[dict[str, str]]:
    """The examples as rows of GSM8K, each answer ending in `conclusion` with its number for {}."""
    return [
        {"question": question, "answer": f"{reasoning} {conclusion.format(number)}"}
        for question, reasoning, number in EXAMPLES
    ]


_STOPS = ("</s>", "<|im_end|>")
_OVERLOOKED = (Replace(","), Replace(r"\$"), Replace(r"(?s).*#### "), Replace(r"\.$"), Lower())
_LAST_NUMBER = Regex(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", match="last")


def _pipelines(strict: Regex) -> Mapping[str, Sequence[Filter]]:
    return {
        "exact_match,strict-match": [strict, *_OVERLOOKED],
        "exact_match,flexible-extract": [_LAST_NUMBER, *_OVERLOOKED],
    }


_GSM8K = Dataset("openai/gsm8k", "test", "main", fewshot_split="train", rows=1319, licence="MIT")
_PLATINUM = Dataset("madrylab/gsm8k-platinum", "test", "main", draw_extra_shot=True)


def _with_examples(dataset: Dataset, conclusion: str) -> Dataset:
    """Return the data set with the worked examples for solved rows, in place of its own."""
    shots = format_examples(conclusion)
    return replace(dataset, fewshot_split=None, draw_extra_shot=False, fewshot_rows=shots)


@dataclass(kw_only=True)
class GSM8K(DatasetRows, GenerationSuite):
    """Sums in words, with solved ones of the training set (Cobbe et al. 2021, arXiv:2110.14168).

    `strict-match` takes the number after `####`, `flexible-extract` the last number of the answer.
    Commas, dollar signs and a closing full stop are overlooked.
    """

    task = "gsm8k"
    dataset = _GSM8K
    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = _pipelines(Regex(r"#### (\-?[0-9\.\,]+)"))
    reference_filters: ClassVar[Sequence[Filter]] = _OVERLOOKED

    num_fewshot: NumFewshot = 5
    stop: Stop = ("Question:", *_STOPS)

    def question_text(self, row: Row) -> str:
        return f"Question: {row.text('question')}\nAnswer:"

    def answer_text(self, row: Row) -> str:
        return row.text("answer")


@dataclass(kw_only=True)
class GSM8KCoTZeroshot(GSM8K):
    """Sums in words, the model being asked to think step by step.

    `strict-match` takes the number after "The answer is", `flexible-extract` the last number.
    """

    task = "gsm8k_cot_zeroshot"
    pipelines = _pipelines(Regex(r"The answer is (\-?[0-9\.\,]+)."))

    num_fewshot: NumFewshot = 0
    stop: Stop = ("Q:", *_STOPS)

    def question_text(self, row: Row) -> str:
        return f"Q: {row.text('question')}\nA: Let's think step by step."


@dataclass(kw_only=True)
class GSM8KCoT(GSM8KCoTZeroshot):
    """Sums in words, after the eight worked examples of Wei et al. 2022 (arXiv:2201.11903).

    `strict-match` takes the number after "The answer is", `flexible-extract` the last number.
    """

    task = "gsm8k_cot"
    conclusion: ClassVar[str] = "The answer is {}."
    dataset = _with_examples(_GSM8K, conclusion)

    num_fewshot: NumFewshot = 8
    fixed_shots: FixedShotsOption = True

    def question_text(self, row: Row) -> str:
        return f"Q: {row.text('question')}\nA:"

    def answer_text(self, row: Row) -> str:
        return row.text("answer").split(_NUMBER_MARK)[-1].strip()

    def solved_text(self, row: Row) -> str:
        steps, mark, number = row.text("answer").rpartition(_NUMBER_MARK)
        return f"{steps.strip()} {self.conclusion.format(number.strip())}" if mark else number


@dataclass(kw_only=True)
class GSM8KCoTLlama(GSM8KCoT):
    """Sums in words as Llama 3's makers ask them, with the examples of Wei et al. 2022.

    `strict-match` takes the number after "The final answer is", `flexible-extract` the last number.
    """

    task = "gsm8k_cot_llama"
    conclusion = "The final answer is {}"
    dataset = _with_examples(_GSM8K, conclusion)
    pipelines = _pipelines(
        Regex(r"The final answer is ((-?[$0-9.,]{2,})|(-?[0-9]+))", match="last")
    )

    target_delimiter: TargetDelimiter = ""
    stop: Stop = (
        "<|eot_id|>",
        "<|start_header_id|>user<|end_header_id|>",
        "Q:",
        *_STOPS,
    )

    def question_text(self, row: Row) -> str:
        return (
            "Given the following problem, reason and give a final answer to the problem.\n"
            f"Problem: {row.text('question')}\n"
            'Your response should end with "The final answer is [answer]" where [answer] is the '
            "response to the problem.\n"
        )


@dataclass(kw_only=True)
class GSM8KPlatinum(GSM8K):
    """GSM8K's test set with wrong and unclear rows mended (Vendrow et al. 2025, arXiv:2502.03461).

    There is no training set: the solved ones are rows of the test set too.
    """

    task = "gsm8k_platinum"
    dataset = _PLATINUM


@dataclass(kw_only=True)
class GSM8KPlatinumCoTZeroshot(GSM8KCoTZeroshot):
    """GSM8K-Platinum, the model being asked to think step by step."""

    task = "gsm8k_platinum_cot_zeroshot"
    dataset = _PLATINUM


@dataclass(kw_only=True)
class GSM8KPlatinumCoT(GSM8KCoT):
    """GSM8K-Platinum, after the eight worked examples of Wei et al. 2022 (arXiv:2201.11903)."""

    task = "gsm8k_platinum_cot"
    dataset = _with_examples(_PLATINUM, GSM8KCoT.conclusion)


@dataclass(kw_only=True)
class GSM8KPlatinumCoTLlama(GSM8KCoTLlama):
    """GSM8K-Platinum as Llama 3's makers ask it, with the examples of Wei et al. 2022.

    A blank stands before each solved answer: lm-evaluation-harness 0.4.13 has none in
    `gsm8k_cot_llama`, and has one here.
    """

    task = "gsm8k_platinum_cot_llama"
    dataset = _with_examples(_PLATINUM, "The final answer is {}")

    target_delimiter: TargetDelimiter = " "
