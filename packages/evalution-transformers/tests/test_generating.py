"""Completions by each path are those of Transformers, independent of their neighbours."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus

from evalution_core import (
    EngineRuntimeError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    UnsupportedRequestError,
)
from evalution_enginekit import TokenPrompt
from evalution_transformers import Transformers, TransformersCompat, generate
from evalution_transformers.continuous import RowCache
from evalution_transformers.generate import FixedBatches, Row, rank_logprobs, take_tokens
from evalution_transformers.paged import CancellingScheduler
from evalution_transformers.session import TransformersSession

PROMPTS = [
    "w5 w6 w7",
    "w8",
    " ".join(f"w{number}" for number in range(3, 40)),
    "w5 w6 w9 w10 w11 w12 w13 w14 w15 w16 w17",
    "w90 w80 w70 w60 w50 w40 w30",
]
ENGINES: dict[str, Transformers | TransformersCompat] = {
    "fixed batches": TransformersCompat(device="cpu", batch_size=3),
    "forward passes": Transformers(device="cpu", batch_size=3),
    "paged": Transformers(device="cpu", batch_size=3, paged=True),
}


@pytest.fixture(params=ENGINES)
def session(
    request: pytest.FixtureRequest, write_checkpoint: Callable[..., Path]
) -> Iterator[TransformersSession]:
    with ENGINES[request.param].build(Model(str(write_checkpoint()))) as built:
        yield built


def parse_ids(prompt: str) -> list[int]:
    return [int(word[1:]) for word in prompt.split()]


def upstream(model: Any, prompt: str, length: int, **settings: Any) -> list[int]:
    token_ids = torch.tensor([parse_ids(prompt)])
    found = model.generate(
        input_ids=token_ids,
        attention_mask=torch.ones_like(token_ids),
        max_new_tokens=length,
        eos_token_id=2,
        pad_token_id=0,
        do_sample=False,
        **settings,
    )[0, token_ids.shape[1] :].tolist()
    return found[: found.index(2)] if 2 in found else found


def test_greedy_ids_are_those_of_upstreams_generate(
    session: TransformersSession, random_model: Callable[..., Any]
) -> None:
    model = random_model("llama")
    requests = [
        GenerationRequest(prompt, max_new_tokens=5 + 7 * at) for at, prompt in enumerate(PROMPTS)
    ]
    for request, output in zip(requests, session.generate(requests), strict=True):
        right = upstream(model, str(request.prompt), request.max_new_tokens)
        assert output.token_ids == right


def test_beams_are_those_of_upstreams_generate(
    session: TransformersSession, random_model: Callable[..., Any]
) -> None:
    model = random_model("llama")
    requests = [
        GenerationRequest(prompt, max_new_tokens=8, num_beams=1 + at)
        for at, prompt in enumerate(PROMPTS)
    ]
    for request, output in zip(requests, session.generate(requests), strict=True):
        right = upstream(model, str(request.prompt), 8, num_beams=request.num_beams)
        assert output.token_ids == right


def test_beams_have_no_log_probabilities(session: TransformersSession) -> None:
    good = GenerationRequest("w5", max_new_tokens=2)
    request = GenerationRequest("w5", max_new_tokens=2, num_beams=2, logprobs=0)
    loaded: Any = session._model
    passes: list[object] = []
    loaded.register_forward_pre_hook(lambda *_: passes.append(None))
    with pytest.raises(UnsupportedRequestError, match="beam search gives no log-probabilities"):
        session.generate([good, request])
    assert not passes


def test_sampling_leaves_the_global_random_state_alone(session: TransformersSession) -> None:
    before = torch.get_rng_state()
    hot: dict[str, Any] = {"max_new_tokens": 5, "do_sample": True, "temperature": 2.0}
    session.generate(
        [
            GenerationRequest("w5 w6", **hot),
            GenerationRequest("w5 w6", seed=3, **hot),
            GenerationRequest("w5 w6", seed=3, num_beams=2, **hot),
        ]
    )
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sample_follows_the_distribution(session: TransformersSession) -> None:
    request = GenerationRequest("w5 w6 w7", max_new_tokens=1, ignore_eos=True, logprobs=3)
    (greedy,) = session.generate([request])
    top = (greedy.top_logprobs or [])[0]
    draws = [
        GenerationRequest(
            "w5 w6 w7", max_new_tokens=1, do_sample=True, temperature=1.0, seed=seed, top_k=3,
            ignore_eos=True,
        )
        for seed in range(200)
    ]  # fmt: skip
    found = [(output.token_ids or [-1])[0] for output in session.generate(draws)]
    assert set(found) <= set(top)
    mass = {token_id: 2.718281828**value for token_id, value in top.items()}
    for token_id, weight in mass.items():
        share = weight / sum(mass.values())
        assert abs(found.count(token_id) / len(found) - share) < 0.15


def test_a_stop_string_ends_the_work_of_its_row(session: TransformersSession) -> None:
    long: dict[str, Any] = {"max_new_tokens": 110, "ignore_eos": True}
    (whole,) = session.generate([GenerationRequest("w5 w6", **long)])
    stop = whole.text.split()[1]
    loaded: Any = session._model
    passes: list[object] = []
    loaded.base_model.register_forward_pre_hook(lambda *_: passes.append(None))
    cut, neighbour = session.generate(
        [
            GenerationRequest("w5 w6", stop=[stop], **long),
            GenerationRequest("w8", stop=["w1 w1"], max_new_tokens=4),
        ]
    )
    assert cut.finish_reason == "stop"
    assert stop not in cut.text
    assert neighbour.completion_tokens in range(1, 5)
    # The manager works ahead of whoever reads what it made.
    assert 2 <= len(passes) < 60


def test_a_checkpoints_own_generation_settings_change_nothing(
    write_checkpoint: Callable[..., Path], random_model: Callable[..., Any]
) -> None:
    folder = write_checkpoint()
    plain = upstream(random_model("llama"), PROMPTS[2], 20)
    (folder / "generation_config.json").write_text(
        '{"repetition_penalty": 5.0, "do_sample": true, "temperature": 9.0, "eos_token_id": 2}'
    )
    for engine in (ENGINES["fixed batches"], ENGINES["forward passes"]):
        with engine.build(Model(str(folder))) as built:
            (output,) = built.generate([GenerationRequest(PROMPTS[2], max_new_tokens=20)])
        assert output.token_ids == plain


@pytest.mark.parametrize("path", ["fixed batches", "forward passes"])
@pytest.mark.parametrize("rows", [0, 1])
def test_out_of_memory_runs_smaller_batches_or_fails_one_prompt(
    write_checkpoint: Callable[..., Path],
    random_model: Callable[..., Any],
    path: str,
    rows: int,
) -> None:
    model = random_model("llama")
    right = [upstream(model, prompt, 12) for prompt in PROMPTS[:3]]
    with ENGINES[path].build(Model(str(write_checkpoint()))) as built:
        steps = 0

        def check(_: Any, args: Any, inputs: dict[str, Any], __: Any) -> None:
            nonlocal steps
            states = inputs["hidden_states"] if "hidden_states" in inputs else args[0]
            steps += 1
            if states.shape[0] > rows and steps > 3:
                raise torch.OutOfMemoryError("no room")

        loaded: Any = built._model
        loaded.model.layers[0].register_forward_hook(check, with_kwargs=True)
        requests = [
            (at, GenerationRequest(p, max_new_tokens=12)) for at, p in enumerate(PROMPTS[:3])
        ]
        results = dict(built.generate_continuous(requests))
    for at in range(3):
        result: Any = results[at]
        if rows:
            assert result.token_ids == right[at]
        else:
            assert isinstance(result.error, EngineRuntimeError)
            assert "memory ran out for this prompt alone: no room" in str(result.error)


@pytest.mark.parametrize("path", ["fixed batches", "forward passes"])
@pytest.mark.parametrize("sampled", [False, True])
def test_no_token_is_lost_where_memory_runs_out_after_some_rows_chose_theirs(
    write_checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    sampled: bool,
) -> None:
    settings: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "seed": 3} if sampled else {}
    requests = [
        GenerationRequest(prompt, max_new_tokens=8, logprobs=1, **settings)
        for prompt in PROMPTS[:3]
    ]
    ranked = 0

    def rank(*arguments: Any) -> Any:
        nonlocal ranked
        ranked += 1
        if ranked == 5:
            raise torch.OutOfMemoryError("no room")
        return rank_logprobs(*arguments)

    with ENGINES[path].build(Model(str(write_checkpoint()))) as built:
        right = [output.token_ids for output in built.generate(requests)]
        monkeypatch.setattr(generate, "rank_logprobs", rank)
        found = [output.token_ids for output in built.generate(requests)]
    assert ranked > 5
    assert found == right


def test_no_prompt_is_lost_where_memory_runs_out_as_rows_are_joined(
    write_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [GenerationRequest(prompt, max_new_tokens=6) for prompt in PROMPTS]
    join, joined = RowCache.join, 0

    def fail_once(cache: RowCache, added: Any) -> None:
        nonlocal joined
        joined += 1
        if joined == 2:
            raise torch.OutOfMemoryError("no room")
        join(cache, added)

    with ENGINES["forward passes"].build(Model(str(write_checkpoint()))) as built:
        right = [output.token_ids for output in built.generate(requests)]
        monkeypatch.setattr(RowCache, "join", fail_once)
        assert [output.token_ids for output in built.generate(requests)] == right
    assert joined > 2


@pytest.mark.parametrize("path", ["fixed batches", "forward passes"])
def test_a_prompt_without_room_leaves_the_others_as_many_rows(
    write_checkpoint: Callable[..., Path], path: str
) -> None:
    short = (PROMPTS[0], PROMPTS[1], PROMPTS[4])
    *requests, long = [
        GenerationRequest(prompt, max_new_tokens=4) for prompt in (*short, PROMPTS[2])
    ]
    with ENGINES[path].build(Model(str(write_checkpoint()))) as built:
        widths: list[int] = []

        def check(_: Any, args: Any, inputs: dict[str, Any], __: Any) -> None:
            states = inputs["hidden_states"] if "hidden_states" in inputs else args[0]
            widths.append(states.shape[0])
            if states.shape[1] > 30:
                raise torch.OutOfMemoryError("no room")

        loaded: Any = built._model
        loaded.model.layers[0].register_forward_hook(check, with_kwargs=True)
        built.generate(requests)
        most = max(widths)
        found = dict(built.generate_continuous(enumerate([*requests, long])))
        failed = {at: answer for at, answer in found.items() if isinstance(answer, RequestFailure)}
        assert "memory ran out for this prompt alone" in str(failed.pop(3).error)
        assert not failed
        widths.clear()
        built.generate(requests)
    assert max(widths) == most == 3


@pytest.mark.parametrize("path", ["fixed batches", "forward passes"])
def test_beam_searches_that_were_given_up_are_not_begun(
    write_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    beams = [
        (at, GenerationRequest(prompt, max_new_tokens=6, num_beams=2))
        for at, prompt in enumerate(PROMPTS[:3])
    ]
    search, begun = FixedBatches._search, 0

    def count(batches: FixedBatches, *arguments: Any) -> None:
        nonlocal begun
        begun += 1
        search(batches, *arguments)

    monkeypatch.setattr(FixedBatches, "_search", count)
    with ENGINES[path].build(Model(str(write_checkpoint()))) as built:
        stream: Any = built.generate_continuous(beams)
        next(stream)
        stream.close()
        built.generate([GenerationRequest(PROMPTS[0], max_new_tokens=1)])
    assert begun < 3


def test_a_common_prompt_prefix_is_run_once(write_checkpoint: Callable[..., Path]) -> None:
    head = " ".join(f"w{number}" for number in range(3, 83))
    requests = [GenerationRequest(f"{head} w{at}", max_new_tokens=1) for at in range(3, 23)]
    for size in (1, 4):
        engine = Transformers(device="cpu", batch_size=size)
        with engine.build(Model(str(write_checkpoint(name=f"checkpoint{size}")))) as built:
            total = 0

            def count(_: Any, args: Any, inputs: dict[str, Any]) -> None:
                nonlocal total
                total += inputs["input_ids"].numel()

            loaded: Any = built._model
            loaded.base_model.register_forward_pre_hook(count, with_kwargs=True)
            built.generate(requests)
        assert total <= 81 + 81 + len(requests)


@pytest.mark.skipif(
    not hasattr(transformers, "ContinuousBatchingConfig"),
    reason="this transformers has no continuous batching that can be configured",
)
def test_gc_ends_the_manager_and_the_next_prompt_starts_one(
    write_checkpoint: Callable[..., Path],
) -> None:
    with ENGINES["paged"].build(Model(str(write_checkpoint()))) as built:
        paged: Any = built._generation_path
        before = built.generate([GenerationRequest("w5 w6", max_new_tokens=6)])
        first = paged._manager
        assert first.is_running()
        assert built.generate([GenerationRequest("w5 w6", max_new_tokens=6)]) == before
        assert paged._manager is first, "kept from one call to the next"
        built.gc()
        assert not first.is_running()
        assert built.generate([GenerationRequest("w5 w6", max_new_tokens=6)]) == before
        second = paged._manager
    assert not second.is_running()


@pytest.mark.skipif(
    not hasattr(transformers, "ContinuousBatchingConfig"),
    reason="this transformers has no continuous batching that can be configured",
)
def test_a_sampled_prompt_leaves_the_manager_in_use(
    write_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = GenerationRequest("w5 w6", max_new_tokens=6)
    sampled = GenerationRequest("w8", max_new_tokens=3, do_sample=True, temperature=1.0, seed=3)
    beams = GenerationRequest("w9", max_new_tokens=3, num_beams=2)
    with ENGINES["paged"].build(Model(str(write_checkpoint()))) as built:
        paged: Any = built._generation_path
        before = built.generate([greedy])
        manager = paged._manager
        built.generate([greedy, sampled, beams])
        asked: list[str] = []
        add = manager.add_request

        def note(*arguments: Any, request_id: str, **settings: Any) -> Any:
            asked.append(request_id)
            return add(*arguments, request_id=request_id, **settings)

        monkeypatch.setattr(manager, "add_request", note)
        assert built.generate([greedy]) == before
        assert paged._manager is manager
        assert manager.is_running()
    assert len(asked) == 1


def test_gc_during_a_generation_ends_the_manager_when_it_is_idle(
    write_checkpoint: Callable[..., Path],
) -> None:
    engine = Transformers(device="cpu", batch_size=2, paged=True)
    with engine.build(Model(str(write_checkpoint()))) as built:
        many = [(at, GenerationRequest(p, max_new_tokens=60)) for at, p in enumerate(PROMPTS)]
        right = [output.token_ids for output in built.generate([request for _, request in many])]
        stream = built.generate_continuous(many)
        results = dict([next(stream)])
        built.gc()
        results |= dict(stream)
        found: list[Any] = [results[at] for at, _ in many]
        assert [output.token_ids for output in found] == right
        built.gc()
        assert not any("continuous" in thread.name.lower() for thread in threading.enumerate())


@pytest.mark.parametrize("path", ["fixed batches", "forward passes"])
def test_a_failed_step_does_not_change_later_answers(
    write_checkpoint: Callable[..., Path], random_model: Callable[..., Any], path: str
) -> None:
    head = " ".join(f"w{number}" for number in range(3, 43))
    prompts = [f"{head} w{at}" for at in range(3, 9)]
    right = [upstream(random_model("llama"), prompt, 6) for prompt in prompts]
    requests = [GenerationRequest(prompt, max_new_tokens=6) for prompt in prompts]
    with ENGINES[path].build(Model(str(write_checkpoint()))) as built:
        steps = 0

        def fail(*_: Any) -> None:
            nonlocal steps
            steps += 1
            if steps in (1, 5):
                raise RuntimeError("planted")

        loaded: Any = built._model
        loaded.model.layers[1].register_forward_pre_hook(fail)
        for _ in range(2):
            with pytest.raises(EngineRuntimeError, match="planted"):
                built.generate(requests)
        assert [output.token_ids for output in built.generate(requests)] == right


@pytest.mark.parametrize("path", ["fixed batches", "forward passes"])
def test_a_model_that_computes_nan_generates_nothing(
    write_checkpoint: Callable[..., Path], path: str
) -> None:
    hot: dict[str, Any] = {"do_sample": True, "temperature": 2.0}
    settings: list[dict[str, Any]] = [{}, hot, {"num_beams": 2}, {"num_beams": 2, **hot}]
    requests = [GenerationRequest("w5 w6", max_new_tokens=4, **each) for each in settings]
    with ENGINES[path].build(Model(str(write_checkpoint()))) as built:
        loaded: Any = built._model
        with torch.no_grad():
            loaded.lm_head.weight[7] = torch.nan
        found: dict[int, Any] = dict(built.generate_continuous(enumerate(requests)))
    assert len(found) == 4
    for at in range(4):
        assert "returned nan as a log-probability" in str(found[at].error)
        assert "set a dtype of a wider range" in str(found[at].error)


@pytest.mark.parametrize("path", ["fixed batches", "forward passes"])
def test_a_prompt_that_computes_nan_fails_alone(
    write_checkpoint: Callable[..., Path], path: str
) -> None:
    prompts = ["w5 w6", "w9 w5 w7", "w7", "w8 w9", "w6 w5 w8"]
    requests = [GenerationRequest(prompt, max_new_tokens=4) for prompt in prompts]
    pairs = [LoglikelihoodRequest(prompt, " w4 w3") for prompt in prompts]
    with ENGINES[path].build(Model(str(write_checkpoint()))) as built:
        answers, scores = built.generate(requests), built.loglikelihood(pairs)
        loaded: Any = built._model
        (bad,) = built.tokenizer.encode("w9")
        assert all(output.token_ids and bad not in output.token_ids for output in answers)

        def spoil(_: Any, inputs: Any, hidden: torch.Tensor) -> torch.Tensor:
            return hidden.masked_fill((inputs[0] == bad)[..., None], torch.nan)

        loaded.model.embed_tokens.register_forward_hook(spoil)
        for _ in range(2):
            found: dict[int, Any] = dict(built.generate_continuous(enumerate(requests)))
            scored: dict[int, Any] = dict(built.loglikelihood_continuous(enumerate(pairs)))
            for at, prompt in enumerate(prompts):
                if "w9" in prompt:
                    assert "returned nan as a log-probability" in str(found[at].error)
                    assert "returned nan as a log-probability" in str(scored[at].error)
                else:
                    assert found[at].token_ids == answers[at].token_ids
                    assert scored[at].logprob == pytest.approx(scores[at].logprob, abs=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_end_their_row_alone(bad: float) -> None:
    sampled: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "seed": 3}
    rows = [
        Row(TokenPrompt(key, [5], 9, **settings))
        for key, settings in enumerate([{}, {}, sampled, sampled])
    ]
    logits = torch.tensor([[1.0, 2.0, 0.0]] * 4)
    logits[1:3, 2] = bad
    events = take_tokens(rows, logits)
    assert [event.error is None for event in events] == [True, False, False, True]
    assert [row.is_done for row in rows] == [False, True, True, False]
    assert events[0].token_ids == [1]
    for event in events[1:3]:
        assert event.error is not None
        assert event.error.__traceback__ is None, "its frames hold the logits"


@pytest.mark.parametrize("path", ["fixed batches", "forward passes"])
def test_a_beam_search_that_fails_costs_its_prompt_alone(
    write_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    held: list[weakref.ref[Any]] = []

    def fail(*_: Any) -> None:
        logits = torch.zeros(3)
        held.append(weakref.ref(logits))
        raise RuntimeError(f"a probability of {len(logits)} is below 0")

    requests = [GenerationRequest(prompt, max_new_tokens=6) for prompt in PROMPTS[:3]]
    beams = GenerationRequest(PROMPTS[3], max_new_tokens=6, num_beams=2)
    with ENGINES[path].build(Model(str(write_checkpoint()))) as built:
        right = [output.token_ids for output in built.generate(requests)]
        monkeypatch.setattr(FixedBatches, "_search", fail)
        order = [*requests[:1], beams, *requests[1:]]
        found: dict[int, Any] = dict(built.generate_continuous(enumerate(order)))
    failure = found.pop(1)
    assert "the beam search failed: RuntimeError: a probability of 3 is" in str(failure.error)
    assert [found[at].token_ids for at in sorted(found)] == right
    assert [reference() for reference in held] == [None], "the failure holds no tensor"


def test_beam_sampling_without_a_seed_differs_between_calls(session: TransformersSession) -> None:
    hot: dict[str, Any] = {"max_new_tokens": 8, "do_sample": True, "temperature": 3.0}
    request = GenerationRequest("w5 w6", num_beams=2, ignore_eos=True, **hot)
    found = [tuple(output.token_ids or ()) for output in session.generate([request] * 4)]
    assert len(set(found)) > 1
    seeded = GenerationRequest("w5 w6", num_beams=2, seed=1 << 70, **hot)
    one, other = session.generate([seeded] * 2)
    assert one == other


@pytest.mark.skipif(
    not hasattr(transformers, "ContinuousBatchingConfig"),
    reason="this transformers has no continuous batching that can be configured",
)
def test_a_cancelled_request_is_over_for_a_batch_on_its_way() -> None:
    state = RequestState(request_id="1", initial_tokens=[5, 6], max_new_tokens=9)
    state.status = RequestStatus.DECODING
    cache: Any = SimpleNamespace(free_blocks=lambda _: None)
    scheduler = CancellingScheduler(cache, 0.0, 4)
    scheduler.active_requests["1"] = state
    scheduler.set_request_cancellation("1")
    assert scheduler.clear_cancelled_requests() == [state]
    assert state.status == RequestStatus.FINISHED
    assert not scheduler.has_pending_requests()
