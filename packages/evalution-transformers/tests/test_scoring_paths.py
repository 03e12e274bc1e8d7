"""Every way of scoring gives what the model's plain forward pass gives, and forwards little."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from evalution_enginekit import TokenScore, TokenSpan, plan_scoring
from evalution_transformers.forward import _score_targets, make_tree_mask
from evalution_transformers.generate import rank_logprobs
from evalution_transformers.probe import probe_architecture
from evalution_transformers.scoring_passes import Scorer
from evalution_transformers.session import make_scorer

VOCAB, WINDOW = 97, 128
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}
KINDS = ["llama", "gpt2", "mistral", "gemma2", "bloom", "mamba"]


def questions(rows: int, head: int, seed: int = 0) -> list[TokenSpan]:
    """Four choices a question behind a common head, sorted as the kit sorts them."""
    chance = random.Random(seed)

    def ids(least: int, most: int) -> list[int]:
        return [chance.randrange(3, VOCAB) for _ in range(chance.randint(least, most))]

    begin = [1, *ids(head, head)]
    spans: list[TokenSpan] = []
    for _ in range(rows):
        context = begin + ids(3, 20)
        spans += [TokenSpan(context + ids(1, 5), len(context)) for _ in range(4)]
    spans.append(TokenSpan([1, *ids(WINDOW, WINDOW)], 1))
    return sorted(spans, key=lambda span: list(span.token_ids))


def score_plainly(model: Any, span: TokenSpan) -> TokenScore:
    with torch.no_grad():
        logits = model(torch.tensor([list(span.fed)])).logits[0, span.start - 1 :]
    logprobs = logits.log_softmax(-1)
    targets = torch.tensor(list(span.token_ids[span.start :]))
    chosen = logprobs.gather(1, targets[:, None])[:, 0]
    return TokenScore(chosen.tolist(), bool((chosen >= logprobs.amax(-1)).all()))


def collect_scores(scorer: Scorer, spans: Sequence[TokenSpan]) -> list[TokenScore]:
    return [score for step in scorer.score(spans) for score in step]


def assert_close(found: list[TokenScore], right: list[TokenScore], tolerance: float) -> None:
    assert len(found) == len(right)
    for one, other in zip(found, right, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=tolerance, rel=0)
        assert one.is_greedy == other.is_greedy


def count_tokens(model: Any, run: Callable[[], object]) -> int:
    total = 0

    def count(_: Any, args: Any, inputs: dict[str, Any]) -> None:
        nonlocal total
        total += inputs["input_ids"].numel()

    handle = model.base_model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        run()
    finally:
        handle.remove()
    return total


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_any_size_of_pass_scores_as_the_plain_forward(
    random_model: Callable[..., Any], kind: str, dtype: torch.dtype
) -> None:
    model = random_model(kind, dtype, "eager" if kind == "gemma2" else "sdpa")
    spans = questions(rows=5, head=20)
    right = [score_plainly(model, span) for span in spans]
    # Some of upstream's own arithmetic is in float32 whatever the dtype.
    tolerance = 1e-4 if kind in ("mamba", "bloom", "gemma2") else TOLERANCES[dtype]
    for tokens in (1, 9, 64, 4096):
        scorer = make_scorer(model, probe_architecture(model, WINDOW), pass_tokens=tokens)
        assert_close(collect_scores(scorer, spans), right, tolerance)
        assert_close(collect_scores(scorer, spans), right, tolerance)


@pytest.mark.parametrize(
    ("kind", "attention", "packs", "reason"),
    [
        ("llama", "sdpa", True, None),
        ("llama", "eager", True, None),
        ("gpt2", "sdpa", True, None),
        ("gemma2", "eager", True, None),
        ("mistral", "sdpa", False, "16 tokens back"),
        ("mamba", "eager", False, "no positions of ours"),
        ("bloom", "eager", False, "no positions of ours"),
        ("falcon", "eager", False, "differ when prefixes are shared"),
    ],
)
def test_prefixes_are_shared_where_the_model_allows_it(
    random_model: Callable[..., Any], kind: str, attention: str, packs: bool, reason: str | None
) -> None:
    found = probe_architecture(random_model(kind, torch.float32, attention), WINDOW)
    assert found.shares_prefixes is packs
    assert found.obstacle is None if reason is None else reason in str(found.obstacle)


def test_a_window_within_the_reach_of_attention_shares_prefixes(
    random_model: Callable[..., Any],
) -> None:
    assert probe_architecture(random_model("mistral"), 16).shares_prefixes


@pytest.mark.parametrize("tokens", [128, 512])
def test_shared_prefixes_are_forwarded_once(random_model: Callable[..., Any], tokens: int) -> None:
    model = random_model("llama")
    spans = [span for span in questions(rows=40, head=90) if span.start > 1]
    scorer = make_scorer(model, probe_architecture(model, WINDOW), pass_tokens=tokens)
    forwarded = count_tokens(model, lambda: collect_scores(scorer, spans))
    assert forwarded <= 1.05 * plan_scoring(spans).unique_tokens


def test_the_next_call_reuses_the_cached_prefix(random_model: Callable[..., Any]) -> None:
    model = random_model("llama")
    spans = [span for span in questions(rows=12, head=90) if span.start > 1]
    scorer = make_scorer(model, probe_architecture(model, WINDOW), pass_tokens=96)
    first = count_tokens(model, lambda: collect_scores(scorer, spans[:24]))
    second = count_tokens(model, lambda: collect_scores(scorer, spans[24:]))
    assert second <= plan_scoring(spans[24:]).unique_tokens - 85
    scorer.forget()
    assert count_tokens(model, lambda: collect_scores(scorer, spans[:24])) == first
    assert_close(
        collect_scores(scorer, spans), [score_plainly(model, span) for span in spans], 1e-4
    )


def test_weights_that_change_between_calls_are_used(random_model: Callable[..., Any]) -> None:
    model = random_model("llama")
    spans = [span for span in questions(rows=4, head=90) if span.start > 1]
    scorer = make_scorer(
        model, probe_architecture(model, WINDOW), pass_tokens=96, keeps_prefix=False
    )
    collect_scores(scorer, spans)
    weight = model.model.layers[0].self_attn.k_proj.weight
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.mul_(1.5)
        right = [score_plainly(model, span) for span in spans]
        assert_close(collect_scores(scorer, spans), right, 1e-4)
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def limit_tokens(model: Any, most: int) -> Any:
    """Makes a pass over more than `most` tokens fail, after its first layer has run."""

    def check(_: Any, args: Any, inputs: dict[str, Any], __: Any) -> None:
        states = inputs["hidden_states"] if "hidden_states" in inputs else args[0]
        if states.shape[0] * states.shape[1] > most:
            raise torch.OutOfMemoryError

    return model.model.layers[0].register_forward_hook(check, with_kwargs=True)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("head", [2, 40])
def test_rows_of_trees_score_as_sequences_alone(
    random_model: Callable[..., Any], head: int, ahead: int
) -> None:
    from evalution_transformers.forward import Forward
    from evalution_transformers.score import PrefixScorer

    model = random_model("llama")
    spans = questions(rows=12, head=head)
    scorer = PrefixScorer(Forward(model), pass_tokens=160, row_tokens=32)
    scorer._passes_ahead = ahead
    rows: list[int] = []

    def note(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        rows.append(len(inputs["input_ids"]))

    hook = model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        found = collect_scores(scorer, spans)
    finally:
        hook.remove()
    assert_close(found, [score_plainly(model, span) for span in spans], 1e-4)
    assert max(rows) > 2


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_out_of_memory_halves_this_and_later_passes(
    random_model: Callable[..., Any], kind: str
) -> None:
    from evalution_transformers.forward import Forward
    from evalution_transformers.score import PaddedScorer, PrefixScorer

    model = random_model(kind)
    spans = questions(rows=8, head=40)
    right = [score_plainly(model, span) for span in spans]
    forward = Forward(model)
    scorer: Scorer
    if kind == "llama":
        scorer = PrefixScorer(forward, pass_tokens=1024)
    else:
        scorer = PaddedScorer(forward, pass_tokens=1024)
    failures = 0

    def count(_: Any, args: Any, inputs: dict[str, Any]) -> None:
        nonlocal failures
        failures += inputs["input_ids"].numel() > 140

    hooks = [
        limit_tokens(model, 140),
        model.base_model.register_forward_pre_hook(count, with_kwargs=True),
    ]
    try:
        assert_close(collect_scores(scorer, spans), right, 1e-4)
        assert failures
        seen, failures = failures, 0
        assert_close(collect_scores(scorer, spans), right, 1e-4)
        assert failures < seen
    finally:
        for hook in hooks:
            hook.remove()


def test_out_of_memory_for_one_token_is_the_runtimes_error_and_leaves_passes_as_large(
    random_model: Callable[..., Any],
) -> None:
    from evalution_transformers.forward import Forward
    from evalution_transformers.score import PrefixScorer

    model = random_model("llama")
    scorer = PrefixScorer(Forward(model), pass_tokens=64)
    hook = limit_tokens(model, 0)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            collect_scores(scorer, questions(rows=1, head=2))
    finally:
        hook.remove()
    assert scorer._pass_tokens == 64


def test_a_prefix_outlives_a_reader_that_takes_all_scores_and_leaves(
    random_model: Callable[..., Any],
) -> None:
    from evalution_transformers.forward import Forward
    from evalution_transformers.score import PrefixScorer

    model = random_model("llama")
    chance = random.Random(0)
    answers = [[chance.randrange(3, VOCAB) for _ in range(20)] for _ in range(12)]
    spans = [TokenSpan([*range(3, 43), *answer], 40) for answer in answers]
    scorer = PrefixScorer(Forward(model), pass_tokens=128)
    fed = 0

    def count(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        nonlocal fed
        fed += inputs["input_ids"].numel()

    hook = model.base_model.register_forward_pre_hook(count, with_kwargs=True)
    fed_by: list[int] = []
    found: list[TokenScore] = []
    try:
        for _ in range(2):
            fed, found = 0, []
            steps: Any = scorer.score(spans)
            while len(found) < len(spans):
                found += next(steps)
            steps.close()
            fed_by.append(fed)
    finally:
        hook.remove()
    assert fed_by[0] - fed_by[1] > 30
    assert_close(found, [score_plainly(model, span) for span in spans], 1e-4)


def test_scoring_comes_to_its_end_beside_a_call_that_takes_every_other_turn(
    random_model: Callable[..., Any],
) -> None:
    model = random_model("llama")
    spans = [TokenSpan([*range(3, 80)], 1)]
    scorer = make_scorer(model, probe_architecture(model, WINDOW), pass_tokens=16)
    found: list[TokenScore] = []
    steps = scorer.score(spans)
    for _ in range(20):
        found += next(steps, [])
        if found:
            break
        next(scorer.compute_rows([TokenSpan([*range(5, 60)], 50)]))
    assert_close(found, [score_plainly(model, spans[0])], 1e-4)


def test_a_failed_pass_does_not_change_later_scores(random_model: Callable[..., Any]) -> None:
    model = random_model("llama")
    spans = [span for span in questions(rows=6, head=60) if span.start > 1]
    right = [score_plainly(model, span) for span in spans]
    for fails_at in (1, 2, 3):
        scorer = make_scorer(model, probe_architecture(model, WINDOW), pass_tokens=48)
        passes = 0

        def fail(*_: Any, at: int = fails_at) -> None:
            nonlocal passes
            passes += 1
            if passes == at:
                raise RuntimeError("planted")

        hook = model.model.layers[1].register_forward_pre_hook(fail)
        try:
            with pytest.raises(RuntimeError, match="planted"):
                collect_scores(scorer, spans)
            assert_close(collect_scores(scorer, spans), right, 1e-4)
        finally:
            hook.remove()


def test_narrow_logits_are_scored_in_float32() -> None:
    logits = (torch.randn(64, 4096, generator=torch.Generator().manual_seed(5)) * 6).bfloat16()
    right = logits.double().log_softmax(dim=-1)
    rows, targets = torch.arange(64), torch.arange(64) * 60
    chosen, _ = _score_targets(logits, rows, targets)
    assert (chosen.double() - right[rows, targets]).abs().max() < 1e-4
    value, top = rank_logprobs(logits[0], 7, 3)
    assert abs(value - right[0, 7]) < 1e-4
    assert len(top) == 3
    assert all(abs(found - right[0, token_id]) < 1e-4 for token_id, found in top.items())


def test_mask_of_a_tree_is_made_on_the_device_that_reads_it() -> None:
    given = [[3, 3, 3], [2, 2, 3]], 1
    assert make_tree_mask(*given, torch.device("meta")).is_meta
    chain, apart = make_tree_mask(*given)[:, 0].int().tolist()
    assert chain == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert apart == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]
