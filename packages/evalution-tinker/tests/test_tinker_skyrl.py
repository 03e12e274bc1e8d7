"""The engine on a real server: SkyRL 0.3.0 on a CPU, which also trains what is evaluated.

Every new shape of a batch is compiled by the server, so there are few requests.
"""

from __future__ import annotations

import tarfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from evalution_core import (
    Capability,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_core.builtins import builtin_path
from evalution_reference import Reference
from evalution_tinker import Tinker

pytest.importorskip("skyrl", reason="skyrl is not installed")
tinker: Any = pytest.importorskip("tinker", reason="tinker is not installed")

# tinker 0.24 and 0.38 leave a connection open however they are closed.
pytestmark = [
    pytest.mark.wide,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first one starts the server
    pytest.mark.filterwarnings(
        r"ignore:Exception ignored in. <(function _SelectorTransport|socket\.socket)"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]

TINY = builtin_path("builtin:tiny", "safetensors")
QUESTION = "Question: What is 8 - 5?\nAnswer:"
PAIRS = [
    LoglikelihoodRequest(QUESTION, " 8 - 5 = 3"),
    LoglikelihoodRequest(QUESTION, " 8 - 5 = 4"),
    LoglikelihoodRequest("", "The"),
]
TASK = "Write 473 backwards:"
TAUGHT = " 374"


@pytest.fixture(scope="module")
def session(skyrl_url: str) -> Generator[Any]:
    engine = Tinker(base_url=skyrl_url, max_model_len=256, batch_size=1)
    with engine.build(Model(str(TINY))) as found:
        yield found


@pytest.fixture(scope="module")
def reference() -> Generator[Any]:
    with Reference(max_model_len=256).build(Model("builtin:tiny")) as found:
        yield found


def test_servers_capabilities_are_probed(session: Any) -> None:
    described = session.describe_execution()
    assert described["is_greedy_by"] == "greedy sample", "it ignores topk_prompt_logprobs"
    assert described["scores_suffixes_alone"] is False
    assert described["client"] == "0.24.1"
    assert Capability.LOGPROBS not in session.capabilities
    with pytest.raises(UnsupportedRequestError, match="no topk_sample_logprobs"):
        session.generate([GenerationRequest(QUESTION, logprobs=1)])


def test_scores_equal_those_of_the_reference(session: Any, reference: Any) -> None:
    assert session.check().outcome == "passed"
    found, expected = session.loglikelihood(PAIRS), reference.loglikelihood(PAIRS)
    for mine, right in zip(found, expected, strict=True):
        assert mine.token_logprobs == pytest.approx(right.token_logprobs, abs=1e-4)
        assert mine.is_greedy == right.is_greedy
    text = [RollingLoglikelihoodRequest("In the day Lily and Nora look at the frog.")]
    (mine,), (right,) = session.loglikelihood_rolling(text), reference.loglikelihood_rolling(text)
    assert mine.token_logprobs == pytest.approx(right.token_logprobs, abs=1e-4)


def test_completions_equal_those_of_the_reference(session: Any, reference: Any) -> None:
    asked = [
        GenerationRequest(QUESTION, max_new_tokens=24),
        GenerationRequest(QUESTION, max_new_tokens=24, stop=[" ="]),
        GenerationRequest("", max_new_tokens=2),
        GenerationRequest(QUESTION, max_new_tokens=4, ignore_eos=True),
    ]
    for mine, right in zip(session.generate(asked), reference.generate(asked), strict=True):
        assert (mine.text, mine.token_ids) == (right.text, right.token_ids)
        assert (mine.finish_reason, mine.completion_tokens) == (
            right.finish_reason,
            right.completion_tokens,
        )


def test_seed_gives_the_same_sample(session: Any) -> None:
    hot: dict[str, Any] = {"do_sample": True, "temperature": 2.0, "max_new_tokens": 8}
    asked = [GenerationRequest("The", seed=seed, **hot) for seed in (3, 3, 4)]
    first, again, other = (output.token_ids for output in session.generate(asked))
    assert first == again
    assert first != other


@pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"),
    reason="SkyRL 0.3.0 unpacks adapters by tarfile's filters, which Python has from 3.11.4 on",
)
def test_next_session_answers_with_the_trained_lora(skyrl_url: str, session: Any) -> None:
    """Twelve steps on one sentence: its score rises with each session that is attached."""
    pair = [LoglikelihoodRequest(TASK, TAUGHT)]
    (base,) = session.loglikelihood(pair)
    service = tinker.ServiceClient(base_url=skyrl_url, api_key="tml-x")
    training = service.create_lora_training_client(base_model=str(TINY), rank=8, seed=1)
    handles = {"training_client": training, "model_name": str(TINY)}
    context = [*session.tokenizer.leading_ids, *session.tokenizer.encode(TASK)]
    ids = [*context, *session.tokenizer.encode(TAUGHT)]
    datum = tinker.types.Datum(
        model_input=tinker.types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": ids[1:],
            "weights": [float(at >= len(context)) for at in range(1, len(ids))],
        },
    )
    # At 1e-2 the score swings by many nats from step to step; at 3e-3 every step raises it.
    step_size = tinker.types.AdamParams(learning_rate=3e-3)
    scores: list[float] = []
    for step in range(12):
        training.forward_backward([datum], "cross_entropy").result()
        training.optim_step(step_size).result()
        if step in (0, 11):
            with Tinker(max_model_len=256, batch_size=1).attach(handles) as attached:
                assert attached.describe_execution()["attached"] is True
                scores.append(attached.loglikelihood(pair)[0].logprob)
    service.holder.close()
    assert base.logprob < scores[0] < scores[1], "it learns"
    assert scores[1] > -1
    assert session.loglikelihood(pair)[0].logprob == pytest.approx(base.logprob, abs=1e-4)


def test_folder_of_the_server_is_its_own(tmp_path: Path) -> None:
    """Its defaults would put a database beside its code."""
    import skyrl

    assert not list(Path(str(skyrl.__file__)).parent.rglob("*.db"))
