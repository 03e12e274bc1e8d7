"""One bounded KV cache: admission, eviction, and that nothing is left in it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import (
    ContextLengthError,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
)
from evalution_core.kinds import RequestKind
from evalution_llama_cpp import LlamaCpp

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from evalution_llama_cpp.session import LlamaCppSession

TINY = Model("builtin:tiny")
WORDS = ["The", "cat", "sees", "a", "dog", "near", "the", "park", ".", "3", "+", "4", "eggs"]
EXACT = LlamaCpp(device="cpu", n_threads=1)
CRAMPED = LlamaCpp(device="cpu", n_threads=1, n_ctx=96, n_batch=32, n_ubatch=32)


def words(chance: random.Random, most: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, most)))


def prompts(count: int) -> list[GenerationRequest]:
    chance = random.Random(7)
    return [
        GenerationRequest(words(chance, 20), max_new_tokens=chance.randint(1, 24))
        for _ in range(count)
    ]


def pairs(count: int) -> list[LoglikelihoodRequest]:
    chance = random.Random(8)
    heads = [words(chance, 25) for _ in range(4)]
    return [
        LoglikelihoodRequest(chance.choice(heads), " " + words(chance, 6)) for _ in range(count)
    ]


@pytest.fixture(scope="module")
def roomy() -> Iterator[LlamaCppSession]:
    with EXACT.build(TINY) as session:
        yield session


@pytest.fixture(scope="module")
def cramped() -> Iterator[LlamaCppSession]:
    with CRAMPED.build(TINY) as session:
        yield session


def is_unused(session: LlamaCppSession) -> bool:
    session.gc()
    return session.budget.is_unused


def test_a_small_cache_completes_the_same(roomy: LlamaCppSession, cramped: LlamaCppSession) -> None:
    requests = prompts(60)
    needed = sum(len(roomy.tokenizer.encode(each.prompt or "")) for each in requests)
    assert needed > 4 * CRAMPED.n_ctx
    expected = [output.text for output in roomy.generate(requests)]
    assert [output.text for output in cramped.generate(requests)] == expected
    assert is_unused(cramped)


def test_a_small_cache_scores_the_same(roomy: LlamaCppSession, cramped: LlamaCppSession) -> None:
    requests = pairs(120)
    expected = roomy.loglikelihood(requests)
    found = cramped.loglikelihood(requests)
    assert [o.logprob for o in found] == pytest.approx([o.logprob for o in expected], abs=1e-3)
    assert [o.is_greedy for o in found] == [o.is_greedy for o in expected]
    assert is_unused(cramped)


def test_scoring_takes_the_cache_from_generation_and_gives_it_back(
    roomy: LlamaCppSession, cramped: LlamaCppSession
) -> None:
    requests, scored = prompts(30), pairs(10)
    expected = [output.text for output in roomy.generate(requests)]
    values = [output.logprob for output in roomy.loglikelihood(scored)]
    found: dict[int, str] = {}
    for key, output in cramped.generate_continuous(enumerate(requests)):
        assert isinstance(output, GenerationOutput)
        found[key] = output.text
        if len(found) % 3 == 0:
            meanwhile = [each.logprob for each in cramped.loglikelihood(scored)]
            assert meanwhile == pytest.approx(values, abs=1e-3)
    assert [found[key] for key in range(len(requests))] == expected
    assert is_unused(cramped)


def test_a_prompt_larger_than_the_cache_is_cut_and_counted(cramped: LlamaCppSession) -> None:
    (output,) = cramped.generate([GenerationRequest("The cat. " * 80, max_new_tokens=6)])
    assert output.truncated_tokens
    assert output.prompt_tokens == CRAMPED.n_ctx - 6


def test_a_prompt_that_may_not_be_cut_fails_alone(cramped: LlamaCppSession) -> None:
    requests = prompts(3)
    requests.insert(1, GenerationRequest("The cat. " * 80, max_new_tokens=6, truncation="error"))
    found = dict(cramped.generate_continuous(enumerate(requests)))
    failure = found.pop(1)
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, ContextLengthError)
    assert all(isinstance(output, GenerationOutput) for output in found.values())


def test_streams_closed_early_leave_the_cache_empty(roomy: LlamaCppSession) -> None:
    chance = random.Random(9)
    requests = prompts(20)
    expected = roomy.generate(requests[:1])[0].text
    for _ in range(50):
        stream = RequestKind.GENERATION.open_stream(roomy, enumerate(requests))
        for _ in range(chance.randrange(20)):
            next(stream)
        begun = time.monotonic()
        stream.close()
        # The contract's bound is a step and a second; a step here takes milliseconds.
        assert time.monotonic() - begun < 5
    assert is_unused(roomy)
    assert roomy.requests_in_flight == 0
    assert roomy.generate(requests[:1])[0].text == expected


def test_no_more_tokens_are_decoded_than_the_trie_has(roomy: LlamaCppSession) -> None:
    head = "The cat sees a dog near the park. " * 8
    requests = [
        LoglikelihoodRequest(head + f"{question} is it?", answer)
        for question in range(300)
        for answer in (" yes it is", " no it isn't", " who knows")
    ]
    roomy.loglikelihood(requests[:1])
    roomy.gc()
    before = roomy.decoded_tokens
    roomy.loglikelihood(requests)
    fed: set[tuple[int, ...]] = set()
    for each in requests:
        ids = [*roomy.tokenizer.leading_ids]
        ids += roomy.tokenizer.encode(each.context + each.continuation)
        fed |= {tuple(ids[:end]) for end in range(1, len(ids))}
    assert roomy.decoded_tokens - before <= 1.05 * len(fed)


def test_requests_one_by_one_share_what_the_last_one_had(roomy: LlamaCppSession) -> None:
    context = "The cat sees a dog near the park. " * 8
    roomy.loglikelihood([LoglikelihoodRequest(context, " yes")])
    before = roomy.decoded_tokens
    for answer in (" no", " maybe", " well"):
        roomy.loglikelihood([LoglikelihoodRequest(context, answer)])
    answers = sum(len(roomy.tokenizer.encode(text)) for text in (" no", " maybe", " well"))
    # The last token is never fed; the one before an answer is, for its row.
    assert roomy.decoded_tokens - before <= answers + 3
    assert is_unused(roomy)


def test_prefix_of_most_of_the_cache_is_kept_for_the_next_call(cramped: LlamaCppSession) -> None:
    head = [1] * 70
    cramped.check()
    cramped.gc()
    fed: list[int] = []
    for question in range(2, 6):
        before = cramped.decoded_tokens
        cramped.loglikelihood(
            [
                LoglikelihoodRequest(
                    context_input_ids=[*head, question], continuation_input_ids=[answer]
                )
                for answer in (3, 4)
            ]
        )
        fed.append(cramped.decoded_tokens - before)
    assert fed == [71, 1, 1, 1]
    assert is_unused(cramped)


@pytest.mark.parametrize(("n_ctx", "batch_size"), [(9, 1), (17, 16), (100, 200)])
def test_a_cache_of_fewer_cells_than_sequences_runs(n_ctx: int, batch_size: int) -> None:
    engine = LlamaCpp(device="cpu", n_threads=1, n_ctx=n_ctx, batch_size=batch_size)
    requests = [
        GenerationRequest(prompt, max_new_tokens=3, ignore_eos=True)
        for prompt in ("The cat", "A dog")
    ]
    with engine.build(TINY) as session:
        assert session.describe_execution()["kv_cache"]["cells"] == n_ctx
        outputs = session.generate(requests * 4)
        assert [output.completion_tokens for output in outputs] == [3] * 8
        assert is_unused(session)


token_ids = st.lists(st.integers(1, 4), min_size=1, max_size=30)


@settings(deadline=None, max_examples=40)
@given(spans=st.lists(st.tuples(token_ids, token_ids), min_size=1, max_size=24))
def test_pairs_score_together_as_alone(
    cramped: LlamaCppSession, spans: list[tuple[list[int], list[int]]]
) -> None:
    requests = [
        LoglikelihoodRequest(context_input_ids=before, continuation_input_ids=after)
        for before, after in spans
    ]
    together = cramped.loglikelihood(requests)
    alone = [cramped.loglikelihood([request])[0] for request in requests]
    for one, other in zip(together, alone, strict=True):
        assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-4)
    assert is_unused(cramped)


def test_close_frees_the_context_and_then_the_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []
    session = EXACT.build(TINY)
    native = session._context._library
    for name in ("llama_free", "llama_model_free"):
        free = getattr(native, name)

        def note(handle: object, name: str = name, free: Callable[[object], None] = free) -> None:
            freed.append(name)
            free(handle)

        monkeypatch.setattr(native, name, note)
    session.close()
    session.close()
    assert freed == ["llama_free", "llama_model_free"]
