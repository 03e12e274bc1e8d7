"""Figures of sampled tokens, and what is known of a model in training, without any runtime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

np: Any = pytest.importorskip("numpy", reason="NumPy is not installed")

from evalution.fidelity.lockstep import Blocks  # noqa: E402 - after the skip
from evalution.fidelity.requests import Window  # noqa: E402
from evalution_core import (  # noqa: E402
    Capability,
    ConfigurationError,
    GenerationOutput,
    GenerationRequest,
    Model,
)
from evalution_enginekit.mock import Mock  # noqa: E402
from evalution_training.rollout import RolloutCheck  # noqa: E402
from evalution_training.rollout_samples import (  # noqa: E402
    NEEDED,
    Samples,
    measure_samples,
    sample_tokens,
)
from evalution_training.training_side import TrainingSide  # noqa: E402

END = 0
TOKENS = 1000


def make_row(end: float) -> Any:
    """Log-probabilities of all tokens, of which `end` ends a text."""
    weights = 1 / np.arange(1, TOKENS + 1) ** 0.7
    weights[END] = 0
    weights *= (1 - end) / weights.sum()
    weights[END] = end
    return np.log(weights).astype(np.float32)


class Training:
    """Has the same distribution at each position."""

    def read(self, windows: Sequence[Window]) -> Blocks:
        for at, window in enumerate(windows):
            yield at, np.tile(make_row(0.05), (len(window.scored_ids), 1))


class Server:
    """Samples from its distribution, and leaves out a token that ends a text, as engines do."""

    capabilities = frozenset(Capability)

    def __init__(self, row: Any):
        self._row = row
        self._random = np.random.default_rng(1)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        return [self._complete(request) for request in requests]

    def _complete(self, request: GenerationRequest) -> GenerationOutput:
        weights = np.exp(self._row.astype(np.float64))
        ids = self._random.choice(TOKENS, request.max_new_tokens, p=weights / weights.sum())
        found: list[int] = ids.tolist()
        if END in found and not request.ignore_eos:
            found = found[: found.index(END)]
        logprobs = [float(self._row[each]) for each in found]
        return GenerationOutput("", "", token_ids=found, token_logprobs=logprobs)


def sample(row: Any, count: int) -> Any:
    server: Any = Server(row)
    found = sample_tokens(server, [Window([5, *range(1, 40)], 1)], count, 1.0, 0)
    assert found is not None
    return measure_samples(Training(), found, 1.0)


def test_tokens_that_end_a_text_are_among_the_samples() -> None:
    """Without them a text that may end everywhere would seem to be sampled warmer than it is."""
    found = sample(make_row(0.05), 32 * 400)
    assert found.tokens == 32 * 400
    assert abs(found.z) < 3
    assert found.temperature == pytest.approx(1, abs=0.02)
    assert (found.k1, found.k3) == (0, 0)


def test_temperature_of_few_samples_is_a_possible_one() -> None:
    class Sure:
        """Is nearly sure of the first token."""

        def read(self, windows: Sequence[Window]) -> Blocks:
            for at, window in enumerate(windows):
                yield at, np.log(np.tile(np.float32([[0.99, 0.01]]), (len(window.scored_ids), 1)))

    found = measure_samples(Sure(), Samples([Window([0] * 31 + [1, 1], 1)], None), 1.0)
    assert found is not None
    assert abs(found.z) < 4
    assert found.temperature == 2.0


def test_server_that_ends_texts_more_often_has_the_divergence_that_it_has() -> None:
    row = make_row(0.1)
    exact = float((np.exp(row) * (row - make_row(0.05))).sum())
    found = sample(row, 32 * 1000)
    assert found.k1 == pytest.approx(exact, rel=0.2)
    assert found.k3 == pytest.approx(exact, rel=0.2)


def test_server_that_cannot_go_on_after_an_end_gives_no_samples() -> None:
    assert Capability.IGNORE_EOS in NEEDED
    server: Any = SimpleNamespace(capabilities=NEEDED - {Capability.IGNORE_EOS})
    assert sample_tokens(server, [Window([5, 6], 1)], 32, 1.0, 0) is None


class _Model:
    def __init__(self, dtype: str, device: str):
        self._weights = SimpleNamespace(dtype=dtype, device=SimpleNamespace(type=device))

    def parameters(self) -> Any:
        return iter([self._weights])

    def to(self, dtype: Any, /) -> Any:
        raise NotImplementedError


def test_wider_dtype_is_one_that_the_device_has() -> None:
    def find(dtype: str, device: str) -> str | None:
        return TrainingSide(Mock(), {"model": _Model(dtype, device)}, None).wider_dtype

    assert find("torch.float32", "cpu") == "float64"
    assert find("torch.bfloat16", "mps") == "float32"
    assert find("torch.float64", "cpu") is None
    message = "in float64, which Apple's MPS doesn't have: give RolloutCheck a tolerance"
    with pytest.raises(ConfigurationError, match=message):
        find("torch.float32", "mps")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": -1.0}, "tolerance must be a finite number from 0, in nats, got -1.0"),
        ({"tolerance": math.inf}, "must be a finite number from 0, in nats, got inf"),
        ({"tolerance": math.nan}, "must be a finite number from 0, in nats, got nan"),
        ({"temperature": 0.0}, "temperature must be a number above 0, got 0.0"),
        ({"samples": -1}, "samples must be a number of tokens from 0, got -1"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RolloutCheck(Mock(), {}, Mock().build(Model("m")), "A text.", **options)
