"""HumanEval and MBPP: programs that are judged by their tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evalution.rows.local import Row
from evalution.suites.code_suite import CodeSuite, find_code_block
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.generation_suite import MaxNewTokens, Stop
from evalution.suites.prompted_suite import FixedShotsOption, NumFewshot, TargetDelimiter


@dataclass(kw_only=True)
class HumanEval(DatasetRows, CodeSuite):
    """Functions to be completed from their docstring (Chen et al. 2021, arXiv:2107.03374).

    Answers run on this machine, and only with `execute`.
    """

    task = "humaneval"
    dataset = Dataset("openai/openai_humaneval", "test", rows=164, licence="MIT")

    max_new_tokens: MaxNewTokens = 1024
    stop: Stop = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")

    def question_text(self, row: Row) -> str:
        return row.text("prompt")

    def answer_text(self, row: Row) -> str:
        return f"{row.text('test')}\ncheck({row.text('entry_point')})"

    def head_text(self, row: Row) -> str:
        return row.text("prompt")


@dataclass(kw_only=True)
class HumanEvalInstruct(HumanEval):
    """Functions to be completed from their docstring, asked for in words.

    In a text the answer is begun with the function's head, and ends at the next fence. In a chat it
    isn't begun: the first block of Python is the program, after what stands before the function.
    Answers run on this machine, and only with `execute`.
    """

    task = "humaneval_instruct"

    def check_options(self) -> None:
        super().check_options()
        if self.apply_chat_template and self.stop == HumanEval.stop:
            self.stop = ()  # they would end the answer at its function's own head

    def question_text(self, row: Row) -> str:
        prompt = row.text("prompt")
        begun = f"Here is the completed function:\n```python\n{prompt}\n"
        return (
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            f"```python\n{prompt}\n```\n{'' if self.apply_chat_template else begun}"
        )

    def find_code(self, answer: str) -> str:
        return find_code_block(answer) if self.apply_chat_template else answer.partition("```")[0]


_SOLVED: list[dict[str, Any]] = [
    {
        "text": "Write a function to find the similar elements from the given two tuple lists.",
        "code": "def similar_elements(test_tup1, test_tup2):\r\n"
        "  res = tuple(set(test_tup1) & set(test_tup2))\r\n"
        "  return (res) ",
        "test_list": [
            "assert similar_elements((3, 4, 5, 6),(5, 7, 4, 10)) == (4, 5)",
            "assert similar_elements((1, 2, 3, 4),(5, 4, 3, 7)) == (3, 4)",
            "assert similar_elements((11, 12, 14, 13),(17, 15, 14, 13)) == (13, 14)",
        ],
    },
    {
        "text": "Write a python function to identify non-prime numbers.",
        "code": "import math\r\n"
        "def is_not_prime(n):\r\n"
        "    result = False\r\n"
        "    for i in range(2,int(math.sqrt(n)) + 1):\r\n"
        "        if n % i == 0:\r\n"
        "            result = True\r\n"
        "    return result",
        "test_list": [
            "assert is_not_prime(2) == False",
            "assert is_not_prime(10) == True",
            "assert is_not_prime(35) == True",
        ],
    },
    {
        "text": "Write a function to find the largest integers from a given list of numbers using "
        "heap queue algorithm.",
        "code": "import heapq as hq\r\n"
        "def heap_queue_largest(nums,n):\r\n"
        "  largest_nums = hq.nlargest(n, nums)\r\n"
        "  return largest_nums",
        "test_list": [
            f"assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],{found}"
            for found in ("3)==[85, 75, 65] ", "2)==[85, 75] ", "5)==[85, 75, 65, 58, 35]")
        ],
    },
]
"""The rows 2 to 4 of the data set, which its authors set aside for prompts."""


@dataclass(kw_only=True)
class MBPP(DatasetRows, CodeSuite):
    """Small programs from a sentence and three tests, after three solved ones (Austin et al. 2021).

    Answers run on this machine, and only with `execute`.
    """

    task = "mbpp"
    dataset = Dataset(
        "google-research-datasets/mbpp",
        "test",
        "full",
        fewshot_rows=_SOLVED,
        rows=500,
        licence="CC-BY-4.0",
    )

    num_fewshot: NumFewshot = 3
    fixed_shots: FixedShotsOption = True
    target_delimiter: TargetDelimiter = ""
    stop: Stop = ("[DONE]",)

    def question_text(self, row: Row) -> str:
        return (
            f"You are an expert Python programmer, and here is your task: {row.text('text')} Your "
            f"code should pass these tests:\n\n{self._list_tests(row)}\n[BEGIN]\n"
        )

    def answer_text(self, row: Row) -> str:
        return self._list_tests(row)

    def solved_text(self, row: Row) -> str:
        return f"{row.text('code')}\n[DONE]"

    def head_text(self, row: Row) -> str:
        return ""

    def _list_tests(self, row: Row) -> str:
        return "\n".join(row.texts("test_list")[:3])


@dataclass(kw_only=True)
class MBPPInstruct(MBPP):
    """Small programs from a sentence and three tests, each written as a block of code.

    In a text the block is begun, and ends at the next fence; an answer that doesn't end it holds no
    program. In a chat the first block of Python is the program. Answers run on this machine, and
    only with `execute`.
    """

    task = "mbpp_instruct"
    stop: Stop = ()

    def question_text(self, row: Row) -> str:
        return (
            f"You are an expert Python programmer, and here is your task:\n{row.text('text')}\n"
            f"Your code should pass these tests:\n{self._list_tests(row)}"
            f"{'' if self.apply_chat_template else _BEGUN}"
        )

    def solved_text(self, row: Row) -> str:
        return f"{_BEGUN if self.apply_chat_template else ''}{row.text('code')}\n```"

    def find_code(self, answer: str) -> str:
        if self.apply_chat_template:
            return find_code_block(answer)
        code, fence, _ = answer.partition("```")
        return code if fence else ""


_BEGUN = "\n```python\n"
