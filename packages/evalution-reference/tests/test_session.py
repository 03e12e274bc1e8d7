"""The engine on the tiny trained model, against the float64 values stored beside it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalution_core import (
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
    TextDelta,
)
from evalution_core.builtins import builtin_path
from evalution_enginekit import TokenSpan, plan_scoring
from evalution_reference import Reference
from evalution_reference.llama import Llama
from evalution_reference.session import ReferenceSession

TINY = Model("builtin:tiny")
VALUES: dict[str, Any] = json.loads(
    builtin_path("builtin:tiny", "reference_values").read_text("utf-8")
)
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


@pytest.fixture(scope="module", params=["float64", "float32"])
def session(request: pytest.FixtureRequest) -> Iterator[ReferenceSession]:
    with Reference(dtype=request.param).build(TINY) as built:
        yield built


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of every run that the model is given from now on."""
    lengths: list[int] = []
    extend = Llama.extend

    def counting(self: Llama, runs: Any, caches: Any) -> Any:
        lengths.extend(len(run) for run in runs)
        return extend(self, runs, caches)

    monkeypatch.setattr(Llama, "extend", counting)
    return lengths


def test_scores_are_those_of_the_independent_forward(session: ReferenceSession) -> None:
    cases = VALUES["scoring"]
    outputs = session.loglikelihood(
        [LoglikelihoodRequest(case["context"], case["continuation"]) for case in cases]
    )
    for case, output in zip(cases, outputs, strict=True):
        assert output.token_ids == case["continuation_ids"]
        assert output.is_greedy == case["is_greedy"]
        assert output.token_logprobs == pytest.approx(
            case["token_logprobs"], abs=TOLERANCE[session.describe_execution()["dtype"]], rel=0
        )


@pytest.mark.parametrize("case", VALUES["rolling"], ids=lambda case: f"{case['max_model_len']}")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rolling_scores_are_those_of_the_independent_forward(
    dtype: Any, case: dict[str, Any]
) -> None:
    engine = Reference(dtype=dtype, max_model_len=case["max_model_len"])
    with engine.build(TINY) as session:
        (output,) = session.loglikelihood_rolling([RollingLoglikelihoodRequest(case["text"])])
    assert output.token_ids == case["token_ids"]
    assert output.token_logprobs == pytest.approx(
        case["token_logprobs"], abs=TOLERANCE[dtype], rel=0
    )


def test_greedy_text_is_that_of_the_independent_forward(session: ReferenceSession) -> None:
    cases = VALUES["generation"]
    outputs = session.generate(
        [GenerationRequest(case["prompt"], max_new_tokens=case["max_new_tokens"]) for case in cases]
    )
    for case, output in zip(cases, outputs, strict=True):
        assert output.text == case["text"]
        assert output.token_ids == case["token_ids"]
        assert output.finish_reason == case["finish_reason"]


def test_chat_is_rendered_and_answered_as_stored(session: ReferenceSession) -> None:
    for case in VALUES["chat"]:
        (output,) = session.generate([GenerationRequest(messages=case["messages"])])
        assert output.prompt == case["rendered"]
        assert output.prompt_tokens == len(case["prompt_ids"])
        assert output.text == case["text"]


def test_scoring_forwards_hardly_more_than_the_unique_tokens(forwarded: list[int]) -> None:
    rows = [
        json.loads(line)
        for line in builtin_path("builtin:tiny", "rows/choices").read_text("utf-8").splitlines()
    ][:40]
    head = "".join(f"Q: {row['question']}\nA: {row['choices'][0]}\n\n" for row in rows[:3])
    requests = [
        LoglikelihoodRequest(f"{head}Q: {row['question']}\nA:", f" {choice}")
        for row in rows
        for choice in row["choices"]
    ]
    with Reference().build(TINY) as session:
        session.check()
        forwarded.clear()
        outputs = session.loglikelihood(requests)
        assert session.tokenizer is not None
        encode = session.tokenizer.encode
        spans = [
            TokenSpan(
                [0, *encode(request.context), *(output.token_ids or [])], output.prompt_tokens or 0
            )
            for request, output in zip(requests, outputs, strict=True)
        ]
        plan = plan_scoring(spans)
    # What is encoded while a pass runs is planned with the next one, which repeats a little.
    assert sum(forwarded) <= 1.3 * plan.unique_tokens
    assert plan.naive_tokens > 5 * plan.unique_tokens


