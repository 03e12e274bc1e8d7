"""Whole tasks through Inspect, and what is wrong with others."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalution import run
from evalution.scoring.filters import Regex
from evalution.suites import Generation
from evalution_core import GenerationRequest, LoglikelihoodRequest, Model, load_engine

pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore"),  # it is another project's code that warns
]

ANSWER = re.compile("#### (-?[0-9]+)")
SHOWN = 40
README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(.*?)$(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def session() -> Any:
    with load_engine("Reference")().build(Model("builtin:tiny")) as session:
        yield session


def sums_task(rows: list[dict[str, Any]], prompt: str) -> Any:
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import Score, Target, accuracy, scorer, stderr
    from inspect_ai.solver import TaskState, generate

    @scorer(metrics=[accuracy(), stderr()])
    def final_number() -> Any:
        async def score(state: TaskState, target: Target) -> Score:
            found = ANSWER.search(state.output.completion)
            return Score(value=float(found is not None and found[1] == target.text))

        return score

    dataset = [
        Sample(input=prompt.format(**row), target=ANSWER.findall(row["answer"])[0]) for row in rows
    ]
    return Task(dataset=dataset, solver=generate(max_tokens=48), scorer=final_number())


def one_question(text: str = "What is 3 + 4?", **options: Any) -> Any:
    from inspect_ai import Task
    from inspect_ai.dataset import Sample

    return Task(dataset=[Sample(input=text)], **options)


@pytest.mark.parametrize(
    ("chat", "prompt"), [(False, "Question: {question}\nAnswer:"), (True, "{question}")]
)
def test_generation_task_has_the_accuracy_of_the_runner(
    evaluate: Any, tiny_rows: Any, chat: bool, prompt: str
) -> None:
    log = evaluate(
        sums_task(tiny_rows("sums")[:SHOWN], prompt),
        model_args={"dtype": "float64", "use_chat_template": chat},
    )
    suite = Generation(
        data="builtin:tiny/sums",
        prompt=prompt,
        target="answer",
        filters=[Regex(ANSWER.pattern)],
        target_filters=[Regex(ANSWER.pattern)],
        max_new_tokens=48,
        apply_chat_template=chat,
        max_rows=SHOWN,
    )
    engine = load_engine("Reference").from_options({"dtype": "float64"})
    ours = run(model=Model("builtin:tiny"), engine=engine, tests=[suite]).suites[0]
    assert log.status == "success", log.error
    metric = log.results.scores[0].metrics["accuracy"]
    assert metric.value == ours.metrics["exact_match"].value
    assert metric.value > 0
    texts = [sample.output.completion for sample in log.samples]
    assert texts == [sample.prediction for sample in ours.samples]


def test_choice_reports_tokens_usage_and_stop_reason(evaluate: Any, session: Any) -> None:
    question = "What is 3 + 4?"
    log = evaluate(one_question(question), max_tokens=6, logprobs=True, top_logprobs=2)
    messages = [{"role": "user", "content": question}]
    (expected,) = session.generate(
        [GenerationRequest(messages=messages, max_new_tokens=6, logprobs=2)]
    )
    output = log.samples[0].output
    (choice,) = output.choices
    assert choice.message.content == expected.text
    assert choice.stop_reason == "max_tokens"
    assert (output.usage.input_tokens, output.usage.output_tokens) == (expected.prompt_tokens, 6)
    values = [token.logprob for token in choice.logprobs.content]
    assert values == pytest.approx(expected.token_logprobs)
    assert "".join(token.token for token in choice.logprobs.content) == expected.text
    for token, listed in zip(choice.logprobs.content, expected.top_logprobs, strict=True):
        assert [top.logprob for top in token.top_logprobs] == sorted(listed.values(), reverse=True)
        assert token.bytes == list(token.token.encode())


def test_sampled_choices_repeat_with_their_seed_and_differ(evaluate: Any) -> None:
    options = {"max_tokens": 12, "temperature": 2.0, "num_choices": 4, "seed": 5}
    logs = [evaluate(one_question("A story:"), **options) for _ in range(2)]
    first, second = (
        [choice.message.text for choice in log.samples[0].output.choices] for log in logs
    )
    assert first == second
    assert len(set(first)) > 1


def test_perplexity_scorer_gets_every_prompt_token(
    evaluate: Any, session: Any, tiny_rows: Any
) -> None:
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import perplexity
    from inspect_ai.solver import generate

    texts = [row["text"] for row in tiny_rows("prose")[:5]]
    log = evaluate(
        Task(
            dataset=[Sample(input=text) for text in texts],
            solver=generate(max_tokens=1, prompt_logprobs=1),
            scorer=perplexity(),
        ),
        model_args={"use_chat_template": False},
    )
    bos = session.tokenizer.bos_id
    requests = [
        LoglikelihoodRequest(
            context_input_ids=[bos], continuation_input_ids=session.tokenizer.encode(text)
        )
        for text in texts
    ]
    outputs = session.loglikelihood(requests)
    expected = math.exp(
        -math.fsum(o.logprob for o in outputs) / sum(o.token_count for o in outputs)
    )
    metrics = log.results.scores[0].metrics
    assert metrics["perplexity_per_token"].value == pytest.approx(expected, rel=1e-6)


def test_reply_without_a_limit_ends_with_the_context(evaluate: Any) -> None:
    log = evaluate(
        one_question("ab " * 12),
        model_args={"max_model_len": 40, "use_chat_template": False},
        temperature=3.0,
        seed=2,
    )
    output = log.samples[0].output
    assert output.stop_reason == "model_length"
    assert output.usage.total_tokens == 40


def test_too_long_prompt_ends_with_model_length(evaluate: Any) -> None:
    log = evaluate(one_question("word " * 90), model_args={"max_model_len": 40}, max_tokens=4)
    assert log.status == "success", log.error
    output = log.samples[0].output
    assert output.stop_reason == "model_length"
    assert "the model's context holds 40: there is no room for an answer" in output.error


@pytest.mark.parametrize(
    ("model_args", "options", "said"),
    [
        ({"engine": None}, {}, "no engine is named; say which, as -M engine=NAME (installed: "),
        ({"engine": "Refrence"}, {}, "no engine 'Refrence' is installed; did you mean 'Reference'"),
        ({"dtyp": "float64"}, {}, "-M dtyp is not known; did you mean 'dtype'?"),
        ({"use_chat_templat": True}, {}, "did you mean 'use_chat_template'?"),
        ({"dtype": "int3"}, {}, "'float32' or 'float64', got 'int3'"),
        ({"tool_format": "own"}, {}, "-M tool_format must be one of hermes, llama3, mistral"),
        ({"options": {"dtype": "float32"}, "dtype": "float64"}, {}, "given twice"),
        ({"use_chat_template": "no"}, {}, "-M use_chat_template must be true or false, got 'no'"),
        ({}, {"frequency_penalty": 0.5}, "frequency_penalty=0.5 is not supported"),
        ({}, {"model_base_url": "http://x"}, "engine Reference has no option 'base_url'"),
    ],
)
def test_wrong_arguments_are_refused_before_loading(
    evaluate: Any, model_args: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    from evalution_inspect.provider import ModelSetupError

    with pytest.raises(ModelSetupError, match=re.escape(said)):
        evaluate(one_question(), model_args=model_args, **options)


def test_missing_model_is_refused_before_the_task(evaluate: Any) -> None:
    from evalution_inspect.provider import ModelSetupError

    with pytest.raises(ModelSetupError, match="model folder 'nowhere' does not exist"):
        evaluate(one_question(), model="evalution/nowhere")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt_logprobs": 3}, "set prompt_logprobs=1"),
        ({"top_logprobs": 3}, "top_logprobs=3 needs logprobs=True"),
        ({"num_choices": 0}, "num_choices must be at least 1, got 0"),
        ({"max_tokens": 0}, "max_new_tokens must be an int >= 1, got 0"),
    ],
)
def test_invalid_setting_of_a_task_fails_its_sample(
    evaluate: Any, options: dict[str, Any], said: str
) -> None:
    from inspect_ai.solver import generate

    log = evaluate(one_question(solver=generate(**options)))
    assert log.status == "error"
    assert said in log.samples[0].error.message


@pytest.mark.slow
def test_first_command_of_the_readme_runs_and_a_wrong_one_has_no_traceback(
    tmp_path: Path,
) -> None:
    (_, command), *_, (_, task) = (
        found
        for found in BLOCK.findall(README.read_text(encoding="utf-8"))
        if found[0].startswith("python title=") or "inspect eval" in found[1]
    )
    (tmp_path / "sums.py").write_text(task, encoding="utf-8")
    words = shlex.split(command.strip().removeprefix("$ "))
    inspect = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    inspect += ["--display", "plain", "--log-format", "json"]
    done = subprocess.run(inspect, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "logs").glob("*.json")
    log = json.loads(file.read_text(encoding="utf-8"))
    assert log["eval"]["model_args"] == {"engine": "Reference"}
    assert log["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 1
    inspect[inspect.index("engine=Reference")] = "engine=Refrence"
    failed = subprocess.run(inspect, cwd=tmp_path, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "did you mean 'Reference'?" in failed.stdout + failed.stderr
    assert "Traceback" not in failed.stdout + failed.stderr


def test_registration_imports_no_engine_and_no_kit() -> None:
    code = (
        "import sys, evalution_inspect.registration\n"
        "print(sorted(m for m in sys.modules if m.startswith('evalution')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["['evalution_inspect',", "'evalution_inspect.registration']"]
