"""Suites whose answers are programs: each is run with the row's tests, where that is permitted."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Annotated, ClassVar
from zlib import crc32

from pydantic import Field

from evalution.rows.local import Row
from evalution.scoring.container import DEFAULT_IMAGE
from evalution.scoring.filters import Filter
from evalution.scoring.metrics import Mean, Measure, Metric, Score
from evalution.scoring.sandbox import PASSED, Execution, Limits, check_execution, run_program
from evalution.suites.generation_suite import AnswerSample, GenerationSuite
from evalution.suites.row_suite import FewshotRow
from evalution.user_input import LARGEST
from evalution_core import Capability, GenerationOutput


@dataclass(kw_only=True)
class CodeSuite(GenerationSuite):
    """The model writes a program; it is right if it runs through the row's tests.

    Nothing runs unless `execute` allows it. The answers are journaled before they are run, so with
    a cache other limits need no new answers. With `num_samples` above one, answers are sampled, and
    `pass@k` is the chance that one of k is right: 1 - C(n-c, k) / C(n, k) for c right ones of n
    (Chen et al. 2021, arXiv:2107.03374).
    """

    pipelines: ClassVar[Mapping[str, Sequence[Filter]]] = {}

    execute: Annotated[
        Execution | None,
        Field(
            description="Permission to run the answers: sandbox in a locked process or not at all, "
            "partial with the locks that this system has, docker or podman in a container each; "
            "None refuses."
        ),
    ] = None
    container_image: Annotated[
        str, Field(description="Image of the containers, with a Python; it is never pulled.")
    ] = DEFAULT_IMAGE
    time_limit_s: Annotated[
        float, Field(gt=0, le=3600, description="Wall seconds that one program may take.")
    ] = 3.0
    memory_limit_mb: Annotated[
        int, Field(ge=256, le=LARGEST, description="Megabytes of memory that one may take.")
    ] = 4096
    num_samples: Annotated[
        int, Field(ge=1, le=10_000, description="Answers to each row; above one they are sampled.")
    ] = 1
    k: Annotated[
        Sequence[Annotated[int, Field(ge=1, le=10_000)]],
        Field(min_length=1, description="A pass@k is reported for each of these numbers."),
    ] = (1,)
    temperature: Annotated[
        float, Field(gt=0, le=10, description="Temperature where several answers are sampled.")
    ] = 0.2
    top_p: Annotated[
        float, Field(gt=0, le=1, description="Nucleus from which several answers are sampled.")
    ] = 0.95

    @abstractmethod
    def head_text(self, row: Row) -> str:
        """Return the code that stands before an answer."""
        ...

    def find_code(self, answer: str) -> str:
        """Return the code in an answer: all of it, unless a suite says otherwise."""
        return answer

    def check_options(self) -> None:
        super().check_options()
        if max(self.k) > self.num_samples:
            raise self.wrong("k", f"must not exceed num_samples ({self.num_samples})")

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        return {"pass@1": "Share of the rows whose program runs through the tests; pass@k of k."}

    @property
    def needs(self) -> frozenset[Capability]:
        sampling = {Capability.SAMPLING} if self.num_samples > 1 else set[Capability]()
        return super().needs | sampling

    def make_metrics(self) -> Mapping[str, Metric]:
        return {f"pass@{k}": Mean() for k in self.k}

    def samples(self, limit: int | None = None) -> Iterator[AnswerSample]:
        check_execution(self.execute, self.container_image)
        yield from super().samples(limit)

    def sample(self, fewshot: FewshotRow) -> AnswerSample:
        one = super().sample(fewshot)
        if self.num_samples > 1:
            sampled = {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p}
            # Of its own for each row: equal seeds would draw alike in all rows.
            first = self.fewshot_seed + (crc32(repr(one.requests[0]).encode()) >> 2)
            one.requests = [
                replace(one.requests[0], seed=first + number, **sampled)
                for number in range(self.num_samples)
            ]
        return one

    def score(self, sample: AnswerSample, answers: Sequence[GenerationOutput]) -> Score:
        scores = [super(CodeSuite, self).score(sample, [answer]) for answer in answers]
        right = sum(score.extracted["tests"] == PASSED for score in scores)
        measures = {f"pass@{k}": Measure(estimate_pass(len(scores), right, k)) for k in self.k}
        if len(scores) == 1:
            return replace(scores[0], measures=measures)
        found = {"passed": right, "tests": [score.extracted["tests"] for score in scores]}
        remarks = {remark: None for score in scores for remark in score.remarks}
        return Score(measures, scores[0].prediction, found, list(remarks))

    def grade_answer(self, sample: AnswerSample, text: str, answer: str) -> Score:
        unlocked = check_execution(self.execute, self.container_image)
        assert self.execute is not None
        limits = Limits(self.time_limit_s, self.memory_limit_mb << 20, self.container_image)
        head = self.head_text(sample.row) + self._find_indent(text, answer)
        program = f"{head}{self.find_code(answer)}\n{sample.expected}"
        outcome = run_program(program, limits, self.execute)
        remarks = [f"ran without a lock on {', nor '.join(unlocked)}"] if unlocked else []
        return Score({}, text, {"tests": outcome}, remarks)

    def _find_indent(self, text: str, answer: str) -> str:
        """Return the blanks before an answer's first line, where they were cut off.

        That is so behind a thought, and behind a prompt that has closed one.
        """
        token = self.think_end_token
        if token is None or text.startswith(answer):
            return ""
        behind = text.partition(token)[2] if token in text else text
        return behind[: len(behind) - len(behind.lstrip())].rpartition("\n")[2]


_BLOCK = re.compile(
    r"```[^`\n]+```|(?:^([ \t]*))?(?:```|~~~)[ \t]*(\S*)[^\n]*\n(.*?)(?:```|~~~|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""A span within a line, which has no groups, or a fenced block."""
_PYTHON = {"python", "python3", "py"}


def find_code_block(text: str) -> str:
    """Return the first block fenced as Python, else the first without a language, else of all.

    A block that no fence ends goes on to the end of the text; an empty one counts after all others.
    The fence's own indentation is taken off its lines. A text without a fence is code as a whole.
    """
    blocks = [found.groups("") for found in _BLOCK.finditer(text) if found[3] is not None]
    python = [block for block in blocks if block[1].lower() in _PYTHON]
    untagged = [block for block in blocks if not block[1]]
    ordered = sorted([*python, *untagged, *blocks], key=lambda block: not block[2].strip())
    for indent, _, code in ordered:
        return "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
    return text


def estimate_pass(answers: int, right: int, k: int) -> float:
    """Return the chance that k of these answers, drawn without return, hold a right one."""
    return 1.0 - comb(answers - right, k) / comb(answers, k)
