"""GSM8K and its variants: what is asked, and what counts as right."""

from __future__ import annotations

from typing import Any

import pytest

from evalution.suites import load_suite
from evalution.suites.tasks.gsm8k import EXAMPLES
from evalution_core import ConfigurationError, GenerationOutput

ROW = {"question": "How much is 1,000 + 234?", "answer": "It is <<1000+234=1234>>.\n#### 1,234"}
STRICT, FLEXIBLE = "exact_match,strict-match", "exact_match,flexible-extract"
VARIANTS = ["", "_cot", "_cot_zeroshot", "_cot_llama"]


def named(name: str, *rows: dict[str, Any], **options: Any) -> Any:
    kind: Any = load_suite(name)
    return kind(data=list(rows), **options)


def right(name: str, text: str) -> tuple[bool, bool]:
    """Whether an answer is right by the strict and by the flexible pipeline."""
    suite = named(name, ROW, num_fewshot=0)
    measures = suite.score(next(suite.samples()), [GenerationOutput("", text)]).measures
    return bool(measures[STRICT].value), bool(measures[FLEXIBLE].value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gsm8k", " 1000 + 234 = 1234\n#### 1234", (True, True)),
        ("gsm8k", "#### 1,234", (True, True)),
        ("gsm8k", "#### $1234", (False, True)),
        ("gsm8k", "#### 1234.\n", (True, True)),
        ("gsm8k", "#### 1234 #### 5", (True, False)),
        ("gsm8k", "It is $1,234.", (False, True)),
        ("gsm8k", "It is -1234", (False, False)),
        ("gsm8k", "1234.0", (False, False)),
        ("gsm8k", "", (False, False)),
        ("gsm8k_cot", "The answer is 1,234.", (True, True)),
        ("gsm8k_cot", "The answer is 1234", (False, True)),
        ("gsm8k_cot", "The answer is 1234. The answer is 5.", (True, False)),
        ("gsm8k_cot", "the answer is 1234.", (False, True)),
        ("gsm8k_cot_zeroshot", "The answer is 1234.", (True, True)),
        ("gsm8k_cot_llama", "The final answer is $1,234.", (True, True)),
        ("gsm8k_cot_llama", "The final answer is 5. The final answer is 1234", (True, True)),
        ("gsm8k_cot_llama", "The final answer is [1234]", (False, True)),
    ],
)
def test_which_answers_are_right(name: str, text: str, expected: tuple[bool, bool]) -> None:
    assert right(name, text) == expected
    platinum = name.replace("gsm8k", "gsm8k_platinum")
    assert right(platinum, text) == expected


@pytest.mark.parametrize(
    ("name", "prompt", "shots", "first_stop"),
    [
        ("gsm8k", "Question: {}\nAnswer:", 5, "Question:"),
        ("gsm8k_cot", "Q: {}\nA:", 8, "Q:"),
        ("gsm8k_cot_zeroshot", "Q: {}\nA: Let's think step by step.", 0, "Q:"),
        (
            "gsm8k_cot_llama",
            "Given the following problem, reason and give a final answer to the problem.\n"
            'Problem: {}\nYour response should end with "The final answer is [answer]" where '
            "[answer] is the response to the problem.\n",
            8,
            "<|eot_id|>",
        ),
    ],
)
def test_what_is_asked(name: str, prompt: str, shots: int, first_stop: str) -> None:
    for suite_name in (name, name.replace("gsm8k", "gsm8k_platinum")):
        suite = named(suite_name, ROW)
        assert suite.num_fewshot == shots
        suite.num_fewshot = 0
        (request,) = next(suite.samples()).requests
        assert request.prompt == prompt.format(ROW["question"])
        assert request.stop[0] == first_stop
        assert {"</s>", "<|im_end|>"} <= set(request.stop)
        assert (request.max_new_tokens, request.do_sample) == (256, False)


@pytest.mark.parametrize("name", ["gsm8k_cot", "gsm8k_platinum_cot"])
def test_the_worked_examples_stand_before_every_question(name: str) -> None:
    samples = list(named(name, ROW, ROW).samples())
    assert len(samples) == 2
    for sample in samples:
        *solved, question = sample.prompt.split("\n\n")
        assert question == f"Q: {ROW['question']}\nA:"
        assert solved == [
            f"Q: {asked}\nA: {reasoning} The answer is {number}."
            for asked, reasoning, number in EXAMPLES
        ]


def test_a_chat_of_llama_is_eight_solved_turns_and_the_question() -> None:
    sample = next(named("gsm8k_cot_llama", ROW, apply_chat_template=True).samples())
    assert [turn["role"] for turn in sample.prompt] == ["user", "assistant"] * 8 + ["user"]
    assert sample.prompt[1]["content"].endswith(
        "So there must have been 21 - 15 = 6. The final answer is 6"
    )


def test_only_platinum_has_a_blank_before_a_solved_answer_of_llama() -> None:
    prompts = [
        next(named(name, ROW, num_fewshot=1).samples()).prompt
        for name in ("gsm8k_cot_llama", "gsm8k_platinum_cot_llama")
    ]
    assert ["problem.\nThere are 15" in prompt for prompt in prompts] == [True, False]
    assert ["problem.\n There are 15" in prompt for prompt in prompts] == [False, True]


def test_more_worked_examples_than_there_are() -> None:
    with pytest.raises(ConfigurationError) as caught:
        named("gsm8k_cot", ROW, num_fewshot=9).check_samples()
    assert "8 of 9 few-shot rows found; lower num_fewshot" in str(caught.value)


def test_solved_rows_of_ones_own_show_their_steps_and_the_number() -> None:
    own = {"question": "1 + 1?", "answer": "Two.\n#### 2 "}
    sample = next(named("gsm8k_cot", ROW, fewshot_data=[own], num_fewshot=1).samples())
    assert sample.prompt.startswith("Q: 1 + 1?\nA: Two. The answer is 2.\n\nQ: ")


def test_platinum_draws_its_solved_rows_from_the_test_set() -> None:
    rows = [{"question": f"{n} + 0?", "answer": f"#### {n}"} for n in range(8)]
    samples = list(named("gsm8k_platinum", *rows).samples())
    assert len(samples) == 8
    for sample in samples:
        *solved, question = sample.prompt.split("\n\n")
        assert len(set(solved)) == 5
        assert f"{question} #### {sample.index}" not in solved


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_data_sets_are_declared(variant: str) -> None:
    paths = [named(f"{base}{variant}").dataset.path for base in ("gsm8k", "gsm8k_platinum")]
    assert paths == ["openai/gsm8k", "madrylab/gsm8k-platinum"]