def test_prompts_with_a_common_head_run_it_once(forwarded: list[int]) -> None:
    head = "Q: What is 2 + 3?\nA: 2 + 3 = 5\n#### 5\n\n" * 4
    prompts = [f"{head}Q: What is {n} + 1?\nA:" for n in range(8)]
    with Reference(batch_size=1).build(TINY) as session:
        lengths = [
            output.prompt_tokens or 0
            for output in session.generate(
                [GenerationRequest(prompt, max_new_tokens=1) for prompt in prompts]
            )
        ]
        shared = session.generate([GenerationRequest(prompts[0], max_new_tokens=1)])
    assert shared[0].prompt_tokens == lengths[0]
    assert sum(forwarded) < lengths[0] + 7 * 20


def test_a_sampled_request_depends_on_its_seed_alone(session: ReferenceSession) -> None:
    sampled = GenerationRequest(
        "Once upon a time", max_new_tokens=12, do_sample=True, temperature=1.5, seed=7
    )
    (alone,) = session.generate([sampled])
    crowd = [GenerationRequest(f"Q: {n}", max_new_tokens=5 + n) for n in range(5)]
    assert session.generate([*crowd, sampled])[-1].text == alone.text
    others = {
        session.generate(
            [
                GenerationRequest(
                    "Once upon a time",
                    max_new_tokens=12,
                    do_sample=True,
                    temperature=1.5,
                    seed=seed,
                )
            ]
        )[0].text
        for seed in range(5)
    }
    assert len(others) > 1


def test_streamed_text_adds_up_to_the_output(
    session: ReferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = VALUES["generation"][0]
    extend, steps, is_read = Llama.extend, count(1), threading.Event()

    def waiting_half_way(self: Llama, runs: Any, caches: Any) -> Any:
        # Unread text is joined, so a fast model could leave a single delta.
        if next(steps) == len(case["token_ids"]) // 2:
            assert is_read.wait(60)
        return extend(self, runs, caches)

    monkeypatch.setattr(Llama, "extend", waiting_half_way)
    request = GenerationRequest(case["prompt"], max_new_tokens=case["max_new_tokens"])
    events: list[Any] = []
    for _, event in session.stream([("only", request)]):
        events.append(event)
        is_read.set()
    deltas = [event for event in events if isinstance(event, TextDelta)]
    (output,) = (event for event in events if isinstance(event, GenerationOutput))
    assert events[-1] is output
    assert len(deltas) > 1
    assert "".join(delta.text for delta in deltas) == output.text == case["text"]
    assert [i for delta in deltas for i in delta.token_ids] == output.token_ids


def test_released_caches_change_no_answer(session: ReferenceSession) -> None:
    request = LoglikelihoodRequest("Q: What is 4 + 4?\nA:", " 4 + 4 = 8")
    before = session.loglikelihood([request])[0].token_logprobs
    session.gc()
    after = session.loglikelihood([request])[0].token_logprobs
    assert before is not None
    np.testing.assert_allclose(before, after or [], atol=1e-5)


def test_identity_names_the_weights_by_content(session: ReferenceSession) -> None:
    identity = session.identity()
    assert identity is not None
    assert identity["model.safetensors"] == VALUES["model"]["sha256"]


@pytest.fixture
def tiny_copy(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for file in builtin_path("builtin:tiny", "safetensors").iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    return folder


def test_identity_names_another_tokenizer_by_content(tiny_copy: Path) -> None:
    with Reference().build(TINY) as session:
        own = session.identity()
    with Reference().build(Model("builtin:tiny", tokenizer_path=str(tiny_copy))) as session:
        identity = session.identity()
        tokenizer = session.tokenizer
    assert own is not None
    assert identity is not None
    assert identity["tokenizer/tokenizer.json"] == own["tokenizer.json"]
    assert {name: identity[name] for name in own} == own
    with Reference().build(Model("builtin:tiny", tokenizer=tokenizer)) as session:
        assert session.identity() is None


@pytest.mark.parametrize("apart", [False, True])
def test_every_id_that_the_model_declares_ends_a_text(tiny_copy: Path, apart: bool) -> None:
    (tiny_copy / "generation_config.json").write_text('{"eos_token_id": [563, 566]}')
    tokenizer = str(builtin_path("builtin:tiny", "safetensors")) if apart else None
    with Reference().build(Model(str(tiny_copy), tokenizer_path=tokenizer)) as session:
        assert session.tokenizer is not None
        assert session.tokenizer.eos_ids == {563, 566}
